"""Models on every mesh against one device: prediction, loss and every gradient.

On the plain definitions, which is what accelerators run; and two meshes on the
implementations of CPU. Loops that hold collectives are unrolled on every mesh here:
XLA on CPU does not order them (`parallel.compiler`).
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from credit_jax.kernels import use_implementation
from credit_jax.models.model_def import ModelDef
from credit_jax.models.registry import build
from credit_jax.nn import spectral_norm
from credit_jax.nn.context import Context
from credit_jax.nn.model_state import BATCH_STATS, SPECTRAL_NORM
from credit_jax.nn.noise import Noise
from credit_jax.parallel.collectives import axis_index
from credit_jax.parallel.mesh.axes import DP_SHARD, MeshAxes
from credit_jax.parallel.params.precision import Float8, Precision
from credit_jax.parallel.params.remat import Remat
from credit_jax.parallel.params.sharding import ShardingRules, matrix_specs
from credit_jax.parallel.placement import batch_spec, place_batch
from credit_jax.parallel.reductions import FieldReducer
from credit_jax.parallel.rows.layout import block_layout
from tests.models.crossformer.cases import (
    CAMULATOR_CASES,
    CASES,
    CROSSFORMER_CASES,
    DOWNSCALING_CASES,
    ENSEMBLE_CASES,
    NEXTGEN_CASES,
)
from tests.models.debugger.cases import DEBUGGER
from tests.models.swin.cases import FUXI_CASES, SWIN_CASES, SWIN_PADDED
from tests.models.unet.cases import CASES as UNET_CASES
from tests.support import assert_close, assert_trees_close, make_mesh, mark_slow

BLOCKS = {
    **CASES,
    **{f"crossformer {k}": v for k, v in CROSSFORMER_CASES.items()},
    **{f"camulator {k}": v for k, v in CAMULATOR_CASES.items()},
    **{f"downscaling {k}": v for k, v in DOWNSCALING_CASES.items()},
    **{f"nextgen {k}": v for k, v in NEXTGEN_CASES.items()},
    **{f"ensemble {k}": v for k, v in ENSEMBLE_CASES.items()},
    **{f"unet {k}": v for k, v in UNET_CASES.items()},
    "debugger": DEBUGGER,
    **{f"fuxi {k}": v for k, v in FUXI_CASES.items()},
    **{f"swin {k}": v for k, v in SWIN_CASES.items()},
    "swin padded": SWIN_PADDED,
}
FORWARD, GRADIENT, FLOAT64 = 1e-5, 1e-4, 1e-11
BATCH = 8

# dp, tp, domain
MESHES = {
    "dp8": (8, 1, 1),
    "tp2": (1, 2, 1),
    "domain2": (1, 1, 2),
    "domain3": (1, 1, 3),
    "domain4": (1, 1, 4),
    "domain8": (1, 1, 8),
    "dp2_tp2_domain2": (2, 2, 2),
}


def _data(model_def: ModelDef, dtype: str) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(5)
    grid = model_def.image_height, model_def.image_width
    shapes = {
        "x": (model_def.input_channels, model_def.frames),
        "y": (model_def.output_channels, model_def.output_frames),
    }
    wide = np.float64 if dtype == "float64" else np.float32
    return {
        name: rng.normal(size=(BATCH, *shape, *grid)).astype(wide)
        for name, shape in shapes.items()
    }


def _run(
    name: str,
    degrees: tuple[int, int, int],
    dtype: str,
    implementation: str = "xla",
    float8: Float8 | None = None,
    remat: str = "none",
) -> Any:
    """A forward pass of training: (prediction, loss, gradients, state) as whole arrays.

    The state is that of spectral norm after one power iteration, and of the batch norms
    after the forward.
    """
    model_def = build(BLOCKS[name])
    mesh = make_mesh(dp=degrees[0], tp=degrees[1], domain=degrees[2])
    axes = MeshAxes.from_mesh(mesh)
    rules = ShardingRules() if remat == "none" else ShardingRules(min_shard_size=1)
    specs = rules.specs(model_def.param_specs, axes)
    matrices = model_def.matrices
    rows = block_layout(model_def.image_height, axes.num_domain, axes.domain, dim=3)
    reducer = FieldReducer(rows, axes)
    whole = PartitionSpec()
    stats = jax.eval_shape(model_def.init_model_state, jax.random.key(0))[BATCH_STATS]
    model_state_specs = {
        SPECTRAL_NORM: {p: matrix_specs(d, specs[p]) for p, d in matrices.items()},
        BATCH_STATS: jax.tree.map(lambda _: whole, stats),
    }
    precision = Precision.of(dtype)
    if float8 is not None:
        precision = precision.with_float8(float8)
    context = Context(
        axes=axes,
        rules=rules,
        precision=precision,
        remat=Remat(remat),
        key=jax.random.key(0),
        noise=Noise(jax.random.key(3)),
    )

    def step(params: Any, model_state: Any, batch: Any) -> Any:
        vectors = model_state[SPECTRAL_NORM]
        vectors = spectral_norm.iterate(params, vectors, matrices, specs)

        def loss(params: Any) -> Any:
            weights = spectral_norm.normalize(params, vectors, matrices, specs)
            rank = axis_index(DP_SHARD if degrees[0] > 1 else None)
            own = replace(context, first_sample=rank * len(batch["x"]))
            y, batch_stats = model_def.apply_and_update(
                weights, {"x": batch["x"]}, own, model_state[BATCH_STATS]
            )
            after = {SPECTRAL_NORM: vectors, BATCH_STATS: batch_stats}
            return reducer.mean((y - batch["y"]) ** 2), (y, after)

        (value, (y, after)), grads = jax.value_and_grad(loss, has_aux=True)(params)
        return y, value, grads, after

    spec = batch_spec(axes)
    body = jax.shard_map(
        step,
        mesh=mesh,
        in_specs=(specs, model_state_specs, spec),
        out_specs=(spec, whole, specs, model_state_specs),
    )
    params, model_state = _weights(name, dtype)
    batch = place_batch(_data(model_def, dtype), mesh)
    with use_implementation(implementation):
        y, value, grads, new = jax.device_get(jax.jit(body)(params, model_state, batch))
    return y[..., : model_def.image_height, :], value, grads, new


@cache
def _weights(name: str, dtype: str) -> Any:
    """Random weights, the same for every mesh; none at its initial zero or one."""
    model_def = build(BLOCKS[name])
    params, model_state = jax.jit(
        lambda key: (model_def.init(key), model_def.init_model_state(key))
    )(jax.random.key(0))
    rng = np.random.default_rng(1)
    spread = {p: 0.05 * rng.normal(size=w.shape) for p, w in params.items()}
    params = {p: np.asarray(w) + spread[p] for p, w in params.items()}
    wide = np.float64 if dtype == "float64" else np.float32

    def widened(array: Any) -> np.ndarray:
        whole = np.issubdtype(array.dtype, np.integer)
        return np.asarray(array, array.dtype if whole else wide)

    return jax.tree.map(widened, (params, model_state))


@cache
def _one_device(name: str, dtype: str) -> Any:
    return _run(name, (1, 1, 1), dtype)


def _compare(actual: Any, expected: Any, tolerances: tuple[float, float], what: str):
    forward, gradient = tolerances
    assert_close(actual[0], expected[0], forward, f"{what}: forward")
    assert_close(actual[1], expected[1], forward, f"{what}: loss")
    flat = [
        np.concatenate([g[k].ravel() for k in sorted(g)])
        for g in (actual[2], expected[2])
    ]
    assert_close(*flat, gradient, f"{what}: gradient of all parameters")
    ours, one = (s[SPECTRAL_NORM] | s[BATCH_STATS] for s in (actual[3], expected[3]))
    assert ours.keys() == one.keys(), f"{what}: another state"
    for name in sorted({name for arrays in one.values() for name in arrays}):
        assert_trees_close(
            {path: arrays[name] for path, arrays in ours.items() if name in arrays},
            {path: arrays[name] for path, arrays in one.items() if name in arrays},
            forward,
            f"{what}: {name} after the forward",
        )


@pytest.mark.parametrize(
    ("mesh", "implementation"),
    mark_slow(
        [
            *((mesh, "xla") for mesh in MESHES),
            ("domain3", "cpu"),
            ("dp2_tp2_domain2", "cpu"),
        ],
        but=[("domain3", "xla"), ("dp2_tp2_domain2", "xla")],
    ),
)
def test_equals_one_device(mesh: str, implementation: str) -> None:
    """45 rows: uneven on every domain degree above one."""
    actual = _run("uneven", MESHES[mesh], "float32", implementation)
    expected = _one_device("uneven", "float32")
    _compare(actual, expected, (FORWARD, GRADIENT), f"{mesh}, {implementation}")


def test_equals_one_device_in_float64() -> None:
    """What is exact stays exact: every array of the gradient, 30 rows on 2 x 2 x 2."""
    with jax.enable_x64(True):
        actual = _run("earth", (2, 2, 2), "float64")
        expected = _one_device("earth", "float64")
    assert actual[0].dtype == np.float64, f"the forward ran in {actual[0].dtype}"
    _compare(actual, expected, (FLOAT64, FLOAT64), "float64")
    assert_trees_close(actual[2], expected[2], FLOAT64, "float64: each gradient")


@pytest.mark.slow
def test_float8_rounds_alike_on_every_mesh() -> None:
    """Scales are powers of two of maxima, so that meshes round to the same values."""
    with jax.enable_x64(True):
        actual = _run("earth", (2, 2, 2), "float64", float8=Float8(min_channels=16))
        expected = _run("earth", (1, 1, 1), "float64", float8=Float8(min_channels=16))
        wide = _one_device("earth", "float64")
    _compare(actual, expected, (FLOAT64, FLOAT64), "float8")
    assert_trees_close(actual[2], expected[2], FLOAT64, "float8: each gradient")
    error = assert_close(actual[0], wide[0], 0.1, "float8 against float64")
    assert error > 1e-4, "nothing was rounded"


def test_frames_without_spectral_norm_on_domain_3() -> None:
    """Mirror padding, two frames, interpolation from half the grid; 88 rows on 3."""
    actual = _run("frames", (1, 1, 3), "float32")
    expected = _one_device("frames", "float32")
    _compare(actual, expected, (FORWARD, GRADIENT), "frames on domain 3")


# What each model has and the others have not: transposed convolutions and reflected
# poles, 45 rows; interpolation and gates of channels and points.
@pytest.mark.parametrize(
    ("name", "mesh"),
    mark_slow(
        [
            ("mirror", "dp2_tp2_domain2"),
            ("mirror", "domain3"),
            ("interpolating", "domain3"),
            ("odd", "domain8"),
        ],
        but=[("mirror", "dp2_tp2_domain2"), ("odd", "domain8")],
    ),
)
def test_crossformer_equals_one_device(name: str, mesh: str) -> None:
    name = f"crossformer {name}"
    actual = _run(name, MESHES[mesh], "float32")
    expected = _one_device(name, "float32")
    _compare(actual, expected, (FORWARD, GRADIENT), f"{name} on {mesh}")


def test_crossformer_equals_one_device_in_float64() -> None:
    """Every array of the gradient, batch norms over the whole batch, on 2 x 2 x 2."""
    name = "crossformer coordinates"
    with jax.enable_x64(True):
        actual = _run(name, (2, 2, 2), "float64")
        expected = _one_device(name, "float64")
    _compare(actual, expected, (FLOAT64, FLOAT64), "float64")
    assert_trees_close(actual[2], expected[2], FLOAT64, "float64: each gradient")


# Models beside wxformer and crossformer, uneven rows: 45, 32 on 3, 7.
OTHERS = [
    ("camulator earth", "dp2_tp2_domain2"),
    ("camulator two frames", "domain3"),
    ("camulator earth", "domain8"),
    ("downscaling mirror", "dp2_tp2_domain2"),
    ("downscaling mirror", "domain3"),
    ("downscaling mirror", "domain8"),
    ("nextgen levels", "dp2_tp2_domain2"),
    ("nextgen levels", "domain3"),
    ("nextgen odd", "domain8"),
    ("ensemble correlated", "dp2_tp2_domain2"),
    ("ensemble frozen", "domain3"),
    ("ensemble frozen", "domain8"),
    ("debugger", "dp2_tp2_domain2"),
    ("debugger", "domain3"),
    ("debugger", "domain8"),
]
QUICK = [
    ("camulator two frames", "domain3"),
    ("nextgen odd", "domain8"),
    ("ensemble frozen", "domain3"),
    ("debugger", "domain3"),
    ("debugger", "domain8"),
]


@pytest.mark.parametrize(("name", "mesh"), mark_slow(OTHERS, but=QUICK))
def test_other_models_equal_one_device(name: str, mesh: str) -> None:
    """FSDP where there is dp, and blocks recomputed in the backward pass."""
    actual = _run(name, MESHES[mesh], "float32", remat="full")
    expected = _one_device(name, "float32")
    _compare(actual, expected, (FORWARD, GRADIENT), f"{name} on {mesh}")


# The wiring of each model, every array of the gradient.
@pytest.mark.parametrize(
    "name",
    mark_slow(
        ["camulator two frames", "downscaling mirror", "nextgen levels", "debugger"],
        but=["camulator two frames", "nextgen levels", "debugger"],
    ),
)
def test_other_models_equal_one_device_in_float64(name: str) -> None:
    with jax.enable_x64(True):
        actual = _run(name, (2, 2, 2), "float64", remat="full")
        expected = _one_device(name, "float64")
    _compare(actual, expected, (FLOAT64, FLOAT64), "float64")
    assert_trees_close(actual[2], expected[2], FLOAT64, "float64: each gradient")


@pytest.mark.parametrize(
    "mesh", mark_slow(["domain3", "domain8", "dp2_tp2_domain2"], but=["domain3"])
)
def test_unet_equals_one_device(mesh: str) -> None:
    """In float64: where rounding flips the sign of a unit its gradient jumps.

    45, 23, 12 and 6 rows; statistics of batch norms over the whole batch.
    """
    with jax.enable_x64(True):
        actual = _run("unet odd", MESHES[mesh], "float64", remat="full")
        expected = _one_device("unet odd", "float64")
    _compare(actual, expected, (FLOAT64, FLOAT64), f"unet on {mesh}")
    assert_trees_close(actual[2], expected[2], FLOAT64, f"unet on {mesh}: gradients")


def test_bfloat16_stays_near_float32() -> None:
    """bf16 compute with float32 parameters, statistics and sums."""
    wide = _one_device("plain", "float32")
    narrow = _run("plain", (1, 1, 2), "bfloat16")
    assert narrow[2]["head/out/kernel"].dtype == np.float32
    assert_close(narrow[1], wide[1], 2e-2, "bfloat16 loss against float32")
    assert_close(narrow[0], wide[0], 5e-2, "bfloat16 prediction against float32")


@pytest.mark.parametrize(
    ("name", "mesh"),
    mark_slow(
        [
            ("shifted", "dp2_tp2_domain2"),
            ("shifted", "domain8"),
            ("shifted", "domain3"),
            ("dropout", "domain3"),
            ("one row of windows", "domain3"),
            ("plain", "domain8"),
        ],
        but=[("shifted", "dp2_tp2_domain2"), ("shifted", "domain8")],
    ),
)
@pytest.mark.filterwarnings("ignore:.*does not see")
def test_fuxi_equals_one_device(name: str, mesh: str) -> None:
    """Three rows of windows: on eight shards most have none."""
    name = f"fuxi {name}"
    actual = _run(name, MESHES[mesh], "float32")
    expected = _one_device(name, "float32")
    _compare(actual, expected, (FORWARD, GRADIENT), f"{name} on {mesh}")


def test_fuxi_equals_one_device_in_float64() -> None:
    """Every array of the gradient, on 2 x 2 x 2; that of qkv is zero."""
    with jax.enable_x64(True):
        actual = _run("fuxi shifted", (2, 2, 2), "float64")
        expected = _one_device("fuxi shifted", "float64")
    _compare(actual, expected, (FLOAT64, FLOAT64), "float64")
    assert_trees_close(actual[2], expected[2], FLOAT64, "float64: each gradient")
    assert not np.any(actual[2]["u_transformer/blocks/attention/qkv/kernel"])


@pytest.mark.parametrize(
    ("name", "mesh"),
    mark_slow(
        [
            ("oblong", "dp2_tp2_domain2"),
            ("oblong", "domain8"),
            ("padded", "domain3"),
            ("stages", "domain3"),
            ("one row of windows", "domain2"),
        ],
        but=[("oblong", "dp2_tp2_domain2"), ("padded", "domain3")],
    ),
)
def test_swin_equals_one_device(name: str, mesh: str) -> None:
    name = f"swin {name}"
    actual = _run(name, MESHES[mesh], "float32")
    expected = _one_device(name, "float32")
    _compare(actual, expected, (FORWARD, GRADIENT), f"{name} on {mesh}")


@pytest.mark.slow
def test_swin_equals_one_device_in_float64() -> None:
    """Every array of the gradient, on 2 x 2 x 2, with dropout of the position bias."""
    with jax.enable_x64(True):
        actual = _run("swin one row of windows", (2, 2, 2), "float64")
        expected = _one_device("swin one row of windows", "float64")
    _compare(actual, expected, (FLOAT64, FLOAT64), "float64")
    assert_trees_close(actual[2], expected[2], FLOAT64, "float64: each gradient")
