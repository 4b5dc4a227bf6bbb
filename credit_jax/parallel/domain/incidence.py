"""Sums over the edges at each point, and values of the points of each edge.

Which edges meet at a point is known at trace time. So no value is added to another by
an index: points are in tables of rows with a place for each of their edges, and what
moves between edges, places and points moves once. XLA makes a scatter that adds
deterministic on GPUs by sorting all that it adds, but not where no two values meet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Shaped

from credit_jax.parallel.rows.layout import Layout


@dataclass(frozen=True, eq=False)
class Incidence:
    """The edges at every point of a shard, in tables.

    Points of 5 to 8 edges are in one table, whose rows have as many places as the most
    edges of them, and so on for all powers of 2. Indices of what is not there are
    beyond the last, each another.

    Attributes:
        layout: a layout over the shards.
        edges: the edge at each place, (shard, row, place) by table.
        row: (shard, point), the row of each point, over all tables.
        point: (shard, row), the point of each row.
        place: (shard, edge), the place of each edge, over all tables.
    """

    layout: Layout
    edges: tuple[Int[np.ndarray, "shard _ _"], ...]
    row: Int[np.ndarray, "shard point"]
    point: Int[np.ndarray, "shard row"]
    place: Int[np.ndarray, "shard edge"]

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
        widths = _widths(degrees)
        tables, rows = [], []
        row = np.full(degrees.shape, -1)
        place = np.full((len(points), longest), -1)
        first_row = first_place = 0
        order = [np.argsort(point, kind="stable") for point in points]
        start = np.cumsum(degrees, 1) - degrees
        for width in sorted(set(widths[widths > 0].tolist())):
            length = int((widths == width).sum(1).max())
            table = np.full((len(points), length, width), -1)
            point_of_row = np.full((len(points), length), -1)
            for shard, edges in enumerate(order):
                (members,) = np.nonzero(widths[shard] == width)
                places = start[shard, members, None] + np.arange(width)[None]
                is_edge = np.arange(width)[None] < degrees[shard, members, None]
                chosen = edges[places[is_edge]]
                table[shard, : len(members)][is_edge] = chosen
                index = np.arange(len(members))
                point_of_row[shard, index] = members
                row[shard, members] = first_row + index
                here = index[:, None] * width + np.arange(width)[None]
                place[shard, chosen] = first_place + here[is_edge]
            tables.append(table)
            rows.append(point_of_row)
            first_row += length
            first_place += length * width
        point = np.concatenate([np.zeros((len(points), 0), int), *rows], 1)
        return cls(
            layout,
            tuple(_beyond(table, longest) for table in tables),
            _beyond(row, first_row),
            _beyond(point, size),
            _beyond(place, first_place),
        )

    def sum(
        self, values: Float[Array, "batch edge *_"]
    ) -> Float[Array, "batch point *_"]:
        """Returns the sum over the edges at each point; 0 where there is none."""
        return self._reduced(values, 0.0, lambda table: table.sum(2))

    def max(
        self, values: Float[Array, "batch edge *_"]
    ) -> Float[Array, "batch point *_"]:
        """Returns the largest value at each point; -inf where there is none."""
        return self._reduced(values, -jnp.inf, lambda table: table.max(2))

    def spread(
        self, values: Shaped[Array, "batch point *_"]
    ) -> Shaped[Array, "batch edge *_"]:
        """Returns the value at the point of each edge; 0 for padding edges."""
        rows, first, places = _taken(values, self._of_shard(self.point), 0.0), 0, []
        for table in self.edges:
            _, length, width = table.shape
            part = rows[:, first : first + length, None]
            shape = (*part.shape[:2], width, *part.shape[3:])
            part = jnp.broadcast_to(part, shape)
            places.append(part.reshape(len(part), -1, *part.shape[3:]))
            first += length
        return _taken(jnp.concatenate(places, 1), self._of_shard(self.place), 0.0)

    def _reduced(
        self, values: Array, fill: float, reduction: Callable[[Array], Array]
    ) -> Array:
        rows = []
        for table in self.edges:
            index = self._of_shard(table)
            part = _taken(values, index.reshape(-1), fill)
            shape = (len(part), *index.shape, *part.shape[2:])
            rows.append(reduction(part.reshape(shape)))
        return _taken(jnp.concatenate(rows, 1), self._of_shard(self.row), fill)

    def _of_shard(self, per_shard: np.ndarray) -> Array:
        return self.layout.of_shard(per_shard)


def _widths(degrees: np.ndarray) -> np.ndarray:
    """The largest of the degrees with the same next power of 2, elementwise."""
    power = np.ceil(np.log2(np.maximum(degrees, 1))).astype(int)
    largest = np.zeros(power.max() + 1, int)
    np.maximum.at(largest, power, degrees)
    return np.where(degrees > 0, largest[power], 0)


def _beyond(index: np.ndarray, size: int) -> np.ndarray:
    """Gives what is -1 an index from `size` on, of its own in each shard; int32."""
    flat = index.reshape(len(index), -1)
    missing = flat < 0
    numbers = size - 1 + np.cumsum(missing, 1)
    return np.where(missing, numbers, flat).reshape(index.shape).astype(np.int32)


def _taken(values: Array, index: Array, fill: Any) -> Array:
    """Returns values[:, index] of indices that are all different."""
    return values.at[:, index].get(
        mode="fill", fill_value=fill, unique_indices=True, wrap_negative_indices=False
    )
