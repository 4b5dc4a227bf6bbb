"""Named cases of norms, pools, shifts, halos, and of fields split along longitude."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from credit_jax.ops import RunningStatistics
from credit_jax.parallel.domain.attention import (
    CoordinateWeights,
    coordinate_attention,
    efficient_channel_attention,
    full_attention,
    linear_attention,
    merge_heads,
    scse,
    spatial_attention,
    split_heads,
    squeeze_excite,
)
from credit_jax.parallel.domain.halo_exchange import HaloExchange, halo_exchange, trim
from credit_jax.parallel.domain.norm import batch_norm_field, group_norm
from credit_jax.parallel.domain.pool import (
    global_mean_pool,
    mean_over,
    resize_area,
    resize_bilinear,
    resize_nearest,
)
from credit_jax.parallel.domain.rearrange import (
    crop_globe,
    pad_globe,
    pixel_shuffle_field,
    roll_field,
)
from credit_jax.parallel.domain.windows import (
    Kind,
    group_layout,
    merge,
    partition,
    window_layout,
)
from credit_jax.parallel.placement import gather_rows
from credit_jax.parallel.rows.exchange import reshard
from credit_jax.parallel.rows.layout import Field
from tests.support.sharded import Case, Shape

Pair = tuple[int, int]


def grid(rows: int, others: int, channels: int, dim: int) -> Shape:
    """Returns an NHWC shape: `rows` along the split dim, `others` along the other."""
    sizes = (rows, others) if dim == 1 else (others, rows)
    return (2, *sizes, channels)


def times(field: Field, per_channel: jax.Array) -> Field:
    """Multiplies a field by (batch, channel) numbers, so that a case gives a field."""
    return field.like(field.data * per_channel[:, None, None, :])


def batch_norm(rows: int, dim: int = 1, **keywords: Any) -> Case:
    """Output and running statistics in one field."""

    def op(field: Field, scale: Any, bias: Any, mean: Any, log_variance: Any) -> Field:
        count = jnp.full((), 3, jnp.int32)
        running = RunningStatistics(mean, jnp.exp(log_variance), count)
        out, after = batch_norm_field(field, scale, bias, running, **keywords)
        assert after is not None
        remembered = after.mean + 2 * after.variance + after.count.astype(mean.dtype)
        return out.like(out.data + remembered[None, None, None, :])

    return Case(op, (grid(rows, 5, 3, dim),), ((3,),) * 4, dim)


def batch_norm_forgetful(rows: int) -> Case:
    def op(field: Field, scale: jax.Array, bias: jax.Array) -> Field:
        return batch_norm_field(field, scale, bias, training=False)[0]

    return Case(op, (grid(rows, 5, 3, 1),), ((3,), (3,)))


def group_norm_of_volumes(rows: int, dim: int) -> Case:
    def op(field: Field, scale: jax.Array, bias: jax.Array) -> Field:
        return group_norm(field, scale, bias, num_groups=2)

    shape = [2, 3, 4, 5, 4]
    shape[dim] = rows
    return Case(op, (tuple(shape),), ((4,), (4,)), dim)


def pool(rows: int, reduce: Any, dim: int = 1) -> Case:
    return Case(lambda f: times(f, reduce(f)), (grid(rows, 5, 3, dim),), (), dim)


def profile(rows: int, reduce: Any, dim: int = 1) -> Case:
    """A mean over one dim, which broadcasts against the field."""
    return Case(lambda f: f.like(f.data * reduce(f)), (grid(rows, 5, 3, dim),), (), dim)


def excite(rows: int, dim: int = 1) -> Case:
    def op(field: Field, squeeze: Any, expand: Any, low: Any, high: Any) -> Field:
        plain = squeeze_excite(field, squeeze, expand)
        return squeeze_excite(
            plain, squeeze, expand, squeeze_bias=low, expand_bias=high
        )

    weights = ((4, 3), (3, 4), (3,), (4,))
    return Case(op, (grid(rows, 5, 4, dim),), weights, dim)


def channels(rows: int, dim: int = 1) -> Case:
    return Case(efficient_channel_attention, (grid(rows, 5, 6, dim),), ((3,),), dim)


def points(rows: int, kernel: Pair, dim: int = 1) -> Case:
    """Gates of points, alone and together with those of channels."""

    def op(field: Field, kernel: Any, squeeze: Any, expand: Any, own: Any) -> Field:
        gated = spatial_attention(field, kernel)
        return scse(gated, squeeze, expand, own)

    weights = ((*kernel, 2, 1), (4, 3), (3, 4), (4,))
    return Case(op, (grid(rows, 5, 4, dim),), weights, dim)


def coordinates(rows: int, dim: int = 1, *, training: bool = True) -> Case:
    # In training the norm removes a bias before it, whose gradient is therefore zero.
    spectral_norm_state = (
        (3,),
        (3,),
        (3, 4),
        (4,),
        (3, 4),
        (4,),
        *(() if training else ((3,),)),
    )

    def op(field: Field, squeeze: jax.Array, *weights: jax.Array) -> Field:
        bias = jnp.ones(3, field.data.dtype) if training else weights[-1]
        fresh = RunningStatistics.fresh(3, field.data.dtype)
        out, running = coordinate_attention(
            field,
            CoordinateWeights(squeeze, bias, *weights[:6]),
            fresh,
            training=training,
        )
        assert running is not None
        seen = running.mean.sum() + running.variance.sum()
        return out.like(out.data + seen.astype(out.data.dtype))

    return Case(op, (grid(rows, 5, 4, dim),), ((4, 3), *spectral_norm_state), dim)


def between_points(rows: int, attend: Any, dim: int = 1) -> Case:
    """Attention of two heads between all points and three tokens."""

    def op(field: Field, memory_key: Any, memory_value: Any) -> Field:
        query, key, value = split_heads(field, 3, 2)
        return merge_heads(attend(query, key, value, memory_key, memory_value))

    return Case(op, (grid(rows, 5, 24, dim),), ((3, 2, 4),) * 2, dim)


def roll(rows: int, shift: Pair, dim: int = 1) -> Case:
    return Case(lambda f: roll_field(f, shift), (grid(rows, 5, 2, dim),), (), dim)


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


def halo_of_array(rows: int, width: int) -> Case:
    """The same without a field, in CREDIT's order of dims."""

    def op(field: Field) -> Field:
        x = jnp.moveaxis(field.data, -1, 1)
        exchange = HaloExchange(width, axis=field.layout.axis)
        wide = exchange(x, size=field.layout.size)
        total = sum(
            (k + 1.0) * trim(wide, k, 2 * width - k) for k in range(2 * width + 1)
        )
        return field.like(jnp.moveaxis(jnp.asarray(total), 1, -1))

    return Case(op, ((2, rows, 3, 2),))


def gathered(rows: int, dim: int = 1) -> Case:
    """Gathers all rows, mixes them by a matrix, and keeps the local ones."""

    def op(field: Field, mix: jax.Array) -> Field:
        whole = jnp.moveaxis(gather_rows(field), dim, 0)
        mixed = jnp.tensordot(mix, whole, 1)
        return field.like(jnp.moveaxis(field.layout.local(mixed), 0, dim))

    return Case(op, (grid(rows, 3, 2, dim),), ((rows, rows),), dim)


# torch's mode -> our function
RESIZE: dict[str, Callable[..., Field]] = {
    "nearest": resize_nearest,
    "nearest-exact": partial(resize_nearest, half_pixel=True),
    "area": resize_area,
    "linear": resize_bilinear,
    "trilinear": resize_bilinear,
    "corners": partial(resize_bilinear, align_corners=True),
}


def resize(rows: int, size: Pair, dim: int = 1, *, mode: str = "nearest") -> Case:
    def op(field: Field) -> Field:
        return RESIZE[mode](field, size)

    return Case(op, (grid(rows, 5, 2, dim),), (), dim)


def resize_volume(rows: int, size: tuple[int, ...], dim: int, mode: str) -> Case:
    def op(field: Field) -> Field:
        return RESIZE[mode](field, size)

    shape = [2, 3, 4, 5, 2]
    shape[dim] = rows
    return Case(op, (tuple(shape),), (), dim)


def padded(columns: int, mode: str, lat: Pair, lon: Pair) -> Case:
    def op(field: Field) -> Field:
        return pad_globe(field, mode=mode, lat=lat, lon=lon)

    return Case(op, (grid(columns, 6, 2, 2),), (), 2)


def cropped(columns: int, lat: Pair, lon: Pair) -> Case:
    return Case(
        lambda f: crop_globe(f, lat=lat, lon=lon), (grid(columns, 6, 2, 2),), (), 2
    )


def windows(
    columns: int, rows: int, kind: Kind, window: int | Pair, dim: int = 2
) -> Case:
    """Mixes tokens in windows as attention does; the split dim has `rows` entries."""
    sides = (window, window) if isinstance(window, int) else window
    tokens = sides[0] * sides[1]

    def op(field: Field, mix: jax.Array) -> Field:
        whole = window_layout if kind == "short" else group_layout
        field = reshard(field, whole(field.layout, columns, sides[dim - 1]))
        values = jnp.tanh(partition(field, kind, window))
        mixed = jnp.einsum("bwtc,ts->bwsc", values, mix)
        field = merge(mixed, field, kind, window)
        return reshard(field, field.layout.to_blocks())

    return Case(op, (grid(columns, rows, 2, dim),), ((tokens, tokens),), dim)


BATCH_NORMS = {
    "batch norm": batch_norm(24, training=True),
    "batch norm, uneven": batch_norm(13, training=True, momentum=0.3),
    "batch norm, plain average": batch_norm(13, training=True, momentum=None),
    "batch norm, 2 rows": batch_norm(2, training=True),
    "batch norm, evaluation": batch_norm(13, training=False),
    "batch norm, nothing remembered": batch_norm_forgetful(13),
    "batch norm, longitude split": batch_norm(13, 2, training=True),
    "group norm of volumes": group_norm_of_volumes(7, 2),
    "group norm of volumes, depth split": group_norm_of_volumes(7, 1),
}

POOLS = {
    "global mean": pool(24, global_mean_pool),
    "global mean, uneven": pool(13, global_mean_pool),
    "global mean, 2 rows": pool(2, global_mean_pool),
    "global mean, longitude split": pool(13, global_mean_pool, 2),
    "mean over lat": profile(13, lambda f: mean_over(f, 1)),
    "mean over lon": profile(13, lambda f: mean_over(f, 2)),
    "mean over lat, longitude split": profile(13, lambda f: mean_over(f, 1), 2),
    "mean over lon, longitude split": profile(13, lambda f: mean_over(f, 2), 2),
    "squeeze and excite": excite(13),
    "squeeze and excite, longitude split": excite(12, 2),
    "efficient channel attention": channels(13),
    "coordinate attention": coordinates(13),
    "coordinate attention, even": coordinates(24),
    "coordinate attention, evaluation": coordinates(13, training=False),
    "coordinate attention, longitude split": coordinates(13, 2),
    "attention between points": between_points(13, full_attention),
    "attention between points, linear": between_points(13, linear_attention),
    "attention between points, linear, even": between_points(24, linear_attention),
    "spatial attention": points(24, (3, 5)),
    "spatial attention, uneven": points(13, (7, 7)),
    "spatial attention, longitude split": points(13, (3, 3), 2),
    "gathered rows": gathered(13),
    "gathered rows, longitude split": gathered(4, 2),
}

SHIFTS = {
    "roll rows": roll(24, (3, 0)),
    "roll rows and columns, uneven": roll(13, (-5, 2)),
    "roll columns only": roll(13, (0, -1)),
    "roll more than a turn": roll(13, (30, -11)),
    "roll a whole turn": roll(13, (-26, 5)),
    "roll 3 rows": roll(3, (1, 1)),
    "roll, longitude split": roll(13, (2, 6), 2),
    "roll lat only, longitude split": roll(24, (-1, 0), 2),
}

HALOS = {
    "halo of 1": halo(24, 1),
    "halo of 2, uneven": halo(13, 2),
    "halo wider than a shard": halo(13, 5),
    "halo wider than the field": halo(3, 4),
    "halo of 0": halo(13, 0),
    "halo, longitude split": halo(13, 2, 2),
    "periodic halo": halo(24, 2, periodic=True),
    "periodic halo, uneven, longitude split": halo(13, 3, 2, periodic=True),
    "periodic halo of more than a turn": halo(3, 7, periodic=True),
    "halo of an array": halo_of_array(24, 1),
    "halo of an array, uneven": halo_of_array(13, 2),
}

NEAREST = {
    "nearest up": resize(13, (26, 10)),
    "nearest up, even": resize(16, (48, 15)),
    "nearest up, any ratio": resize(13, (31, 7)),
    "nearest down": resize(31, (13, 3)),
    "nearest far down": resize(40, (3, 2)),
    "nearest from 3 rows": resize(3, (16, 5)),
    "nearest, columns only": resize(13, (13, 8)),
    "nearest, longitude split": resize(13, (7, 29), 2),
    "nearest-exact": resize(13, (31, 7), mode="nearest-exact"),
    "area": resize(13, (25, 8), mode="area"),
    "nearest of volumes": resize_volume(7, (6, 11, 7), 2, "nearest"),
}

LONGITUDE = {
    "resize, longitude split": resize(13, (8, 29), 2, mode="linear"),
    "resize down, longitude split": resize(31, (5, 13), 2, mode="linear"),
    "resize, corners, longitude split": resize(13, (8, 5), 2, mode="corners"),
    "trilinear": resize_volume(7, (5, 12, 9), 2, "linear"),
    "trilinear, depth split": resize_volume(7, (5, 6, 9), 1, "linear"),
    "earth, longitude split": padded(16, "earth", (3, 2), (2, 1)),
    "earth, longitude split, odd": padded(13, "earth", (2, 3), (5, 4)),
    "earth, longitude split, lat only": padded(13, "earth", (0, 1), (0, 0)),
    "earth, longitude split, most": padded(4, "earth", (6, 6), (4, 4)),
    "mirror, longitude split": padded(13, "mirror", (2, 5), (0, 3)),
    "crop, longitude split": cropped(13, (1, 2), (3, 2)),
    "crop, longitude split, one left": cropped(9, (0, 0), (4, 4)),
    "short windows, longitude split": windows(24, 4, "short", 2),
    "short windows, longitude split, uneven": windows(15, 6, "short", 3),
    "long windows, longitude split": windows(24, 4, "long", 2),
    "long windows, longitude split, uneven": windows(15, 6, "long", 3),
    "one long window, longitude split": windows(4, 4, "long", 4),
    "short windows of 3 x 2": windows(15, 4, "short", (3, 2), 1),
    "long windows of 3 x 2": windows(15, 4, "long", (3, 2), 1),
    "short windows of 2 x 3, longitude split": windows(15, 4, "short", (2, 3)),
    "long windows of 2 x 3, longitude split": windows(15, 4, "long", (2, 3)),
    "pixel shuffle, longitude split": Case(
        lambda f: pixel_shuffle_field(f, 2), (grid(13, 3, 8, 2),), (), 2
    ),
}

FIELD_OPERATIONS: dict[str, Case] = {
    **BATCH_NORMS,
    **POOLS,
    **SHIFTS,
    **HALOS,
    **NEAREST,
    **LONGITUDE,
}
