"""The work of a replica, counted in its traced gradient."""

import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest

from benchmarks.compiled_step import SMALL_MODEL
from benchmarks.scale.comm_volume import TENSOR, least_volume
from credit_jax.extensions.mesh_choice.accelerators import ACCELERATORS
from credit_jax.extensions.mesh_choice.replica import replica_work, traced_work
from credit_jax.models.registry import build
from credit_jax.parallel.mesh.dims import ParallelDims

H100 = ACCELERATORS["h100"]
UNET = {"name": "unet", "encoder_name": "resnet18", "encoder_weights": None}
SMALL = build({**SMALL_MODEL, "depth": [1, 0, 0, 0]})
N = 256
BYTES = 4 * N * N


def work(model_def=SMALL, options=None, accelerator=H100, **degrees):
    dims = ParallelDims(**degrees, world_size=math.prod(degrees.values()))
    return replica_work(model_def, dims, accelerator, **(options or {}))


@pytest.fixture(scope="module")
def alone():
    return work()


@pytest.mark.parametrize(
    ("function", "kernels", "moved"),
    [
        # One kernel that reads and writes once.
        (lambda x: jnp.tanh(2 * x.T[None] + 1).reshape(-1), 1, 2 * BYTES),
        # A reduction computes what it reduces; two of one array read it once.
        (lambda x: jnp.exp(x).sum(0), 1, BYTES + 4 * N),
        (lambda x: (x.sum(0), (x * x).sum(0)), 1, BYTES + 8 * N),
        # A product reads and writes memory.
        (lambda x: jnp.tanh(x) @ x + 1, 3, 7 * BYTES),
        # What another depth uses is written.
        (lambda x: jnp.exp(x) / jnp.exp(x).sum(0, keepdims=True), 3, 4 * BYTES + 8 * N),
        # A loop reads and writes memory in each turn.
        (lambda x: jax.lax.fori_loop(0, 9, lambda _, y: jnp.sin(y), x), 9, 18 * BYTES),
    ],
)
def test_kernels_and_bytes_of_a_program(function, kernels, moved):
    program = jax.jit(function).trace(jax.ShapeDtypeStruct((N, N), jnp.float32))
    slow = replace(H100, bandwidth=1.0, peak=math.inf)
    counted, stored = traced_work(program.jaxpr.jaxpr, {}, slow)
    assert counted.kernels == kernels
    assert counted.seconds == pytest.approx(moved, rel=1e-3)
    assert not any(stored)


@pytest.mark.slow
def test_one_device_sends_nothing(alone):
    assert alone.one.messages == alone.one.sent == 0
    assert alone.stored.seconds > 0


def test_tensor_ranks_share_products_and_send_the_sums(alone):
    shared = work(tp=2)
    assert shared.one.seconds < alone.one.seconds
    least = least_volume(SMALL, ParallelDims(tp=2, world_size=2).mesh_axes, 1)[TENSOR]
    assert least <= shared.one.sent < 1.5 * least


@pytest.mark.slow
def test_replicas_send_each_other_what_batch_norms_sum():
    section = {
        "type": "unet",
        "image_height": 32,
        "image_width": 64,
        "levels": 2,
        "channels": 2,
        "surface_channels": 1,
        "input_only_channels": 1,
        "output_only_channels": 0,
        "frames": 1,
        "architecture": UNET,
    }
    assert work(build(section), dp_replicate=2).one.messages > 0
    assert work(dp_replicate=2).one.messages == 0


@pytest.mark.slow
def test_rows_are_shared_unevenly(alone):
    even, uneven = (work(domain=n).one.seconds * n for n in (2, 3))
    assert alone.one.seconds <= even < uneven


@pytest.mark.slow
def test_recomputation_is_more_work_with_the_same_transfers(alone):
    again = work(options={"ac_mode": "full"})
    assert again.one.seconds > alone.one.seconds
    assert again.one.sent == 0


@pytest.mark.slow
def test_kernels_are_slower_where_a_step_was_timed(alone):
    slower = work(accelerator=replace(H100, achieved=0.5))
    assert slower.one.seconds == pytest.approx(2 * alone.one.seconds)
    assert slower.one.kernels == alone.one.kernels


def test_a_further_sample_is_more_work_but_not_more_kernels(alone):
    two = alone.of_samples(2)
    assert 1 < two.seconds / alone.one.seconds < 2, "weights are read once"
    assert two.kernels == alone.one.kernels


@pytest.mark.slow
def test_weights_that_are_gathered_again_have_what_is_saved_written(alone):
    gathered = work(dp_shard=2, options={"min_shard_size": 0})
    assert gathered.one.seconds > 1.02 * alone.one.seconds
    assert gathered.one.messages == 0
