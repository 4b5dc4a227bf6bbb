"""`flatten_to_tensor`: joins named fields to y_pred, optionally scaled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
import numpy as np

from credit_jax.config import StrictModel
from credit_jax.io.errors import errors_of
from credit_jax.named_fields import FieldContext
from credit_jax.named_fields.bridgescaler import Scaler
from credit_jax.named_fields.coordinates import GridCoordinates
from credit_jax.transforms.base import (
    FieldTree,
    LevelFile,
    Transform,
    TreeSchema,
    change_entry,
)
from credit_jax.transforms.pointwise import is_numpy
from credit_jax.transforms.scaling import (
    Method,
    find_scalers,
    level_file,
    scale,
    scalers_at,
    target_scalers,
)


class FlattenArgs(StrictModel):
    """Joins named fields to one array of channels.

    Attributes:
        scaler_path: JSON file of fitted scalers; null does not scale.
        variables: whole keys of the variables to scale; null is all, an empty list
            none.
        method: "transform" or "inverse_transform".
        key: entry with the fields.
        out_key: entry for the array.
    """

    scaler_path: str | None = None
    variables: tuple[str, ...] | None = None
    method: Method = "transform"
    key: str = "y_processed"
    out_key: str = "y_pred"


@dataclass(frozen=True, eq=False)
class FlattenToTensor(Transform):
    """Joins fields in the order of the model's output; does not change the fields.

    Attributes:
        args: see `FlattenArgs`.
        scalers: {source: {key: scaler}} of the target; None does not scale.
    """

    args: FlattenArgs
    scalers: Mapping[str, Mapping[str, Scaler]] | None

    def __call__(
        self, tree: FieldTree, context: FieldContext | None = None
    ) -> dict[str, Any]:
        """Adds the entry `out_key`, (batch, channel, time, lat, lon).

        Args:
            tree: has the fields and "channel_map".
            context: context of a traced step; None on the host.

        Raises:
            ValueError: the fields are missing, or a field has no scaler or one of
                another size.
        """
        args, slices = self.args, tree["channel_map"]

        def change(key: str, x: Any) -> Any:
            if self.scalers is None or key not in slices or not self._selects(key):
                return x
            path = str(args.scaler_path)
            where = f"the target scalers of {path}"
            (scaler,) = find_scalers(self.scalers, [key], where).values()
            with errors_of(path, key):
                return scale(scaler, x, args.method, context=context)

        scaled = change_entry(tree, change, args.key, "flatten_to_tensor")[args.key]
        order = sorted(slices, key=lambda key: slices[key].start)
        fields = [scaled[key.split("/")[0]][key] for key in order]
        module = np if all(map(is_numpy, fields)) else jnp
        return {**tree, args.out_key: module.concatenate(fields, axis=1)}

    @property
    def level_files(self) -> tuple[LevelFile, ...]:
        """See `Transform`."""
        path = str(self.args.scaler_path)
        return (level_file(self.scalers or {}, path, self._selects),)

    def at(self, schema: TreeSchema, grid: GridCoordinates) -> FlattenToTensor:
        """Returns the block with its channels in the order of the data's levels."""
        if self.scalers is None:
            return self
        groups, path = schema.get("target", ()), str(self.args.scaler_path)
        scalers = scalers_at(self.scalers, groups, path, self._selects)
        return self if scalers is self.scalers else replace(self, scalers=scalers)

    def _selects(self, key: str) -> bool:
        return self.args.variables is None or key in self.args.variables


def build_flatten(args: FlattenArgs) -> FlattenToTensor:
    """Builds the block; reads the scalers.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file has no valid target scalers.
    """
    path = args.scaler_path
    return FlattenToTensor(args, None if path is None else target_scalers(path))
