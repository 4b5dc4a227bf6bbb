"""`bridgescaler_transform` of the preblocks: fitted scalers of input and target."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from credit_jax.config.base import StrictModel
from credit_jax.fields import FieldContext
from credit_jax.fields.bridgescaler import Scaler, ScalerDict
from credit_jax.transforms.base import FieldTree, Layout
from credit_jax.transforms.scaling import (
    INVERSE,
    Method,
    check_groups,
    open_scalers,
    scale_fields,
)
from credit_jax.transforms.selection import DataType, Selection, Variables


class ScalerArgs(StrictModel):
    """Arguments of `bridgescaler_transform` among the preblocks.

    Attributes:
        scaler_path: JSON of fitted scalers.
        variables: keys or the beginnings of keys; an empty list is all.
        method: transform, or inverse_transform.
        scaler_type: of the scalers that are fitted.
        scaler_params: arguments of the scalers that are fitted.
        data_types: entries of the batch that are scaled; null is both.
        spatial_variables: those of the variables that are scaled by grid point instead
            of by level.
    """

    scaler_path: str
    variables: Variables
    method: Method = "transform"
    scaler_type: Literal["standard", "quantile", "minmax"] = "standard"
    scaler_params: dict[str, Any] | None = None
    data_types: tuple[DataType, ...] | None = None
    spatial_variables: Variables = ()


@dataclass(frozen=True, eq=False)
class ScalerTransform:
    """Scales fields by the scaler of their entry, source and key.

    Attributes:
        args: see `ScalerArgs`.
        scalers: {"input" or "target": {source: {key: scaler}}}.

    Differs from CREDIT: a source may be missing in the file if nothing of it is scaled.
    """

    args: ScalerArgs
    scalers: ScalerDict

    @property
    def selection(self) -> Selection:
        """The variables that it changes."""
        return Selection(self.args.variables)

    @property
    def needs_grid(self) -> bool:
        """Whether variables are scaled by grid point: their scalers have all rows."""
        return bool(self.args.spatial_variables)

    def __call__(
        self, tree: FieldTree, context: FieldContext | None = None
    ) -> dict[str, Any]:
        """Scale the fields of input and target.

        Raises:
            ValueError: a variable has no scaler, or one of another size.
        """
        return self._scaled(tree, self.args.method, context)

    def inverse(
        self, tree: FieldTree, context: FieldContext | None = None
    ) -> dict[str, Any]:
        """The inverse of the scaling."""
        return self._scaled(tree, INVERSE[self.args.method], context)

    def check(self, layout: Layout) -> None:
        """Check that all variables have scalers that fit their levels."""
        for part in self._parts:
            check_groups(
                self._own(part), layout[part], self.args, f"the {part} scalers"
            )

    @property
    def _parts(self) -> tuple[str, ...]:
        return self.args.data_types or ("input", "target")

    def _own(self, part: str) -> Mapping[str, Mapping[str, Scaler]]:
        return self.scalers.get(part, {})

    def _scaled(
        self, tree: FieldTree, method: Method, context: FieldContext | None
    ) -> dict[str, Any]:
        found = dict(tree)
        for part in self._parts:
            if part in tree:
                found = scale_fields(
                    found, part, self._own(part), self.args, method, context
                )
        return found


def build_scaler(args: ScalerArgs) -> ScalerTransform:
    """Read the scalers.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is no file of scalers.
    """
    return ScalerTransform(args, open_scalers(args.scaler_path))
