"""Every operation that has a GPU kernel, beside its plain definition, as a table.

    for case in cases("025deg"):
        arrays = case.arrays(seed=0, dtype=jnp.bfloat16)
        y, by_arrays = jax.jit(case.with_gradients(case.kernel))(*arrays)
        expected = jax.jit(case.with_gradients(case.definition))(*arrays)

`case.kernel` compiles for GPUs; on other devices take `case.interpreted`, the same
kernels in Pallas' interpreter, with the sizes of `cases("small")`. Products of float32
in the definitions have the precision of `jax.default_matmul_precision`; the kernels
round no float32 factor.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from credit_jax import ops
from credit_jax.kernels.gpu import conv, dense, norm, window_attention
from credit_jax.ops import dense as plain_dense
from credit_jax.parallel.domain.windows import Kind, merge, partition, window_grid
from credit_jax.parallel.rows.layout import Field, block_layout

Size = Literal["025deg", "small"]


@dataclass(frozen=True)
class _Stage:
    """A stage of a WXFormer: rows, columns and channels, and windows of its blocks."""

    rows: int
    columns: int
    channels: int
    short: int
    long: int


# The stages of configs/wxformer_025deg.yaml, and some of few points whose channels are
# no multiples of the tiles.
_STAGES: dict[Size, tuple[_Stage, ...]] = {
    "025deg": (
        _Stage(400, 720, 128, 10, 10),
        _Stage(200, 360, 256, 10, 5),
        _Stage(100, 180, 512, 10, 2),
        _Stage(50, 90, 1024, 10, 1),
    ),
    "small": (_Stage(20, 20, 96, 10, 5), _Stage(10, 20, 160, 5, 2)),
}
_HEAD = 32


# Rows, columns, input and output channels, kernel and stride of convolutions with few
# or odd channels.
_CONVS: dict[Size, tuple[tuple[int, ...], ...]] = {
    "025deg": (
        (800, 1440, 74, 16, 32, 2),
        (800, 1440, 74, 16, 16, 2),
        (800, 1440, 74, 32, 8, 2),
        (800, 1440, 74, 64, 4, 2),
        (800, 1440, 71, 71, 3, 1),
    ),
    "small": ((20, 24, 10, 6, 8, 2), (12, 14, 7, 5, 3, 1)),
}


@dataclass(frozen=True)
class Case:
    """An operation with a GPU kernel.

    Attributes:
        name: the operation and its size, unique in the table.
        operation: the operation, a name in `credit_jax.kernels`.
        function: function of the arrays and `interpret`, which calls GPU kernels.
        definition: function of the arrays without kernels of its own.
        shapes: shape of each array.
        scales: standard deviation of each array.
        dtypes: dtypes of the arrays for which the models call the kernels.
    """

    name: str
    operation: str
    function: Callable[..., Any]
    definition: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    scales: tuple[float, ...]
    dtypes: tuple[str, ...] = ("bfloat16",)

    def kernel(self, *arrays: Array) -> Any:
        """Calls the kernels, which compile for GPUs only."""
        return self.function(*arrays, interpret=False)

    def interpreted(self, *arrays: Array) -> Any:
        """Calls the kernels in Pallas' interpreter, on any device."""
        return self.function(*arrays, interpret=True)

    def arrays(self, *, seed: int, dtype: Any) -> list[np.ndarray]:
        """Returns normal random numbers as arguments of the functions."""
        draw = np.random.default_rng(seed).standard_normal
        pairs = zip(self.shapes, self.scales, strict=True)
        return [
            (scale * draw(shape, np.float32)).astype(jnp.dtype(dtype))
            for shape, scale in pairs
        ]

    def with_gradients(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns a function of the arrays with its value and their gradients.

        Cotangents are cosines of the positions of the values, so that no two gradients
        agree by symmetry.

        Args:
            function: `kernel`, `interpreted` or `definition`.
        """

        def both(*arrays: Array) -> tuple[Any, tuple[Array, ...]]:
            value, pull = jax.vjp(function, *arrays)
            return value, pull(jax.tree.map(_cotangent, value))

        return both


def cases(size: Size) -> list[Case]:
    """Returns the table of all operations with GPU kernels.

    Args:
        size: "025deg" for the sizes of the 0.25 degree model, on one device; "small"
            for sizes that an interpreter computes in a second.
    """
    of_stages = [case for stage in _STAGES[size] for case in _of_stage(stage)]
    return [*of_stages, *(_conv(*shape) for shape in _CONVS[size])]


def _cotangent(value: Array) -> Array:
    numbers = jnp.arange(value.size, dtype=jnp.float32)
    return jnp.cos(0.37 * numbers).reshape(value.shape).astype(value.dtype)


def _of_stage(stage: _Stage) -> list[Case]:
    points, c = stage.rows * stage.columns, stage.channels
    field, scale = (points, c), c**-0.5
    windows: tuple[tuple[Kind, int], ...] = (
        ("short", stage.short),
        ("long", stage.long),
    )
    cases = [_attention(stage, *window) for window in windows if window[1] > 1]
    # With fewer rows only the order in memory differs, which no account sees.
    if points >= 2 * dense.MANY_ROWS or c < 256:
        cases.append(
            Case(
                f"dense, {points} x {c}",
                "dense",
                _dense,
                plain_dense.dense,
                (field, (c, 3 * c)),
                (1.0, scale),
            )
        )
    if points * c >= norm.MANY_VALUES or c < 256:
        cases.append(
            Case(
                f"layer_norm, {points} x {c}",
                "layer_norm_and_skip",
                norm.layer_norm_and_skip,
                _plain_layer_norm,
                (field, (c,), (c,)),
                (1.0, 1.0, 1.0),
            )
        )
    return cases


def _conv(
    rows: int, columns: int, channels: int, out: int, taps: int, stride: int
) -> Case:
    padding = ((taps - stride) // 2, -((stride - taps) // 2))
    options = {"stride": (stride,) * 2, "padding": (padding,) * 2}
    return Case(
        f"conv2d {taps} x {taps}, {rows} x {columns} x {channels} to {out}",
        "conv2d",
        partial(_gpu_conv, **options),
        partial(ops.conv2d, **options),
        ((1, rows, columns, channels), (taps, taps, channels, out)),
        (1.0, 1.0 / (taps * channels**0.5)),
    )


def _gpu_conv(x: Array, kernel: Array, *, interpret: bool, **options: Any) -> Array:
    del interpret  # Its convolutions are XLA's, on any device.
    return conv.conv2d(x, kernel, **options)


def _attention(stage: _Stage, kind: Kind, window: int) -> Case:
    heads, tokens = stage.channels // _HEAD, window**2
    shape = (1, stage.rows, stage.columns, 3, heads, _HEAD)
    return Case(
        f"window_attention, {kind} {window}, {stage.rows} x {stage.columns} x {heads}",
        "window_attention",
        partial(_window_attention, kind=kind, window=window),
        partial(_plain_window_attention, kind=kind, window=window),
        (shape, (tokens, tokens)),
        (1.0, 1.0),
    )


def _field(data: Array) -> Field:
    return Field(data, block_layout(data.shape[1], 1, None))


def _window_attention(
    qkv: Array, bias: Array, *, kind: Kind, window: int, interpret: bool
) -> Array:
    grid = window_grid(_field(qkv[..., 0, 0, :]), kind, window)
    return window_attention.window_attention(qkv, bias, grid, interpret=interpret)


def _plain_window_attention(
    qkv: Array, bias: Array, *, kind: Kind, window: int
) -> Array:
    *points, _, heads, channels = qkv.shape
    field = _field(qkv.reshape(*points, -1))
    parts = partition(field, kind, window)
    parts = parts.reshape(*parts.shape[:3], 3, heads, channels)
    q, k, v = jnp.transpose(parts, (3, 0, 1, 4, 2, 5))
    wide = jnp.promote_types(qkv.dtype, jnp.float32)
    logits = ops.attention_logits(q * channels**-0.5, k, dtype=wide)
    logits = logits + bias.astype(wide)[None, None, None]
    mixed = ops.attend(jax.nn.softmax(logits, -1).astype(v.dtype), v)
    flat = jnp.swapaxes(mixed, 2, 3).reshape(*parts.shape[:3], -1)
    return merge(flat, field, kind, window).data.reshape(*points, heads, channels)


def _dense(x: Array, kernel: Array, *, interpret: bool = False) -> Array:
    del interpret  # Its products are XLA's, on any device.
    return dense.dense(x, kernel)


def _plain_layer_norm(x: Array, scale: Array, bias: Array) -> tuple[Array, Array]:
    return ops.layer_norm(x, scale, bias), x
