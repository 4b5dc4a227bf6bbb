"""`jax.custom_vjp` whose passes all have the matmul precision of the call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import jax


class custom_vjp:
    """`jax.custom_vjp`, traced with `jax.default_matmul_precision` as at the call.

    JAX traces both passes of `defvjp` where the gradient is taken, which may be outside
    of the context of the call. Arguments are positional.

    Args:
        function: function of arrays and of hashable arguments.
        nondiff_argnums: positions of the hashable arguments.
    """

    def __init__(
        self, function: Callable[..., Any], nondiff_argnums: Sequence[int] = ()
    ) -> None:
        static = (0, *(position + 1 for position in nondiff_argnums))
        self._function = jax.custom_vjp(_in_context(function), nondiff_argnums=static)

    def __call__(self, *args: Any) -> Any:
        config: Any = jax.config
        return self._function(config.jax_default_matmul_precision, *args)

    def defvjp(self, forward: Callable[..., Any], backward: Callable[..., Any]) -> None:
        """See `jax.custom_vjp.defvjp`."""
        self._function.defvjp(_in_context(forward), _in_context(backward))


def _in_context(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the function with a matmul precision as another first argument."""

    @wraps(function, assigned=("__name__", "__qualname__", "__doc__"))
    def traced(precision: str | None, *args: Any) -> Any:
        with jax.default_matmul_precision(precision):
            return function(*args)

    del traced.__wrapped__  # whose signature lacks the precision
    return traced
