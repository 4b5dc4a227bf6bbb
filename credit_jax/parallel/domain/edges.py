"""Attention along the edges of a graph whose nodes are the points of a sharded field.

Each shard has the edges whose targets are in its rows, and receives the rows of their
sources.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from credit_jax.parallel.collectives import sum_parts
from credit_jax.parallel.rows.layout import Field, Layout
from credit_jax.parallel.rows.reshard import HALO, reshard

# PyTorch Geometric adds this to the denominator of a softmax.
SMALL = 1e-16


@dataclass(frozen=True, eq=False)
class ShardEdges:
    """The edges of every shard, padded to the same number of edges.

    Attributes:
        layout: layout of the rows of targets.
        sources: layout of the rows of sources that each shard needs.
        source: (shard, edge), local index of the source point of each edge.
        target: (shard, edge), local index of the target point, ascending; for padding
            edges one beyond the last point.
        number: (shard, edge), global index of each edge; -1 for padding edges.
        columns: number of columns of the grid.
    """

    layout: Layout
    sources: Layout
    source: Int[np.ndarray, "shard edge"]
    target: Int[np.ndarray, "shard edge"]
    number: Int[np.ndarray, "shard edge"]
    columns: int

    @property
    def num_points(self) -> int:
        """Number of local points, including padding rows."""
        return self.layout.length * self.columns

    def real(self) -> Bool[Array, " edge"]:
        """Returns a mask of the local edges, False for padding edges."""
        return self.local(self.target) < self.num_points

    def local(self, per_edge: np.ndarray) -> Array:
        """Returns the local part (edge, ...) of an array (shard, edge, ...)."""
        return self.layout.of_shard(per_edge)

    def mean(self, values: Float[Array, "edge channel"]) -> Float[Array, " channel"]:
        """Returns the mean over the edges of all shards."""
        axes = () if self.layout.axis is None else (self.layout.axis,)
        real_values = jnp.where(self.real()[:, None], values, 0.0)
        return sum_parts(real_values.sum(0), axes) / (self.number >= 0).sum()


def shard_edges(
    layout: Layout, columns: int, edges: Int[np.ndarray, "edge 2"]
) -> ShardEdges:
    """Distributes edges to the shards that have the rows of their targets.

    Args:
        layout: layout of the rows of nodes.
        columns: number of nodes of a row.
        edges: (edge, 2), source and target; node r * columns + c is column c of row r.
    """
    begin, end = edges.T
    shard_of = np.full(layout.size, -1)
    place = np.full(layout.size, -1)
    for shard, rows in enumerate(layout.rows):
        for position, row in enumerate(rows):
            if row >= 0:
                shard_of[row], place[row] = shard, position
    parts, needed = [], []
    for shard in range(layout.num_shards):
        chosen = np.flatnonzero(shard_of[end // columns] == shard)
        local = place[end[chosen] // columns] * columns + end[chosen] % columns
        order = np.argsort(local, kind="stable")
        chosen, local = chosen[order], local[order]
        rows = np.unique(begin[chosen] // columns)
        where = np.searchsorted(rows, begin[chosen] // columns)
        parts.append((where * columns + begin[chosen] % columns, local, chosen))
        needed.append(rows.tolist() or [0])
    sources = layout.with_rows(needed, layout.size)
    longest = max(1, *(len(chosen) for *_, chosen in parts))

    def filled(index: int, value: int) -> np.ndarray:
        rows = [
            np.pad(part[index], (0, longest - len(part[index])), constant_values=value)
            for part in parts
        ]
        return np.stack(rows).astype(np.int32)

    last = layout.length * columns
    return ShardEdges(
        layout, sources, filled(0, 0), filled(1, last), filled(2, -1), columns
    )


def edge_attention(
    query: Field,
    key: Field,
    value: Field,
    along: Float[Array, "edge head dim"] | None,
    edges: ShardEdges,
    drop: Callable[[Array], Array] = lambda weights: weights,
) -> Field:
    """Returns the sum over incoming edges of softmax(q (k + e) / sqrt(dim)) (v + e).

    The softmax is over the incoming edges of a node, in float32 or wider; a node
    without incoming edges has zeros. As in PyTorch Geometric's TransformerConv.

    Args:
        query, key, value: fields (batch, lat, lon, head, dim) on the same layout.
        along: (edge, head, dim), e of the local edges; None for 0.
        edges: edges for this layout.
        drop: function of the weights (batch, edge, head), for dropout.
    """
    x = query.data
    batch, *_, heads, dim = x.shape
    wide = jnp.promote_types(x.dtype, jnp.float32)
    both = key.like(jnp.concatenate([key.data, value.data], -1))
    fetched = reshard(both, edges.sources, scope=HALO).data
    fetched = fetched.reshape(batch, -1, heads, 2 * dim)
    source, target = edges.local(edges.source), edges.local(edges.target)
    begin = fetched[:, source]
    keys, values = begin[..., :dim], begin[..., dim:]
    if along is not None:
        keys, values = keys + along[None], values + along[None]
    points = edges.num_points
    ends = jnp.minimum(target, points - 1)
    queries = x.reshape(batch, points, heads, dim)[:, ends]
    logits = (queries.astype(wide) * keys.astype(wide)).sum(-1) * dim**-0.5
    weights = drop(_softmax(logits, target, points).astype(x.dtype))
    summed = _summed(weights[..., None] * values, target, points)
    return query.like(summed.reshape(x.shape))


def _softmax(
    logits: Float[Array, "batch edge head"], target: Array, points: int
) -> Float[Array, "batch edge head"]:
    """Softmax over the edges of each target; 0 for padding edges."""
    real = (target < points)[None, :, None]
    fixed = jax.lax.stop_gradient(jnp.where(real, logits, -jnp.inf))
    largest = jax.vmap(
        lambda sample: jax.ops.segment_max(
            sample, target, points + 1, indices_are_sorted=True
        )
    )(fixed)
    largest = jnp.where(jnp.isfinite(largest), largest, 0.0)
    raised = jnp.exp(jnp.where(real, logits - largest[:, target], -jnp.inf))
    total = _summed(raised, target, points + 1) + SMALL
    return raised / total[:, target]


def _summed(values: Array, target: Array, points: int) -> Array:
    """Sums values (batch, edge, ...) over the edges of each of `points` targets."""
    return jax.vmap(
        lambda sample: jax.ops.segment_sum(
            sample, target, points, indices_are_sorted=True, mode="drop"
        )
    )(values)
