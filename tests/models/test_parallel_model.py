"""Models as built: their conversion, fresh weights, depth, precision and operations."""

from __future__ import annotations

import re
from functools import partial
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from benchmarks.speed import depth
from benchmarks.speed.cases import MODEL_TYPES, make_case
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
from tests.support import assert_close, assert_trees_close, make_mesh

BLOCK = CASES["wxformer earth"].block
EXPERTS = CASES["wxformer experts"].block


def test_degrees_carry_what_a_mesh_cannot():
    dims = ParallelDims(domain=2, ulysses_degree=2, world_size=2)
    model = build_parallel_model(BLOCK, dims)
    assert dict(model.mesh.shape) == {"domain": 2}
    assert model.axes == dims.mesh_axes, "with the exchange of heads for rows"
    for etp, split in ((None, TENSOR_DIMS), (1, DENSE_TENSOR_DIMS)):
        dims = ParallelDims(tp=2, etp=etp, world_size=2)
        assert build_parallel_model(EXPERTS, dims).parallel_config.rules.tensor == split


def test_devices_of_degrees():
    devices = jax.devices()[4:6]
    dims = ParallelDims(tp=2, world_size=2)
    mesh = build_parallel_model(BLOCK, dims, devices=devices).mesh
    assert list(mesh.devices.flat) == devices


DIMS = ParallelDims(domain=2, world_size=2)


@pytest.mark.parametrize(
    ("mesh", "num_devices", "options", "words"),
    [
        (lambda: DIMS, 8, {}, "domain 2 = 2 devices, but 8 are given"),
        (lambda: DIMS, 0, {"ulysses_degree": 2}, "ulysses_degree given beside a Para"),
        (lambda: DIMS, 0, {"ulysses_degree": 1, "etp": 1}, "ulysses_degree and etp gi"),
        (DIMS.build_mesh, 2, {}, "devices given beside a Mesh, which has its"),
    ],
)
def test_degrees_and_devices_are_given_once(mesh, num_devices, options, words):
    devices = jax.devices()[:num_devices] or None
    with pytest.raises(ValueError, match=words):
        build_parallel_model(BLOCK, mesh(), devices=devices, **options)


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


def test_unknown_paths():
    with pytest.raises(ValueError, match="no model of CREDIT has a parameter 'a/b'"):
        credit_key("a/b")
    model_def = make_case("tiny", "debugger").model_def
    with pytest.raises(ValueError, match=r"no parameter 'linear/kernl'.*nearest"):
        credit_key("linear/kernl", model_def)


# A model as `init` gives it, without training or a checkpoint.


PLAIN = CASES["wxformer plain"].block
KEY = jax.random.key(0)


@pytest.mark.slow(but=["fuxi"])
@pytest.mark.filterwarnings("ignore:config. ignored here")  # as CREDIT ignores it
@pytest.mark.parametrize("name", MODEL_TYPES)
def test_a_fresh_model_can_be_evaluated(name: str) -> None:
    """Its output for normalized fields is of the size of normalized fields."""
    case, mesh = make_case("tiny", name), make_mesh()
    model = build_parallel_model(case.model_def, mesh)
    noise = Noise(KEY) if case.model_def.config.draws_noise else None
    inputs = place_batch(case.inputs, mesh)
    size = np.asarray(model.apply(*model.init(KEY), inputs, noise)).std()
    print(f"{name}: deviation {size:.2f}")
    assert 0.1 < size < 3


@pytest.mark.slow
@pytest.mark.parametrize("jit", [False, True], ids=["eager", "jit"])
def test_every_mesh_begins_alike(jit: bool) -> None:
    """A loop of power iterations is written out where it is part of a program."""
    expected = build_parallel_model(PLAIN, make_mesh()).init(KEY)
    model = build_parallel_model(
        PLAIN, make_mesh(dp=2, tp=2, domain=2), min_shard_size=1
    )
    params, model_state = (jax.jit(model.init) if jit else model.init)(KEY)
    for path, array in expected[0].items():
        np.testing.assert_array_equal(params[path], array, path)
    for path, pair in expected[1][SPECTRAL_NORM].items():
        found = model_state[SPECTRAL_NORM][path]
        assert_trees_close(found, pair, 1e-6, path)


# Programs do not grow with the number of equal blocks.


QUICK = ["swin"]


@pytest.mark.slow(but=QUICK)
@pytest.mark.filterwarnings("ignore:.*output_only_channels")
@pytest.mark.parametrize(
    "model", [name for name in MODELS if name not in depth.NO_BLOCKS]
)
def test_the_training_step_is_as_large_at_any_depth(model: str) -> None:
    """On one device, with the plain definitions, as on GPUs and TPUs."""
    counts = {
        blocks: depth.num_equations(depth.trace(section).jaxpr.jaxpr)
        for blocks, section in depth.at_two_depths(model).items()
    }
    print(f"{model}: {counts}")
    few, many = counts.values()
    assert few == many, f"equations by blocks of a stage: {counts}"


@pytest.mark.parametrize("model", MODELS)
def test_models_without_equal_blocks_have_no_key_for_their_number(model: str) -> None:
    keys = MODELS[model].config.model_fields.keys() & set(depth.KEYS)
    assert len(keys) == (0 if model in (*depth.NO_BLOCKS, *depth.WITH_ENCODER) else 1)


def test_what_grows_is_counted() -> None:
    def count(function) -> int:
        return depth.num_equations(jax.make_jaxpr(function)(jnp.ones(3)).jaxpr)

    def apart(x: jax.Array, blocks: int) -> jax.Array:
        for _ in range(blocks):
            x = jnp.sin(x)
        return x

    def loop(x: jax.Array, blocks: int, unroll: int = 1) -> jax.Array:
        def body(x: jax.Array, _: None) -> tuple[jax.Array, None]:
            return jnp.sin(x), None

        return jax.lax.scan(body, x, length=blocks, unroll=unroll)[0]

    assert [count(lambda x, n=n: apart(x, n)) for n in (2, 4)] == [2, 4]
    few, many = (count(lambda x, n=n: loop(x, n)) for n in (2, 4))
    assert few == many
    assert count(lambda x: loop(x, 4, unroll=4)) > many


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


def test_ragged_matrices_stay_wide() -> None:
    assert Float8(16).takes(32, 48)
    assert not Float8(16).takes(32, 40), "hardware takes multiples of 16"
    assert not Float8(64).takes(32, 4096)


@pytest.mark.parametrize(
    ("platform", "capability", "expected"),
    [
        ("gpu", "9.0", True),
        ("gpu", "8.9", True),
        ("gpu", "10.0", True),
        ("gpu", "8.0", False),
        ("cpu", None, False),
        ("tpu", None, False),
    ],
)
def test_devices_that_multiply_float8(platform, capability, expected) -> None:
    device = SimpleNamespace(
        device_kind="NVIDIA", platform=platform, compute_capability=capability
    )
    assert multiplies_float8(device) is expected


@pytest.mark.slow
def test_one_warning_says_why_it_does_not_help() -> None:
    mesh = make_mesh()
    with pytest.warns(
        UserWarning, match="no dense layer of the model has 1024"
    ) as seen:
        model = build_parallel_model(WIDE, mesh, fp8=True)
    assert len(seen) == 1
    assert model.parallel_config.precision.float8 == Float8()
    with pytest.warns(UserWarning, match="cpu has no float8 products") as seen:
        build_parallel_model(WIDE, mesh, fp8=Float8(64))
    assert len(seen) == 1
    hopper = SimpleNamespace(
        device_kind="H100", platform="gpu", compute_capability="9.0"
    )
    assert float8_notes(build(WIDE), float8(64), [hopper]) == []


def test_float16_is_refused() -> None:
    with pytest.raises(ValueError, match="bfloat16 or float32, got float16"):
        build_parallel_model(
            WIDE, make_mesh(), mp_policy=default_mp_policy("float16"), fp8=True
        )


# Operation counts of programs with known numbers of operations.


def conv(x, kernel, stride=1, padding="SAME", groups=1):
    layout = ("NHWC", "HWIO", "NHWC")
    options = {"dimension_numbers": layout, "feature_group_count": groups}
    return lax.conv_general_dilated(x, kernel, (stride,) * 2, padding, **options)


def loop(w):
    """What is within is recomputed for the gradient."""

    def body(x, _):
        return jnp.sin(x @ w), None

    return jnp.sum(lax.scan(jax.checkpoint(body), w, length=5)[0])


MATRICES, FIELD = ((8, 16), (16, 32)), (2, 8, 8, 4)
PRODUCT, STRIDED = 2 * 8 * 16 * 32, 2 * (2 * 2 * 4) * (2 * 4 * 4 * 6)
FLOPS = {
    "a product": (jnp.dot, MATRICES, PRODUCT),
    "its gradients": (
        jax.grad(lambda x, w: jnp.sum(jnp.dot(x, w) ** 2), (0, 1)),
        *(MATRICES, 3 * PRODUCT),
    ),
    "nothing that no output needs": (
        lambda x, w: (jnp.dot(x, w), jax.jit(jnp.dot)(2 * x, w))[0],
        *(MATRICES, PRODUCT),
    ),
    "taps of a convolution": (
        jax.jit(partial(conv, groups=2)),
        *((FIELD, (3, 3, 2, 6)), 2 * (3 * 3 * 2) * (2 * 8 * 8 * 6)),
    ),
    "no zeros of a stride": (
        jax.value_and_grad(lambda *both: jnp.sum(conv(*both, 2, "VALID")), (0, 1)),
        *((FIELD, (2, 2, 4, 6)), 3 * STRIDED),
    ),
    "a loop": (loop, ((4, 4),), 5 * 2 * 4**3),
    "a loop, recomputed": (jax.grad(loop), ((4, 4),), 5 * 4 * 2 * 4**3),
}


@pytest.mark.parametrize(("function", "shapes", "expected"), FLOPS.values(), ids=FLOPS)
def test_operations_are_counted(function, shapes, expected):
    assert count_flops(function, *map(jnp.ones, shapes)) == expected


def test_a_loop_of_unknown_length_is_refused():
    def loop(x):
        return lax.while_loop(lambda x: jnp.sum(x) < 9.0, lambda x: x @ x, x)

    with pytest.raises(ValueError, match="while loop"):
        count_flops(loop, jnp.ones((2, 2)))


# Weights for inference, divided by their spectral norm once.


def _made(name: str, **degrees: int) -> Any:
    """Returns a model on a mesh, its weights and state, and an input."""
    mesh = make_mesh(**degrees)
    model = build_parallel_model(CASES[f"wxformer {name}"].block, mesh)
    params, model_state = model.init(jax.random.key(0))
    grid = model.model_def.image_height, model.model_def.image_width
    shape = (2, model.model_def.input_channels, model.model_def.config.x.frames, *grid)
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    return model, params, model_state, place_batch({"x": x}, mesh)


@pytest.mark.slow
@pytest.mark.parametrize("degrees", [{}, {"dp": 2, "tp": 2, "domain": 2}], ids=str)
def test_fused_weights_give_the_same_forecast(degrees: dict[str, int]) -> None:
    model, params, model_state, x = _made("earth", **degrees)
    fused, left = model.fuse_spectral_norm(params, model_state)
    assert not left[SPECTRAL_NORM], "the vectors are used up"
    matrix = next(iter(model.model_def.matrices))
    assert not np.allclose(fused[matrix], params[matrix]), "nothing was divided"
    expected = model.apply(params, model_state, x)
    assert_close(model.apply(fused, left, x), expected, 1e-6, f"fused, {degrees}")


def test_nothing_to_fold() -> None:
    model, params, model_state, _ = _made("frames")
    fused, left = model.fuse_spectral_norm(params, model_state)
    assert fused is params
    assert left is model_state
