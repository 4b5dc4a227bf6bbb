"""`square_transform`: undoes the preblock `sqrt_transform`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from credit_jax.config.base import StrictModel
from credit_jax.fields import FieldContext
from credit_jax.transforms.base import FieldTree, change_entry
from credit_jax.transforms.selection import Selection, Variables


class SquareArgs(StrictModel):
    """Arguments of `square_transform`.

    Attributes:
        variables: keys or the beginnings of keys; an empty list is all.
        key: entry whose fields are changed.
    """

    variables: Variables
    key: str = "y_processed"


@dataclass(frozen=True)
class SquareTransform:
    """y -> y^2 for some variables.

    Attributes:
        args: see `SquareArgs`.
    """

    args: SquareArgs

    @property
    def selection(self) -> Selection:
        """The variables that it changes."""
        return Selection(self.args.variables)

    def __call__(
        self, tree: FieldTree, context: FieldContext | None = None
    ) -> dict[str, Any]:
        """From roots to values, in the fields of `key`."""
        selected = self.selection
        return change_entry(
            tree,
            lambda key, y: y * y if selected(key) else y,
            self.args.key,
            "square_transform",
        )
