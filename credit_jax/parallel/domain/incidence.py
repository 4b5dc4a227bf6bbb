"""Sums over the edges at each point, and values of the points of each edge.

Which edges meet at a point is known at trace time. So sums are of gathered rows, and
each of the two operations is the gradient of the other: nothing is added by an index,
which XLA makes deterministic on GPUs by sorting all that is added.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from credit_jax.ops.custom_vjp import linear
from credit_jax.parallel.rows.layout import Layout


@dataclass(frozen=True, eq=False)
class Incidence:
    """The edges at every point of a shard, in tables.

    Points of 5 to 8 edges are in one table, whose rows have as many places as the most
    edges of them, and so on for all powers of 2.

    Attributes:
        layout: a layout over the shards.
        edges: (shard, row, place) for each table, the edge at each place; an index
            beyond the last where there is none.
        row: (shard, point), the row of each point, over all tables; beyond the last
            where it has no edge.
        point: (shard, edge), the point of each edge; for padding edges beyond the last.
    """

    layout: Layout
    edges: tuple[Int[np.ndarray, "shard _ _"], ...]
    row: Int[np.ndarray, "shard point"]
    point: Int[np.ndarray, "shard edge"]

    @classmethod
    def of(
        cls, layout: Layout, points: Sequence[Int[np.ndarray, " _"]], size: int
    ) -> Incidence:
        """Returns the tables of the edges at points.

        Args:
            layout: a layout over the shards.
            points: the local point of each edge, by shard.
            size: number of local points.
        """
        longest = max(1, *map(len, points))
        degrees = np.stack([np.bincount(point, minlength=size) for point in points])
        start = np.cumsum(degrees, 1) - degrees
        order = [np.argsort(point, kind="stable") for point in points]
        widths = _widths(degrees)
        num_rows, tables, row = 0, [], np.full(degrees.shape, -1)
        for width in sorted(set(widths[widths > 0].tolist())):
            length = int((widths == width).sum(1).max())
            table = np.full((len(points), length, width), longest, np.int32)
            for shard, edges in enumerate(order):
                (members,) = np.nonzero(widths[shard] == width)
                places = start[shard, members, None] + np.arange(width)[None]
                is_edge = np.arange(width)[None] < degrees[shard, members, None]
                table[shard, : len(members)][is_edge] = edges[places[is_edge]]
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
        return linear(self._sum, self.spread, values, self.layout.axis)

    def spread(
        self, values: Float[Array, "batch point *_"]
    ) -> Float[Array, "batch edge *_"]:
        """Returns the value at the point of each edge; 0 for padding edges."""
        return linear(self._spread, self.sum, values, self.layout.axis)

    def max(
        self, values: Float[Array, "batch edge *_"]
    ) -> Float[Array, "batch point *_"]:
        """Returns the largest value at each point, without a gradient.

        It is -inf where there is none.
        """
        return self._reduced(lax.stop_gradient(values), -jnp.inf, jnp.max)

    def _sum(self, values: Array) -> Array:
        return self._reduced(values, 0.0, jnp.sum)

    def _spread(self, values: Array) -> Array:
        return _taken(values, self.layout.of_shard(self.point), 0.0)

    def _reduced(
        self, values: Array, fill: float, reduction: Callable[..., Array]
    ) -> Array:
        rows = [
            reduction(_taken(values, self.layout.of_shard(table), fill), 2)
            for table in self.edges
        ]
        every = jnp.concatenate(rows, 1)
        return _taken(every, self.layout.of_shard(self.row), fill)


def _widths(degrees: np.ndarray) -> np.ndarray:
    """The largest of the degrees with the same next power of 2, elementwise."""
    power = np.ceil(np.log2(np.maximum(degrees, 1))).astype(int)
    largest = np.zeros(power.max() + 1, int)
    np.maximum.at(largest, power, degrees)
    return np.where(degrees > 0, largest[power], 0)


def _taken(values: Array, index: Array, fill: float) -> Array:
    """Returns values[:, index], and `fill` for indices beyond the last."""
    return values.at[:, index].get(mode="fill", fill_value=fill)
