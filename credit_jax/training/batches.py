"""Batches on their way to the mesh: samples split over dp, rows over domain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array

from credit_jax.parallel.axes import MeshAxes

ROW_DIM = -2


def batch_spec(axes: MeshAxes, *, stacked: bool = False) -> PartitionSpec:
    """Spec of (batch, channel, time, lat, lon), or of micro-batches stacked on it."""
    lead = (None,) if stacked else ()
    return PartitionSpec(*lead, axes.data or None, None, None, axes.domain, None)


def place_batch(
    arrays: Mapping[str, np.ndarray],
    mesh: Mesh,
    *,
    local_dp_ranks: Sequence[int] | None = None,
) -> dict[str, Array]:
    """Split arrays over the mesh; rows are filled up to equal blocks with the last row.

    Args:
        arrays: (batch, channel, time, lat, lon), or with micro-batches stacked in
            front; the samples of this process's dp ranks, rank after rank.
        mesh: the device mesh.
        local_dp_ranks: the dp ranks this process loads samples for; default all.

    Raises:
        ValueError: the number of samples is no multiple of the number of ranks.
    """
    axes = MeshAxes.from_mesh(mesh)
    ranks = tuple(range(axes.num_data)) if local_dp_ranks is None else local_dp_ranks
    return {name: _place(x, mesh, axes, ranks) for name, x in arrays.items()}


def _place(x: np.ndarray, mesh: Mesh, axes: MeshAxes, ranks: Sequence[int]) -> Array:
    stacked = x.ndim == 6
    dim = 1 if stacked else 0
    if x.shape[dim] % len(ranks):
        raise ValueError(
            f"a batch of {x.shape[dim]} samples cannot be split over {len(ranks)} "
            "data-parallel ranks; choose a multiple"
        )
    per_rank = x.shape[dim] // len(ranks)
    x = fill_rows(x, axes.num_domain)
    shape = list(x.shape)
    shape[dim] = per_rank * axes.num_data
    sharding = NamedSharding(mesh, batch_spec(axes, stacked=stacked))

    def shard(index: tuple[slice, ...] | None) -> np.ndarray:
        assert index is not None, "the shape is not that of a scalar"
        start, stop, _ = index[dim].indices(shape[dim])
        first = ranks.index(start // per_rank) * per_rank
        local = list(index)
        local[dim] = slice(first, first + stop - start)
        return x[tuple(local)]

    return jax.make_array_from_callback(tuple(shape), sharding, shard)


def fill_rows(x: np.ndarray, num_domain: int) -> np.ndarray:
    """Repeat the last row until the rows make `num_domain` equal blocks."""
    rows = x.shape[ROW_DIM]
    missing = max(-(-rows // num_domain), 1) * num_domain - rows
    if not missing:
        return x
    last = np.repeat(x[..., -1:, :], missing, axis=ROW_DIM)
    return np.concatenate([x, last], axis=ROW_DIM)
