"""Attention along the edges of a graph whose nodes are the points of a sharded field.

Each shard has the edges whose targets are in its rows, and receives the rows of their
sources.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from credit_jax.ops.custom_vjp import linear
from credit_jax.parallel.collectives import sum_parts
from credit_jax.parallel.rows.exchange import HALO, reshard
from credit_jax.parallel.rows.layout import Field, Layout


@dataclass(frozen=True, eq=False)
class Incidence:
    """The edges at every point of a shard, in tables."""

    # Points of 5 to 8 edges are in one table, whose rows have as many places as the
    # most edges of them, and so on for all powers of 2. An index beyond the last is
    # none.
    layout: Layout
    edges: tuple[Int[np.ndarray, "shard _ _"], ...]  # at each place
    row: Int[np.ndarray, "shard point"]  # of each point, over all tables
    point: Int[np.ndarray, "shard edge"]  # of each edge

    @classmethod
    def of(
        cls, layout: Layout, points: Sequence[Int[np.ndarray, " _"]], size: int
    ) -> Incidence:
        """Returns the tables of the edges at points."""
        longest = max(1, *map(len, points))
        degrees = np.stack([np.bincount(point, minlength=size) for point in points])
        start = np.cumsum(degrees, 1) - degrees
        order = [np.argsort(point, kind="stable") for point in points]
        # A single table would have places for the point with most edges at all points.
        # The largest of the degrees with the same next power of 2, elementwise.
        power = np.ceil(np.log2(np.maximum(degrees, 1))).astype(int)
        largest = np.zeros(power.max() + 1, int)
        np.maximum.at(largest, power, degrees)
        widths = np.where(degrees > 0, largest[power], 0)
        num_rows, tables, row = 0, [], np.full(degrees.shape, -1)
        for width in sorted(set(widths[widths > 0].tolist())):
            length = int((widths == width).sum(1).max())
            table = np.full((len(points), length, width), longest, np.int32)
            for shard, edges in enumerate(order):
                (members,) = np.nonzero(widths[shard] == width)
                indices = start[shard, members, None] + np.arange(width)[None]
                is_edge = np.arange(width)[None] < degrees[shard, members, None]
                table[shard, : len(members)][is_edge] = edges[indices[is_edge]]
                row[shard, members] = num_rows + np.arange(len(members))
            tables.append(table)
            num_rows += length
        row = np.where(row < 0, num_rows, row).astype(np.int32)
        padded = [
            np.pad(p, (0, longest - len(p)), constant_values=size) for p in points
        ]
        return cls(layout, tuple(tables), row, np.stack(padded).astype(np.int32))

    def sum(
        self, values: Float[Array, "batch edge *_"]
    ) -> Float[Array, "batch point *_"]:
        """Returns the sum over the edges at each point; 0 where there is none."""

        def total(values: Array) -> Array:
            return self._reduced(values, 0.0, jnp.sum)

        return linear(total, self.spread, values, self.layout.axis)

    def spread(
        self, values: Float[Array, "batch point *_"]
    ) -> Float[Array, "batch edge *_"]:
        """Returns the value at the point of each edge; 0 for padding edges."""

        def spread(values: Array) -> Array:
            return _taken(values, self.layout.of_shard(self.point), 0.0)

        return linear(spread, self.sum, values, self.layout.axis)

    def max(
        self, values: Float[Array, "batch edge *_"]
    ) -> Float[Array, "batch point *_"]:
        """Returns the largest value at each point or -inf, without a gradient."""
        return self._reduced(lax.stop_gradient(values), -jnp.inf, jnp.max)

    def _reduced(
        self, values: Array, fill: float, reduction: Callable[..., Array]
    ) -> Array:
        rows = [
            reduction(_taken(values, self.layout.of_shard(table), fill), 2)
            for table in self.edges
        ]
        every = jnp.concatenate(rows, 1)
        return _taken(every, self.layout.of_shard(self.row), fill)


def _taken(values: Array, index: Array, fill: float) -> Array:
    """Returns values[:, index], and `fill` for indices beyond the last."""
    return values.at[:, index].get(mode="fill", fill_value=fill)


# PyTorch Geometric adds this to the denominator of a softmax.
SMALL = 1e-16


@dataclass(frozen=True, eq=False)
class ShardEdges:
    """The edges of every shard, padded to the same number; a padding edge is -1."""

    layout: Layout  # of the rows of targets
    sources: Layout  # of the rows of sources that each shard needs
    at_source: Incidence
    at_target: Incidence
    number: Int[np.ndarray, "shard edge"]  # global index

    def real(self) -> Bool[Array, " edge"]:
        """Returns a mask of the local edges, False for padding edges."""
        return self.layout.of_shard(self.number) >= 0

    def mean(self, values: Float[Array, "edge channel"]) -> Float[Array, " channel"]:
        """Returns the mean over the edges of all shards."""
        axes = () if self.layout.axis is None else (self.layout.axis,)
        real_values = jnp.where(self.real()[:, None], values, 0.0)
        return sum_parts(real_values.sum(0), axes) / (self.number >= 0).sum()


def shard_edges(
    layout: Layout, columns: int, edges: Int[np.ndarray, "edge 2"]
) -> ShardEdges:
    """Distributes (source, target) edges to the shards with the targets' rows."""
    begin, end = edges.T
    shard_of = np.full(layout.size, -1)
    index = np.full(layout.size, -1)
    for shard, rows in enumerate(layout.rows):
        for position, row in enumerate(rows):
            if row >= 0:
                shard_of[row], index[row] = shard, position
    begins, ends, numbers, needed = [], [], [], []
    for shard in range(layout.num_shards):
        (chosen,) = np.nonzero(shard_of[end // columns] == shard)
        local = index[end[chosen] // columns] * columns + end[chosen] % columns
        order = np.argsort(local, kind="stable")
        chosen = chosen[order]
        rows, origin = np.unique(begin[chosen] // columns, return_inverse=True)
        begins.append(origin * columns + begin[chosen] % columns)
        ends.append(local[order])
        numbers.append(chosen)
        needed.append(rows.tolist() or [0])
    sources = layout.with_rows(needed, layout.size)
    longest = max(1, *map(len, numbers))
    number = np.full((layout.num_shards, longest), -1, np.int32)
    for shard, chosen in enumerate(numbers):
        number[shard, : len(chosen)] = chosen
    return ShardEdges(
        layout,
        sources,
        Incidence.of(layout, begins, sources.length * columns),
        Incidence.of(layout, ends, layout.length * columns),
        number,
    )


def edge_attention(
    query: Field,
    key: Field,
    value: Field,
    along: Float[Array, "edge head dim"] | None,
    edges: ShardEdges,
    drop: Callable[[Array], Array] = lambda weights: weights,
) -> Field:
    """Returns the sum over incoming edges of softmax(q (k + e) / sqrt(dim)) (v + e)."""
    x = query.data
    batch, *_, heads, dim = x.shape
    wide = jnp.promote_types(x.dtype, jnp.float32)
    # Keys and values are moved together: one exchange of rows instead of two.
    both = key.like(jnp.concatenate([key.data, value.data], -1))
    fetched = reshard(both, edges.sources, scope=HALO).data
    fetched = fetched.reshape(batch, -1, heads, 2 * dim)
    begin = edges.at_source.spread(fetched)
    keys, values = begin[..., :dim], begin[..., dim:]
    if along is not None:
        keys, values = keys + along[None], values + along[None]
    queries = edges.at_target.spread(x.reshape(batch, -1, heads, dim))
    logits = (queries.astype(wide) * keys.astype(wide)).sum(-1) * dim**-0.5
    # Softmax over the edges of each target; 0 for padding edges.
    at_target = edges.at_target
    largest = at_target.max(logits)
    # Points without edges have none to spread to.
    largest = at_target.spread(jnp.where(jnp.isfinite(largest), largest, 0.0))
    real = edges.real()[None, :, None]
    raised = jnp.exp(jnp.where(real, logits - largest, -jnp.inf))
    # A node without incoming edges has zeros, as in PyTorch Geometric's
    # TransformerConv.
    softmax = raised / (at_target.spread(at_target.sum(raised)) + SMALL)
    weights = drop(softmax.astype(x.dtype))
    return query.like(edges.at_target.sum(weights[..., None] * values).reshape(x.shape))
