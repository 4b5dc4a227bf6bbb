"""Named cases of all operations on split fields, over which tests are parametrized."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from credit_jax.parallel.domain.conv import conv2d_scales, conv_field
from credit_jax.parallel.domain.norm import group_norm
from credit_jax.parallel.domain.pool import resize_bilinear
from credit_jax.parallel.domain.rearrange import (
    add,
    crop_globe,
    join,
    pad_globe,
    pixel_shuffle_field,
)
from credit_jax.parallel.domain.strips import Windows
from credit_jax.parallel.domain.windows import (
    Kind,
    group_layout,
    merge,
    partition,
    window_layout,
)
from credit_jax.parallel.rows.exchange import reshard
from credit_jax.parallel.rows.layout import Field, Layout
from tests.parallel.domain.convolution_cases import CONVOLUTION_CASES
from tests.parallel.domain.field_cases import FIELD_OPERATIONS
from tests.support.sharded import Case


def conv(
    rows: int,
    kernel: Sequence[int],
    *,
    channels: tuple[int, int] = (2, 3),
    lon: int = 7,
    dim: int = 1,
    groups: int = 1,
    **keywords: Any,
) -> Case:
    """A convolution of `rows` rows with a (height, width) kernel."""
    weights = ((*kernel, channels[0] // groups, channels[1]),)

    def op(field: Field, kernel: jax.Array) -> Field:
        return conv_field(field, kernel, groups=groups, **keywords)

    shape = (2, rows, lon, channels[0])
    if dim == 2:
        shape = (2, lon, rows, channels[0])
    return Case(op, (shape,), weights, dim)


def same(size: int, dilation: int = 1) -> tuple[int, int]:
    total = dilation * (size - 1)
    return total // 2, total - total // 2


def pad(rows: tuple[int, int], columns: tuple[int, int] = (0, 0)) -> dict[str, Any]:
    return {"padding": (rows, columns)}


def scales(rows: int, kernels: Sequence[int], stride: int, window: int) -> Case:
    """CrossEmbed, with output rows in the layout of short windows."""

    def op(field: Field, *weights: jax.Array) -> Field:
        half = len(weights) // 2
        out = window_layout(field.layout, field.layout.size // stride, window)
        return conv2d_scales(
            field, weights[:half], weights[half:], stride=stride, out=out
        )

    shapes = [(k, k, 2, 1 + i) for i, k in enumerate(kernels)]
    shapes += [(1 + i,) for i in range(len(kernels))]
    return Case(op, ((2, rows, 4 * stride, 2),), tuple(shapes))


def windows(rows: int, columns: int, kind: Kind, window: int) -> Case:
    """Mixes the tokens of every window and returns to the block layout."""

    def op(field: Field, mix: jax.Array) -> Field:
        whole = window_layout if kind == "short" else group_layout
        field = reshard(field, whole(field.layout, rows, window))
        tokens = jnp.tanh(partition(field, kind, window))
        mixed = jnp.einsum("bwtc,ts->bwsc", tokens, mix)
        field = merge(mixed, field, kind, window)
        return reshard(field, field.layout.to_blocks())

    return Case(op, ((2, rows, columns, 2),), ((window**2, window**2),))


def stage(rows: int, columns: int, short: int, long: int) -> Case:
    """Short and long windows of a stage, in strips for some numbers of shards."""
    windows = Windows(rows, columns, short, long)

    def op(field: Field, *mixes: jax.Array) -> Field:
        kinds: tuple[Kind, Kind] = "short", "long"
        blocks = field.layout
        for kind, window, layout, mix in zip(
            kinds, (short, long), windows.layouts(blocks), mixes, strict=True
        ):
            field = reshard(field, layout)
            tokens = jnp.tanh(partition(field, kind, window))
            mixed = jnp.einsum("bwtc,ts->bwsc", tokens, mix)
            field = merge(mixed, field, kind, window)
        return reshard(field, blocks)

    return Case(op, ((2, rows, columns, 2),), ((short**2,) * 2, (long**2,) * 2))


def embedded(rows: int, columns: int, window: int) -> Case:
    """A convolution that reads rows from strips, joined with another."""

    def op(field: Field, kernel: jax.Array) -> Field:
        strips, _ = Windows(rows, columns, window, 1).layouts(field.layout)
        field = reshard(field, strips)
        field = field.like(jnp.sin(field.data))
        out = conv_field(field, kernel, padding=((1, 1), (1, 1)))
        return join(out, field)

    return Case(op, ((2, rows, columns, 2),), ((3, 3, 2, 2),))


def norm(rows: int, channels: int, num_groups: int, dim: int = 1) -> Case:
    def op(field: Field, scale: jax.Array, bias: jax.Array) -> Field:
        return group_norm(field, scale, bias, num_groups=num_groups)

    shape = (2, rows, 5, channels) if dim == 1 else (2, 5, rows, channels)
    return Case(op, (shape,), ((channels,), (channels,)), dim)


def padding(rows: int, mode: str, lat: tuple[int, int], lon: tuple[int, int]) -> Case:
    return Case(lambda f: pad_globe(f, mode=mode, lat=lat, lon=lon), ((2, rows, 6, 2),))


def cropping(rows: int, lat: tuple[int, int], lon: tuple[int, int]) -> Case:
    return Case(lambda f: crop_globe(f, lat=lat, lon=lon), ((2, rows, 6, 2),))


def resizing(
    rows: int, out: int, columns: int = 5, out_columns: int = 5, corners: bool = False
) -> Case:
    def op(field: Field) -> Field:
        return resize_bilinear(field, (out, out_columns), align_corners=corners)

    return Case(op, ((2, rows, columns, 2),))


def moved(rows: int, make: Callable[[Layout], Layout]) -> Case:
    """Reshards rows, applies a nonlinear function, and reshards back."""

    def op(field: Field) -> Field:
        there = reshard(field, make(field.layout))
        there = there.like(jnp.sin(there.data))
        return reshard(there, field.layout)

    return Case(op, ((2, rows, 3, 2),))


def upsampled(rows: int) -> Case:
    """A decoder step: pixel shuffle, convolution on local rows, join, sum."""

    def op(field: Field, skip: Field, kernel: jax.Array) -> Field:
        up = pixel_shuffle_field(field, 2)
        x = conv_field(up, kernel, padding=((1, 1), (1, 1)), out=up.layout)
        return join(add(up, x), skip)

    return Case(op, ((2, rows, 3, 8), (2, 2 * rows, 6, 1)), ((3, 3, 2, 2),))


CONVOLUTIONS = {
    "1x1": conv(45, (1, 1)),
    "3x3 same": conv(48, (3, 3), **pad((1, 1), (1, 1))),
    "3x3 same, uneven": conv(45, (3, 3), **pad((1, 1), (1, 1))),
    "3x3 same, prime": conv(61, (3, 3), **pad((1, 1), (1, 1))),
    "3x3 same, 721": conv(721, (3, 3), lon=3, **pad((1, 1), (1, 1))),
    "3x3 valid": conv(45, (3, 3)),
    "7x3 same": conv(45, (7, 3), **pad((3, 3), (1, 1))),
    "kernel wider than a shard": conv(16, (9, 1), **pad(same(9))),
    "kernel of all rows": conv(16, (16, 1)),
    "even kernel": conv(45, (4, 2), **pad(same(4), same(2))),
    "even kernel, padding below": conv(45, (2, 2), **pad((0, 1), (0, 1))),
    "padding above only": conv(45, (3, 1), **pad((2, 0))),
    "large padding": conv(13, (3, 1), **pad((5, 6))),
    "stride 2, kernel 2": conv(48, (2, 2), stride=(2, 2)),
    "stride 2, kernel 3": conv(45, (3, 3), stride=(2, 2), **pad((1, 1), (1, 1))),
    "stride 2, kernel 4": conv(46, (4, 4), stride=(2, 2), **pad((1, 1), (1, 1))),
    "stride 2, row over": conv(45, (2, 2), stride=(2, 2)),
    "stride 3, kernel 2": conv(47, (2, 2), stride=(3, 3)),
    "stride 4, kernel 16": conv(64, (16, 2), stride=(4, 2), **pad((6, 6))),
    "stride 4, kernel 32": conv(61, (32, 4), stride=(4, 4), **pad((14, 14))),
    "stride 2, many columns": conv(
        45, (6, 16), lon=101, stride=(2, 2), **pad((2, 2), (7, 7))
    ),
    "longitude split, stride 2, many columns": conv(
        403, (2, 16), lon=4, dim=2, stride=(2, 2), **pad((0, 0), (7, 7))
    ),
    # On 3 shards each needs exactly its own rows, but zeros in place of padding.
    "padding is padding": conv(5, (2, 1), stride=(2, 1), **pad((0, 1))),
    "dilation 2": conv(45, (3, 3), dilation=(2, 2), **pad((2, 2), (2, 2))),
    "dilation 5, stride 2": conv(
        48, (3, 1), dilation=(5, 1), stride=(2, 1), **pad((5, 5))
    ),
    "groups": conv(45, (3, 3), channels=(4, 4), groups=2, **pad((1, 1), (1, 1))),
    "depthwise, stride 2": conv(45, (4, 2), channels=(3, 3), groups=3, stride=(2, 2)),
    "4 rows": conv(4, (3, 3), **pad((1, 1), (1, 1))),
    "1 row": conv(1, (3, 3), **pad((1, 1), (1, 1))),
    "longitude split": conv(45, (3, 3), dim=2, **pad((1, 1), (1, 1))),
    "longitude split, stride 2": conv(24, (2, 4), dim=2, stride=(2, 2)),
}

EMBEDDINGS = {
    "embed 4 8 16 32, stride 4": scales(64, (4, 8, 16, 32), 4, 4),
    "embed 4 8, stride 4, uneven": scales(60, (4, 8), 4, 5),
    "embed 2 4, stride 2": scales(24, (2, 4), 2, 2),
    "embed 2 4, stride 2, few rows": scales(8, (2, 4), 2, 2),
    "embed 3 5, stride 1": scales(15, (3, 5), 1, 3),
}

WINDOWS = {
    "short windows": windows(48, 8, "short", 4),
    "short windows, uneven": windows(45, 6, "short", 3),
    "short windows, few": windows(8, 8, "short", 4),
    "short windows of 1": windows(13, 3, "short", 1),
    "long windows": windows(48, 8, "long", 4),
    "long windows, uneven": windows(45, 6, "long", 3),
    "long windows, few": windows(8, 8, "long", 4),
    "one long window": windows(4, 4, "long", 4),
    "long windows of 1": windows(13, 3, "long", 1),
}

STRIPS = {
    "strips, columns meet": stage(20, 20, 5, 2),
    "strips, columns apart": stage(20, 12, 4, 2),
    "strips, long in rows on 3": stage(30, 18, 6, 2),
    "strips, wide groups": stage(15, 15, 3, 5),
    "strips, few": stage(8, 16, 4, 4),
    "convolution of strips": embedded(20, 10, 5),
}

NORMS = {
    "group norm": norm(48, 6, 2),
    "group norm, uneven": norm(45, 6, 3),
    "group norm, one group": norm(61, 4, 1),
    "group norm, group of one": norm(13, 3, 3),
    "group norm, 4 rows": norm(4, 4, 2),
    "group norm, longitude split": norm(13, 4, 2, dim=2),
}

PADDINGS = {
    "earth": padding(48, "earth", (3, 3), (2, 2)),
    "earth, uneven": padding(45, "earth", (10, 9), (1, 3)),
    "earth, north only": padding(13, "earth", (4, 0), (0, 1)),
    "earth, every row": padding(8, "earth", (8, 8), (6, 6)),
    "earth, columns only": padding(13, "earth", (0, 0), (2, 1)),
    "mirror": padding(48, "mirror", (3, 3), (2, 2)),
    "mirror, uneven": padding(45, "mirror", (10, 9), (0, 0)),
    "mirror, most": padding(8, "mirror", (7, 7), (1, 1)),
    "4 rows, earth": padding(4, "earth", (2, 2), (1, 1)),
    "crop": cropping(54, (3, 3), (2, 1)),
    "crop, uneven": cropping(64, (10, 9), (0, 2)),
    "crop, one row left": cropping(9, (4, 4), (0, 0)),
}

RESIZES = {
    "resize up": resizing(45, 61, 5, 8),
    "resize down": resizing(61, 45, 8, 5),
    "resize twice": resizing(24, 48, 4, 8),
    "resize 64 to 45": resizing(64, 45),
    "resize 721 to 181": resizing(721, 181, 2, 2),
    "resize far up": resizing(3, 40),
    "resize to few": resizing(40, 3),
    "resize, corners": resizing(45, 61, 5, 8, corners=True),
    "resize down, corners": resizing(48, 13, corners=True),
    "resize columns only": resizing(13, 13, 5, 9),
}


def _reversed(layout: Layout) -> Layout:
    rows = [[layout.size - 1 - row for row in h if row >= 0] for h in layout.rows]
    return layout.with_rows(rows, layout.size)


def _halo(layout: Layout) -> Layout:
    """Own rows between halo rows, so that resharding back restores the field."""
    rows = [[r for r in shard if r >= 0] for shard in layout.rows]
    wide = [
        range(max(r[0] - 2, 0), min(r[-1] + 3, layout.size)) if r else () for r in rows
    ]
    return layout.with_rows(wide, layout.size)


def _everything(layout: Layout) -> Layout:
    rows = list(range(layout.size))
    return layout.with_rows([rows] * layout.num_shards, layout.size)


def _dealt(layout: Layout) -> Layout:
    """A cyclic layout: row r is on shard r modulo the number of shards."""
    num = layout.num_shards
    return layout.with_rows(
        [range(d, layout.size, num) for d in range(num)], layout.size
    )


def _first_shard(layout: Layout) -> Layout:
    empty = [()] * (layout.num_shards - 1)
    return layout.with_rows([range(layout.size), *empty], layout.size)


MOVES = {
    f"{name}, {rows} rows": moved(rows, make)
    for name, make in {
        "reversed": _reversed,
        "halo": _halo,
        "everything to everyone": _everything,
        "dealt out": _dealt,
        "all to one shard": _first_shard,
    }.items()
    for rows in (48, 45, 4)
}

OTHERS = {
    "pixel shuffle": Case(lambda f: pixel_shuffle_field(f, 2), ((2, 13, 3, 8),)),
    "upsampling": upsampled(24),
    "upsampling, uneven": upsampled(13),
    "join": Case(join, ((2, 13, 3, 2), (2, 13, 3, 1))),
    "add": Case(add, ((2, 45, 3, 2), (2, 45, 3, 2))),
}

CASES: dict[str, Case] = {
    **CONVOLUTIONS,
    **EMBEDDINGS,
    **WINDOWS,
    **STRIPS,
    **NORMS,
    **PADDINGS,
    **RESIZES,
    **MOVES,
    **OTHERS,
    **FIELD_OPERATIONS,
    **CONVOLUTION_CASES,
}
