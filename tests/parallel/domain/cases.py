"""Operations on split fields: named cases, and the same function of whole arrays.

Those of convolutions and pooling are from `tests.ops.cases`.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from credit_jax.ops import RunningStatistics
from credit_jax.parallel.domain import attention, conv, pool, rearrange
from credit_jax.parallel.domain.halo_exchange import HaloExchange, halo_exchange, trim
from credit_jax.parallel.domain.norm import batch_norm_field, group_norm
from credit_jax.parallel.domain.strips import Windows
from credit_jax.parallel.domain.windows import (
    Kind,
    group_layout,
    merge,
    partition,
    window_layout,
)
from credit_jax.parallel.placement import gather_rows
from credit_jax.parallel.rows.exchange import reshard
from credit_jax.parallel.rows.layout import Field, Layout
from tests.ops.cases import CONV, POOLS, TRANSPOSED, Row
from tests.support.credit_modules import credit_attribute
from tests.support.sharded import Case, Shape

Pair = tuple[int, int]
EXACT = (0.0, 0.0)


def first(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns torch's channel-first function for channel-last arrays."""
    return lambda x, *rest: function(x.movedim(-1, 1), *rest).movedim(1, -1)


def functional(name: str, **keywords: Any) -> Callable[..., Any]:
    """Returns a function of torch.nn.functional for channel-last arrays."""

    def theirs(x: Any, *rest: Any) -> Any:
        from torch.nn import functional as theirs

        return getattr(theirs, name)(x, *rest, **keywords)

    return first(theirs)


def grid(rows: int, others: int, channels: int, dim: int) -> Shape:
    """Returns an NHWC shape: `rows` along the split dim, `others` along the other."""
    sizes = (rows, others) if dim == 1 else (others, rows)
    return (2, *sizes, channels)


def volume(rows: int, channels: int, dim: int) -> Shape:
    shape = [2, 3, 4, 5, channels]
    shape[dim] = rows
    return tuple(shape)


FUNCTIONS: dict[str, Callable[..., Field]] = {
    "conv": conv.conv_field,
    "transposed": conv.conv_transpose_field,
    "average": pool.avg_pool2d_field,
    "maximum": pool.max_pool2d_field,
}


def of_rows(rows: dict[str, Row]) -> dict[str, Case]:
    """Returns cases of fields for each dim along which those of a row are split."""
    return {
        name if dim == len(row.size) - 2 else f"{name}, dim {dim}": Case(
            row.bind(FUNCTIONS[row.kind]),
            ((2, *row.size),),
            row.weights,
            dim,
            row.theirs,
        )
        for name, row in rows.items()
        for dim in row.dims
    }


def periodic(
    rows: int, kernel: Sequence[int], padding: int, other: int = 5, dim: int = 1
) -> Case:
    def theirs(x: Any, kernel: Any) -> Any:
        from torch.nn import functional

        x = functional.pad(x.movedim(-1, 1), (padding, padding, 0, 0), "circular")
        x = functional.pad(x, (0, 0, padding, padding), "reflect")
        return functional.conv2d(x, kernel.permute(3, 2, 0, 1)).movedim(1, -1)

    return Case(
        lambda f, w: conv.periodic_conv2d_field(f, w, padding=padding),
        (grid(rows, other, 2, dim),),
        ((*kernel, 2, 2),),
        dim,
        theirs,
    )


def scales(rows: int, kernels: Sequence[int], stride: int, window: int) -> Case:
    """CrossEmbed, with output rows in the layout of short windows."""

    def op(field: Field, *weights: jax.Array) -> Field:
        half = len(weights) // 2
        out = window_layout(field.layout, field.layout.size // stride, window)
        return conv.conv2d_scales(
            field, weights[:half], weights[half:], stride=stride, out=out
        )

    def theirs(x: Any, *weights: Any) -> Any:
        import torch
        from torch.nn import functional

        half, parts = len(weights) // 2, []
        for kernel, bias in zip(weights[:half], weights[half:], strict=True):
            pads = 2 * conv.scale_padding(len(kernel), stride)
            wide = functional.pad(x.movedim(-1, 1), pads)
            kernel = kernel.permute(3, 2, 0, 1)
            parts.append(functional.conv2d(wide, kernel, bias, stride))
        return torch.cat(parts, 1).movedim(1, -1)

    shapes = [(k, k, 2, 1 + i) for i, k in enumerate(kernels)]
    shapes += [(1 + i,) for i in range(len(kernels))]
    fields = ((2, rows, 4 * stride, 2),)
    return Case(op, fields, tuple(shapes), theirs=theirs)


def mixed(field: Field, mix: jax.Array, kind: Kind, window: int | Pair) -> Field:
    """Mixes the tokens of every window as attention does."""
    tokens = jnp.tanh(partition(field, kind, window))
    return merge(jnp.einsum("bwtc,ts->bwsc", tokens, mix), field, kind, window)


def windows(
    rows: int, others: int, kind: Kind, window: int | Pair, dim: int = 1
) -> Case:
    sides = (window, window) if isinstance(window, int) else window

    def op(field: Field, mix: jax.Array) -> Field:
        whole = window_layout if kind == "short" else group_layout
        field = reshard(field, whole(field.layout, rows, sides[dim - 1]))
        return reshard(mixed(field, mix, kind, window), field.layout.to_blocks())

    weights = ((sides[0] * sides[1],) * 2,)
    return Case(op, (grid(rows, others, 2, dim),), weights, dim)


def stage(rows: int, columns: int, short: int, long: int) -> Case:
    """Short and long windows of a stage, in strips for some numbers of shards."""

    def op(field: Field, *mixes: jax.Array) -> Field:
        blocks = field.layout
        layouts = Windows(rows, columns, short, long).layouts(blocks)
        field = mixed(reshard(field, layouts[0]), mixes[0], "short", short)
        field = mixed(reshard(field, layouts[1]), mixes[1], "long", long)
        return reshard(field, blocks)

    return Case(op, ((2, rows, columns, 2),), ((short**2,) * 2, (long**2,) * 2))


def embedded(rows: int, columns: int, window: int) -> Case:
    """A convolution that reads rows from strips, joined with another."""

    def op(field: Field, kernel: jax.Array) -> Field:
        strips, _ = Windows(rows, columns, window, 1).layouts(field.layout)
        field = reshard(field, strips)
        field = field.like(jnp.sin(field.data))
        out = conv.conv_field(field, kernel, padding=((1, 1), (1, 1)))
        return rearrange.join(out, field)

    return Case(op, ((2, rows, columns, 2),), ((3, 3, 2, 2),))


def norm(shape: Shape, num_groups: int, dim: int = 1) -> Case:
    def op(field: Field, scale: jax.Array, bias: jax.Array) -> Field:
        return group_norm(field, scale, bias, num_groups=num_groups)

    def theirs(x: Any, scale: Any, bias: Any) -> Any:
        return functional("group_norm", weight=scale, bias=bias)(x, num_groups)

    return Case(op, (shape,), (shape[-1:],) * 2, dim, theirs)


def batch_norm(rows: int, dim: int = 1, **keywords: Any) -> Case:
    """Output and running statistics in one field."""

    def op(field: Field, scale: Any, bias: Any, mean: Any, log_variance: Any) -> Field:
        count = jnp.full((), 3, jnp.int32)
        running = RunningStatistics(mean, jnp.exp(log_variance), count)
        out, after = batch_norm_field(field, scale, bias, running, **keywords)
        remembered = after.mean + 2 * after.variance + after.count.astype(mean.dtype)
        return out.like(out.data + remembered[None, None, None, :])

    return Case(op, (grid(rows, 5, 3, dim),), ((3,),) * 4, dim)


def mean(rows: int, over: Sequence[int], dim: int = 1) -> Case:
    """Times the means over dims, so that a case gives a field."""

    def op(field: Field) -> Field:
        if len(over) == 1:
            return field.like(field.data * pool.mean_over(field, *over))
        return field.like(field.data * pool.global_mean_pool(field)[:, None, None])

    shapes = (grid(rows, 5, 3, dim),)
    return Case(op, shapes, (), dim, lambda x: x * x.mean(over, keepdim=True))


def module(name: str, *args: Any, **keywords: Any) -> Callable[..., Any]:
    """Returns CREDIT's attention module as a function of arrays and its parameters."""

    def theirs(x: Any, *parameters: Any, **settings: Any) -> Any:
        import torch

        layer = credit_attribute("models.unet_attention_modules", name)
        layer = layer(*args, **keywords).train(settings.get("training", True))
        names = [name for name, _ in layer.named_parameters()]
        values = dict(zip(names, parameters, strict=True))
        return torch.func.functional_call(layer, values, (x,))

    return first(theirs)


def kernels(*matrices: Any) -> list[Any]:
    """Returns matrices (in, out) as torch's kernels of 1 x 1 convolutions."""
    return [matrix.T[..., None, None] for matrix in matrices]


def biased_gates(rows: int, dim: int = 1) -> Case:
    """Gates of channels and of points as of segmentation_models_pytorch."""

    def op(field: Field, *weights: Any) -> Field:
        (squeeze, expand, points), (low, high, shift) = weights[:3], weights[3:]
        pairs = (squeeze, low), (expand, high), (points, shift[0])
        return attention.scse(field, *pairs)

    def theirs(x: Any, *weights: Any) -> Any:
        (squeeze, expand, points), (low, high, shift) = weights[:3], weights[3:]
        hidden = (x.mean((1, 2), keepdim=True) @ squeeze + low).relu()
        gates = (hidden @ expand + high).sigmoid()
        return x * gates + x * (x @ points + shift).sigmoid()[..., None]

    weights = ((4, 3), (3, 4), (4,), (3,), (4,), (1,))
    return Case(op, (grid(rows, 5, 4, dim),), weights, dim, theirs)


def channels(rows: int) -> Case:
    def theirs(x: Any, kernel: Any) -> Any:
        return module("ECABlock", 8)(x, kernel[None, None])

    fields = (grid(rows, 5, 8, 1),)
    return Case(attention.efficient_channel_attention, fields, ((3,),), theirs=theirs)


def points(rows: int, size: int, dim: int = 1) -> Case:
    """Gates of points."""

    def theirs(x: Any, kernel: Any) -> Any:
        return module("LightSpatialAttention", size)(x, kernel.permute(3, 2, 0, 1))

    fields = (grid(rows, 5, 4, dim),)
    return Case(attention.spatial_attention, fields, ((size, size, 2, 1),), dim, theirs)


def both_gates(rows: int, dim: int = 1, *, depthwise: bool = False) -> Case:
    """Gates of channels and of points; their kernels of 1 x 1 are a product."""

    def op(field: Field, squeeze: Any, expand: Any, *own: Any) -> Field:
        points = own[0] * own[-1] if own[1:] else own[0]
        return attention.scse(field, (squeeze, None), (expand, None), (points, None))

    def theirs(x: Any, squeeze: Any, expand: Any, *own: Any) -> Any:
        layer = module("SCSEAttention", 4, 2, use_depthwise=depthwise)
        own = [own[0][:, None, None, None], *own[1:]] if depthwise else own
        own = [*own[:-1], own[-1][None, :, None, None]]
        return layer(x, *kernels(squeeze, expand), *own)

    weights = ((4, 2), (2, 4), *((4,),) * (1 + depthwise))
    return Case(op, (grid(rows, 5, 4, dim),), weights, dim, theirs)


def coordinates(rows: int, dim: int = 1, *, training: bool = True) -> Case:
    # In training the norm removes a bias before it, whose gradient is therefore zero.
    shapes = ((4, 8), (8,), (8,), (8, 4), (4,), (8, 4), (4,))
    shapes = shapes if training else (*shapes, (8,))

    def op(field: Field, squeeze: jax.Array, *weights: jax.Array) -> Field:
        bias = jnp.ones(8, field.data.dtype) if training else weights[-1]
        scale, shift, *gates = weights[:6]
        fresh, after = RunningStatistics.fresh(8, field.data.dtype), []

        def norm(joint: Field) -> Field:
            joint, *running = batch_norm_field(
                *(joint, scale, shift, fresh), training=training
            )
            after.extend(running)
            return joint

        lat, lon = gates[:2], gates[2:]
        out = attention.coordinate_attention(field, (squeeze, bias), norm, lat, lon)
        (running,) = after
        # Torch's buffers and these have no gradient.
        seen = running.mean.sum() + running.variance.sum()
        return out.like(out.data + seen.astype(out.data.dtype))

    def theirs(x: Any, squeeze: Any, *weights: Any) -> Any:
        import torch

        layer = credit_attribute("models.unet_attention_modules", "CoordinateAttention")
        layer = layer(4).train(training)
        scale, shift, lat, lat_bias, lon, lon_bias, *bias = weights
        values = [kernels(squeeze)[0], *(bias or [torch.ones(8)]), scale, shift]
        values += [*kernels(lat), lat_bias, *kernels(lon), lon_bias]
        names = [name for name, _ in layer.named_parameters()]
        values = dict(zip(names, values, strict=True))
        out = torch.func.functional_call(layer, values, (x.movedim(-1, 1),))
        seen = layer.bn1.running_mean.sum() + layer.bn1.running_var.sum()
        return out.movedim(1, -1) + seen

    return Case(op, (grid(rows, 5, 4, dim),), shapes, dim, theirs)


def between_points(rows: int, attend: Any, dim: int = 1) -> Case:
    """Attention of two heads between all points and three tokens."""

    def op(field: Field, memory: Any) -> Field:
        heads = attention.split_heads(field, 3, 2)
        return attention.merge_heads(attend(*heads, memory))

    return Case(op, (grid(rows, 5, 24, dim),), ((2, 3, 2, 4),), dim)


def roll(rows: int, shift: Pair, dim: int = 1) -> Case:
    def theirs(x: Any) -> Any:
        return x.roll(shift, (1, 2))

    fields = (grid(rows, 5, 2, dim),)
    return Case(
        lambda f: rearrange.roll_field(f, shift), fields, (), dim, theirs, EXACT
    )


def halo(rows: int, width: int, dim: int = 1, *, periodic: bool = False) -> Case:
    """Differences to the rows `width` before and after, then the halo is removed."""

    def op(field: Field) -> Field:
        wide = halo_exchange(field, width, periodic=periodic)
        size = field.data.shape[dim]
        before = trim(wide, 0, 2 * width, dim)
        behind = trim(wide, 2 * width, 0, dim)
        own = HaloExchange.trim(wide, width, width, dim)
        assert own.shape[dim] == size
        return field.like(2 * own - before * behind)

    return Case(op, (grid(rows, 3, 2, dim),), (), dim)


def gathered(rows: int, dim: int = 1) -> Case:
    """Gathers all rows, mixes them by a matrix, and keeps the local ones."""

    def op(field: Field, mix: jax.Array) -> Field:
        whole = jnp.moveaxis(gather_rows(field), dim, 0)
        mixed = jnp.tensordot(mix, whole, 1)
        return field.like(jnp.moveaxis(field.layout.local(mixed), 0, dim))

    return Case(op, (grid(rows, 3, 2, dim),), ((rows, rows),), dim)


RESIZE: dict[str, Callable[..., Field]] = {
    "nearest": pool.resize_nearest,
    "nearest-exact": partial(pool.resize_nearest, half_pixel=True),
    "area": pool.resize_area,
    "bilinear": pool.resize_bilinear,
    "trilinear": pool.resize_bilinear,
}


def resize(
    rows: int, size: Sequence[int], dim: int = 1, mode: str = "nearest", **corners: bool
) -> Case:
    """A resize as torch's mode, of fields or of volumes."""
    shape = grid(rows, 5, 2, dim) if len(size) == 2 else volume(rows, 2, dim)
    return Case(
        lambda f: RESIZE[mode](f, tuple(size), **corners),
        (shape,),
        (),
        dim,
        functional("interpolate", size=tuple(size), mode=mode, **corners),
        (1e-6, 1e-5) if "linear" in mode else (0.0, 1e-6),
    )


def padded(
    rows: int, mode: str, lat: Pair, lon: Pair, *, dim: int = 1, crop: bool = False
) -> Case:
    """Padding of the globe, or its inverse."""
    function = rearrange.crop_globe if crop else partial(rearrange.pad_globe, mode=mode)

    def theirs(x: Any) -> Any:
        layer = credit_attribute("boundary_padding", "TensorPadding")
        layer = layer(mode=mode, pad_lat=lat, pad_lon=lon)
        x = x.movedim(-1, 1)[:, :, None]
        return (layer.unpad(x) if crop else layer.pad(x))[:, :, 0].movedim(1, -1)

    # CREDIT's earth padding of one pole appends the whole field at the other, and its
    # mirror padding of one side cannot be removed.
    sides = lat if mode == "earth" and not crop else (*lat, *lon)
    of_credit = all(sides) or not any(lat)
    return Case(
        lambda f: function(f, lat=lat, lon=lon),
        (grid(rows, 6, 2, dim),),
        (),
        dim,
        theirs if of_credit else None,
        (0.0, 1e-5),
    )


def upsampled(rows: int) -> Case:
    """A decoder step: pixel shuffle, convolution on local rows, join, sum."""

    def op(field: Field, skip: Field, kernel: jax.Array) -> Field:
        up = rearrange.pixel_shuffle_field(field, 2)
        x = conv.conv_field(up, kernel, padding=((1, 1), (1, 1)), out=up.layout)
        return rearrange.join(rearrange.add(up, x), skip)

    return Case(op, ((2, rows, 3, 8), (2, 2 * rows, 6, 1)), ((3, 3, 2, 2),))


def on_odd_layouts(rows: int) -> Case:
    """Input and output rows in layouts that no operation computes in."""

    def op(field: Field, kernel: jax.Array, up: jax.Array) -> Field:
        none = (0, 0)

        def reverse(layout: Layout) -> Layout:
            last = layout.size - 1
            rows = [[last - g for g in own if g >= 0] for own in layout.rows]
            return layout.with_rows(rows, layout.size)

        odd, twice = reverse(field.layout), reverse(field.layout.to_blocks(2 * rows))
        y = conv.conv_field(field, kernel, padding="same", out=odd)
        y = pool.max_pool2d_field(
            y, (3, 1), stride=(1, 1), padding=((1, 1), none), out=odd
        )
        y = conv.periodic_conv2d_field(y, kernel, out=odd)
        y = conv.conv_transpose_field(y, up, stride=(2, 1), out=twice)
        return pool.avg_pool2d_field(y, (2, 1))

    return Case(op, ((2, rows, 4, 2),), ((3, 3, 2, 2), (2, 1, 2, 2)))


shuffle = Case(lambda f: rearrange.pixel_shuffle_field(f, 2), ((2, 13, 3, 8),), (), 1)
shuffle = replace(shuffle, theirs=functional("pixel_shuffle", upscale_factor=2))

# Operations with several implementations.
SEVERAL: dict[str, Case] = {
    **of_rows(CONV | TRANSPOSED),
    "embed 4 8 16 32, stride 4": scales(64, (4, 8, 16, 32), 4, 4),
    "embed 4 8, stride 4, uneven": scales(60, (4, 8), 4, 5),
    "embed 2 4, stride 2, few rows": scales(8, (2, 4), 2, 2),
    "embed 3 5, stride 1": scales(15, (3, 5), 1, 3),
    "periodic": periodic(16, (3, 3), 1),
    "periodic, uneven": periodic(13, (3, 3), 1),
    "periodic, even kernel": periodic(13, (4, 2), 2),
    "periodic, no padding": periodic(13, (3, 3), 0),
    "periodic, 4 rows, most": periodic(4, (3, 3), 3),
    "periodic, columns": periodic(11, (3, 3), 2, dim=2),
    "periodic, columns, once around": periodic(5, (3, 5), 5, other=6, dim=2),
}
OTHERS: dict[str, Case] = {
    **of_rows(POOLS),
    "odd layouts": on_odd_layouts(13),
    # Windows, in rows and in strips.
    "short windows": windows(48, 8, "short", 4),
    "short windows, uneven": windows(45, 6, "short", 3),
    "short windows of 3 x 2": windows(15, 4, "short", (3, 2)),
    "short windows, columns": windows(48, 4, "short", 4, 2),
    "short windows, columns, uneven": windows(15, 6, "short", 3, 2),
    "short windows of 2 x 3, columns": windows(15, 4, "short", (2, 3), 2),
    "long windows": windows(48, 8, "long", 4),
    "long windows, uneven": windows(45, 6, "long", 3),
    "long windows, few": windows(8, 8, "long", 4),
    "one long window": windows(4, 4, "long", 4),
    "long windows of 3 x 2": windows(15, 4, "long", (3, 2)),
    "long windows, columns": windows(48, 4, "long", 4, 2),
    "long windows, columns, uneven": windows(15, 6, "long", 3, 2),
    "long windows of 2 x 3, columns": windows(15, 4, "long", (2, 3), 2),
    "strips, columns meet": stage(20, 20, 5, 2),
    "strips, columns apart": stage(20, 12, 4, 2),
    "strips, long in rows on 3": stage(30, 18, 6, 2),
    "strips, wide groups": stage(15, 15, 3, 5),
    "strips, few": stage(8, 16, 4, 4),
    "convolution of strips": embedded(20, 10, 5),
    # Norms.
    "group norm": norm((2, 48, 5, 6), 2),
    "group norm, uneven": norm((2, 45, 5, 6), 3),
    "group norm, one group": norm((2, 61, 5, 4), 1),
    "group norm, 4 rows": norm((2, 4, 5, 4), 2),
    "group norm, columns": norm((2, 5, 13, 4), 2, 2),
    "group norm of volumes": norm(volume(7, 4, 2), 2, 2),
    "group norm of volumes, dim 1": norm(volume(7, 4, 1), 2, 1),
    "batch norm": batch_norm(24, training=True),
    "batch norm, uneven": batch_norm(13, training=True, momentum=0.3),
    "batch norm, 2 rows": batch_norm(2, training=True),
    "batch norm, evaluation": batch_norm(13, training=False),
    "batch norm, columns": batch_norm(13, 2, training=True),
    # Means and attention.
    "global mean": mean(24, (1, 2)),
    "global mean, uneven": mean(13, (1, 2)),
    "global mean, 2 rows": mean(2, (1, 2)),
    "global mean, columns": mean(13, (1, 2), 2),
    "mean over lat": mean(13, (1,)),
    "mean over lon": mean(13, (2,)),
    "mean over lat, columns": mean(13, (1,), 2),
    "mean over lon, columns": mean(13, (2,), 2),
    "gates with biases": biased_gates(13),
    "gates with biases, columns": biased_gates(12, 2),
    "efficient channel attention": channels(13),
    "coordinate attention": coordinates(13),
    "coordinate attention, evaluation": coordinates(13, training=False),
    "coordinate attention, columns": coordinates(13, 2),
    "attention between points": between_points(13, attention.full_attention),
    "attention between points, linear": between_points(13, attention.linear_attention),
    "spatial attention": points(24, 3),
    "spatial attention, uneven": points(13, 7),
    "spatial attention, columns": points(13, 3, 2),
    "gates of channels and points": both_gates(24),
    "gates of channels and points, uneven": both_gates(13, depthwise=True),
    "gates of channels and points, columns": both_gates(13, 2),
    # Padding of the globe.
    "earth": padded(48, "earth", (2, 2), (2, 2)),
    "earth, uneven": padded(45, "earth", (10, 9), (1, 3)),
    "earth, north only": padded(13, "earth", (4, 0), (0, 1)),
    "earth, every row": padded(8, "earth", (8, 8), (6, 6)),
    "earth, columns": padded(16, "earth", (3, 2), (2, 1), dim=2),
    "earth, odd columns": padded(13, "earth", (2, 3), (5, 4), dim=2),
    "earth, columns, lat only": padded(13, "earth", (0, 1), (0, 0), dim=2),
    "earth, columns, most": padded(4, "earth", (6, 6), (4, 4), dim=2),
    "mirror": padded(48, "mirror", (3, 3), (2, 2)),
    "mirror, uneven": padded(45, "mirror", (10, 9), (0, 0)),
    "mirror, most": padded(8, "mirror", (7, 7), (1, 1)),
    "mirror, columns": padded(13, "mirror", (2, 5), (0, 3), dim=2),
    "crop": padded(54, "mirror", (3, 3), (2, 1), crop=True),
    "crop, uneven": padded(64, "earth", (10, 9), (0, 2), crop=True),
    "crop, one row left": padded(9, "earth", (4, 4), (1, 1), crop=True),
    "crop, columns": padded(13, "earth", (1, 2), (3, 2), dim=2, crop=True),
    # Resizes.
    "resize up": resize(45, (61, 8), mode="bilinear"),
    "resize down": resize(61, (45, 3), mode="bilinear"),
    "resize twice": resize(24, (48, 10), mode="bilinear"),
    "resize 721 to 181": resize(721, (181, 5), mode="bilinear"),
    "resize far up": resize(3, (40, 5), mode="bilinear"),
    "resize to one": resize(9, (1, 1), mode="bilinear"),
    "resize, corners": resize(45, (61, 8), mode="bilinear", align_corners=True),
    "resize columns only": resize(13, (13, 9), mode="bilinear"),
    "resize, columns": resize(13, (8, 29), 2, "bilinear"),
    "resize, corners, columns": resize(13, (8, 5), 2, "bilinear", align_corners=True),
    "trilinear": resize(7, (5, 12, 9), 2, "trilinear"),
    "trilinear, dim 1": resize(7, (5, 6, 9), 1, "trilinear"),
    "nearest up": resize(13, (26, 10)),
    "nearest up, even": resize(16, (48, 15)),
    "nearest up, any ratio": resize(13, (31, 7)),
    "nearest down": resize(31, (13, 3)),
    "nearest from 3 rows": resize(3, (16, 5)),
    "nearest, columns only": resize(13, (13, 8)),
    "nearest, columns": resize(13, (7, 29), 2),
    "nearest-exact": resize(13, (31, 7), mode="nearest-exact"),
    "nearest-exact, columns": resize(13, (8, 29), 2, "nearest-exact"),
    "area": resize(9, (17, 10), mode="area"),
    "area, columns": resize(8, (5, 15), 2, "area"),
    "nearest of volumes": resize(7, (6, 11, 7), 2),
    "nearest of volumes, dim 1": resize(7, (4, 7, 9), 1),
    # Shifts, halos and moves of rows.
    "roll rows": roll(24, (3, 0)),
    "roll rows and columns, uneven": roll(13, (-5, 2)),
    "roll columns only": roll(13, (0, -1)),
    "roll more than a turn": roll(13, (30, -11)),
    "roll 3 rows": roll(3, (1, 1)),
    "roll, columns": roll(13, (2, 6), 2),
    "roll lat only, columns": roll(24, (-1, 0), 2),
    "halo of 1": halo(24, 1),
    "halo of 2, uneven": halo(13, 2),
    "halo wider than a shard": halo(13, 5),
    "halo wider than the field": halo(3, 4),
    "halo, columns": halo(13, 2, 2),
    "periodic halo": halo(24, 2, periodic=True),
    "periodic halo, uneven, columns": halo(13, 3, 2, periodic=True),
    "periodic halo of more than a turn": halo(3, 7, periodic=True),
    "gathered rows": gathered(13),
    "gathered rows, columns": gathered(4, 2),
    "pixel shuffle": shuffle,
    "pixel shuffle, columns": replace(shuffle, fields=((2, 3, 13, 8),), dim=2),
    "upsampling": upsampled(24),
    "upsampling, uneven": upsampled(13),
    "join": Case(rearrange.join, ((2, 13, 3, 2), (2, 13, 3, 1))),
    "add": Case(rearrange.add, ((2, 45, 3, 2), (2, 45, 3, 2))),
}
CASES = SEVERAL | OTHERS
