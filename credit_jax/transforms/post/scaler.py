"""`bridgescaler_transform` of the postblocks: the inverse of the target's scalers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from credit_jax.config.base import StrictModel
from credit_jax.fields import FieldContext
from credit_jax.fields.bridgescaler import Scaler
from credit_jax.transforms.base import FieldTree, Layout
from credit_jax.transforms.scaling import (
    Method,
    check_groups,
    open_scalers,
    scale_fields,
)
from credit_jax.transforms.selection import Selection, Variables


class ScalerArgs(StrictModel):
    """Arguments of `bridgescaler_transform` among the postblocks.

    Attributes:
        scaler_path: JSON of fitted scalers; those of the target are taken.
        variables: keys or the beginnings of keys; an empty list is all.
        method: inverse_transform, or transform.
        key: entry whose fields are scaled.
        spatial_variables: those of the variables that are scaled by grid point instead
            of by level.
    """

    scaler_path: str
    variables: Variables
    method: Method = "inverse_transform"
    key: str = "y_processed"
    spatial_variables: Variables = ()


@dataclass(frozen=True, eq=False)
class ScalerTransform:
    """Scales fields of one entry by the scaler of their source and key.

    Attributes:
        args: see `ScalerArgs`.
        scalers: {source: {key: scaler}} of the target.
    """

    args: ScalerArgs
    scalers: Mapping[str, Mapping[str, Scaler]]

    @property
    def selection(self) -> Selection:
        """The variables that it changes."""
        return Selection(self.args.variables)

    def __call__(
        self, tree: FieldTree, context: FieldContext | None = None
    ) -> dict[str, Any]:
        """Scale the fields of `key`.

        Raises:
            ValueError: there is no such entry; a variable has no scaler, or one of
                another size.
        """
        args = self.args
        return scale_fields(tree, args.key, self.scalers, args, args.method, context)

    def check(self, layout: Layout) -> None:
        """Check that the variables of the target have scalers that fit their levels."""
        check_groups(self.scalers, layout["target"], self.args, "the target scalers")


def build_scaler(args: ScalerArgs) -> ScalerTransform:
    """Read the scalers.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is no file of scalers, or has none of the target.
    """
    return ScalerTransform(args, target_scalers(args.scaler_path))


def target_scalers(path: str) -> Mapping[str, Mapping[str, Scaler]]:
    """{source: {key: scaler}} of the target.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is no file of scalers, or has none of the target.
    """
    scalers = open_scalers(path)
    if "target" not in scalers:
        raise ValueError(
            f"scaler_path: {path} has no scalers of the target, only of "
            f"{', '.join(scalers) or 'nothing'}; fit them with the target, too"
        )
    return scalers["target"]
