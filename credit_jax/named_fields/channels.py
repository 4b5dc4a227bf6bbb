"""The variables of the channels of an array."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float


@dataclass(frozen=True)
class ChannelLayout:
    """The variables of a channel dim, in order.

    Attributes:
        keys: keys of the variables, such as "ERA5/prognostic/3d/T".
        counts: number of channels of each variable.
    """

    keys: tuple[str, ...]
    counts: tuple[int, ...]

    @classmethod
    def of(cls, channels: Mapping[str, int]) -> ChannelLayout:
        """Builds a layout from the number of channels of each variable, in order."""
        return cls(tuple(channels), tuple(channels.values()))

    @property
    def num_channels(self) -> int:
        """Total number of channels."""
        return sum(self.counts)

    @property
    def slices(self) -> dict[str, slice]:
        """The channels of each variable.

        >>> ChannelLayout(("T", "SP"), (3, 1)).slices
        {'T': slice(0, 3, None), 'SP': slice(3, 4, None)}
        """
        ends = np.cumsum(self.counts).tolist()
        pairs = zip(self.keys, self.counts, ends, strict=True)
        return {key: slice(end - count, end) for key, count, end in pairs}

    def per_variable(
        self, values: Float[Array, " channel"]
    ) -> Float[Array, " variable"]:
        """Mean over the channels of each variable."""
        matrix = np.zeros((len(self.counts), self.num_channels))
        matrix[self._owner, np.arange(self.num_channels)] = 1.0
        matrix /= np.asarray(self.counts)[:, None]
        averaging = jnp.asarray(matrix, values.dtype)
        return jnp.matmul(averaging, values, precision="highest")

    def per_channel(
        self, values: Float[Array, " variable"]
    ) -> Float[Array, "1 channel 1 1 1"]:
        """Repeats each variable's value for its channels, to broadcast to fields."""
        return values[self._owner].reshape(1, -1, 1, 1, 1)

    @property
    def _owner(self) -> np.ndarray:
        """(channel,) index of the variable of each channel."""
        return np.repeat(np.arange(len(self.counts)), self.counts)
