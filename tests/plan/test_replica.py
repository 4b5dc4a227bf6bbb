"""The work of a replica, counted in its traced gradient."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.compiled_step import SMALL_MODEL
from benchmarks.scale.comm_volume import TENSOR, least_volume
from credit_jax.config.yaml_file import read_yaml
from credit_jax.models.flops import gradient_flops
from credit_jax.models.registry import build
from credit_jax.parallel.mesh.dims import ParallelDims
from credit_jax.parallel.params.precision import default_mp_policy
from credit_jax.plan.accelerators import ACCELERATORS
from credit_jax.plan.replica import replica_work

ROOT = Path(__file__).parents[2]
H100 = ACCELERATORS["h100"]
UNET = {"name": "unet", "encoder_name": "resnet18", "encoder_weights": None}
SMALL = build({**SMALL_MODEL, "depth": [1, 0, 0, 0]})


def work(model_def=SMALL, options=None, accelerator=H100, **degrees):
    dims = ParallelDims(**degrees, world_size=math.prod(degrees.values()))
    return replica_work(model_def, dims, accelerator, **(options or {}))


@pytest.fixture(scope="module")
def alone():
    return work()


@pytest.mark.slow
def test_one_device_does_the_operations_of_the_gradient_and_sends_nothing(alone):
    # Kernels for GPUs multiply by a few zeros.
    assert 1 <= alone.first.flops / gradient_flops(SMALL) < 1.01
    assert alone.first.messages == alone.first.sent == 0
    assert alone.stored.seconds > 0


def test_tensor_ranks_share_products_and_send_the_sums(alone):
    shared = work(tp=2)
    assert 0.5 < shared.first.flops / alone.first.flops < 1
    least = least_volume(SMALL, ParallelDims(tp=2, world_size=2).mesh_axes, 1)[TENSOR]
    assert least <= shared.first.sent < 1.5 * least


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
    assert work(build(section), dp_replicate=2).first.messages > 0
    assert work(dp_replicate=2).first.messages == 0


@pytest.mark.slow
def test_rows_are_shared_unevenly(alone):
    even, uneven = (work(domain=n).first.flops * n for n in (2, 3))
    assert alone.first.flops <= even < uneven


@pytest.mark.slow
def test_recomputation_is_more_work_with_the_same_transfers(alone):
    again = work(options={"ac_mode": "full"})
    assert again.first.flops > alone.first.flops
    assert again.first.sent == 0


@pytest.mark.slow
def test_kernels_are_slower_where_a_step_was_timed(alone):
    slower = work(accelerator=replace(H100, achieved=0.5))
    assert slower.first.seconds == pytest.approx(2 * alone.first.seconds)
    assert slower.first.kernels == alone.first.kernels


def test_a_further_sample_is_more_work_but_not_more_kernels(alone):
    two = alone.of_samples(2)
    assert two.flops == pytest.approx(2 * alone.first.flops, rel=1e-3)
    assert 1 < two.seconds / alone.first.seconds < 2, "weights are read once"
    assert two.kernels == alone.first.kernels


@pytest.mark.slow
def test_weights_that_are_gathered_again_have_what_is_saved_written(alone):
    gathered = work(dp_shard=2, options={"min_shard_size": 0})
    assert gathered.first.seconds > 1.02 * alone.first.seconds
    assert gathered.first.flops == alone.first.flops
    assert gathered.first.messages == 0


@pytest.mark.slow
def test_the_work_is_that_of_compiled_programs():
    """Five programs of the published model that XLA compiled for the H100."""
    path = ROOT / "benchmarks" / "reports" / "accelerator_025deg.json"
    programs = {p["title"]: p for p in json.loads(path.read_text())["programs"]}
    model_def = build(read_yaml(ROOT / "configs" / "wxformer_025deg.yaml")["model"])
    over_domain = ", parameters over domain"
    for title, remat, degrees in (
        ("1, remat none", "none", {}),
        ("1, remat full", "full", {}),
        ("1, remat selective", "selective", {}),
        (f"domain8, remat none{over_domain}", "none", {"domain": 8}),
        (f"tp2xdomain4, remat none{over_domain}", "none", {"tp": 2, "domain": 4}),
    ):
        parts = programs[title]["parts"]
        apart = ("spectral_norm", "update", "parameters", "position_bias")
        compiled = [part for name, part in parts.items() if name not in apart]
        options = {"ac_mode": remat, "mp_policy": default_mp_policy("bfloat16")}
        counted = work(model_def, options, **degrees).first
        seconds = sum(part["seconds"] for part in compiled)
        assert counted.seconds == pytest.approx(seconds, rel=0.12), title
        kernels = sum(part["kernels"] for part in compiled)
        assert counted.kernels == pytest.approx(kernels, rel=0.2), title
        step = counted.seconds + H100.launch * counted.kernels
        launches = H100.launch * kernels
        assert step == pytest.approx(seconds + launches, rel=0.12), title
