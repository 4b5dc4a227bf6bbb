"""Convolutions and pooling, torch's, and cases of them: also those of split fields."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from credit_jax import ops
from credit_jax.parallel.domain.norm import batch_norm_field
from credit_jax.parallel.domain.pool import avg_pool2d_field, max_pool2d_field
from credit_jax.parallel.rows.layout import Field, block_layout
from tests.support.gradients import draw


def of_arrays(function: Callable[..., Field]) -> Callable[..., Any]:
    """A function of fields as one of arrays, on one device."""
    return lambda x, *args, **keywords: (
        function(
            Field(jnp.asarray(x), block_layout(x.shape[1])), *args, **keywords
        ).data
    )


def batch_norm(x: Any, *weights: Any, **keywords: Any) -> Any:
    """Of an array on one device: the result, and the statistics after it."""
    field = Field(jnp.asarray(x), block_layout(x.shape[1]))
    field, running = batch_norm_field(field, *weights, **keywords)
    return field.data, running


avg_pool2d, max_pool2d = of_arrays(avg_pool2d_field), of_arrays(max_pool2d_field)


@dataclass(frozen=True)
class Row:
    """A case of an operation on arrays (2, *sizes, channels).

    Attributes:
        kind: conv, transposed, average or maximum.
        size: sizes and channels of the input.
        kernel: sizes and channels out of the kernel, of pooling the sizes.
        keywords: of our function.
        dims: of fields, along which they are split in turn.
    """

    kind: str
    size: tuple[int, ...]
    kernel: tuple[int, ...]
    keywords: dict[str, Any]
    dims: tuple[int, ...] = (1,)

    @property
    def weights(self) -> tuple[tuple[int, ...], ...]:
        """Shapes of the weights."""
        *sizes, out = self.kernel
        groups = self.keywords.get("groups", 1) if self.kind == "conv" else 1
        is_pool = self.kind in ("average", "maximum")
        return () if is_pool else ((*sizes, self.size[-1] // groups, out),)

    def arrays(self) -> list[np.ndarray]:
        """The input and the weights."""
        shapes = ((2, *self.size), *self.weights)
        return [draw(shape, seed) for seed, shape in enumerate(shapes)]

    def bind(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns a function like ours of an input and the weights."""
        pool = () if self.weights else (self.kernel,)
        return lambda x, *weights: function(x, *pool, *weights, **self.keywords)

    def ours(self, *arrays: Any) -> Any:
        conv = {3: ops.conv2d, 4: ops.conv3d}[len(self.size)]
        functions = {"conv": conv, "transposed": ops.conv_transpose}
        functions |= {"average": avg_pool2d, "maximum": max_pool2d}
        return self.bind(functions[self.kind])(*arrays)

    def theirs(self, x: Any, *weights: Any) -> Any:
        """Torch's function of the same arrays, channels last."""
        from torch.nn import functional

        num = len(self.size) - 1
        keywords = dict(self.keywords)
        pads = keywords.pop("padding", ((0, 0),) * num)
        x = x.movedim(-1, 1)
        if self.kind == "conv":
            if pads == "same":
                keywords["padding"] = pads
            else:
                x = functional.pad(x, [n for pair in reversed(pads) for n in pair])
            kernel = weights[0].movedim((-1, -2), (0, 1))
            x = getattr(functional, f"conv{num}d")(x, kernel, **keywords)
            return x.movedim(1, -1)
        # Rows that are cut off at one side only are cut off below.
        keywords["padding"] = tuple(map(min, pads))
        if self.kind == "transposed":
            kernel = weights[0].movedim((-2, -1), (0, 1))
            x = getattr(functional, f"conv_transpose{num}d")(x, kernel, **keywords)
            for dim, (low, high) in enumerate(pads):
                length = x.shape[2 + dim] - abs(high - low)
                x = x.narrow(2 + dim, max(low - high, 0), length)
        elif self.kind == "average":
            x = functional.avg_pool2d(x, self.kernel, **keywords)
        else:
            x = functional.max_pool2d(x, self.kernel, **keywords)
        return x.movedim(1, -1)


def row(kind: str, size: Any, kernel: Any, *dims: int, **keywords: Any) -> Row:
    """Returns a case; a number is that of all dims, of a padding of both sides."""
    for key, value in keywords.items():
        if type(value) is int and key != "groups":
            value = (value,) * (len(size) - 1)
        if key == "padding" and value != "same":
            value = tuple((n, n) if isinstance(n, int) else n for n in value)
        keywords[key] = value
    return Row(kind, size, kernel, keywords, dims or (len(size) - 2,))


def conv(*args: Any, **keywords: Any) -> Row:
    return row("conv", *args, **keywords)


def up(*args: Any, **keywords: Any) -> Row:
    return row("transposed", *args, **keywords)


CONV = {
    "1x1": conv((45, 7, 2), (1, 1, 3)),
    "3x3": conv((48, 7, 2), (3, 3, 3), 1, 2, padding=1),
    "3x3, prime": conv((61, 7, 2), (3, 3, 3), padding=1),
    "3x3, 721": conv((721, 3, 2), (3, 3, 3), padding=1),
    "3x3, valid": conv((45, 7, 2), (3, 3, 3)),
    "7x3": conv((45, 7, 2), (7, 3, 3), padding=(3, 1)),
    "kernel wider than a shard": conv((16, 7, 2), (13, 1, 3), padding=(6, 0)),
    "kernel of all points": conv((16, 5, 2), (16, 5, 3)),
    "even kernel": conv((45, 8, 2), (4, 2, 3), padding=((1, 2), (0, 1))),
    "even kernel, valid": conv((9, 8, 2), (4, 2, 3)),
    "row below only": conv((48, 7, 2), (2, 2, 3), padding=((0, 1), (0, 1))),
    "padding of one side": conv((45, 6, 2), (3, 3, 2), padding=((2, 0), (0, 2))),
    "large padding": conv((13, 7, 2), (3, 1, 3), padding=((5, 6), 0)),
    "patches": conv((48, 8, 2), (4, 4, 3), stride=4),
    # 12 output rows on 4 shards: 12 input rows each, and 45 are in blocks of 12.
    "patches, uneven": conv((45, 7, 2), (4, 1, 3), stride=4, padding=((0, 3), 0)),
    "stride 2, kernel 2": conv((48, 10, 3), (2, 2, 4), stride=2),
    "stride 2, kernel 3": conv((45, 10, 3), (3, 3, 4), stride=2, padding=1),
    "stride 2, kernel 4": conv((48, 10, 3), (4, 4, 4), 1, 2, stride=2, padding=1),
    "stride 2, row over": conv((45, 11, 3), (4, 4, 4), stride=2),
    "stride 4, three over": conv((23, 19, 2), (8, 4, 3), stride=4),
    "stride 4, kernel 32": conv((61, 44, 2), (32, 32, 2), stride=4, padding=14),
    "stride 4, kernel 16": conv((64, 20, 2), (16, 16, 2), stride=4, padding=6),
    "stride 2, many columns": conv((45, 201, 3), (6, 32, 4), stride=2, padding=(2, 15)),
    "stride 2, columns on shards": conv(
        (4, 403, 2), (2, 16, 3), 2, stride=2, padding=(0, 7)
    ),
    "stride 3 and 2, many columns, some over": conv(
        (14, 150, 2), (9, 16, 3), stride=(3, 2), padding=((1, 0), (3, 4))
    ),
    "stride above the kernel": conv((47, 12, 2), (2, 2, 3), stride=(3, 4)),
    "stride of one dim": conv((9, 8, 2), (2, 3, 3), stride=(2, 1)),
    "unlike strides": conv((12, 13, 2), (4, 6, 3), stride=(2, 3)),
    # On 3 shards each needs exactly its own rows, but zeros in place of padding.
    "padding is padding": conv(
        (5, 7, 2), (2, 1, 3), stride=(2, 1), padding=((0, 1), 0)
    ),
    "dilation": conv((45, 12, 2), (3, 3, 3), dilation=(2, 3), padding=(2, 3)),
    "dilation and stride": conv(
        (48, 12, 2), (3, 2, 3), dilation=(5, 2), stride=2, padding=(5, 0)
    ),
    "groups": conv((45, 7, 4), (3, 3, 6), groups=2, padding=1),
    "depthwise, stride 2": conv((45, 8, 4), (4, 2, 4), groups=4, stride=2),
    "few points, many channels": conv((4, 5, 3), (4, 3, 24), padding=((2, 1), (0, 1))),
    "few points, wide padding": conv((2, 3, 2), (3, 3, 98), padding=((3, 2), (2, 4))),
    "4 rows": conv((4, 7, 2), (3, 3, 3), padding=1),
    "1 row": conv((1, 7, 2), (3, 3, 3), padding=1),
    "same": conv((6, 7, 2), (3, 5, 3), padding="same"),
    "same, even kernel": conv((13, 4, 2), (4, 2, 3), padding="same"),
    "same, dilation": conv((13, 4, 2), (4, 3, 3), padding="same", dilation=(3, 2)),
}
CONV |= {
    "1x1x1": conv((2, 3, 4, 3), (1, 1, 1, 4)),
    "3x3x3": conv((4, 16, 6, 2), (3, 3, 3, 3), padding=1),
    "3 dims, unlike": conv(
        (9, 5, 6, 2), (2, 3, 4, 3), 1, 2, 3, padding=((1, 0), (0, 2), (3, 1))
    ),
    "3 dims, same": conv((3, 13, 4, 2), (2, 4, 3, 3), padding="same"),
    "3 dims, same, dilation": conv(
        (4, 5, 6, 2), (2, 3, 2, 3), padding="same", dilation=(1, 2, 3)
    ),
    "3 dims, other dims only": conv((3, 16, 3, 2), (3, 1, 3, 3), padding=(1, 0, 1)),
    "3 dims, patches": conv((2, 8, 12, 3), (2, 4, 4, 5), 2, 3, stride=(2, 4, 4)),
    "3 dims, patches, points over": conv((5, 9, 7, 2), (2, 4, 2, 3), stride=(2, 4, 2)),
    "3 dims, patches, padding": conv(
        (3, 9, 7, 2), (2, 4, 2, 3), stride=(2, 4, 2), padding=((1, 0), (2, 1), (0, 1))
    ),
    "3 dims, patches, groups": conv((2, 4, 6, 4), (2, 2, 2, 2), stride=2, groups=2),
    "3 dims, stride": conv((4, 9, 11, 2), (2, 4, 3, 3), 3, stride=(1, 2, 2)),
    "3 dims, dilation, stride, groups": conv(
        (5, 14, 7, 4), (2, 3, 2, 2), stride=(1, 2, 3), dilation=(3, 2, 1), groups=2
    ),
    "patch with dilation": conv(
        (5, 9, 7, 2), (2, 2, 2, 3), stride=2, dilation=(1, 2, 3)
    ),
    "3 dims, 3 rows": conv((2, 3, 2, 2), (1, 5, 1, 3), padding=(0, 2, 0)),
}
TRANSPOSED = {
    "up 1, kernel 1": up((5, 6, 3), (1, 1, 4)),
    "up 1, kernel 3": up((13, 6, 3), (3, 3, 4), padding=1),
    "up 2": up((16, 6, 3), (2, 2, 4), stride=2),
    "up 2, uneven": up((13, 6, 3), (2, 2, 4), stride=2),
    "up 4": up((3, 4, 3), (4, 4, 2), stride=4),
    "kernel is stride, padding": up(
        (5, 6, 3), (3, 2, 4), stride=(3, 2), padding=1, output_padding=(2, 1)
    ),
    "up 2, kernel 4": up((16, 6, 3), (4, 4, 2), stride=2, padding=1),
    "up 2, kernel 4, uneven": up((13, 6, 3), (4, 4, 2), stride=2, padding=1),
    "up 2, kernel 3": up((5, 6, 3), (3, 3, 2), stride=2),
    "up 2, kernel 3, output padding": up(
        (16, 6, 3), (3, 3, 2), stride=2, padding=1, output_padding=1
    ),
    "kernel below the stride": up(
        (13, 5, 2), (2, 1, 3), stride=(3, 4), output_padding=(1, 3)
    ),
    "padding above the kernel": up((7, 8, 2), (3, 2, 3), stride=(2, 3), padding=(4, 5)),
    "up, unlike strides": up(
        (5, 4, 2), (5, 7, 3), 1, 2, stride=(1, 3), padding=(2, 0), output_padding=(0, 2)
    ),
    "up 3, padding of one side": up(
        (11, 3, 2), (5, 1, 2), stride=(3, 1), padding=((4, 1), 0)
    ),
    "up 2, one row left": up((5, 4, 2), (4, 3, 3), stride=2, padding=((11, 0), 0)),
    "up 1, dilation": up(
        (13, 6, 2),
        (3, 2, 2),
        dilation=(3, 2),
        padding=((3, 2), 0),
        output_padding=(2, 1),
    ),
    "up, dilation and stride": up(
        (5, 6, 2), (3, 2, 2), dilation=(2, 3), stride=2, output_padding=(1, 2)
    ),
    "up, dilation and stride of one dim each": up(
        (5, 6, 2), (3, 2, 2), dilation=(2, 1), stride=(1, 3), output_padding=(1, 0)
    ),
    "up 2, groups": up((11, 6, 4), (4, 3, 3), groups=2, stride=2, padding=(1, 0)),
    "up 2, dilation, groups": up(
        (11, 3, 4), (3, 2, 1), groups=2, stride=(2, 1), dilation=(3, 1)
    ),
    "up 2, depthwise": up((5, 6, 3), (2, 2, 1), groups=3, stride=2),
    "up 2, few points": up((2, 2, 24), (2, 2, 12), stride=2),
    "up 2, one point": up((1, 1, 2), (4, 4, 3), stride=2, padding=1),
    "up 2, wide kernel": up((9, 3, 2), (16, 1, 2), stride=(2, 1), padding=(7, 0)),
    "up 2, 3 rows": up((3, 3, 2), (4, 1, 2), stride=(2, 1), padding=(1, 0)),
    "up 4, 1 row": up((1, 3, 2), (4, 1, 2), stride=(4, 1)),
    "up 2, columns": up((3, 7, 2), (2, 3, 2), 2, stride=(1, 2), padding=(0, (1, 0))),
    "up 2 4 4": up((2, 5, 2, 3), (2, 4, 4, 2), stride=(2, 4, 4)),
    "up 2 2 2, kernel 4": up((5, 4, 3, 2), (4, 4, 4, 3), 1, stride=2, padding=1),
    "up, everything": up(
        (3, 4, 7, 4),
        (2, 3, 2, 1),
        2,
        3,
        stride=(1, 2, 3),
        padding=(1, 1, 0),
        output_padding=(0, 1, 2),
        dilation=(2, 1, 2),
        groups=2,
    ),
}

BOTH: dict[str, tuple[Any, ...]] = {
    "2": ((16, 6, 3), (2, 2)),
    "2, row over": ((13, 7, 3), (2, 2)),
    "unlike kernel": ((9, 8, 3), (3, 2)),
    "stride 1": ((13, 13, 3), (3, 2), {"stride": 1}, 1, 2),
    "3, stride 2": ((16, 8, 3), (3, 3), {"stride": 2, "padding": 1}),
    "padding": ((14, 12, 3), (3, 4), {"stride": (2, 3), "padding": (1, 2)}),
    "stride above the kernel": ((11, 9, 3), (2, 1), {"stride": (4, 3)}),
    "wide": ((9, 5, 3), (7, 1), {"stride": 1}),
    "whole field": ((6, 5, 3), (6, 5)),
    "kernel above the field": ((2, 2, 3), (4, 4), {"padding": 2}),
    "3 rows": ((3, 5, 3), (3, 1), {"stride": 1, "padding": (1, 0)}),
}
POOLS: dict[str, Row] = {
    f"{kind} {name}": row(kind, size, kernel, *dims, **keywords)
    for kind in ("average", "maximum")
    for name, (size, kernel, *more) in BOTH.items()
    for keywords, *dims in [more or [{}]]
}
