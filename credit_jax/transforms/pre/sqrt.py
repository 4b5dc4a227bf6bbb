"""`sqrt_transform`: the square root."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from credit_jax.config.base import StrictModel
from credit_jax.named_fields import FieldContext
from credit_jax.transforms.base import FieldTree, map_fields
from credit_jax.transforms.pointwise import is_numpy
from credit_jax.transforms.selection import DataType, Selection, Variables


class SqrtArgs(StrictModel):
    """Arguments of `sqrt_transform`.

    Attributes:
        variables: selected variables, see `Selection`.
        data_types: entries to change.
    """

    variables: Variables
    data_types: tuple[DataType, ...] = ("input", "target")


@dataclass(frozen=True)
class SqrtTransform:
    """Computes sqrt(x) for selected variables; NaN below 0.

    Attributes:
        args: see `SqrtArgs`.
    """

    args: SqrtArgs

    @property
    def selection(self) -> Selection:
        """See `Selects`."""
        return Selection(self.args.variables)

    def __call__(
        self, tree: FieldTree, context: FieldContext | None = None
    ) -> dict[str, Any]:
        """Transforms the fields of input and target."""
        return self._map(tree, _root)

    def inverse(
        self, tree: FieldTree, context: FieldContext | None = None
    ) -> dict[str, Any]:
        """Inverts the transform by squaring."""
        return self._map(tree, lambda x: x * x)

    def _map(self, tree: FieldTree, function: Any) -> dict[str, Any]:
        selected = self.selection
        return map_fields(
            tree,
            lambda key, x: function(x) if selected(key) else x,
            self.args.data_types,
        )


def _root(x: Any) -> Any:
    if is_numpy(x):
        with np.errstate(invalid="ignore"):
            return np.sqrt(x)
    return jnp.sqrt(x)
