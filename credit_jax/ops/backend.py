"""The backend that a program is written for; on CPU some of it takes other ways."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import jax

_CHOSEN: ContextVar[str | None] = ContextVar("backend", default=None)


def on_cpu() -> bool:
    """Whether what is traced now is for a CPU."""
    return (_CHOSEN.get() or jax.default_backend()) == "cpu"


@contextmanager
def written_for(backend: str) -> Iterator[None]:
    """Trace a program as for another backend than JAX's default.

    The results are the same. It lets a program for accelerators be read, or be tested,
    on a CPU.

    Args:
        backend: as `jax.default_backend()` names it, such as "gpu".
    """
    token = _CHOSEN.set(backend)
    try:
        yield
    finally:
        _CHOSEN.reset(token)
