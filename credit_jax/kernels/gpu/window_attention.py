"""Attention within the windows of a field, with one kernel for each pass.

A program reads a tile of complete windows of one head directly from the field of q, k
and v, and writes the weighted values directly to the output field. Logits, weights and
their gradients never reach device memory; the field is neither rearranged into windows
nor padded. Only the inputs are saved for the backward pass, which recomputes the
weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
from jaxtyping import Array, Bool, Float, Int

from credit_jax.kernels.gpu.call import call_kernel
from credit_jax.kernels.gpu.dots import dot
from credit_jax.ops.vma import match_vma
from credit_jax.ops.window_grid import WindowGrid

# Logit of pairs of tokens that do not attend to each other: the weight is exactly 0,
# and a row with no other logit has finite weights.
_APART = -1e30
# Smaller windows are combined up to this number of tokens in a tile.
_TOKENS = 64
# Number of programs of the backward pass; each sums the bias gradient of its windows.
_PROGRAMS = 264


@dataclass(frozen=True)
class Tiling:
    """Partition of all windows into tiles, which programs process one at a time.

    A tile has as many windows as fit into `_TOKENS` tokens, at least one, and is padded
    to a power of two; the bias masks pairs of tokens of different windows.

    Attributes:
        grid: the windows of the field.
    """

    grid: WindowGrid

    @property
    def windows(self) -> int:
        """Number of windows of a tile."""
        return max(_TOKENS // self.grid.tokens, 1)

    @property
    def tokens(self) -> int:
        """Number of tokens of a tile without padding."""
        return self.windows * self.grid.tokens

    @property
    def size(self) -> int:
        """Number of tokens of a tile with padding, at least 16."""
        return max(pl.next_power_of_2(self.tokens), 16)

    @property
    def num(self) -> int:
        """Number of tiles."""
        return -(-self.grid.windows // self.windows)

    def locate(self, tile: Array) -> tuple[Int[Array, " t"], Bool[Array, " t"]]:
        """Returns the point of each token of a tile, and a mask without padding."""
        token = lax.iota(jnp.int32, self.size)
        window = tile * self.windows + token // self.grid.tokens
        inside = (token < self.tokens) & (window < self.grid.windows)
        return self.grid.locate(window, token % self.grid.tokens), inside


@dataclass(frozen=True)
class Heads:
    """Heads of q, k and v, consecutive along the channels of a field.

    Attributes:
        num: number of local heads.
        channels: number of channels of a head.
    """

    num: int
    channels: int

    @property
    def width(self) -> int:
        """Number of channels that a program loads: a power of two, at least 16."""
        return max(pl.next_power_of_2(self.channels), 16)


def window_attention(
    qkv: Float[Array, "batch rows columns three heads head_dim"],
    bias: Float[Array, "tokens tokens"],
    grid: WindowGrid,
    *,
    interpret: bool = False,
) -> Float[Array, "batch rows columns heads head_dim"]:
    """Returns softmax(q k' / sqrt(head_dim) + bias) v within every window of a field.

    Products of 16-bit arrays are summed in float32; logits, softmax and the gradient of
    the bias are float32 or wider.

    Args:
        qkv: (batch, rows, columns, 3, heads, head_dim), queries, keys and values.
        bias: (tokens, tokens), the same in all windows and heads.
        grid: the windows of the field.
        interpret: whether to run the kernels as XLA operations, on any device.
    """
    *points, _, num, channels = qkv.shape
    heads, tiling = Heads(num, channels), Tiling(grid)
    tile = _bias_of_tile(bias, tiling, jnp.promote_types(qkv.dtype, jnp.float32))
    flat, tile = match_vma(qkv.reshape(grid.points, -1), tile)
    out: Array = jnp.asarray(_attention(flat, tile, tiling, heads, interpret))
    return out.reshape(*points, num, channels)


def _bias_of_tile(bias: Array, tiling: Tiling, dtype: Any) -> Array:
    """Returns the bias of all pairs of a tile, `_APART` for different windows."""
    count = tiling.windows
    same = jnp.eye(count, dtype=bool)[:, None, :, None]
    every = jnp.where(same, bias.astype(dtype)[None, :, None, :], _APART)
    padding = tiling.size - tiling.tokens
    every = every.reshape(tiling.tokens, tiling.tokens)
    return jnp.pad(every, (0, padding), constant_values=_APART)


@partial(jax.custom_vjp, nondiff_argnums=(2, 3, 4))
def _attention(
    qkv: Array, bias: Array, tiling: Tiling, heads: Heads, interpret: bool
) -> Array:
    return _forward_call(qkv, bias, tiling, heads, interpret)


def _forward(
    qkv: Array, bias: Array, tiling: Tiling, heads: Heads, interpret: bool
) -> tuple[Array, tuple[Array, Array]]:
    return _forward_call(qkv, bias, tiling, heads, interpret), (qkv, bias)


def _backward(
    tiling: Tiling,
    heads: Heads,
    interpret: bool,
    saved: tuple[Array, Array],
    cotangent: Array,
) -> tuple[Array, Array]:
    chunk = -(-tiling.num * heads.num // _PROGRAMS)
    chunks = -(-tiling.num // chunk)
    qkv, bias = saved
    partial_sums = (heads.num, chunks, *bias.shape)
    gradient, sums = call_kernel(
        partial(_backward_kernel, tiling=tiling, heads=heads, chunk=chunk),
        "window_attention_backward",
        qkv,
        bias,
        cotangent,
        grid=(chunks, heads.num),
        results=((qkv.shape, qkv.dtype), (partial_sums, bias.dtype)),
        flops=5 * _product(tiling, heads),
        interpret=interpret,
    )
    return gradient, sums.sum((0, 1))


_attention.defvjp(_forward, _backward)


def _forward_call(
    qkv: Array, bias: Array, tiling: Tiling, heads: Heads, interpret: bool
) -> Array:
    shape = (tiling.grid.points, heads.num * heads.channels)
    (out,) = call_kernel(
        partial(_forward_kernel, tiling=tiling, heads=heads),
        "window_attention_forward",
        qkv,
        bias,
        grid=(tiling.num, heads.num),
        results=((shape, qkv.dtype),),
        flops=2 * _product(tiling, heads),
        interpret=interpret,
    )
    return out


def _product(tiling: Tiling, heads: Heads) -> int:
    """FLOPs of one product over all pairs of tokens, without padding."""
    pairs = tiling.grid.windows * tiling.grid.tokens**2
    return 2 * pairs * heads.num * heads.channels


def _forward_kernel(
    qkv: Any, bias: Any, out: Any, *, tiling: Tiling, heads: Heads
) -> None:
    head = pl.program_id(1)
    points, inside = tiling.locate(pl.program_id(0))
    q, k, v = (_load(qkv, points, inside, part, head, heads) for part in range(3))
    raised, total = _softmax(q, k, bias[...], heads)
    mixed = dot(raised.astype(v.dtype), v) / total
    _store(out, mixed, points, inside, 0, head, heads)


def _backward_kernel(
    qkv: Any,
    bias: Any,
    cotangent: Any,
    gradient: Any,
    sums: Any,
    *,
    tiling: Tiling,
    heads: Heads,
    chunk: int,
) -> None:
    first, head = pl.program_id(0) * chunk, pl.program_id(1)
    scale = heads.channels**-0.5

    def turn(index: Array, total: Array) -> Array:
        points, inside = tiling.locate(first + index)
        q, k, v = (_load(qkv, points, inside, part, head, heads) for part in range(3))
        by_out = _load(cotangent, points, inside, 0, head, heads)
        raised, row = _softmax(q, k, bias[...], heads)
        weights = raised / row
        by_weights = dot(by_out, v.T)
        along = (weights * by_weights).sum(1, keepdims=True)
        by_logits = weights * (by_weights - along)
        narrow = by_logits.astype(q.dtype)
        by_parts = (
            dot(narrow, k) * scale,
            dot(narrow.T, q) * scale,
            dot(weights.astype(v.dtype).T, by_out),
        )
        for part, by_part in enumerate(by_parts):
            _store(gradient, by_part, points, inside, part, head, heads)
        return total + by_logits

    zeros = jnp.zeros(bias.shape, bias.dtype)
    sums[head, pl.program_id(0)] = lax.fori_loop(0, chunk, turn, zeros)


def _softmax(q: Array, k: Array, bias: Array, heads: Heads) -> tuple[Array, Array]:
    """Returns exp(logits - maximum) of every query, and its sum, (tokens, 1)."""
    logits = dot(q, k.T) * heads.channels**-0.5 + bias
    raised = jnp.exp(logits - logits.max(1, keepdims=True))
    return raised, raised.sum(1, keepdims=True)


def _load(
    ref: Any, points: Array, inside: Array, part: int, head: Array, heads: Heads
) -> Array:
    """Loads one of the parts (q, k, v) of a head at some points; 0 for padding."""
    where, mask = _cells(ref, points, inside, part, head, heads)
    return triton.load(where, mask=mask, other=0.0)


def _store(
    ref: Any,
    values: Array,
    points: Array,
    inside: Array,
    part: int,
    head: Array,
    heads: Heads,
) -> None:
    where, mask = _cells(ref, points, inside, part, head, heads)
    triton.store(where, values.astype(ref.dtype), mask=mask)


def _cells(
    ref: Any, points: Array, inside: Array, part: int, head: Array, heads: Heads
) -> tuple[Any, Array]:
    channel = lax.iota(jnp.int32, heads.width)
    first = (part * heads.num + head) * heads.channels
    mask = inside[:, None] & (channel < heads.channels)[None, :]
    return ref.at[points[:, None], (first + channel)[None, :]], mask
