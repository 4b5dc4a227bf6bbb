"""Between normalized channels and physical units, for evaluation."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Shaped

from credit_jax.transforms.base import Group
from credit_jax.transforms.pre.normalize import Normalizer


@dataclasses.dataclass(frozen=True)
class Units:
    """Mean and std of every channel of y.

    Attributes:
        mean: (channel,) float32, in the variables' own units.
        std: (channel,) float32; 1, with mean 0, for variables that are not normalized.
    """

    mean: Float[np.ndarray, "channel"]
    std: Float[np.ndarray, "channel"]

    def denormalize(
        self, array: Shaped[Any, "batch channel ..."]
    ) -> Shaped[Any, "batch channel ..."]:
        """Normalized channels -> physical units: x std + mean."""
        mean, std = self._shaped(array.ndim)
        return array * std + mean

    def normalize(
        self, array: Shaped[Any, "batch channel ..."]
    ) -> Shaped[Any, "batch channel ..."]:
        """Physical units -> normalized channels: (x - mean) / std."""
        mean, std = self._shaped(array.ndim)
        return (array - mean) / std

    def _shaped(self, num_dims: int) -> tuple[np.ndarray, np.ndarray]:
        shape = (1, -1) + (1,) * (num_dims - 2)
        return self.mean.reshape(shape), self.std.reshape(shape)


def channel_units(normalizer: Normalizer | None, groups: Sequence[Group]) -> Units:
    """The units of a channel layout.

    Args:
        normalizer: of the preblocks, or None if there is none.
        groups: the variables in channel order, such as `schema.target`.
    """
    means, stds = [], []
    for group in groups:
        if normalizer is None:
            mean, std = np.zeros(group.n_levels), np.ones(group.n_levels)
        else:
            mean, std = normalizer.statistics(group.var_key, group.n_levels)
        means.append(mean)
        stds.append(std)
    return Units(
        np.concatenate(means).astype(np.float32),
        np.concatenate(stds).astype(np.float32),
    )
