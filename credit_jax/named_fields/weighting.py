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


def combination_weights(
    keys: Sequence[str],
    *,
    variances: Mapping[str, float] | None = None,
    multipliers: Mapping[str, float] | None = None,
    normalize: bool = True,
    scale_power: int = 2,
) -> Float[np.ndarray, " variable"]:
    """Computes the weight `multiplier / sigma^scale_power` of each variable.

    Args:
        keys: keys of the variables.
        variances: sigma^2 by key; 1 for a missing key, or for all if None.
        multipliers: factors by key; 1 for a missing key, or for all if None.
        normalize: whether to divide the weights by their mean.
        scale_power: power of a variable's unit in the score: 2 for a squared error, 1
            for an error, 0 for a ratio.

    Returns:
        (variable,) float32, in the order of `keys`.

    >>> combination_weights(["T", "Q"], variances={"T": 4.0}, normalize=False).tolist()
    [0.25, 1.0]
    """
    variances, multipliers = variances or {}, multipliers or {}
    weights = np.array(
        [
            multipliers.get(key, 1.0)
            / max(variances.get(key, 1.0), SMALLEST_VARIANCE) ** (scale_power / 2)
            for key in keys
        ]
    )
    if normalize and weights.mean() > 0:
        weights = weights / weights.mean()
    return weights.astype(np.float32)


def latitude_weights(latitude: Float[np.ndarray, " lat"]) -> Float[np.ndarray, " lat"]:
    """Area weights `cos(latitude) / mean(cos(latitude))` of rows, in float32.

    Args:
        latitude: (lat,) degrees north.

    Returns:
        (lat,) weights with mean 1.

    >>> latitude_weights(np.array([60.0, 0.0, -60.0])).round(2).tolist()
    [0.75, 1.5, 0.75]
    """
    weights = np.cos(np.deg2rad(np.asarray(latitude, np.float64)))
    return (weights / weights.mean()).astype(np.float32)


def row_weights(
    latitude: Float[np.ndarray, " lat"] | None, section: str
) -> Float[np.ndarray, " lat"]:
    """The area weights of a section with `use_latitude_weights`.

    Args:
        latitude: (lat,) degrees north; None if the section names no file.
        section: dotted path of the section, for the error.

    Raises:
        ValueError: there are no latitudes.
    """
    if latitude is None:
        raise ValueError(
            f"{section}.use_latitude_weights: true needs {section}.latitude_weights, a "
            "file with a `latitude` coordinate"
        )
    return latitude_weights(latitude)


@dataclass(frozen=True, eq=False)
class ScoredVariables:
    """The variables that a loss or a metric scores one by one, and their weights.

    Attributes:
        args: what selects and weights them.
        section: dotted path of `args`.
        channels: number of channels of each target variable, by key.
        row_weights: (lat,) area weights; None for equal ones.
        variances: variances of the target variables by key; None for equal ones.

    Raises:
        ValueError: `variable_weights` names unknown variables. Any key with a "/" is
            taken for that of a variable that a postblock computes.
    """

    args: WeightArgs
    section: str
    channels: Mapping[str, int]
    row_weights: Float[np.ndarray, " lat"] | None = None
    variances: Mapping[str, float] | None = None

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
        """The prediction and the target to score, and the context of their channels.

        Args:
            tree: has the named fields of `named_pair`.
            context: replaced are its channels and its weights of rows and channels.
            normalized: whether "y_pred" and "y" are taken if the tree has no such
                fields.
        """
        if (PREDICTION in tree and TARGET in tree) or not normalized:
            computed = self.args.include_computed_diagnostics
            prediction, target, layout = named_pair(
                tree, self.channels, include_computed=computed
            )
        else:
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
        """The weighted mean over variables, see `combination_weights`."""
        weights = combination_weights(
            keys,
            variances=self.variances,
            multipliers=self.args.variable_weights,
            normalize=self.args.normalize_weights,
            scale_power=scale_power,
        )
        return (scores * jnp.asarray(weights, scores.dtype)).mean()
