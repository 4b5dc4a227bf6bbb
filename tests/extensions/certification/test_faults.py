"""Faults that are planted in sharded code: each breaks a bound, and its place is named.

A fault acts on a mesh alone: on one device the patched functions do what they did.
"""

from __future__ import annotations

import contextlib
import dataclasses
from unittest import mock

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from credit_jax.extensions.certification.certify import MeshVerdict
from credit_jax.extensions.certification.measure import measure
from credit_jax.extensions.certification.meshes import ONE_DEVICE
from credit_jax.extensions.certification.place import block_outputs, first_difference
from credit_jax.extensions.certification.subject import subject_of_model
from credit_jax.extensions.certification.verdict import FLOAT64, compare
from credit_jax.models.common import resampling
from credit_jax.models.crossformer import attention
from credit_jax.models.parallel_model import ParallelModel
from credit_jax.models.registry import build
from credit_jax.nn import layers, packed_matrices
from credit_jax.nn.context import Context
from credit_jax.ops.custom_vjp import varying_axes
from credit_jax.parallel import reductions
from credit_jax.parallel.domain import attention as domain_attention
from credit_jax.parallel.domain import norm, rearrange
from credit_jax.parallel.params import fsdp, init
from credit_jax.parallel.rows import exchange
from credit_jax.training import optimizer, restore, step

SECTION = {
    "type": "wxformer",
    "image_height": 20,
    "image_width": 40,
    "frames": 1,
    "levels": 2,
    "channels": 2,
    "surface_channels": 1,
    "input_only_channels": 2,
    "output_only_channels": 1,
    "dim": [8, 16, 32, 64],
    "depth": [1, 0, 0, 0],
    "dim_head": 2,
    "cross_embed_kernel_sizes": [[4, 8], [2], [2], [2]],
    "cross_embed_strides": [2, 2, 2, 2],
    "global_window_size": [2, 2, 2, 1],
    "local_window_size": 2,
    "attn_dropout": 0.1,
    "ff_dropout": 0.1,
    "use_spectral_norm": True,
    "interp": True,
    "padding_conf": {
        "activate": True,
        "mode": "earth",
        "pad_lat": [6, 6],
        "pad_lon": [4, 4],
    },
}


@pytest.fixture(scope="module", autouse=True)
def float64():
    """Rounding errors are far below what any fault does."""
    with jax.enable_x64(True):
        yield


@pytest.fixture(scope="module")
def subject(float64):
    """A WXFormer with everything that faults may hit."""
    return dataclasses.replace(subject_of_model(build(SECTION), x64=True), accumulate=3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Of the checkpoints of this file."""
    return tmp_path_factory.mktemp("checkpoints")


@pytest.fixture(scope="module")
def expected(subject, folder):
    """What one device gives."""
    place = folder / ONE_DEVICE
    return measure(subject, ONE_DEVICE, jax.devices(), folder=place)


@pytest.fixture(scope="module")
def outputs(subject, expected):
    """Of the blocks on one device."""
    return block_outputs(subject, ONE_DEVICE, jax.devices(), expected.start)


def verdict_of(subject, mesh, folder, expected, outputs, faults=()) -> MeshVerdict:
    """The comparison of a mesh with faults."""
    with contextlib.ExitStack() as stack:
        for owner, name, replacement in faults:
            fault = replacement(getattr(owner, name))
            stack.enter_context(mock.patch.object(owner, name, fault))
        devices = jax.devices()
        actual = measure(
            subject,
            mesh,
            devices,
            folder=folder,
            reference=folder.parent / ONE_DEVICE,
            expected=expected,
        )
        checks = tuple(compare(actual, expected, FLOAT64))
        place = ""
        if not all(check.passed for check in checks):
            place = first_difference(
                subject, devices, actual, expected, FLOAT64, outputs
            )
    return MeshVerdict(mesh, checks, place=place)


def on_shard(axis, shard, faulty, right):
    """`faulty` on one shard, `right` on the others."""
    return jnp.where(lax.axis_index(axis) == shard, faulty, right)


def alone(value):
    """The part of the first shard of every axis that a value varies over."""
    for axis in sorted(varying_axes(value)):
        value = value * (lax.axis_index(axis) == 0)
    return value


def dropped_halo_row(take):
    """The first row beside the block of a shard is 0."""

    def faulty(extended, index, axis, dim):
        first = jnp.arange(extended.shape[dim]) == 0
        shape = [1] * extended.ndim
        shape[dim] = -1
        return take(jnp.where(first.reshape(shape), 0, extended), index, axis, dim)

    return faulty


def swapped_halos(permute):
    """Rows of the northern neighbor and of the southern one, exchanged."""

    def faulty(parts, axis, pairs):
        received = permute(parts, axis, pairs)
        if len(received) == 2 and received[0].shape == received[1].shape:
            return received[::-1]
        return received

    return faulty


def last_row_of_uneven_shard(exchanged):
    """The last row that a shard receives is the one before it."""

    def faulty(x, have, need, plan):
        rows = exchanged(x, have, need, plan)
        before = jnp.roll(rows, 1, have.dim)
        last = jnp.arange(rows.shape[have.dim]) == rows.shape[have.dim] - 1
        shape = [1] * rows.ndim
        shape[have.dim] = -1
        return jnp.where(last.reshape(shape), before, rows)

    return faulty


def twice_the_bias(add):
    """The bias is in the sum over tp already, once for each device."""
    return lambda x, bias: add(add(x, bias), bias)


def sum_of_one(psum):
    """The first tp device's part in place of the sum."""
    return lambda x, axes: psum(alone(x) if axes else x, axes)


def doubled_sum(psum):
    """A sum over tp of what was summed already."""
    return lambda x, axes: psum(x, axes) * (2 if axes else 1)


def averaged_gradient(vary):
    """A mean over the devices in place of a sum, in the backward pass."""

    def faulty(params, axes, precision):
        count = 1
        for axis in axes:
            count *= lax.axis_size(axis)
        varied = vary(params, axes, precision)
        return jax.tree.map(
            lambda w: w / count + lax.stop_gradient(w - w / count), varied
        )

    return faulty


def statistics_without_a_shard(moments):
    """A mean and a variance of the first shard's points alone."""

    def faulty(field, dims):
        mean, variance = moments(field, dims)
        if field.layout.num_shards == 1:
            return mean, variance
        own = jnp.mean(field.data, dims, keepdims=True)
        return lax.psum(alone(own), field.layout.axis), variance

    return faulty


def regrouped_window(partition):
    """Rows of a window of one shard, each taken for the next."""

    def faulty(field, kind, window):
        if field.layout.num_shards == 1:
            return partition(field, kind, window)
        rolled = jnp.roll(field.data, 1, field.layout.dim)
        data = on_shard(field.layout.axis, 1, rolled, field.data)
        return partition(field.like(data), kind, window)

    return faulty


def padding_in_the_mean(local):
    """Padding rows count in sums over the globe."""

    def faulty(self, per_row, fill=0):
        return local(self, per_row, 1)

    return faulty


def mask_of_the_rank(mask):
    """Dropout with a key of the domain rank."""

    def faulty(key, high, low, rate):
        rank = lax.axis_index("domain").astype(high.dtype)
        return mask(key, high + 1000 * rank, low, rate)

    return faulty


def samples_by_rank(samples):
    """Samples numbered within a rank."""

    def faulty(self, batch):
        return samples(self, batch) * 0 + jnp.arange(batch)

    return faulty


def stale_gather(gathered):
    """Shards of a parameter in the order of another mesh."""

    def faulty(weight, steps):
        whole = gathered(weight, steps)
        return jnp.roll(whole, weight.shape[steps[0][1]], steps[0][1])

    return faulty


def norm_of_a_shard(summed):
    """Power iterations with the first shard's products alone."""
    return lambda arrays, axes: summed([alone(array) for array in arrays], axes)


def local_norm(summed):
    """The norm of the first shard's gradient for all."""
    return lambda x: summed(alone(x))


def average_of_one_rank(update):
    """The average follows the weights of the first dp rank alone."""

    def faulty(ema, params, num_updates, decay):
        new = update(ema, params, num_updates, decay)
        return jax.tree.map(
            lambda old, later: (
                later
                if "dp_shard" not in varying_axes(later)
                else on_shard("dp_shard", 0, later, old)
            ),
            ema,
            new,
        )

    return faulty


def rows_of_the_first_shard(local):
    """Weights of the loss by local row, as if all shards were the first."""

    def faulty(self, per_row, fill=0):
        rows = local(self, per_row, fill)
        if self.num_shards == 1:
            return rows
        return lax.psum(alone(rows), self.axis)

    return faulty


def transposed_heads(exchanged):
    """Heads come back in the order of rows."""

    def faulty(self, x, *, split, joined):
        moved = exchanged(self, x, split=split, joined=joined)
        return jnp.roll(moved, 1, joined)

    return faulty


def crop_off_by_one(crop):
    """The padding is cropped one row too far south."""

    def faulty(field, *, lat, lon, out=None):
        if field.layout.num_shards > 1:
            lat = (lat[0] + 1, lat[1] - 1)
        return crop(field, lat=lat, lon=lon, out=out)

    return faulty


def pole_not_turned(turn):
    """Rows beyond a pole are not shifted by half a circle."""

    def faulty(data, target, lat, rows):
        return data if target.num_shards > 1 else turn(data, target, lat, rows)

    return faulty


def rows_beyond_the_globe(keep):
    """Rows that no shard has are not zeros."""
    return lambda x, valid, axis, dim: keep(x, None, axis, dim)


def weights_by_local_position(positions):
    """Initial weights drawn by the position in the shard."""

    def faulty(param_spec, spec, degrees):
        found = positions(param_spec, spec, degrees)
        return jnp.arange(found.size, dtype=found.dtype) + 0 * found

    return faulty


def wrong_position(restored):
    """A run goes on one micro-batch too late."""

    def faulty(self, number, state):
        found = restored(self, number, state)
        return dataclasses.replace(found, micro_step=found.micro_step + 1)

    return faulty


def exchanged_rows_lost(exchanged):
    """Rows that other shards send in pieces arrive one place too early."""

    def faulty(x, have, plan):
        return jnp.roll(exchanged(x, have, plan), 1, have.dim)

    return faulty


def doubled_decay(by_path):
    """Weights that are sharded decay twice."""

    def faulty(optimizer, packing):
        update = by_path(optimizer, packing)

        def doubled(grads, state, params, **extra):
            changes, state = update(grads, state, params, **extra)
            decay = -0.01 * extra["learning_rate"]
            return {
                path: change
                + decay * params[path] * ("dp_shard" in varying_axes(change))
                for path, change in changes.items()
            }, state

        return doubled

    return faulty


def warm_up_of_shards(update):
    """The average of weights that are sharded is an update ahead in its warm-up."""

    def faulty(ema, params, num_updates, decay):
        new, ahead = (update(ema, params, num_updates + n, decay) for n in (0, 1))
        return {
            path: ahead[path] if "dp_shard" in varying_axes(x) else x
            for path, x in new.items()
        }

    return faulty


def of_eight_shards(gathered):
    """Shards of a parameter in another order, from 8 on."""
    stale = stale_gather(gathered)

    def faulty(weight, steps):
        many = lax.axis_size(steps[0][0]) >= 8
        return (stale if many else gathered)(weight, steps)

    return faulty


def lost_part(psum):
    """The part of the last tp device is lost, from 4 on."""

    def faulty(x, axes):
        names = (axes,) if isinstance(axes, str) else tuple(axes or ())
        if "tp" not in names or lax.axis_size("tp") < 4:
            return psum(x, axes)
        return psum(on_shard("tp", lax.axis_size("tp") - 1, 0 * x, x), axes)

    return faulty


def exchanged_parts(to_heads):
    """Queries, keys and values change places on their way."""

    def faulty(self, x):
        return to_heads(self, jnp.roll(x, 1, x.ndim - 3) if x.ndim > 5 else x)

    return faulty


def half_the_gradient(forward):
    """The gradient of x is half of what it is."""

    def faulty(self, params, model_state, inputs, *further, **options):
        x = inputs["x"] / 2
        inputs = {**inputs, "x": x + lax.stop_gradient(x)}
        return forward(self, params, model_state, inputs, *further, **options)

    return faulty


def average_of_the_weights(items_of):
    """What is saved as the average are the weights."""

    def faulty(self, state):
        return items_of(
            self,
            dataclasses.replace(
                state,
                stored_ema={
                    **state.stored_ema,
                    **{p: state.stored_params[p] for p in state.stored_ema},
                },
            ),
        )

    return faulty


def other_key(restored):
    """A run that goes on draws other noise."""

    def faulty(self, number, state):
        found = restored(self, number, state)
        return dataclasses.replace(found, key=jax.random.fold_in(found.key, 1))

    return faulty


FAULTS = {
    "decay of shards": ("fsdp2", step, "update_by_path", doubled_decay, "update"),
    "warm-up of shards": ("fsdp2", step, "update_ema", warm_up_of_shards, "update"),
    "gather of eight shards": (
        "fsdp8",
        fsdp,
        "_all_gathered",
        of_eight_shards,
        "layers",
    ),
    "a part lost of four": ("tp4", layers, "psum", lost_part, "layers"),
    "exchanged parts": (
        "domain2xulysses2",
        domain_attention.HeadExchange,
        "to_heads",
        exchanged_parts,
        "layers",
    ),
    "half the gradient": (
        "domain2",
        ParallelModel,
        "local_forward",
        half_the_gradient,
        "gradient of the input",
    ),
    "average that is saved": (
        "fsdp2",
        restore.RunStore,
        "items_of",
        average_of_the_weights,
        "checkpoint written",
    ),
    "noise after a resume": (
        "ddp2",
        restore.RunStore,
        "restore",
        other_key,
        "loss of each update",
    ),
    "dropped halo row": (
        "domain2",
        exchange,
        "take_rows",
        dropped_halo_row,
        "layers",
    ),
    "swapped halos": ("domain3", exchange, "ppermute_each", swapped_halos, "up_block"),
    "last row of an uneven shard": (
        "domain3",
        exchange,
        "exchange_halo",
        last_row_of_uneven_shard,
        "layers",
    ),
    "rows exchanged wrongly": (
        "domain3",
        exchange,
        "exchange_rows",
        exchanged_rows_lost,
        "layers",
    ),
    "bias twice in a row-parallel layer": (
        "tp2",
        layers,
        "add_bias",
        twice_the_bias,
        "layers",
    ),
    "sum over tp of one device": ("tp2", layers, "psum", sum_of_one, "layers"),
    "sum over tp twice": ("tp2", layers, "psum", doubled_sum, "layers"),
    "gradient averaged": ("fsdp2", step, "pvary_params", averaged_gradient, "gradient"),
    "statistics without a shard": (
        "domain2",
        norm,
        "_moments",
        statistics_without_a_shard,
        "up_block",
    ),
    "window regrouped": ("domain2", attention, "partition", regrouped_window, "layers"),
    "padding in a mean": (
        "domain3",
        reductions.Layout,
        "local",
        padding_in_the_mean,
        "loss of each update",
    ),
    "dropout by rank": ("domain2", layers, "keep_mask", mask_of_the_rank, "gradient"),
    "samples by rank": ("fsdp2", Context, "samples", samples_by_rank, "head/conv"),
    "stale gather": ("fsdp2", fsdp, "_all_gathered", stale_gather, "layers"),
    "spectral norm of a shard": (
        "tp2",
        packed_matrices,
        "psum_each",
        norm_of_a_shard,
        "layers",
    ),
    "clipping by a local norm": (
        "fsdp2",
        optimizer,
        "psum_varying",
        local_norm,
        "update",
    ),
    "average of one rank": (
        "fsdp2",
        step,
        "update_ema",
        average_of_one_rank,
        "average",
    ),
    "weights of local rows": (
        "domain2",
        reductions.Layout,
        "local",
        rows_of_the_first_shard,
        "head/conv",
    ),
    "transposed all-to-all": (
        "domain2xulysses2",
        domain_attention.HeadExchange,
        "_exchange",
        transposed_heads,
        "layers",
    ),
    "crop off by one": (
        "domain2",
        resampling,
        "crop_globe",
        crop_off_by_one,
        "after the blocks",
    ),
    "pole not turned": (
        "domain2",
        rearrange,
        "_turn_beyond_poles",
        pole_not_turned,
        "layers.0.0",
    ),
    "rows beyond the globe": (
        "domain3",
        exchange,
        "keep_rows",
        rows_beyond_the_globe,
        "up_block1",
    ),
    "weights by local position": (
        "fsdp2",
        init,
        "_positions",
        weights_by_local_position,
        "initial",
    ),
    "wrong resume position": (
        "fsdp2",
        restore.RunStore,
        "restore",
        wrong_position,
        "restored",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_is_found(name, subject, folder, expected, outputs):
    """A bound is broken, and the certificate says where."""
    mesh, owner, attribute, fault, place = FAULTS[name]
    own = folder / name.replace(" ", "_")
    found = verdict_of(
        subject, mesh, own, expected, outputs, [(owner, attribute, fault)]
    )
    assert not found.passed
    assert place in found.place, found.place


@pytest.mark.slow
@pytest.mark.parametrize("mesh", ["domain3", "fsdp2xtp2xdomain2"])
def test_passes_without_faults(mesh, subject, folder, expected, outputs):
    """The same comparison passes where nothing is planted."""
    found = verdict_of(subject, mesh, folder / mesh, expected, outputs)
    assert found.passed, [*found.checks]
