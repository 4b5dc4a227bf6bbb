"""Weights of rows and of variables in losses and metrics that average over them."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from jaxtyping import Float

from credit_jax.config.messages import hint

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


def check_multipliers(
    multipliers: Mapping[str, float],
    keys: Sequence[str],
    section: str,
    *,
    include_computed: bool,
) -> None:
    """Raises an error for weights of unknown variables.

    Args:
        multipliers: weights by key.
        keys: keys of the target variables.
        section: dotted path of the section, for the error.
        include_computed: whether variables that a postblock computes are allowed; any
            key with a "/" is taken for one.

    Raises:
        ValueError: a key is unknown.
    """
    unknown = [key for key in multipliers if key not in keys]
    if include_computed:
        unknown = [key for key in unknown if "/" not in key]
    if unknown:
        raise ValueError(
            f"{section}.variable_weights: {unknown} are no targets; those are "
            f"{list(keys)}"
        )


def warn_unscored(names: Iterable[str], keys: Sequence[str], where: str) -> None:
    """Warns of variables that a section names although it does not score them.

    Args:
        names: keys of variables that the section names.
        keys: keys of the variables that it scores, those that postblocks compute, too.
        where: dotted path of what names them.
    """
    for name in names:
        if name not in keys:
            warnings.warn(
                f"{where}: {name!r} is not scored and changes nothing"
                f"{hint(name, keys)}",
                stacklevel=2,
            )


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
