"""`log_transform`: log_base(x + eps) - log_base(eps)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import PositiveFloat

from credit_jax.config.base import StrictModel
from credit_jax.named_fields import FieldContext
from credit_jax.transforms.base import FieldTree, map_fields
from credit_jax.transforms.pointwise import Base, shifted_exp, shifted_log
from credit_jax.transforms.selection import DataType, Selection, Variables


class LogArgs(StrictModel):
    """Arguments of `log_transform`.

    Attributes:
        variables: selected variables, see `Selection`.
        data_types: entries to change.
        base: base of the logarithm.
        eps: offset that is added to the values, in their unit.
    """

    variables: Variables
    data_types: tuple[DataType, ...] = ("input", "target")
    base: Base = "e"
    eps: PositiveFloat = 1e-8


@dataclass(frozen=True)
class LogTransform:
    """Computes `log_base(x + eps) - log_base(eps)` for selected variables.

    Attributes:
        args: see `LogArgs`.
    """

    args: LogArgs

    @property
    def selection(self) -> Selection:
        """See `Selects`."""
        return Selection(self.args.variables)

    def __call__(
        self, tree: FieldTree, context: FieldContext | None = None
    ) -> dict[str, Any]:
        """Transforms the fields of input and target."""
        return self._map(tree, shifted_log)

    def inverse(
        self, tree: FieldTree, context: FieldContext | None = None
    ) -> dict[str, Any]:
        """Inverts the transform."""
        return self._map(tree, shifted_exp)

    def _map(self, tree: FieldTree, function: Any) -> dict[str, Any]:
        selected, args = self.selection, self.args

        def change(key: str, x: Any) -> Any:
            return function(x, base=args.base, eps=args.eps) if selected(key) else x

        return map_fields(tree, change, args.data_types)
