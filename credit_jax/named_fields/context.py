"""The context of losses, metrics and traced transforms: global means, channels, rows.

Arrays are local shards inside `shard_map`, in CREDIT's layout (batch, channel, time,
rows, lon): split over samples and latitude rows, with all channels and longitudes. A
function of whole fields is written with

    elementwise values         context.mean, channel_mean, variable_mean
    single variables           context.channels.slices
    spectra along longitude    jnp.fft.rfft(x, axis=-1), then context.row_mean
    transforms along latitude  an einsum with context.local_rows, then context.row_sum
    whole fields               context.gather_rows, then context.gathered()
    ensemble members           context.members

and then has the same value and gradient on every mesh.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Shaped

from credit_jax.parallel.placement import gather_rows
from credit_jax.parallel.reductions import FieldReducer
from credit_jax.parallel.rows.layout import Field, block_layout


@dataclass(frozen=True)
class ChannelLayout:
    """The variables of a channel dim, in order."""

    keys: tuple[str, ...]  # such as "ERA5/prognostic/3d/T"
    counts: tuple[int, ...]  # number of channels of each variable

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
        """The channels of each variable."""
        ends = np.cumsum(self.counts).tolist()
        pairs = zip(self.keys, self.counts, ends, strict=True)
        return {key: slice(end - count, end) for key, count, end in pairs}

    def per_variable(
        self, values: Float[Array, " channel"]
    ) -> Float[Array, " variable"]:
        """Mean over the channels of each variable."""
        shares = np.diag(1.0 / np.asarray(self.counts))
        matrix = np.repeat(shares, self.counts, axis=1)
        averaging = jnp.asarray(matrix, values.dtype)
        return jnp.matmul(averaging, values, precision="highest")

    def per_channel(
        self, values: Float[Array, " variable"]
    ) -> Float[Array, "1 channel 1 1 1"]:
        """Repeats each variable's value for its channels, to broadcast to fields."""
        owner = np.repeat(np.arange(len(self.counts)), self.counts)
        return values[owner].reshape(1, -1, 1, 1, 1)


ChannelFields = Float[Array, "batch channel time rows lon"]


@dataclass(frozen=True, eq=False)
class FieldContext:
    """Reductions over the whole mesh, with the weights and channels of a field.

    Attributes:
        reducer: global means, and this shard's part of arrays indexed by global row.
        channels: the variables of the channels, or None if unknown.
        row_weights: (lat,) area weight of every row, with mean 1; None for equal
            weights.
        latitude: (lat,) degrees north of every row; None if unknown.
        channel_weights: (channel,) factor of every channel in `mean`; None is 1.
        sample_weights: (samples,) factor of every local sample in `mean`; None is 1.
        num_members: ensemble members of each sample. The batch dim of a prediction
            has all members of the first sample, then those of the second, ...
        loss_parameters: trained parameters of the loss, by name; empty in validation.

    >>> def loss(tree, context):
    ...     return context.mean(abs(tree["y_pred"] - tree["y"]))
    >>> optimizer = optax.sgd(0.1)
    >>> step = credit_jax.make_train_step(model, optimizer, loss)  # makes a context
    """

    reducer: FieldReducer
    channels: ChannelLayout | None = None
    row_weights: Float[np.ndarray, " lat"] | None = None
    latitude: Float[np.ndarray, " lat"] | None = None
    channel_weights: Float[np.ndarray, " channel"] | None = None
    sample_weights: Float[Array, " samples"] | None = None
    num_members: int = 1
    loss_parameters: Mapping[str, Array] = field(default_factory=dict)

    @property
    def layout(self) -> ChannelLayout:
        """`channels`, for functions that need them.

        Raises:
            ValueError: `channels` is None.
        """
        if self.channels is None:
            raise ValueError(
                "this loss, metric or transform needs to know which channel is which "
                "variable: give the FieldContext `channels=ChannelLayout.of(...)`"
            )
        return self.channels

    def mean(self, values: ChannelFields) -> Float[Array, ""]:
        """Mean of values * row, channel and sample weights over the global array."""
        if self.sample_weights is not None:
            values = values * self.sample_weights[:, None, None, None, None]
        if self.channel_weights is not None:
            weights = jnp.asarray(self.channel_weights).reshape(1, -1, 1, 1, 1)
            values = values * weights
        return self.reducer.mean(values, self.row_weights)

    def channel_mean(self, values: ChannelFields) -> Float[Array, " channel"]:
        """Mean of values * row weight for each channel."""
        return self.reducer.channel_mean(values, self.row_weights)

    def variable_mean(self, values: ChannelFields) -> Float[Array, " variable"]:
        """Mean of values * row weight for each variable, over all its channels."""
        return self.layout.per_variable(self.channel_mean(values))

    def sample_mean(self, values: ChannelFields) -> Float[Array, "batch channel time"]:
        """Mean of values * row weight over the globe, for each local sample."""
        return self.reducer.sample_mean(values, self.row_weights)

    def row_mean(self, values: ChannelFields) -> Float[Array, "batch channel time lon"]:
        """Mean of values * row weight over all latitudes; `lon` may be wavenumbers."""
        return self.reducer.row_mean(values, self.row_weights)

    def row_sum(self, values: Float[Array, ...]) -> Float[Array, ...]:
        """Sum over the shards of what each computed of its own rows."""
        return self.reducer.row_sum(values)

    def data_mean(self, values: Float[Array, "batch ..."]) -> Float[Array, ...]:
        """Mean over the samples of all data-parallel ranks."""
        return self.reducer.data_mean(values)

    def local_rows(self, per_row: np.ndarray | Array, fill: float | int = 0) -> Array:
        """This shard's rows of a (lat, ...) array, with `fill` in padding rows."""
        return self.reducer.local_rows(per_row, fill)

    def members(
        self, prediction: Shaped[Array, "samples channel time rows lon"]
    ) -> Shaped[Array, "batch member channel time rows lon"]:
        """Reshapes a prediction so that ensemble members are a separate dim."""
        return prediction.reshape(-1, self.num_members, *prediction.shape[1:])

    def repeat_members(
        self, target: Shaped[Array, "batch channel time rows lon"]
    ) -> Shaped[Array, "samples channel time rows lon"]:
        """Repeats a target for every member, to match the shape of a prediction."""
        if self.num_members == 1:
            return target
        return jnp.repeat(target, self.num_members, axis=0)

    def gather_rows(
        self, x: Shaped[Array, "batch channel time rows lon"]
    ) -> Shaped[Array, "batch channel time lat lon"]:
        """All-gathers a field over domain: all latitudes, invariant over its shards."""
        layout = dataclasses.replace(self.reducer.rows, dim=x.ndim - 2)
        return gather_rows(Field(x, layout))

    def gathered(self) -> FieldContext:
        """The context for arrays that `gather_rows` returns."""
        axes = dataclasses.replace(self.reducer.axes, domain=None, num_domain=1)
        rows = block_layout(self.reducer.rows.size, dim=self.reducer.rows.dim)
        return dataclasses.replace(self, reducer=FieldReducer(rows, axes))
