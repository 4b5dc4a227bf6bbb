"""Attention within the windows of a field, with one kernel for each pass.

A program reads a tile of complete windows of one head directly from the field of q, k
and v, and writes the weighted values directly to the output field. Logits, weights and
their gradients never reach device memory; the field is neither rearranged into windows
nor padded. Only the inputs are saved for the backward pass, which recomputes the
weights.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from credit_jax.kernels.gpu.call import call_kernel, dot, ds, load, program_id, store
from credit_jax.ops import attend, attention_logits
from credit_jax.ops.custom_vjp import custom_vjp, match_vma
from credit_jax.ops.space_to_depth import next_power_of_2
from credit_jax.ops.window_attention import WindowGrid

# Logit of pairs of tokens that do not attend to each other: the weight is exactly 0,
# and a row with no other logit has finite weights.
_APART = -1e30
_LOG2_E = math.log2(math.e)
# Smaller windows are combined up to this number of tokens in a tile.
_TOKENS = 64
# Warps of a program: with more than four, several would compute the same logits of 64
# queries.
_WARPS = 4
# Number of programs of the backward pass; each sums the bias gradient of its windows.
_PROGRAMS = 264


@dataclass(frozen=True)
class Tiling:
    """Partition of all windows into tiles, which programs process one at a time."""

    grid: WindowGrid
    # A tile has as many windows as fit into `_TOKENS` tokens, at least one, and is
    # padded to a power of two; the bias masks pairs of tokens of different windows.
    windows: int
    tokens: int  # of a tile without padding
    size: int  # number of tokens with it
    num: int  # number of tiles
    queries: int  # number of tokens whose logits are computed at once

    @classmethod
    def of(cls, grid: WindowGrid) -> Tiling:
        """The tiles of these windows."""
        windows = max(_TOKENS // grid.tokens, 1)
        tokens = windows * grid.tokens
        size = max(next_power_of_2(tokens), 16)
        num = -(-grid.windows // windows)
        return cls(grid, windows, tokens, size, num, min(size, _TOKENS))

    def locate(
        self, tile: Array, first: Array | int = 0, count: int | None = None
    ) -> tuple[Int[Array, " t"], Bool[Array, " t"]]:
        """Returns the point of each token of a tile, and a mask without padding."""
        token = first + lax.iota(jnp.int32, self.size if count is None else count)
        window = tile * self.windows + token // self.grid.tokens
        inside = (token < self.tokens) & (window < self.grid.windows)
        return self.grid.locate(window, token % self.grid.tokens), inside


@dataclass(frozen=True)
class Heads:
    """Heads of q, k and v, consecutive along the channels of a field."""

    num: int
    channels: int  # of a head
    width: int  # that a program loads: a power of two, at least 16


def window_attention(
    qkv: Float[Array, "batch rows columns three heads head_dim"],
    bias: Float[Array, "tokens tokens"],
    grid: WindowGrid,
    *,
    interpret: bool = False,
) -> Float[Array, "batch rows columns heads head_dim"]:
    """Returns softmax(q k' / sqrt(head_dim) + bias) v within every window."""
    *points, _, num, channels = qkv.shape
    width = max(next_power_of_2(channels), 16)
    heads, tiling = Heads(num, channels, width), Tiling.of(grid)
    # The bias of all pairs of a tile, `_APART` for different windows.
    equal = jnp.eye(tiling.windows, dtype=bool)[:, None, :, None]
    every = jnp.where(equal, bias[None, :, None, :], _APART)
    every = every.reshape(tiling.tokens, tiling.tokens)
    padding = (0, tiling.size - tiling.tokens)
    tile = jnp.pad(every, padding, constant_values=_APART)
    flat, tile = match_vma(qkv.reshape(grid.points, -1), tile)
    # Products of 16-bit arrays are summed in float32; logits, softmax and the gradient
    # of the bias are float32 or wider.
    out: Array = jnp.asarray(_attention(flat, tile, tiling, heads, interpret))
    return out.reshape(*points, num, channels)


@partial(custom_vjp, nondiff_argnums=(2, 3, 4))
def _attention(
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
        num_warps=_WARPS,
        interpret=interpret,
    )
    return out


def _tangent(
    tiling: Tiling,
    heads: Heads,
    interpret: bool,
    saved: tuple[Array, Array],
    *tangents: Array,
) -> Array:
    del interpret

    # The attention by gathers of windows, as there is no kernel.
    def definition(qkv: Array, bias: Array) -> Array:
        grid, wide = tiling.grid, jnp.promote_types(qkv.dtype, jnp.float32)
        window, token = jnp.divmod(jnp.arange(grid.points), grid.tokens)
        points = grid.locate(window, token).reshape(grid.windows, grid.tokens)
        parts = qkv[points].reshape(*points.shape, 3, heads.num, heads.channels)
        q, k, v = jnp.transpose(parts, (2, 0, 3, 1, 4))
        logits = attention_logits(q * heads.channels**-0.5, k, dtype=wide)
        logits += bias[None, None, : grid.tokens, : grid.tokens].astype(wide)
        mixed = attend(jax.nn.softmax(logits).astype(v.dtype), v)
        rows = jnp.swapaxes(mixed, 1, 2).reshape(*points.shape, -1)
        index = jnp.argsort(points.reshape(-1))  # every point is one token
        return rows.reshape(grid.points, -1)[index]

    return jax.jvp(definition, saved, tangents)[1]


@partial(_attention.defvjp, None, tangent=_tangent)
def _backward(
    tiling: Tiling,
    heads: Heads,
    interpret: bool,
    saved: tuple[Array, Array],
    cotangent: Array,
) -> tuple[Array, Array]:
    qkv, bias = saved
    parts = -(-tiling.size // tiling.queries)
    chunk = -(-tiling.num * heads.num * parts // _PROGRAMS)
    chunks = -(-tiling.num // chunk)
    wide = jnp.promote_types(qkv.dtype, jnp.float32)
    partial_sums = ((heads.num, chunks, *bias.shape), wide)
    call = partial(call_kernel, num_warps=_WARPS, interpret=interpret)
    # Programs sum the gradient of the bias in registers, which hold that of one part of
    # the queries: for several parts it has a kernel of its own, with programs for each.
    if parts == 1:
        gradient, sums = call(
            partial(_backward_kernel, tiling=tiling, heads=heads, chunk=chunk),
            "window_attention_backward",
            *(qkv, bias, cotangent),
            grid=(chunks, heads.num),
            results=((qkv.shape, qkv.dtype), partial_sums),
            flops=5 * _product(tiling, heads),
        )
    else:
        (gradient,) = call(
            partial(_backward_kernel, tiling=tiling, heads=heads, chunk=1),
            "window_attention_backward",
            *(qkv, bias, cotangent),
            grid=(tiling.num, heads.num),
            results=((qkv.shape, qkv.dtype),),
            flops=5 * _product(tiling, heads),
        )
        (sums,) = call(
            partial(_bias_kernel, tiling=tiling, heads=heads, chunk=chunk),
            "window_attention_bias",
            *(qkv, bias, cotangent),
            grid=(chunks, heads.num, parts),
            results=(partial_sums,),
            flops=2 * _product(tiling, heads),
        )
    return gradient, sums.sum((0, 1)).astype(bias.dtype)


def _product(tiling: Tiling, heads: Heads) -> int:
    """FLOPs of one product over all pairs of tokens, without padding."""
    pairs = tiling.grid.windows * tiling.grid.tokens**2
    return 2 * pairs * heads.num * heads.channels


def _forward_kernel(
    qkv: Any, bias: Any, out: Any, *, tiling: Tiling, heads: Heads
) -> None:
    tile, head = program_id(0), program_id(1)
    every = tiling.locate(tile)
    k, v = (_load(qkv, *every, part, head, heads) for part in (1, 2))
    for first in range(0, tiling.size, tiling.queries):
        some = tiling.locate(tile, first, tiling.queries)
        q = _load(qkv, *some, 0, head, heads)
        raised, total = _softmax(q, k, bias[ds(first, tiling.queries), :], heads, 1)
        mixed = dot(raised.astype(v.dtype), v) * (1 / total)
        _store(out, mixed, *some, 0, head, heads)


def _backward_kernel(
    qkv: Any,
    bias: Any,
    cotangent: Any,
    gradient: Any,
    *sums: Any,
    tiling: Tiling,
    heads: Heads,
    chunk: int,
) -> None:
    start, head = program_id(0) * chunk, program_id(1)
    scale = heads.channels**-0.5
    wide = jnp.promote_types(qkv.dtype, jnp.float32)
    parts = tiling.size // tiling.queries

    def turn(index: Array | int, total: Array | None) -> Array | None:
        every = tiling.locate(start + index)
        k, v = (_load(qkv, *every, part, head, heads) for part in (1, 2))

        def piece(part: Array | int, carry: Any) -> Any:
            by_k, by_v, total = carry
            first = part * tiling.queries
            some = tiling.locate(start + index, first, tiling.queries)
            q = _load(qkv, *some, 0, head, heads)
            by_out = _load(cotangent, *some, 0, head, heads)
            columns = bias[ds(first, tiling.queries), :].T
            weights, by_logits = _by_logits((k, v), (q, by_out), columns, heads, 0)
            narrow = by_logits.astype(q.dtype)
            _store(gradient, dot(narrow.T, k) * scale, *some, 0, head, heads)
            by_k += dot(narrow, q)
            by_v += dot(weights.astype(v.dtype), by_out)
            return by_k, by_v, None if total is None else total + by_logits

        zeros = jnp.zeros((tiling.size, heads.width), wide)
        carry = (zeros, zeros, total)
        carry = piece(0, carry) if parts == 1 else lax.fori_loop(0, parts, piece, carry)
        by_k, by_v, total = carry
        for part, by_part in ((1, by_k * scale), (2, by_v)):
            _store(gradient, by_part, *every, part, head, heads)
        return total

    if not sums:
        turn(0, None)
        return
    zeros = jnp.zeros((tiling.size, tiling.queries), wide)
    sums[0][head, program_id(0)] = lax.fori_loop(0, chunk, turn, zeros).T


def _bias_kernel(
    qkv: Any,
    bias: Any,
    cotangent: Any,
    sums: Any,
    *,
    tiling: Tiling,
    heads: Heads,
    chunk: int,
) -> None:
    program, head, part = (program_id(dim) for dim in range(3))
    first = part * tiling.queries

    def turn(index: Array, total: Array) -> Array:
        tile = program * chunk + index
        every = tiling.locate(tile)
        k, v = (_load(qkv, *every, which, head, heads) for which in (1, 2))
        some = tiling.locate(tile, first, tiling.queries)
        q = _load(qkv, *some, 0, head, heads)
        by_out = _load(cotangent, *some, 0, head, heads)
        rows = bias[ds(first, tiling.queries), :]
        return total + _by_logits((q, by_out), (k, v), rows, heads, 1)[1]

    zeros = jnp.zeros((tiling.queries, tiling.size), sums.dtype)
    total = lax.fori_loop(0, chunk, turn, zeros)
    sums[head, program, ds(first, tiling.queries), :] = total


def _by_logits(
    left: tuple[Array, Array],
    right: tuple[Array, Array],
    bias: Array,
    heads: Heads,
    axis: int,
) -> tuple[Array, Array]:
    """Returns the weights of attention, and the gradient of the logits."""
    # bias: (left, right).
    raised, total = _softmax(left[0], right[0], bias, heads, axis)
    weights = raised * (1 / total)
    by_weights = dot(left[1], right[1].T)
    # The derivative of a softmax w: w (g - sum of w g) for a gradient g of w.
    along = (weights * by_weights).sum(axis, keepdims=True)
    return weights, weights * (by_weights - along)


def _softmax(
    left: Array, right: Array, bias: Array, heads: Heads, axis: int
) -> tuple[Array, Array]:
    """Returns exp(logits - maximum) of every query, and its sum."""
    # bias: (left, right), as narrow as the parameters that it is made of.
    products = dot(left, right.T)
    # Powers of two are one instruction, exponentials six.
    logits = products * (heads.channels**-0.5 * _LOG2_E)
    logits += bias.astype(products.dtype) * _LOG2_E
    raised = jnp.exp2(logits - logits.max(axis, keepdims=True))
    return raised, raised.sum(axis, keepdims=True)


def _load(
    ref: Any, points: Array, inside: Array, part: int, head: Array, heads: Heads
) -> Array:
    """Loads one of the parts (q, k, v) of a head at some points; 0 for padding."""
    origin, mask = _cells(ref, points, inside, part, head, heads)
    return load(origin, mask=mask, other=0.0)


def _store(
    ref: Any,
    values: Array,
    points: Array,
    inside: Array,
    part: int,
    head: Array,
    heads: Heads,
) -> None:
    origin, mask = _cells(ref, points, inside, part, head, heads)
    store(origin, values.astype(ref.dtype), mask=mask)


def _cells(
    ref: Any, points: Array, inside: Array, part: int, head: Array, heads: Heads
) -> tuple[Any, Array]:
    channel = lax.iota(jnp.int32, heads.width)
    first = (part * heads.num + head) * heads.channels
    mask = inside[:, None] & (channel < heads.channels)[None, :]
    return ref.at[points[:, None], (first + channel)[None, :]], mask
