"""Runs models on a mesh; gives prediction, loss, gradients, state as whole arrays.

A model is given by its `model:` section. What one device gives is kept, so that all
meshes of a test file are compared with one run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

import jax
import numpy as np
from jax.sharding import PartitionSpec

from credit_jax.kernels import use_implementation
from credit_jax.models.model_def import ModelDef
from credit_jax.models.parallel_model import build_parallel_model
from credit_jax.models.registry import build
from credit_jax.nn.parameters import BATCH_STATS, SPECTRAL_NORM
from credit_jax.ops.compensated import joint_error
from credit_jax.parallel.params.precision import Float8, Precision
from credit_jax.parallel.placement import batch_spec, place_batch
from tests.models.parity import assert_same_state
from tests.support import assert_close, assert_trees_close, dealt, make_mesh

FORWARD, GRADIENT, FLOAT64 = 1e-5, 1e-4, 1e-11
# Convolutions in float64 are slow on CPU, as each sample is computed separately.
BATCH = 4

# dp, tp, domain
MESHES = {
    "dp8": (8, 1, 1),
    "tp2": (1, 2, 1),
    "domain2": (1, 1, 2),
    "domain3": (1, 1, 3),
    "domain4": (1, 1, 4),
    "domain5": (1, 1, 5),
    "domain8": (1, 1, 8),
    "tp2-domain3": (1, 2, 3),
    "2x2x2": (2, 2, 2),
}


def _data(model_def: ModelDef, dtype: str, batch: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(5)
    specs = {**model_def.network_inputs, "y": model_def.output}
    wide = np.float64 if dtype == "float64" else np.float32
    return {
        key: rng.normal(size=spec.shape(batch)).astype(wide)
        for key, spec in specs.items()
    }


def run(
    block: Mapping[str, Any],
    degrees: tuple[int, int, int],
    dtype: str,
    implementation: str = "xla",
    float8: Float8 | None = None,
    remat: str = "none",
    batch: int = BATCH,
) -> Any:
    """Returns (prediction, loss, gradients, state) of a training forward.

    All arrays are whole. The state contains the vectors of spectral norm after one
    power iteration, and the running statistics of batch norms after the forward.

    Args:
        block: the `model:` section.
        degrees: dp, tp and domain.
        dtype: of parameters and inputs.
        implementation: of the operations, as for `kernels.use_implementation`.
        float8: of dense layers.
        remat: policy of the blocks; with one, parameters of every size are split.
        batch: samples.
    """
    mesh = make_mesh(dp=degrees[0], tp=degrees[1], domain=degrees[2])
    precision = Precision.of(dtype)
    if float8 is not None:
        precision = precision.with_float8(float8)
    small: dict[str, Any] = {} if remat == "none" else {"min_shard_size": 1}
    model = build_parallel_model(
        block, mesh, ac_mode=remat, mp_policy=precision, **small
    )
    model_def, axes = model.model_def, model.axes

    def step(params: Any, model_state: Any, batch: Any) -> Any:
        iterated = model.local_iterate(params, model_state)
        inputs = {name: batch[name] for name in model_def.network_inputs}

        def loss(params: Any) -> Any:
            y, after = model.local_training_forward(
                params, iterated, inputs, jax.random.key(0)
            )
            return model.reducer.mean((y - batch["y"]) ** 2), (y, after)

        (value, (y, after)), grads = jax.value_and_grad(loss, has_aux=True)(params)
        return y, value, grads, after

    spec = batch_spec(axes)
    inputs = {k: s.partition_spec(axes) for k, s in model_def.network_inputs.items()}
    body = model.shard_map(
        step,
        batch_specs={**inputs, "y": spec},
        out_specs=(spec, PartitionSpec(), model.specs, model.model_state_specs),
    )
    params, model_state = _weights(_key(block), dtype)
    order = dealt(batch, degrees[0])
    data = {k: x[order] for k, x in _data(model_def, dtype, batch).items()}
    with use_implementation(implementation):
        numbers = jax.jit(body)(params, model_state, place_batch(data, mesh))
        y, value, grads, new = jax.device_get(numbers)
    # Of these rows a gradient of the whole global array is that of one device.
    assert not y[..., model_def.image_height :, :].any()
    back = np.argsort(order)
    return y[back, ..., : model_def.image_height, :], value, grads, new


def _key(block: Mapping[str, Any]) -> str:
    return json.dumps(block, sort_keys=True)


@cache
def _weights(key: str, dtype: str) -> Any:
    """Returns random weights, equal for every mesh; none is at its initial 0 or 1."""
    params, model_state = _initial(key)
    rng = np.random.default_rng(1)
    spread = {p: 0.05 * rng.normal(size=w.shape) for p, w in params.items()}
    params = {p: np.asarray(w) + spread[p] for p, w in params.items()}
    wide = np.float64 if dtype == "float64" else np.float32

    def widened(array: Any) -> np.ndarray:
        whole = np.issubdtype(array.dtype, np.integer)
        return np.asarray(array, array.dtype if whole else wide)

    return jax.tree.map(widened, (params, model_state))


@cache
def _initial(key: str) -> Any:
    """Returns initial parameters and state, made by one program for all dtypes."""
    model_def = build(json.loads(key))

    def drawn(key: Any) -> Any:
        params = model_def.init(key)
        return params, model_def.init_model_state(key, params)

    with jax.enable_x64(False):
        return jax.device_get(jax.jit(drawn)(jax.random.key(0)))


def one_device(block: Mapping[str, Any], dtype: str, batch: int = BATCH) -> Any:
    """Returns the cached result of `run` on one device."""
    return _one_device(_key(block), dtype, batch)


@cache
def _one_device(key: str, dtype: str, batch: int) -> Any:
    return run(json.loads(key), (1, 1, 1), dtype, batch=batch)


def assert_equals_one_device(
    block: Mapping[str, Any],
    mesh: str,
    name: str,
    *,
    dtype: str = "float32",
    **options: Any,
) -> None:
    """Asserts equal prediction, loss, gradient and state.

    In float64, each array of the gradient; in float32, all parameters together.

    Args:
        block: the `model:` section.
        mesh: a key of `MESHES`.
        name: label of the printed errors.
        dtype: of parameters and inputs.
        **options: further arguments of `run` on the mesh.
    """
    with jax.enable_x64(dtype == "float64"):
        actual = run(block, MESHES[mesh], dtype, **options)
        expected = one_device(block, dtype, options.get("batch", BATCH))
    assert actual[0].dtype == dtype, f"the forward ran in {actual[0].dtype}"
    compare(actual, expected, f"{name} on {mesh}, {dtype}")


def compare(actual: Any, expected: Any, what: str) -> None:
    """Compares the results of `run` on a mesh and on one device."""
    is_wide = expected[0].dtype == np.float64
    forward, gradient = (FLOAT64, FLOAT64) if is_wide else (FORWARD, GRADIENT)
    assert_close(actual[0], expected[0], forward, f"{what}: forward")
    assert_close(actual[1], expected[1], forward, f"{what}: loss")
    error = joint_error(actual[2], expected[2])
    print(f"{what}: gradient of all parameters: relative error {error:.2e}")
    assert error <= gradient, f"{what}: gradient of all parameters: {error:.3e}"
    if is_wide:
        assert_trees_close(actual[2], expected[2], FLOAT64, f"{what}: each gradient")
    ours, one = (s[SPECTRAL_NORM] | s[BATCH_STATS] for s in (actual[3], expected[3]))
    assert_same_state(ours, one, forward, f"{what}: the forward")
