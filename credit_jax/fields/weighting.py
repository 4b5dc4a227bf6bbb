"""Weights of variables in the mean of a loss or metric over all variables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float

SMALLEST_VARIANCE = 1e-12


def combination_weights(
    keys: Sequence[str],
    *,
    variances: Mapping[str, float] | None = None,
    multipliers: Mapping[str, float] | None = None,
    normalize: bool = True,
    scale_power: int = 2,
) -> Float[np.ndarray, " variable"]:
    """`multiplier / sigma^scale_power` of each variable, over their mean.

    Args:
        keys: of the variables.
        variances: sigma^2 by key; 1 where there is none. None takes 1 for all.
        multipliers: by key; 1 where there is none.
        normalize: whether the weights have mean 1.
        scale_power: power of the unit that a score carries: 2 for a squared error, 1
            for an error, 0 for a ratio.

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
    """Refuses weights of unknown variables.

    Args:
        multipliers: by key.
        keys: of the target variables.
        section: dotted path of the section, for the error.
        include_computed: whether variables that a postblock computes count, too.

    Raises:
        ValueError: naming what is neither a target nor, by the form of its name, such
            a variable.
    """
    unknown = [key for key in multipliers if key not in keys]
    if include_computed:
        unknown = [key for key in unknown if "/" not in key]
    if unknown:
        raise ValueError(
            f"{section}.variable_weights: {unknown} are no targets; those are "
            f"{list(keys)}"
        )
