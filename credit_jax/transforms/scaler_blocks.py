"""`bridgescaler_transform`: applies fitted scalers, before and after the model.

A file of scalers has two sides, "input" and "target", as samples have. The preblock
scales these entries of the tree by their own side; the postblock scales one entry that
is made of predictions, or of the target, by the side of the target.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from credit_jax.config import StrictModel
from credit_jax.named_fields import FieldContext
from credit_jax.named_fields.bridgescaler import QuantileScaler, ScalerDict
from credit_jax.named_fields.coordinates import GridCoordinates
from credit_jax.named_fields.tree import by_key
from credit_jax.transforms.base import FieldTree, LevelFile, OfVariables, TreeSchema
from credit_jax.transforms.scaling import (
    INVERSE,
    Method,
    by_level,
    check_groups,
    level_file,
    open_scalers,
    scale_fields,
    scalers_at,
    target_scalers,
)
from credit_jax.transforms.selection import DataType, Variables


class _ScalerArgs(StrictModel):
    """Arguments that both blocks have.

    Attributes:
        scaler_path: JSON file of fitted scalers.
        variables: selected variables, see `Selection`.
        spatial_variables: selected variables that have a scaler for each grid point
            instead of each level.
    """

    scaler_path: str
    variables: Variables
    spatial_variables: Variables = ()


class ScalerPreArgs(_ScalerArgs):
    """Applies fitted scalers to input and target.

    Attributes:
        method: "transform" or "inverse_transform".
        scaler_type: type of the scalers that `credit-jax preprocess` fits.
        scaler_params: arguments of these scalers.
        data_types: entries to scale; null is both.
    """

    method: Method = "transform"
    scaler_type: Literal["standard", "quantile", "minmax"] = "standard"
    scaler_params: dict[str, Any] | None = None
    data_types: tuple[DataType, ...] | None = None

    @property
    def sides(self) -> dict[str, str]:
        """Entry of the tree -> side of the file whose scalers it takes."""
        return {side: side for side in self.data_types or ("input", "target")}


class ScalerPostArgs(_ScalerArgs):
    """Applies fitted scalers to what is predicted, by default backwards.

    Attributes:
        method: "inverse_transform" or "transform".
        key: entry to scale.
    """

    method: Method = "inverse_transform"
    key: str = "y_processed"

    @property
    def sides(self) -> dict[str, str]:
        """Entry of the tree -> side of the file whose scalers it takes."""
        return {self.key: "target"}


@dataclass(frozen=True, eq=False)
class ScalerTransform(OfVariables):
    """Scales fields by the scalers of their entry, source and key.

    Attributes:
        args: the arguments of the block.
        scalers: {"input" or "target": {source: {key: scaler}}}.

    Differs from CREDIT: the file need not have sources of which no variable is scaled.
    """

    args: ScalerPreArgs | ScalerPostArgs
    scalers: ScalerDict
    is_scaling: ClassVar = True

    @property
    def needs_grid(self) -> bool:
        """Whether scalers are by grid point, so that they need all rows."""
        return bool(self.args.spatial_variables)

    @property
    def needs_host(self) -> bool:
        """Whether scalers are quantiles, whose tails need float64."""
        return any(
            isinstance(scaler, QuantileScaler)
            for side in self.scalers.values()
            for of_source in side.values()
            for scaler in of_source.values()
        )

    @property
    def by_channel(self) -> bool:
        """Whether no scaler is by grid point or by longitude."""
        scalers = [s for side in self.scalers.values() for s in by_key(side).values()]
        return not (self.needs_grid or any(s.channels_last for s in scalers))

    @property
    def level_files(self) -> tuple[LevelFile, ...]:
        """See `Transform`."""
        path, selects = self.args.scaler_path, by_level(self.args)
        return tuple(
            level_file(self.scalers.get(side, {}), path, selects)
            for side in self.args.sides.values()
        )

    def at(self, schema: TreeSchema, grid: GridCoordinates) -> ScalerTransform:
        """Returns the block with its channels in the order of the data's levels."""
        path, selects = self.args.scaler_path, by_level(self.args)
        located = {
            side: scalers_at(scalers, schema.get(side, ()), path, selects)
            for side, scalers in self.scalers.items()
        }
        same = all(located[side] is scalers for side, scalers in self.scalers.items())
        return self if same else replace(self, scalers=located)

    def __call__(
        self, tree: FieldTree, context: FieldContext | None = None
    ) -> dict[str, Any]:
        """Scales the selected fields.

        Raises:
            ValueError: a variable has no scaler or one of another size, or the entry of
                a postblock is missing.
        """
        return self._scaled(tree, self.args.method, context)

    def inverse(
        self, tree: FieldTree, context: FieldContext | None = None
    ) -> dict[str, Any]:
        """Inverts the scaling."""
        return self._scaled(tree, INVERSE[self.args.method], context)

    def check(self, schema: TreeSchema) -> None:
        """Checks that the selected variables have scalers that fit their levels.

        Raises:
            ValueError: see `check_groups`.
        """
        for side in self.args.sides.values():
            scalers = self.scalers.get(side, {})
            check_groups(scalers, schema[side], self.args, f"the {side} scalers")

    def _scaled(
        self, tree: FieldTree, method: Method, context: FieldContext | None
    ) -> dict[str, Any]:
        scaled = dict(tree)
        for entry, side in self.args.sides.items():
            # Forecasts have no target, and later steps of a sample no input.
            if entry not in tree and isinstance(self.args, ScalerPreArgs):
                continue
            scalers = self.scalers.get(side, {})
            scaled = scale_fields(scaled, entry, scalers, self.args, method, context)
        return scaled


def build_scaler_pre(args: ScalerPreArgs) -> ScalerTransform:
    """Builds the preblock; reads the scalers.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file has no valid scalers.
    """
    return ScalerTransform(args, open_scalers(args.scaler_path))


def build_scaler_post(args: ScalerPostArgs) -> ScalerTransform:
    """Builds the postblock; reads the scalers of the target.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file has no valid target scalers.
    """
    return ScalerTransform(args, {"target": target_scalers(args.scaler_path)})
