"""Elementwise blocks: logarithm, root and their inverses, and values to fill.

Their formulas are for numpy and JAX arrays, on the host and traced.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal, TypeAlias

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Shaped
from pydantic import PositiveFloat

from credit_jax.config import StrictModel
from credit_jax.physics.arrays import namespace
from credit_jax.transforms.base import (
    FieldTree,
    InputBlock,
    OfVariables,
    OutputBlock,
    StepContext,
    Variables,
    change_entry,
    map_fields,
    postblock,
    preblock,
)

Base: TypeAlias = Literal["e", "2", "10"]

_LOG = {"e": "log", "2": "log2", "10": "log10"}
_NUMBER = {"e": math.e, "2": 2.0, "10": 10.0}
_COMPARE: Mapping[str, Callable[[Any, float], Any]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def standardize(
    x: Shaped[Any, "batch level time lat lon"],
    shift: Shaped[np.ndarray, ...],
    factor: Shaped[np.ndarray, ...],
    local_rows: Callable[..., Any] | None = None,
) -> Shaped[Any, "batch level time lat lon"]:
    """Computes `(x - shift) / factor`, in the dtype of x for JAX arrays."""
    # Shift and factor are broadcast to x, or to the whole field that x is a shard of,
    # of which `local_rows` selects the rows.
    if namespace(x) is np:
        return (x - shift) / factor
    # In float32 a float64 shift is two numbers: rounded to one, a mean of 280 K would
    # be off by 1e-6 deviations.
    rounded = np.asarray(shift, x.dtype)
    remainder, divisor = (
        np.asarray(part, x.dtype) for part in (shift - rounded, factor)
    )
    if local_rows is not None:
        rounded, remainder = local_rows(rounded), local_rows(remainder)
        divisor = local_rows(divisor, fill=1)
    rounded, remainder, divisor = (
        jnp.broadcast_to(jnp.asarray(part), x.shape)
        for part in (rounded, remainder, divisor)
    )
    # XLA adds constants that follow one another, that of a denormalization included,
    # and multiplies by the reciprocal of what is broadcast: each rounds otherwise.
    rounded, remainder, divisor = lax.optimization_barrier(
        (rounded, remainder, divisor)
    )
    moved = x - rounded if shift.dtype == x.dtype else (x - rounded) - remainder
    return moved / divisor


class _Elementwise(OfVariables):
    """A function of single values, and what undoes it, both of a field."""

    formula: ClassVar[Callable[..., Any]]
    undone: ClassVar[Callable[..., Any]]


class _Log(_Elementwise):
    """The formula `log_base(x + eps) - log_base(eps)`.

    Attributes:
        base: base of the logarithm.
        eps: offset that is added to the values, in their unit.
    """

    base: Base = "e"
    eps: PositiveFloat = 1e-8

    def formula(self, x: Any) -> Any:
        """Computes the formula, which is 0 at 0 and NaN below -eps."""
        # For numpy arrays, the logarithm is computed in float64 and rounded once.
        name, x = _LOG[self.base], x + self.eps
        offset = getattr(math, name)(self.eps)
        if namespace(x) is jnp:
            return getattr(jnp, name)(x) - offset
        with np.errstate(invalid="ignore", divide="ignore"):
            return getattr(np, name)(x, dtype=np.float64).astype(x.dtype) - offset

    def undone(self, y: Any) -> Any:
        """Computes `base ^ (y + log_base(eps)) - eps`."""
        y = y + getattr(math, _LOG[self.base])(self.eps)
        is_e, number = self.base == "e", _NUMBER[self.base]
        if namespace(y) is jnp:
            power = jnp.exp(y) if is_e else jnp.power(number, y)
            return power - self.eps
        with np.errstate(over="ignore"):
            wide = y.astype(np.float64)
            power = np.exp(wide) if is_e else np.power(number, wide)
            return power.astype(y.dtype) - self.eps


class _Root(_Elementwise):
    """The square root; NaN below 0."""

    def formula(self, x: Any) -> Any:
        with np.errstate(invalid="ignore"):
            return namespace(x).sqrt(x)

    def undone(self, y: Any) -> Any:
        return y * y


class _Preblock(_Elementwise, InputBlock):
    """An elementwise preblock."""

    def __call__(self, tree: FieldTree, context: StepContext = None) -> dict[str, Any]:
        """Applies the formula to the selected variables of input and target."""
        return map_fields(tree, self.applying(self.formula), self.data_types)

    def inverse(self, tree: FieldTree, context: StepContext = None) -> dict[str, Any]:
        return map_fields(tree, self.applying(self.undone), self.data_types)


class _Postblock(_Elementwise, OutputBlock):
    """A postblock that undoes an elementwise preblock."""

    def __call__(self, tree: FieldTree, context: StepContext = None) -> dict[str, Any]:
        """Replaces selected fields of the entry `key`."""
        return change_entry(tree, self.applying(self.undone), self.key)


@preblock("log_transform")
class LogTransform(_Log, _Preblock):
    """`log_base(x + eps) - log_base(eps)` of selected variables."""

    undone_by: ClassVar = "exp_transform"


@preblock("sqrt_transform")
class SqrtTransform(_Root, _Preblock):
    """Square root of selected variables."""

    undone_by: ClassVar = "square_transform"


@postblock("exp_transform")
class ExpTransform(_Log, _Postblock):
    """Undoes `log_transform`, with its `eps` and `base`."""


@postblock("square_transform")
class SquareTransform(_Root, _Postblock):
    """Undoes `sqrt_transform`."""


class FillRule(StrictModel):
    """One rule of `fill_values`.

    Attributes:
        search: "nan", or a number to compare values with by `op`.
        op: comparison; NaN never matches a number, not even by "!=".
        fill: the new value.
    """

    search: Literal["nan"] | float
    op: Literal["==", "!=", "<", "<=", ">", ">="] = "=="
    fill: float


@preblock("fill_values")
class FillValues(_Preblock):
    """Replaces values that match a rule by a constant.

    Attributes:
        rules: rules, each of which is matched against the original values; the last one
            that matches is applied.
    """

    keeps_units: ClassVar = True
    may_repeat: ClassVar = True

    rules: tuple[FillRule, ...]
    variables: Variables = ()

    def formula(self, x: Any) -> Any:
        xp = namespace(x)
        missing, filled = xp.isnan(x), x
        for rule in self.rules:
            match = missing
            if rule.search != "nan":
                match = ~missing & _COMPARE[rule.op](x, float(rule.search))
            filled = xp.where(match, xp.asarray(rule.fill, x.dtype), filled)
        return filled

    def undone(self, y: Any) -> Any:
        """Returns the field, since filled values have the same units."""
        return y
