"""The preblock `bridgescaler_transform`: applies fitted scalers to input and target."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from credit_jax.config.base import StrictModel
from credit_jax.named_fields import FieldContext
from credit_jax.named_fields.bridgescaler import Scaler, ScalerDict
from credit_jax.named_fields.coordinates import Axes
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
)
from credit_jax.transforms.selection import DataType, Variables


class ScalerArgs(StrictModel):
    """Arguments of the preblock `bridgescaler_transform`.

    Attributes:
        scaler_path: JSON file of fitted scalers.
        variables: selected variables, see `Selection`.
        method: "transform" or "inverse_transform".
        scaler_type: type of the scalers that `credit-jax preprocess` fits.
        scaler_params: arguments of these scalers.
        data_types: entries to scale; null is both.
        spatial_variables: selected variables that have a scaler for each grid point
            instead of each level.
    """

    scaler_path: str
    variables: Variables
    method: Method = "transform"
    scaler_type: Literal["standard", "quantile", "minmax"] = "standard"
    scaler_params: dict[str, Any] | None = None
    data_types: tuple[DataType, ...] | None = None
    spatial_variables: Variables = ()


@dataclass(frozen=True, eq=False)
class ScalerTransform(OfVariables):
    """Scales fields by the scalers of their entry, source and key.

    Attributes:
        args: see `ScalerArgs`.
        scalers: {"input" or "target": {source: {key: scaler}}}.

    Differs from CREDIT: the file need not have sources of which no variable is scaled.
    """

    args: ScalerArgs
    scalers: ScalerDict
    is_scaling: ClassVar = True

    @property
    def needs_grid(self) -> bool:
        """Whether scalers are by grid point, so that they need all rows."""
        return bool(self.args.spatial_variables)

    @property
    def level_files(self) -> tuple[LevelFile, ...]:
        """See `Transform`."""
        path, selects = self.args.scaler_path, by_level(self.args)
        return tuple(
            level_file(self._scalers_of(part), path, selects) for part in self._parts
        )

    def at(self, schema: TreeSchema, grid: Axes) -> ScalerTransform:
        """Returns the block with its channels in the order of the data's levels."""
        path, selects = self.args.scaler_path, by_level(self.args)
        located = {
            part: scalers_at(scalers, schema.get(part, ()), path, selects)
            for part, scalers in self.scalers.items()
        }
        same = all(located[part] is scalers for part, scalers in self.scalers.items())
        return self if same else replace(self, scalers=located)

    def __call__(
        self, tree: FieldTree, context: FieldContext | None = None
    ) -> dict[str, Any]:
        """Scales the selected fields of input and target.

        Raises:
            ValueError: a variable has no scaler, or one of another size.
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
        for part in self._parts:
            check_groups(
                self._scalers_of(part), schema[part], self.args, f"the {part} scalers"
            )

    @property
    def _parts(self) -> tuple[str, ...]:
        return self.args.data_types or ("input", "target")

    def _scalers_of(self, part: str) -> Mapping[str, Mapping[str, Scaler]]:
        return self.scalers.get(part, {})

    def _scaled(
        self, tree: FieldTree, method: Method, context: FieldContext | None
    ) -> dict[str, Any]:
        scaled = dict(tree)
        for part in self._parts:
            if part in tree:
                scaled = scale_fields(
                    scaled, part, self._scalers_of(part), self.args, method, context
                )
        return scaled


def build_scaler(args: ScalerArgs) -> ScalerTransform:
    """Builds the block; reads the scalers.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file has no valid scalers.
    """
    return ScalerTransform(args, open_scalers(args.scaler_path))
