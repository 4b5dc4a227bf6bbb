"""`square_transform`: the inverse of the preblock `sqrt_transform`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from credit_jax.config.base import StrictModel
from credit_jax.named_fields import FieldContext
from credit_jax.transforms.base import FieldTree, change_entry
from credit_jax.transforms.selection import Selection, Variables


class SquareArgs(StrictModel):
    """Arguments of `square_transform`.

    Attributes:
        variables: selected variables, see `Selection`.
        key: entry to change.
    """

    variables: Variables
    key: str = "y_processed"


@dataclass(frozen=True)
class SquareTransform:
    """Computes y^2 for selected variables.

    Attributes:
        args: see `SquareArgs`.
    """

    args: SquareArgs

    @property
    def selection(self) -> Selection:
        """See `Selects`."""
        return Selection(self.args.variables)

    def __call__(
        self, tree: FieldTree, context: FieldContext | None = None
    ) -> dict[str, Any]:
        """Replaces selected fields of the entry `key`."""
        selected = self.selection
        return change_entry(
            tree,
            lambda key, y: y * y if selected(key) else y,
            self.args.key,
            "square_transform",
        )
