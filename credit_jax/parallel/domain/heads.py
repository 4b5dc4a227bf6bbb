"""Ulysses: attention of all rows of several shards by a part of the heads each.

Neighboring shards of the domain axis form groups of `degree`. A group holds the rows of
whole windows, split evenly among its shards. Around the attention one `all_to_all`
trades heads for rows, so that each shard has all rows of its group and 1 / degree of
the heads, and another trades them back. Every other layer works on the even rows; a
group as large as the axis never moves rows for attention. The method is that of
DeepSpeed Ulysses (arXiv 2309.14509).
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
    """What each shard has before and after short attention, and long attention.

    Args:
        layout: gives the shards, axis and dim.
        windows: of both attentions.
        degree: shards of a group; 1 for whole windows on every shard.
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
    """The rows of each shard before and after an attention that trades heads for rows.

    Args:
        layout: gives the shards, axis and dim.
        size: number of rows.
        kind, window: of the attention; `window` divides `size`.
        degree: shards of a group.
    """
    if window == 1:
        return _whole_windows(layout, size, kind, window)
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
    """The two exchanges around an attention.

    Attributes:
        layout: of the rows before and after it, of `attention_layout`.
        kind, window, degree: as there; degree is above 1.
    """

    layout: Layout
    kind: Kind
    window: int
    degree: int

    @property
    def group(self) -> Layout:
        """The rows of a group, on each of its shards."""
        layout = self.layout
        args = (layout, layout.size, self.kind, self.window, self.degree)
        rows = [group for group in _group_rows(*args) for _ in range(self.degree)]
        return layout.with_rows(rows, layout.size)

    @property
    def part(self) -> Array | int:
        """Which of the equal parts of the heads this shard attends with."""
        return axis_index(self.layout.axis) % self.degree

    def to_heads(
        self, x: Float[Array, "batch rows columns *three heads head_dim"]
    ) -> Field:
        """All rows of the group, of a part of the heads; the layout is `group`.

        Args:
            x: the local rows of all heads; `degree` divides them.
        """
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
    """Rows of each group: those that one of as many shards has for its windows."""
    num = layout.num_shards // degree
    rows = ((PADDING,),) * num
    return _whole_windows(replace(layout, rows=rows), size, kind, window).rows


def _whole_windows(layout: Layout, size: int, kind: Kind, window: int) -> Layout:
    whole = window_layout if kind == "short" else group_layout
    return whole(layout, size, window)
