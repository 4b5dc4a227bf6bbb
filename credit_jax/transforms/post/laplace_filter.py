"""`laplace_filter`: gen1's filter of noise near the poles and of divergence."""

from __future__ import annotations

import dataclasses
from typing import Any

from pydantic import NonNegativeInt

from credit_jax.config import StrictModel
from credit_jax.named_fields import FieldContext
from credit_jax.physics.arrays import namespace
from credit_jax.physics.laplace_filter import (
    SMALLEST_GRID,
    filter_scalar,
    filter_wind,
)
from credit_jax.physics.rows import all_rows
from credit_jax.transforms.base import FieldTree, Transform
from credit_jax.transforms.named import get_field, with_fields


class ScalarArgs(StrictModel):
    """A group of variables of `laplace_filter`.

    Attributes:
        variables: their keys.
        steps: steps of diffusion.
        strength: diffusion of a step, m^2.
    """

    variables: tuple[str, ...]
    steps: NonNegativeInt = 5
    strength: float = 1e8


class WindArgs(StrictModel):
    """A wind of `laplace_filter`.

    Attributes:
        u, v: keys of its components.
        steps: steps of diffusion of its divergence.
    """

    u: str
    v: str
    steps: NonNegativeInt = 6


class LaplaceFilterArgs(StrictModel):
    """Damps noise near the poles and divergence, as gen1's `use_laplace_filter`.

    Attributes:
        winds: the winds.
        scalars: groups of other variables.
        key: entry to change.
    """

    winds: tuple[WindArgs, ...] = ()
    scalars: tuple[ScalarArgs, ...] = ()
    key: str = "y_processed"


@dataclasses.dataclass(frozen=True)
class LaplaceFilter(Transform):
    """Filters fields in physical units, as gen1's `use_laplace_filter`.

    Attributes:
        args: see `LaplaceFilterArgs`.
    """

    args: LaplaceFilterArgs

    def __call__(
        self, tree: FieldTree, context: FieldContext | None = None
    ) -> dict[str, Any]:
        """Replaces the variables; rows are gathered, as the filter is global.

        Raises:
            ValueError: a variable is missing, or the grid is too small.

        Differs from CREDIT: its functions name variables by the channels of models of
        16 levels; here the config names them.
        """
        fixed: dict[str, Any] = {}
        for wind in self.args.winds:
            keys = wind.u, wind.v
            parts = [self._whole(tree, key, context) for key in keys]
            both = filter_wind(parts[0], parts[1], wind.steps)
            fixed |= dict(zip(keys, both, strict=True))
        for group in self.args.scalars:
            for key in group.variables:
                whole = self._whole(tree, key, context)
                fixed[key] = filter_scalar(whole, group.steps, group.strength)
        local = {key: _rows_of_shard(field, context) for key, field in fixed.items()}
        return with_fields(tree, self.args.key, local)

    def _whole(self, tree: FieldTree, key: str, context: FieldContext | None) -> Any:
        field = all_rows(get_field(tree, self.args.key, key), context)
        shape, least = field.shape[-2:], SMALLEST_GRID
        if shape[0] < least[0] or shape[1] < least[1]:
            raise ValueError(
                f"laplace_filter: the grid has {shape[0]} x {shape[1]} points; the "
                f"filter takes ten rows at each pole, and needs {least[0]} rows"
            )
        return field


def _rows_of_shard(field: Any, context: FieldContext | None) -> Any:
    """The local rows of a whole field."""
    if context is None:
        return field
    xp = namespace(field)
    return xp.moveaxis(context.local_rows(xp.moveaxis(field, -2, 0)), 0, -2)
