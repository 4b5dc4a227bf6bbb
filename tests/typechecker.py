"""The run-time type checker of the jaxtyping hook, see addopts in pyproject.toml."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from beartype import BeartypeConf, beartype

# An int is valid where a float is annotated, as in pyright.
_decorate = beartype(conf=BeartypeConf(is_pep484_tower=True))
_checks: dict[Any, Callable[..., Any]] = {}


def check(signature: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that raises for arguments of wrong types.

    The check is created by its first call: the packages have 8,700 annotated functions,
    of which a file of tests calls few. A nested function is defined anew in each call
    of the outer one, and creating its check takes milliseconds: equal signatures of the
    same code share a check.

    Args:
        signature: a function without a body, whose annotations are resolved.
    """

    created = None

    def checked(*args: Any, **kwargs: Any) -> Any:
        nonlocal created
        if created is None:
            # Equal annotations are different classes of jaxtyping, of equal texts.
            texts = (
                signature.__module__,
                signature.__qualname__,
                signature.__annotations__,
            )
            key = signature.__code__, repr(texts)
            created = _checks.setdefault(key, _checks.get(key) or _decorate(signature))
        return created(*args, **kwargs)

    return checked
