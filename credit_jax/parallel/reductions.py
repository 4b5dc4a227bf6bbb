"""Exact global sums and means of sharded fields: local sums, then one `psum`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from credit_jax.parallel.collectives import sum_parts
from credit_jax.parallel.mesh.device_mesh import MeshAxes
from credit_jax.parallel.rows.layout import Field, Layout


def field_sum(
    field: Field,
    dims: Sequence[int],
    axes: Sequence[str] = (),
    *,
    keepdims: bool = False,
) -> Float[Array, "*reduced"]:
    """Sums a field over array dims, without padding rows, and over mesh axes."""
    values = field.data
    if field.layout.has_padding and field.layout.dim in dims:
        values = jnp.where(field.mask(), values, jnp.zeros((), values.dtype))
    return sum_parts(values.sum(tuple(dims), keepdims=keepdims), axes)


@dataclass(frozen=True)
class FieldReducer:
    """Computes global means from local arrays, for losses and metrics.

    It is used inside of `shard_map`. Arrays are local, in CREDIT's dim order (batch,
    channel, time, lat, lon).

    Attributes:
        rows: row layout of the lat dim.
        axes: the mesh axes; `MeshAxes()` on one device.

    >>> def metrics(tree, context):
    ...     return {"mean": context.reducer.mean(tree["y"])}
    >>> evaluate = credit_jax.make_eval_step(model, metrics)
    >>> float(evaluate(params, model_state, batch)["mean"])
    1.0
    """

    rows: Layout
    axes: MeshAxes

    def local_rows(self, per_row: np.ndarray | Array, fill: float | int = 0) -> Array:
        """Returns the values of local rows from an array indexed by global row.

        Args:
            per_row: (lat, ...), values of every global row.
            fill: value for padding rows.
        """
        return self.rows.local(per_row, fill)

    def mean(
        self,
        values: Float[Array, "batch channel time rows lon"],
        row_weights: np.ndarray | Array | None = None,
    ) -> Float[Array, ""]:
        """Returns the mean of values * row_weights over the global array.

        Args:
            values: local values; those of padding rows have no effect if finite.
            row_weights: (lat,), weight of each global row; None for 1.
        """
        return self.channel_mean(values, row_weights).mean()

    def channel_mean(
        self,
        values: Float[Array, "batch channel time rows lon"],
        row_weights: np.ndarray | Array | None = None,
    ) -> Float[Array, " channel"]:
        """Returns the mean of each channel, in float32 or wider; see `mean`."""
        batch, _, time, _, lon = values.shape
        total = self._sum("bctyx,y->c", values, row_weights, self.axes.batch)
        return total / (batch * self.axes.num_data * time * self.rows.size * lon)

    def sample_mean(
        self,
        values: Float[Array, "batch channel time rows lon"],
        row_weights: np.ndarray | Array | None = None,
    ) -> Float[Array, "batch channel time"]:
        """Returns the mean over the globe of each local sample, channel and time."""
        total = self._sum("bctyx,y->bct", values, row_weights, self._domain)
        return total / (self.rows.size * values.shape[-1])

    def row_mean(
        self,
        values: Float[Array, "batch channel time rows lon"],
        row_weights: np.ndarray | Array | None = None,
    ) -> Float[Array, "batch channel time lon"]:
        """Returns the mean over all rows, such as of a zonal spectrum."""
        total = self._sum("bctyx,y->bctx", values, row_weights, self._domain)
        return total / self.rows.size

    def data_mean(self, values: Float[Array, "batch ..."]) -> Float[Array, ...]:
        """Returns the mean over the samples of all data-parallel ranks.

        Args:
            values: (batch, ...), the same on all shards of the rows.
        """
        total = sum_parts(values.sum(axis=0), self.axes.data)
        return total / (values.shape[0] * self.axes.num_data)

    def row_sum(self, values: Float[Array, ...]) -> Float[Array, ...]:
        """Returns the sum over the shards of what each computed of its own rows."""
        return sum_parts(values, self._domain)

    @property
    def _domain(self) -> tuple[str, ...]:
        return (self.axes.domain,) if self.axes.domain else ()

    def _sum(
        self,
        equation: str,
        values: Array,
        row_weights: np.ndarray | Array | None,
        axes: Sequence[str],
    ) -> Array:
        """Sums an einsum of values and row weights, 0 for padding rows, over axes."""
        weights = np.ones(self.rows.size) if row_weights is None else row_weights
        dtype = jnp.promote_types(values.dtype, jnp.float32)
        local = self.rows.local(jnp.asarray(weights, dtype))
        total = jnp.einsum(equation, values.astype(dtype), local, precision="highest")
        return sum_parts(total, axes)
