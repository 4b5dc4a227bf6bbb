"""The postblock `bridgescaler_transform`: applies the scalers of the target."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from credit_jax.config.base import StrictModel
from credit_jax.named_fields import FieldContext
from credit_jax.named_fields.bridgescaler import Scaler
from credit_jax.named_fields.coordinates import Axes
from credit_jax.transforms.base import FieldTree, LevelFile, OfVariables, TreeSchema
from credit_jax.transforms.scaling import (
    Method,
    by_level,
    check_groups,
    level_file,
    open_scalers,
    scale_fields,
    scalers_at,
)
from credit_jax.transforms.selection import Variables


class ScalerArgs(StrictModel):
    """Arguments of the postblock `bridgescaler_transform`.

    Attributes:
        scaler_path: JSON file of fitted scalers, of which those of the target are used.
        variables: selected variables, see `Selection`.
        method: "inverse_transform" or "transform".
        key: entry to scale.
        spatial_variables: selected variables that have a scaler for each grid point
            instead of each level.
    """

    scaler_path: str
    variables: Variables
    method: Method = "inverse_transform"
    key: str = "y_processed"
    spatial_variables: Variables = ()


@dataclass(frozen=True, eq=False)
class ScalerTransform(OfVariables):
    """Scales fields of one entry by the scalers of their source and key.

    Attributes:
        args: see `ScalerArgs`.
        scalers: {source: {key: scaler}} of the target.
    """

    args: ScalerArgs
    scalers: Mapping[str, Mapping[str, Scaler]]

    @property
    def level_files(self) -> tuple[LevelFile, ...]:
        """See `Transform`."""
        path = self.args.scaler_path
        return (level_file(self.scalers, path, by_level(self.args)),)

    def at(self, schema: TreeSchema, grid: Axes) -> ScalerTransform:
        """Returns the block with its channels in the order of the data's levels."""
        groups, path = schema.get("target", ()), self.args.scaler_path
        scalers = scalers_at(self.scalers, groups, path, by_level(self.args))
        return self if scalers is self.scalers else replace(self, scalers=scalers)

    def __call__(
        self, tree: FieldTree, context: FieldContext | None = None
    ) -> dict[str, Any]:
        """Scales the selected fields of the entry `key`.

        Raises:
            ValueError: the entry is missing, or a variable has no scaler or one of
                another size.
        """
        args = self.args
        return scale_fields(tree, args.key, self.scalers, args, args.method, context)

    def check(self, schema: TreeSchema) -> None:
        """Checks that variables of the target have scalers that fit their levels."""
        check_groups(self.scalers, schema["target"], self.args, "the target scalers")


def build_scaler(args: ScalerArgs) -> ScalerTransform:
    """Builds the block; reads the scalers.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file has no valid target scalers.
    """
    return ScalerTransform(args, target_scalers(args.scaler_path))


def target_scalers(path: str) -> Mapping[str, Mapping[str, Scaler]]:
    """Reads the scalers of the target, {source: {key: scaler}}.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file has no valid target scalers.
    """
    scalers = open_scalers(path)
    if "target" not in scalers:
        raise ValueError(
            f"scaler_path: {path} has no scalers of the target, only of "
            f"{', '.join(scalers) or 'nothing'}; fit them with the target, too"
        )
    return scalers["target"]
