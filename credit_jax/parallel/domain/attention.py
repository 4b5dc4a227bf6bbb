"""Attention on sharded fields: gates, all points with memory tokens, Ulysses.

Neighboring shards of the domain axis form groups of `degree`. A group has the rows of
complete windows, distributed evenly over its shards. Before the attention, an
`all_to_all` exchanges heads for rows, so each shard has all rows of its group and
1 / degree of the heads; another `all_to_all` after it restores the rows. All other
layers use the even distribution of rows. With a single group, no rows need to be
resharded for attention. The method is that of DeepSpeed Ulysses (arXiv 2309.14509).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from credit_jax.ops import neighbor_gate, squeeze_gate
from credit_jax.ops.activations import Weights
from credit_jax.ops.custom_vjp import pvary
from credit_jax.ops.dense import add_bias
from credit_jax.ops.space_to_depth import pad_dim
from credit_jax.parallel.collectives import axis_index, keep_moved, psum
from credit_jax.parallel.domain.conv import conv_field
from credit_jax.parallel.domain.pool import global_mean_pool, mean_over
from credit_jax.parallel.domain.strips import Windows
from credit_jax.parallel.domain.windows import Kind, group_layout, window_layout
from credit_jax.parallel.placement import gather_rows
from credit_jax.parallel.rows.layout import PADDING, Field, Layout, block_layout


def efficient_channel_attention(field: Field, kernel: Float[Array, " taps"]) -> Field:
    """Multiplies every channel by a gate of its neighbors' means: CREDIT's ECABlock."""
    return _times(field, neighbor_gate(global_mean_pool(field), kernel))


# Kernel and bias of a layer.
Affine = tuple[Array, Array]


def coordinate_attention(
    field: Field,
    squeeze: Affine,  # to hidden channels
    norm: Callable[[Field], Field],
    lat: Affine,  # from hidden channels to gates of rows, and of columns
    lon: Affine,
) -> Field:
    """Multiplies by gates of rows and of columns: CREDIT's CoordinateAttention."""

    def squeezed(dim: int) -> Array:
        hidden = _affine(mean_over(field, 3 - dim), squeeze)
        full = gather_rows(field.like(hidden)) if dim == field.layout.dim else hidden
        return full.squeeze(3 - dim)

    # The batch normalization takes statistics over the means of all rows and all
    # columns, which are equal on any number of shards; they are all-gathered after they
    # are squeezed.
    rows, columns = squeezed(1), squeezed(2)
    joint = jnp.concatenate([rows, columns], 1)
    # Every shard has the means of all rows and columns now: a field on one device.
    normal = norm(Field(joint, block_layout(joint.shape[1])))
    rows, columns = jnp.split(jax.nn.silu(normal.data), [rows.shape[1]], 1)
    by_row = _affine(_local(rows[:, :, None], field, 1), lat)
    by_column = _affine(_local(columns[:, None], field, 2), lon)
    gate = jax.nn.sigmoid(by_row) * jax.nn.sigmoid(by_column)
    return field.like(field.data * gate)


def _affine(x: Array, weights: Affine) -> Array:
    return add_bias(jnp.matmul(x, weights[0]), weights[1])


def _local(full: Array, field: Field, dim: int) -> Array:
    """Returns the rows of this shard from an array with all rows."""
    if dim != field.layout.dim:
        return full
    return jnp.moveaxis(field.layout.local(jnp.moveaxis(full, dim, 0)), 0, dim)


def _times(field: Field, gate: Float[Array, "batch channel"]) -> Field:
    batch, channels = gate.shape
    shape = (batch, *(1,) * (field.data.ndim - 2), channels)
    return field.like(field.data * gate.reshape(shape))


def spatial_attention(
    field: Field, kernel: Float[Array, "kernel_h kernel_w 2 1"]
) -> Field:
    """Multiplies every point by a gate: CREDIT's LightSpatialAttention."""
    if not all(size % 2 for size in kernel.shape[:2]):
        raise ValueError(
            f"the kernel of spatial attention is {kernel.shape[0]} x "
            f"{kernel.shape[1]}; expected odd sizes"
        )
    x = field.data
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    mean = wide.mean(-1, keepdims=True).astype(x.dtype)
    # The gradient of tied maxima goes to the first, as in torch.
    largest = jnp.take_along_axis(x, jnp.argmax(x, -1, keepdims=True), -1)
    seen = field.like(jnp.concatenate([mean, largest], -1))
    half_h, half_w = kernel.shape[0] // 2, kernel.shape[1] // 2
    gate = conv_field(
        seen,
        kernel,
        padding=((half_h, half_h), (half_w, half_w)),
        out=field.layout,
    )
    return field.like(x * jax.nn.sigmoid(gate.data))


def scse(field: Field, squeeze: Weights, expand: Weights, points: Weights) -> Field:
    """Sums x * gate of channels and x * sigmoid(x @ points + bias)."""
    # Without biases CREDIT's SCSEAttention, whose depthwise variant has the product of
    # both kernels as `points`; with biases that of segmentation_models_pytorch.
    kernel, bias = points
    logit = jnp.matmul(field.data, kernel)[..., None]
    gate = jax.nn.sigmoid(logit if bias is None else logit + bias)
    excited = _times(field, squeeze_gate(global_mean_pool(field), squeeze, expand))
    return field.like(excited.data + field.data * gate)


# Keys and values of tokens that all points attend to.
Memory = Float[Array, "2 token head dim"]


def full_attention(query: Field, key: Field, value: Field, memory: Memory) -> Field:
    """Returns softmax(q k' / sqrt(dim)) v over all points and memory tokens."""
    q = query.data
    wide = jnp.promote_types(q.dtype, jnp.float32)

    def with_memory(memory: Array, field: Field) -> Array:
        tokens = jnp.broadcast_to(memory[None], (len(q), *memory.shape))
        # Each shard computes its queries for the keys and values of all rows.
        return jnp.concatenate(
            [tokens, gather_rows(field).reshape(len(q), -1, *q.shape[3:])], 1
        )

    keys, values = map(with_memory, memory, (key, value))
    logits = jnp.einsum("byxhd,bnhd->byxhn", q, keys, preferred_element_type=wide)
    weights = jax.nn.softmax(logits * q.shape[-1] ** -0.5, -1).astype(q.dtype)
    return query.like(jnp.einsum("byxhn,bnhd->byxhd", weights, values))


def linear_attention(query: Field, key: Field, value: Field, memory: Memory) -> Field:
    """Returns softmax_d(q) / sqrt(dim) times the matrix softmax_n(k)' v."""
    # The softmax of the keys is over all points n and memory tokens, that of a query
    # over its channels d (Shen et al., 2021, arXiv 1812.01243).
    q, layout = query.data, query.layout
    wide = jnp.promote_types(q.dtype, jnp.float32)
    k, v = key.data.astype(wide), value.data.astype(wide)
    memory, other = memory.astype(wide)
    if layout.has_padding:
        mask = layout.real_rows()[None, :, None, None, None]
        k = jnp.where(mask, k, -jnp.inf)
    # The maximum keeps exponentials finite and cancels in the quotient, and with it in
    # the gradient.
    largest = jnp.maximum(k.max((1, 2)), memory.max(0)[None])
    largest = lax.stop_gradient(largest)
    if layout.axis is not None:
        largest = lax.pmax(largest, layout.axis)
    raised = jnp.exp(k - largest[:, None, None])
    matrix = jnp.einsum("byxhd,byxhe->bhde", raised, v, precision="highest")
    total = raised.sum((1, 2))
    if layout.axis is not None:
        matrix, total = psum(
            (pvary(matrix, (layout.axis,)), pvary(total, (layout.axis,))), layout.axis
        )
    # After the sum over shards, all of which have all memory tokens: they count once.
    raised = jnp.exp(memory[None] - largest[:, None])
    matrix = matrix + jnp.einsum("bnhd,nhe->bhde", raised, other, precision="highest")
    matrix = matrix / (total + raised.sum(1))[..., None]
    weights = jax.nn.softmax(q.astype(wide), -1) * q.shape[-1] ** -0.5
    return query.like(jnp.einsum("byxhd,bhde->byxhe", weights, matrix).astype(q.dtype))


def split_heads(field: Field, num: int, heads: int) -> tuple[Field, ...]:
    """Splits channels (num head dim) into `num` fields (batch, lat, lon, head, dim)."""
    x = field.data
    x = x.reshape(*x.shape[:-1], num, heads, -1)
    return tuple(field.like(x[..., i, :, :]) for i in range(num))


def merge_heads(field: Field) -> Field:
    """Merges heads (batch, lat, lon, head, dim) into channels (head dim)."""
    x = field.data
    return replace(field, data=x.reshape(*x.shape[:3], -1))


def attention_layouts(
    layout: Layout, windows: Windows, degree: int = 1
) -> tuple[Layout, Layout]:
    """Returns the layouts of the fields around short attention and long attention."""
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
    """Returns the layout of the field around an attention with a `HeadExchange`."""
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
    """The exchanges of heads for rows before and after an attention."""

    layout: Layout
    kind: Kind
    window: int
    degree: int  # of shards of a group, above 1

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
        """Returns all rows of the group for a part of the heads, by one exchange."""
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
