"""`fill_values`: replaces values that match a rule by a constant."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import jax.numpy as jnp
import numpy as np

from credit_jax.config import StrictModel
from credit_jax.named_fields import FieldContext
from credit_jax.transforms.base import FieldTree, OfVariables, map_fields
from credit_jax.transforms.pointwise import is_numpy
from credit_jax.transforms.selection import DataType, Variables

_COMPARE: Mapping[str, Callable[[Any, float], Any]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


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


class FillArgs(StrictModel):
    """Replaces values that match a rule by a constant.

    Attributes:
        rules: rules, each of which is matched against the original values; the last one
            that matches is applied.
        variables: selected variables, see `Selection`.
        data_types: entries to change.
    """

    rules: tuple[FillRule, ...]
    variables: Variables = ()
    data_types: tuple[DataType, ...] = ("input", "target")


@dataclass(frozen=True)
class FillValues(OfVariables):
    """Replaces values of selected variables by rules.

    Attributes:
        args: see `FillArgs`.
    """

    args: FillArgs
    keeps_units: ClassVar = True

    def __call__(
        self, tree: FieldTree, context: FieldContext | None = None
    ) -> dict[str, Any]:
        """Replaces values in the fields of input and target."""
        change = self.selection.applying(self._filled)
        return map_fields(tree, change, self.args.data_types)

    def inverse(
        self, tree: FieldTree, context: FieldContext | None = None
    ) -> dict[str, Any]:
        """Returns a copy of the tree, since filled values have the same units."""
        return dict(tree)

    def _filled(self, x: Any) -> Any:
        module = np if is_numpy(x) else jnp
        missing, filled = module.isnan(x), x
        for rule in self.args.rules:
            match = missing
            if rule.search != "nan":
                match = ~missing & _COMPARE[rule.op](x, float(rule.search))
            filled = module.where(match, module.asarray(rule.fill, x.dtype), filled)
        return filled
