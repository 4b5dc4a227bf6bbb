"""Models as built: their conversion, fresh weights, depth, precision and operations."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from benchmarks.speed.cases import MODEL_TYPES, make_case
from benchmarks.speed.depth import (
    KEYS,
    NO_BLOCKS,
    WITH_ENCODER,
    at_two_depths,
    num_equations,
    trace,
)
from credit_jax.models.conversion import credit_key, key_map_for
from credit_jax.models.flops import count_flops
from credit_jax.models.model_def import float8_notes, multiplies_float8
from credit_jax.models.parallel_model import build_parallel_model
from credit_jax.models.registry import MODELS, build
from credit_jax.nn.context import Noise
from credit_jax.nn.parameters import SPECTRAL_NORM
from credit_jax.parallel.mesh.dims import ParallelDims
from credit_jax.parallel.params.precision import Float8, Precision, default_mp_policy
from credit_jax.parallel.params.spec import DENSE_TENSOR_DIMS, TENSOR_DIMS
from credit_jax.parallel.placement import place_batch
from tests.models.cases import BASE, CASES
from tests.models.parity import mesh_of
from tests.support import assert_trees_close, make_mesh

BLOCK = CASES["wxformer earth"].block
EXPERTS = CASES["wxformer experts"].block
KEY = jax.random.key(0)


def test_degrees_carry_what_a_mesh_cannot():
    dims = ParallelDims(domain=2, ulysses_degree=2, world_size=2)
    devices = jax.devices()[4:6]
    model = build_parallel_model(BLOCK, dims, devices=devices)
    assert dict(model.mesh.shape) == {"domain": 2}
    assert list(model.mesh.devices.flat) == devices
    assert model.axes == dims.mesh_axes, "with the exchange of heads for rows"
    for etp, split in ((None, TENSOR_DIMS), (1, DENSE_TENSOR_DIMS)):
        dims = ParallelDims(tp=2, etp=etp, world_size=2)
        assert build_parallel_model(EXPERTS, dims).parallel_config.rules.tensor == split


# CREDIT's key of a parameter, with the model and from its path alone.
@pytest.mark.slow(but=["fuxi", "graph", "debugger"])
@pytest.mark.filterwarnings("ignore:config. ignored here")  # as CREDIT ignores it
@pytest.mark.parametrize("name", ["wxformer", "fuxi", "unet", "graph", "debugger"])
def test_a_key_from_the_path_alone_is_that_of_the_model(name):
    """Where it depends on the model, the error lists the key."""
    model_def = make_case("tiny", name).model_def
    plan = key_map_for(model_def).parameters
    alone = 0
    for path in model_def.param_specs:
        keys = credit_key(path, model_def)
        assert sorted(keys) == sorted(e.key for e in plan.entries if e.path == path)
        try:
            alone_keys = credit_key(path)
        except ValueError as error:
            text = re.sub(r"\d+|\{layer\}", "#", str(error))
        else:
            assert alone_keys == keys
            alone += 1
            continue
        listed = {re.sub(r"\d+", "#", key) for key in keys}
        assert all(f"{key} (" in text for key in listed), (path, keys, text)
    assert alone or name == "wxformer"


# A model as `init` gives it, without training or a checkpoint.
@pytest.mark.slow(but=["fuxi"])
@pytest.mark.filterwarnings("ignore:config. ignored here")  # as CREDIT ignores it
@pytest.mark.parametrize("name", MODEL_TYPES)
def test_a_fresh_model_can_be_evaluated(name: str) -> None:
    """Its output for normalized fields is of the size of normalized fields."""
    case = make_case("tiny", name)
    model = build_parallel_model(case.model_def, make_mesh())
    noise = Noise(KEY) if case.model_def.config.draws_noise else None
    inputs = place_batch(case.inputs, model.mesh)
    size = np.asarray(model.apply(*model.init(KEY), inputs, noise)).std()
    print(f"{name}: deviation {size:.2f}")
    assert 0.1 < size < 3


@pytest.mark.slow
@pytest.mark.parametrize("jit", [False, True], ids=["eager", "jit"])
def test_every_mesh_begins_alike(jit: bool) -> None:
    """A loop of power iterations is written out where it is part of a program."""
    block = CASES["wxformer plain"].block
    expected = build_parallel_model(block, make_mesh()).init(KEY)
    model = build_parallel_model(block, mesh_of("2x2x2"), min_shard_size=1)
    params, model_state = (jax.jit(model.init) if jit else model.init)(KEY)
    for path, array in expected[0].items():
        np.testing.assert_array_equal(params[path], array, path)
    for path, pair in expected[1][SPECTRAL_NORM].items():
        assert_trees_close(model_state[SPECTRAL_NORM][path], pair, 1e-6, path)


# Programs do not grow with the number of equal blocks.
@pytest.mark.slow(but=["swin"])
@pytest.mark.filterwarnings("ignore:.*output_only_channels")
@pytest.mark.parametrize("model", [name for name in MODELS if name not in NO_BLOCKS])
def test_the_training_step_is_as_large_at_any_depth(model: str) -> None:
    """On one device, with the plain definitions, as on GPUs and TPUs."""
    counts = {
        blocks: num_equations(trace(section).jaxpr.jaxpr)
        for blocks, section in at_two_depths(model).items()
    }
    print(f"{model}: {counts}")
    few, many = counts.values()
    assert few == many, f"equations by blocks of a stage: {counts}"


def test_models_without_equal_blocks_have_no_key_for_their_number() -> None:
    for model, entry in MODELS.items():
        keys = entry.config.model_fields.keys() & set(KEYS)
        assert len(keys) == (model not in (*NO_BLOCKS, *WITH_ENCODER)), model


def test_what_grows_is_counted() -> None:
    def count(length: int, unroll: int = 1) -> int:
        def loop(x: jax.Array) -> Any:
            body = lambda x, _: (jnp.sin(x), None)  # noqa: E731
            return lax.scan(body, x, length=length, unroll=unroll)

        return num_equations(jax.make_jaxpr(loop)(jnp.ones(3)).jaxpr)

    assert count(2) == count(4) < count(4, unroll=4)


# Which matrices of a model are multiplied in float8, and the messages to users.
WIDE = {**BASE, "depth": 1, "dim": [16, 32, 64, 128], "dim_head": 8}


def float8(min_channels: int) -> Precision:
    return default_mp_policy().with_float8(Float8(min_channels))


@pytest.mark.slow
def test_matrices_of_attention_and_feed_forward_only() -> None:
    """Not those of the position bias (64 / 4 = 16 channels), nor convolutions."""
    found = build(WIDE).float8_matrices(float8(64))
    assert found == [
        *((64, 64), (64, 192), (64, 256)),
        *((128, 128), (128, 384), (128, 512), (256, 64), (512, 128)),
    ]
    assert (16, 16) in build(WIDE).float8_matrices(float8(16))
    assert build(WIDE).float8_matrices(default_mp_policy()) == []


def test_what_is_multiplied_in_float8() -> None:
    assert Float8(16).takes(32, 48)
    assert not Float8(16).takes(32, 40), "hardware takes multiples of 16"
    assert not Float8(64).takes(32, 4096)
    for platform, capability, expected in (
        *(("gpu", "9.0", True), ("gpu", "8.9", True), ("gpu", "10.0", True)),
        *(("gpu", "8.0", False), ("cpu", None, False), ("tpu", None, False)),
    ):
        device = SimpleNamespace(
            device_kind="NVIDIA", platform=platform, compute_capability=capability
        )
        assert multiplies_float8(device) is expected, (platform, capability)


@pytest.mark.slow
def test_one_warning_says_why_it_does_not_help() -> None:
    no_layer, no_device = "no dense layer of the model has 1024", "cpu has no float8"
    for fp8, words in ((True, no_layer), (Float8(64), no_device)):
        with pytest.warns(UserWarning, match=words) as warned:
            model = build_parallel_model(WIDE, make_mesh(), fp8=fp8)
        assert len(warned) == 1
        assert model.parallel_config.precision.float8 == (
            Float8() if fp8 is True else fp8
        )
    hopper = SimpleNamespace(
        device_kind="H100", platform="gpu", compute_capability="9.0"
    )
    assert float8_notes(build(WIDE), float8(64), [hopper]) == []


# Operation counts of programs with known numbers of operations.
FIELD, W = jnp.ones((2, 8, 8, 4)), jnp.ones((4, 4))
LAYOUT = ("NHWC", "HWIO", "NHWC")


def _conv(x, kernel):
    return lax.conv_general_dilated(
        *(x, kernel, (1, 1), "SAME"), dimension_numbers=LAYOUT, feature_group_count=2
    )


def _strided(x, kernel):
    y = lax.conv_general_dilated(x, kernel, (2, 2), "VALID", dimension_numbers=LAYOUT)
    return jnp.sum(y)


def _product(x, w):
    return jnp.sum(jnp.dot(x, w) ** 2)


def _unused(x, w):
    return jnp.dot(x, w), jax.jit(jnp.dot)(2 * x, w)


def _loop(x):
    body = jax.checkpoint(lambda x, _: (jnp.sin(x @ W), None))
    return jnp.sum(lax.scan(body, x, length=5)[0])


@pytest.mark.parametrize(
    ("function", "shapes", "expected"),
    [
        (jnp.dot, [(8, 16), (16, 32)], 2 * 8 * 16 * 32),
        (jax.grad(_product, argnums=(0, 1)), [(8, 16), (16, 32)], 6 * 8 * 16 * 32),
        # What no output needs does not count.
        (lambda x, w: _unused(x, w)[0], [(8, 16), (16, 32)], 2 * 8 * 16 * 32),
        # A convolution counts its taps; the gradient of a stride counts no zeros.
        (jax.jit(_conv), [(3, 3, 2, 6)], 2 * (3 * 3 * 2) * (2 * 8 * 8 * 6)),
        (
            jax.value_and_grad(_strided, (0, 1)),
            [(2, 2, 4, 6)],
            3 * 2 * (2 * 2 * 4) * (2 * 4 * 4 * 6),
        ),
        # Loops count as often as they run, and what is recomputed counts again.
        (_loop, [(4, 4)], 5 * 2 * 4 * 4 * 4),
        (jax.grad(_loop), [(4, 4)], 5 * 3 * 2 * 4 * 4 * 4),
    ],
    ids=["product", "gradients", "unused", "conv", "stride", "loop", "recomputed"],
)
def test_operations_are_counted(function, shapes, expected):
    arrays = [jnp.ones(shape) for shape in shapes]
    arrays = [FIELD, *arrays] if len(shapes[0]) == 4 else arrays
    assert count_flops(function, *arrays) == expected


def test_nothing_to_fold() -> None:
    model = build_parallel_model(CASES["wxformer frames"].block, make_mesh())
    params, model_state = model.init(KEY)
    fused, left = model.fuse_spectral_norm(params, model_state)
    assert fused is params
    assert left is model_state
