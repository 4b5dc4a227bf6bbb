"""Elementwise blocks: logarithm and root, and the postblocks that undo them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import PositiveFloat

from credit_jax.config import StrictModel
from credit_jax.named_fields import FieldContext
from credit_jax.transforms.base import FieldTree, OfVariables, change_entry, map_fields
from credit_jax.transforms.pointwise import Base, root, shifted_exp, shifted_log
from credit_jax.transforms.selection import DataType, Variables


class _LogFormula(StrictModel):
    """The formula `log_base(x + eps) - log_base(eps)`.

    Attributes:
        base: base of the logarithm.
        eps: offset that is added to the values, in their unit.
    """

    base: Base = "e"
    eps: PositiveFloat = 1e-8

    def formula(self, x: Any) -> Any:
        """Computes the formula."""
        return shifted_log(x, base=self.base, eps=self.eps)

    def undone(self, y: Any) -> Any:
        """Computes `base ^ (y + log_base(eps)) - eps`."""
        return shifted_exp(y, base=self.base, eps=self.eps)


class _Root(StrictModel):
    """The square root; NaN below 0."""

    def formula(self, x: Any) -> Any:
        """Computes the root."""
        return root(x)

    def undone(self, y: Any) -> Any:
        """Computes the square."""
        return y * y


class _Before(StrictModel):
    """Arguments of an elementwise preblock.

    Attributes:
        variables: selected variables, see `Selection`.
        data_types: entries to change.
    """

    variables: Variables
    data_types: tuple[DataType, ...] = ("input", "target")


class _After(StrictModel):
    """Arguments of a postblock that undoes an elementwise preblock.

    Attributes:
        variables: selected variables, see `Selection`.
        key: entry to change.
    """

    variables: Variables
    key: str = "y_processed"


class LogArgs(_LogFormula, _Before):
    """`log_base(x + eps) - log_base(eps)` of selected variables."""


class SqrtArgs(_Root, _Before):
    """Square root of selected variables."""


class ExpArgs(_LogFormula, _After):
    """Undoes `log_transform`, with its `eps` and `base`."""


class SquareArgs(_Root, _After):
    """Undoes `sqrt_transform`."""


@dataclass(frozen=True)
class PointwisePreblock(OfVariables):
    """Applies a formula to selected variables of input and target.

    Attributes:
        args: the variables and the formula.
    """

    args: LogArgs | SqrtArgs

    def __call__(
        self, tree: FieldTree, context: FieldContext | None = None
    ) -> dict[str, Any]:
        """Applies the formula."""
        change = self.selection.applying(self.args.formula)
        return map_fields(tree, change, self.args.data_types)

    def inverse(
        self, tree: FieldTree, context: FieldContext | None = None
    ) -> dict[str, Any]:
        """Undoes the formula."""
        change = self.selection.applying(self.args.undone)
        return map_fields(tree, change, self.args.data_types)


@dataclass(frozen=True)
class PointwisePostblock(OfVariables):
    """Undoes a formula for selected variables of one entry.

    Attributes:
        name: type of the block, for errors.
        args: the variables and the formula.
    """

    name: str
    args: ExpArgs | SquareArgs

    def __call__(
        self, tree: FieldTree, context: FieldContext | None = None
    ) -> dict[str, Any]:
        """Replaces selected fields of the entry `args.key`."""
        change = self.selection.applying(self.args.undone)
        return change_entry(tree, change, self.args.key, self.name)
