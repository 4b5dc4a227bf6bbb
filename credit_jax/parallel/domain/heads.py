"""Ulysses attention: each shard of a group computes all rows for a part of the heads.

Neighboring shards of the domain axis form groups of `degree`. A group has the rows of
complete windows, distributed evenly over its shards. Before the attention, an
`all_to_all` exchanges heads for rows, so each shard has all rows of its group and
1 / degree of the heads; another `all_to_all` after it restores the rows. All other
layers use the even distribution of rows. With a single group, no rows need to be
resharded for attention. The method is that of DeepSpeed Ulysses (arXiv 2309.14509).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from jax import lax
from jaxtyping import Array, Float

from credit_jax.ops.padding import pad_dim
from credit_jax.parallel.collectives import axis_index, keep_moved
from credit_jax.parallel.domain.strips import Windows
from credit_jax.parallel.domain.windows import Kind, group_layout, window_layout
from credit_jax.parallel.rows.layout import PADDING, Field, Layout


def attention_layouts(
    layout: Layout, windows: Windows, degree: int = 1
) -> tuple[Layout, Layout]:
    """Returns the layouts of the fields around short attention and long attention.

    Args:
        layout: gives shards, axis and dim.
        windows: the windows of both attentions.
        degree: number of shards of a group; 1 for complete windows on every shard.
    """
    if degree == 1:
        return windows.layouts(layout)
    size = windows.rows
    short = attention_layout(layout, size, "short", windows.short, degree)
    if windows.long == 1:
        return short, short
    return short, attention_layout(layout, size, "long", windows.long, degree)


def attention_layout(
    layout: Layout, size: int, kind: Kind, window: int, degree: int
) -> Layout:
    """Returns the layout of the field around an attention with a `HeadExchange`.

    Args:
        layout: gives shards, axis and dim.
        size: number of rows, a multiple of `window`.
        kind, window: kind of the attention, and its number of rows in a window.
        degree: number of shards of a group.
    """
    if window == 1:
        return _full_windows(layout, size, kind, window)
    rows = _group_rows(layout, size, kind, window, degree)
    length = -(-len(rows[0]) // degree)
    parts = [
        group[part * length : (part + 1) * length]
        for group in rows
        for part in range(degree)
    ]
    return layout.with_rows(parts, size)


@dataclass(frozen=True)
class HeadExchange:
    """The exchanges of heads for rows before and after an attention.

    Attributes:
        layout: layout around the attention, as returned by `attention_layout`.
        kind, window, degree: as for `attention_layout`; degree is above 1.
    """

    layout: Layout
    kind: Kind
    window: int
    degree: int

    @property
    def group(self) -> Layout:
        """Layout during the attention: each shard has all rows of its group."""
        layout = self.layout
        args = (layout, layout.size, self.kind, self.window, self.degree)
        rows = [group for group in _group_rows(*args) for _ in range(self.degree)]
        return layout.with_rows(rows, layout.size)

    @property
    def part(self) -> Array | int:
        """Index of the heads of this shard among the equal parts of all heads."""
        return axis_index(self.layout.axis) % self.degree

    def to_heads(
        self, x: Float[Array, "batch rows columns *three heads head_dim"]
    ) -> Field:
        """Returns all rows of the group for a part of the heads, by one exchange.

        Args:
            x: local rows of all heads; the number of heads is a multiple of `degree`.

        Returns:
            Field on the layout `group`, with 1 / degree of the heads.
        """
        # Shards have equally many rows, so that those of a group end with padding.
        moved = self._exchange(x, split=x.ndim - 2, joined=self.layout.dim)
        group = self.group
        return Field(lax.slice_in_dim(moved, 0, group.length, axis=group.dim), group)

    def to_rows(
        self, x: Float[Array, "batch group_rows columns *three part head_dim"]
    ) -> Float[Array, "batch rows columns *three heads head_dim"]:
        """The inverse of `to_heads`."""
        missing = self.degree * self.layout.length - x.shape[self.layout.dim]
        padded = pad_dim(x, self.layout.dim, (0, missing))
        return self._exchange(padded, split=self.layout.dim, joined=x.ndim - 2)

    def _exchange(self, x: Array, *, split: int, joined: int) -> Array:
        shards = range(self.layout.num_shards)
        groups = [shards[i : i + self.degree] for i in shards[:: self.degree]]
        moved = lax.all_to_all(
            x,
            self.layout.axis,
            split,
            joined,
            axis_index_groups=[list(group) for group in groups],
            tiled=True,
        )
        return keep_moved(moved)


def _group_rows(
    layout: Layout, size: int, kind: Kind, window: int, degree: int
) -> tuple[tuple[int, ...], ...]:
    """Returns the rows of each group: those of a shard if groups were shards."""
    num = layout.num_shards // degree
    rows = ((PADDING,),) * num
    return _full_windows(replace(layout, rows=rows), size, kind, window).rows


def _full_windows(layout: Layout, size: int, kind: Kind, window: int) -> Layout:
    full = window_layout if kind == "short" else group_layout
    return full(layout, size, window)
