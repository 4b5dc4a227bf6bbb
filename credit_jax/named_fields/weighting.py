"""Weights of rows and of variables in losses and metrics that average over them."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from credit_jax.config.loss import WeightArgs
from credit_jax.config.messages import hint
from credit_jax.named_fields.context import ChannelLayout, FieldContext
from credit_jax.named_fields.tree import (
    PREDICTION,
    TARGET,
    FieldTree,
    named_pair,
    widened,
)

SMALLEST_VARIANCE = 1e-12


def latitude_weights(latitude: Float[np.ndarray, " lat"]) -> Float[np.ndarray, " lat"]:
    """Area weights `cos(latitude) / mean(cos(latitude))` of rows, in float32."""
    weights = np.cos(np.deg2rad(np.asarray(latitude, np.float64)))
    return (weights / weights.mean()).astype(np.float32)


def row_weights(
    latitude: Float[np.ndarray, " lat"] | None, section: str
) -> Float[np.ndarray, " lat"]:
    """The area weights of a section with `use_latitude_weights`."""
    if latitude is None:
        raise ValueError(
            f"{section}.use_latitude_weights: true needs {section}.latitude_weights, a "
            "file with a `latitude` coordinate"
        )
    return latitude_weights(latitude)


@dataclass(frozen=True, eq=False)
class ScoredVariables:
    """The variables that a loss or a metric scores one by one, and their weights."""

    args: WeightArgs
    section: str  # dotted path of `args`
    channels: Mapping[str, int]  # number of channels of each target variable
    row_weights: Float[np.ndarray, " lat"] | None = None  # equal if None
    variances: Mapping[str, float] | None = None  # of target variables; equal if None

    def __post_init__(self) -> None:
        unknown = [k for k in self.args.variable_weights if k not in self.channels]
        if self.args.include_computed_diagnostics:
            unknown = [key for key in unknown if "/" not in key]
        if unknown:
            raise ValueError(
                f"{self.section}.variable_weights: {unknown} are no targets; those are "
                f"{list(self.channels)}"
            )

    def pair(
        self, tree: FieldTree, context: FieldContext, *, normalized: bool = False
    ) -> tuple[Array, Array, FieldContext]:
        """The prediction and the target to score, and the context of their channels."""
        if (PREDICTION in tree and TARGET in tree) or not normalized:
            computed = self.args.include_computed_diagnostics
            prediction, target, layout = named_pair(
                tree, self.channels, include_computed=computed
            )
        else:  # normalized fields, where the tree has no others
            prediction, target = (widened(tree[key]) for key in ("y_pred", "y"))
            layout = ChannelLayout.of(self.channels)
        self.warn_unscored("variable_weights", layout.keys)
        context = replace(
            context,
            channels=layout,
            row_weights=self.row_weights,
            channel_weights=None,
        )
        return prediction, target, context

    def warn_unscored(self, name: str, keys: Sequence[str]) -> None:
        """Warns of keys in an argument that are not those of scored variables."""
        for key in getattr(self.args, name):
            if key not in keys:
                warnings.warn(
                    f"{self.section}.{name}: {key!r} is not scored and changes nothing"
                    f"{hint(key, keys)}",
                    stacklevel=2,
                )

    def mean(
        self,
        scores: Float[Array, " variable"],
        keys: Sequence[str],
        scale_power: int = 2,
    ) -> Float[Array, ""]:
        """The mean over variables, weighted by `multiplier / sigma^scale_power`."""
        # Power of a variable's unit in the score: 2 of a squared error, 0 of a ratio.
        variances, multipliers = self.variances or {}, self.args.variable_weights
        weights = np.array(
            [
                multipliers.get(key, 1.0)
                / max(variances.get(key, 1.0), SMALLEST_VARIANCE) ** (scale_power / 2)
                for key in keys
            ]
        )
        if self.args.normalize_weights and weights.mean() > 0:
            weights = weights / weights.mean()
        weights = jnp.asarray(weights.astype(np.float32), scores.dtype)
        return (scores * weights).mean()
