"""`exp_transform`: the inverse of the preblock `log_transform`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import PositiveFloat

from credit_jax.config.base import StrictModel
from credit_jax.named_fields import FieldContext
from credit_jax.transforms.base import FieldTree, change_entry
from credit_jax.transforms.pointwise import Base, shifted_exp
from credit_jax.transforms.selection import Selection, Variables


class ExpArgs(StrictModel):
    """Arguments of `exp_transform`.

    Attributes:
        variables: selected variables, see `Selection`.
        eps: `eps` of the `log_transform`.
        base: `base` of the `log_transform`.
        key: entry to change.
    """

    variables: Variables
    eps: PositiveFloat = 1e-8
    base: Base = "e"
    key: str = "y_processed"


@dataclass(frozen=True)
class ExpTransform:
    """Computes `base ^ (y + log_base(eps)) - eps` for selected variables.

    Attributes:
        args: see `ExpArgs`.
    """

    args: ExpArgs

    @property
    def selection(self) -> Selection:
        """See `Selects`."""
        return Selection(self.args.variables)

    def __call__(
        self, tree: FieldTree, context: FieldContext | None = None
    ) -> dict[str, Any]:
        """Replaces selected fields of the entry `key`."""
        selected, args = self.selection, self.args

        def change(key: str, y: Any) -> Any:
            return shifted_exp(y, base=args.base, eps=args.eps) if selected(key) else y

        return change_entry(tree, change, args.key, "exp_transform")
