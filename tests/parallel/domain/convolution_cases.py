"""Named cases of convolutions and pooling on split fields; see `cases`."""

from collections.abc import Sequence
from typing import Any

import jax

from credit_jax.parallel.domain.conv import (
    conv_field,
    conv_transpose_field,
    periodic_conv2d_field,
)
from credit_jax.parallel.domain.pool import (
    avg_pool2d_field,
    max_pool2d_field,
)
from credit_jax.parallel.rows.layout import Field, Layout
from tests.support.sharded import Case

NONE = (0, 0)


def field_shape(rows: int, others: Sequence[int], dim: int, channels: int) -> Any:
    """Returns the shape (2, ...spatial, channels) with the rows along `dim`."""
    spatial = list(others)
    spatial.insert(dim - 1, rows)
    return (2, *spatial, channels)


def convolved(
    rows: int,
    kernel: Sequence[int],
    *,
    others: Sequence[int],
    dim: int = 1,
    channels: tuple[int, int] = (2, 3),
    groups: int = 1,
    **keywords: Any,
) -> Case:
    """A convolution of 2 or 3 spatial dims, `rows` along `dim`."""
    return Case(
        lambda f, w: conv_field(f, w, groups=groups, **keywords),
        (field_shape(rows, others, dim, channels[0]),),
        ((*kernel, channels[0] // groups, channels[1]),),
        dim,
    )


def transposed(
    rows: int,
    kernel: Sequence[int],
    *,
    others: Sequence[int] = (3,),
    dim: int = 1,
    channels: tuple[int, int] = (2, 2),
    groups: int = 1,
    **keywords: Any,
) -> Case:
    """A transposed convolution of 2 or 3 spatial dims, `rows` along `dim`."""
    return Case(
        lambda f, w: conv_transpose_field(f, w, groups=groups, **keywords),
        (field_shape(rows, others, dim, channels[0]),),
        ((*kernel, channels[0], channels[1] // groups),),
        dim,
    )


def periodic(
    rows: int, kernel: Sequence[int], padding: int, *, other: int = 5, dim: int = 1
) -> Case:
    return Case(
        lambda f, w: periodic_conv2d_field(f, w, padding=padding),
        (field_shape(rows, (other,), dim, 2),),
        ((*kernel, 2, 2),),
        dim,
    )


def averaged(rows: int, kernel: Any, *, dim: int = 1, **keywords: Any) -> Case:
    return Case(
        lambda f: avg_pool2d_field(f, kernel, **keywords),
        (field_shape(rows, (5,), dim, 2),),
        dim=dim,
    )


def largest(rows: int, kernel: Any, *, dim: int = 1, **keywords: Any) -> Case:
    return Case(
        lambda f: max_pool2d_field(f, kernel, **keywords),
        (field_shape(rows, (5,), dim, 2),),
        dim=dim,
    )


def backwards(layout: Layout) -> Layout:
    """A layout in descending order: the last rows first."""
    last = layout.size - 1
    rows = [[last - row for row in shard if row >= 0] for shard in layout.rows]
    return layout.with_rows(rows, layout.size)


def on_odd_layouts(rows: int) -> Case:
    """Input and output rows in layouts that no operation computes in."""

    def op(field: Field, kernel: jax.Array, up: jax.Array) -> Field:
        odd = backwards(field.layout)
        y = conv_field(field, kernel, padding="same", out=odd)
        y = max_pool2d_field(y, (3, 1), stride=(1, 1), padding=((1, 1), NONE), out=odd)
        y = periodic_conv2d_field(y, kernel, out=odd)
        twice = backwards(field.layout.to_blocks(2 * rows))
        y = conv_transpose_field(y, up, stride=(2, 1), out=twice)
        y = avg_pool2d_field(y, (2, 1))
        return y

    return Case(op, ((2, rows, 4, 2),), ((3, 3, 2, 2), (2, 1, 2, 2)))


SAME = {
    "same, even kernel": convolved(13, (4, 2), others=(4,), padding="same"),
    "same, dilated": convolved(
        13, (4, 3), others=(4,), padding="same", dilation=(3, 2)
    ),
    "same, three dims": convolved(13, (2, 4, 3), others=(3, 4), dim=2, padding="same"),
}

THREE_DIMS = {
    "3 dims": convolved(13, (1, 3, 3), others=(2, 4), dim=2),
    "3 dims, padding": convolved(
        13, (3, 3, 2), others=(2, 4), dim=2, padding=((1, 1), (1, 2), NONE)
    ),
    "3 dims, depth split": convolved(
        9, (3, 2, 2), others=(3, 4), padding=((1, 1), NONE, NONE)
    ),
    "3 dims, longitude split": convolved(
        11, (2, 2, 4), others=(2, 3), dim=3, stride=(1, 1, 2)
    ),
    "3 dims, stride, dilation, groups": convolved(
        14,
        (2, 3, 1),
        others=(3, 2),
        dim=2,
        channels=(4, 2),
        groups=2,
        stride=(2, 3, 1),
        dilation=(1, 2, 1),
        padding=(NONE, (4, 3), NONE),
    ),
    "3 dims, 3 rows": convolved(
        3, (1, 5, 1), others=(2, 2), dim=2, padding=(NONE, (2, 2), NONE)
    ),
}

TRANSPOSED = {
    "up 2": transposed(16, (2, 2), stride=(2, 2)),
    "up 2, uneven": transposed(13, (2, 2), stride=(2, 2)),
    "up 4, kernel 2 below": transposed(
        13, (2, 1), stride=(4, 1), output_padding=(2, 0)
    ),
    "up 2, kernel 4": transposed(13, (4, 4), stride=(2, 2), padding=((1, 1), (1, 1))),
    "up 2, kernel 3, output padding": transposed(
        13,
        (3, 3),
        stride=(2, 2),
        padding=((1, 1), (1, 1)),
        output_padding=(1, 1),
    ),
    "up 3, kernel 5, uneven padding": transposed(
        11, (5, 1), stride=(3, 1), padding=((4, 1), NONE)
    ),
    "up 1, kernel 3": transposed(13, (3, 3), padding=((1, 1), (1, 1))),
    "up 1, dilation": transposed(
        13, (3, 2), dilation=(3, 2), padding=((3, 2), NONE), output_padding=(2, 1)
    ),
    "up 2, dilation, groups": transposed(
        11, (3, 2), channels=(4, 2), groups=2, stride=(2, 1), dilation=(3, 1)
    ),
    "up 2, wide kernel": transposed(9, (16, 1), stride=(2, 1), padding=((7, 7), NONE)),
    "up 2, 3 rows": transposed(3, (4, 1), stride=(2, 1), padding=((1, 1), NONE)),
    "up 4, 1 row": transposed(1, (4, 1), stride=(4, 1)),
    "up, longitude split": transposed(
        7, (2, 3), dim=2, stride=(1, 2), padding=(NONE, (1, 0))
    ),
    "up 2 4 4": transposed(5, (2, 4, 4), others=(2, 2), dim=2, stride=(2, 4, 4)),
    "up, depth split": transposed(
        5, (4, 2, 1), others=(2, 2), stride=(2, 1, 1), padding=((1, 1), NONE, NONE)
    ),
    "up 3 dims, longitude split": transposed(
        7,
        (1, 2, 3),
        others=(2, 2),
        dim=3,
        stride=(1, 1, 2),
        output_padding=(0, 0, 1),
    ),
}

PERIODIC = {
    "periodic": periodic(16, (3, 3), 1),
    "periodic, uneven": periodic(13, (3, 3), 1),
    "periodic 7": periodic(13, (7, 7), 3),
    "periodic, even kernel": periodic(13, (4, 2), 2),
    "periodic, no padding": periodic(13, (3, 3), 0),
    "periodic, 4 rows, most": periodic(4, (3, 3), 3),
    "periodic, longitude split": periodic(11, (3, 3), 2, dim=2),
    "periodic, once around": periodic(5, (3, 5), 5, other=6, dim=2),
}

POOLS = {
    "average 2": averaged(16, (2, 2)),
    "average 2, row over": averaged(13, (2, 2)),
    "average 2, ceil": averaged(13, (2, 2), ceil_mode=True),
    "average 3, stride 1": averaged(
        13, (3, 3), stride=(1, 1), padding=((1, 1), (1, 1))
    ),
    "average, zeros do not count": averaged(
        14,
        (5, 2),
        stride=(3, 2),
        padding=((2, 2), (1, 1)),
        ceil_mode=True,
        count_include_pad=False,
    ),
    "average, wide": averaged(9, (7, 1), stride=(1, 1)),
    "average, longitude split": averaged(13, (2, 3), dim=2, stride=(1, 2)),
    "maximum 2": largest(16, (2, 2)),
    "maximum 3, stride 2": largest(13, (3, 3), stride=(2, 2), padding=((1, 1), (1, 1))),
    "maximum, ceil": largest(13, (2, 2), stride=(3, 2), ceil_mode=True),
    "maximum, dilation": largest(14, (3, 2), stride=(1, 1), dilation=(3, 2)),
    "maximum, longitude split": largest(
        13, (2, 3), dim=2, stride=(1, 1), padding=(NONE, (1, 1))
    ),
    "maximum, 3 rows": largest(3, (3, 1), stride=(1, 1), padding=((1, 1), NONE)),
    "odd layouts": on_odd_layouts(13),
}

CONVOLUTION_CASES: dict[str, Case] = {
    **SAME,
    **THREE_DIMS,
    **TRANSPOSED,
    **PERIODIC,
    **POOLS,
}
