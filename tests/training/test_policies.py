"""Policies of remat, FSDP, precision and skipped updates do not change training."""

from __future__ import annotations

import math
import re
from functools import cache, partial
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from credit_jax.checkpoint import CheckpointStore, Progress
from credit_jax.models.parallel_model import build_parallel_model, packed_specs
from credit_jax.parallel.compiler import compile_program
from credit_jax.parallel.mesh.dims import ParallelDims
from credit_jax.parallel.params.precision import Precision, default_mp_policy
from credit_jax.parallel.placement import place_batch
from credit_jax.training.optimizer import INITIAL_SCALE, LossScale, adamw
from credit_jax.training.restore import RunStore
from credit_jax.training.state import init_state
from credit_jax.training.step import make_train_step
from tests.messages.engine import *  # noqa: F403
from tests.messages.engine import Cases
from tests.models.cases import CASES as MODELS
from tests.support import assert_close
from tests.training.toy_runs import mse

CASES = Cases("policies")
# Spectral norm, whose vectors are far from converged in the first steps; two blocks in
# stage 2, so that a policy can treat them differently; no features without policies.
BLOCK = {
    **MODELS["wxformer plain"].block,
    "depth": [0, 0, 2, 0],
    "cross_embed_kernel_sizes": [[4, 8], [2], [2], [2]],
}
HSDP = {"dp_replicate": 2, "dp_shard": 2}
STEPS, BATCH = 20, 4
# Ten times the measured differences (docs/numerics.md).
LOSS, NORM = 1e-6, 1e-5


def _data(model: Any) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    grid = model.model_def.image_height, model.model_def.image_width
    x = rng.normal(size=(STEPS, BATCH, model.model_def.input_channels, 1, *grid))
    y = rng.normal(size=(STEPS, BATCH, model.model_def.output_channels, 1, *grid))
    return x.astype(np.float32), y.astype(np.float32)


def _build(
    degrees: dict[str, int], *, shapes_only: bool = False, **policies: Any
) -> tuple[Any, Any, Any]:
    """Returns a model on its mesh, its step, and a fresh state or its shapes."""
    devices = jax.devices()[: int(np.prod([1, *degrees.values()]))]
    mesh = ParallelDims(**degrees, world_size=len(devices)).build_mesh(devices)
    model = build_parallel_model(BLOCK, mesh, **policies)
    optimizer = adamw(weight_decay=1e-3, max_norm=1.0)
    rate = optax.constant_schedule(1e-3)
    train = make_train_step(model, optimizer, mse, schedule=rate)
    step = compile_program(train, mesh, donate_argnums=0)
    start = partial(init_state, model, optimizer)
    key = jax.random.key(0)
    return model, step, jax.eval_shape(start, key) if shapes_only else start(key)


def _batches(model: Any) -> list[Any]:
    mesh = model.parallel_config.mesh
    return [
        place_batch({"x": x[None], "y": y[None]}, mesh)
        for x, y in zip(*_data(model), strict=True)
    ]


def _curve(
    degrees: dict[str, int], **policies: Any
) -> tuple[np.ndarray, np.ndarray, int]:
    """Returns losses and gradient norms of all steps, and temporary bytes."""
    model, step, state = _build(degrees, **policies)
    batches = _batches(model)
    compiled = step.lower(state, batches[0]).compile()
    losses, norms = [], []
    for batch in batches:
        state, info = compiled(state, batch)
        losses.append(float(info["loss"][0]))
        norms.append(float(info["grad_norm"]))
    memory = compiled.memory_analysis().temp_size_in_bytes
    return np.asarray(losses), np.asarray(norms), memory


@cache
def _one_device() -> tuple[np.ndarray, np.ndarray, int]:
    return _curve({})


# Together every mode, and blocks that are gathered again with blocks that are kept. The
# defaults are those of the other tests of training on meshes. Then parameters split
# over the domain axis only; within their dp_shard shard; and where neither degree
# divides most of them.
OVER_DOMAIN = {"over_domain": True, "min_shard_size": 16}
POLICIES: list[tuple[dict[str, int], dict[str, Any]]] = [
    (HSDP, {"ac_mode": "full", "reshard_after_forward": 2, "keep_whole": ("head/*",)}),
    (HSDP, {"ac_mode": "selective", "reshard_after_forward": True}),
    (HSDP, {"ac_mode": "none", "reshard_after_forward": False}),
    ({"domain": 4}, OVER_DOMAIN),
    ({"dp_shard": 2, "tp": 2, "domain": 2}, OVER_DOMAIN),
    ({"domain": 3}, OVER_DOMAIN),
]


@pytest.mark.slow
@pytest.mark.parametrize(("degrees", "policy"), POLICIES, ids=str)
def test_every_policy_learns_what_one_device_learns(degrees: Any, policy: Any) -> None:
    if policy is OVER_DOMAIN:
        specs = packed_specs(_build(degrees, shapes_only=True, **policy)[0])
        split = [path for path, s in specs.items() if "domain" in str(s)]
        assert len(split) >= len(specs) / 2, "most parameters are split"
    losses, norms, _ = _curve(degrees, **policy)
    expected, expected_norms, _ = _one_device()
    assert expected[-1] < expected[0], "nothing was learned"
    assert_close(losses, expected, LOSS, f"losses of {degrees}, {policy}")
    assert_close(norms, expected_norms, NORM, f"gradient norms of {degrees}, {policy}")


@pytest.mark.slow
def test_checkpoints_know_nothing_of_parameters_over_domain(tmp_path: Any) -> None:
    """Saved with parameters split over domain, restored without, and the reverse."""
    model, _, shared = _build({"domain": 4}, **OVER_DOMAIN)
    alone = _build({})[2]
    runs = RunStore(CheckpointStore(tmp_path), model.model_def.param_specs)
    for step, (written, like) in enumerate([(shared, alone), (alone, shared)]):
        runs.save(step, written, Progress())
        runs.checkpoints.wait()
        found = runs.restore(step, jax.tree.map(jnp.zeros_like, like))
        for name in ("params", "model_state", "opt_state"):
            made, expected = (getattr(state, name) for state in (found, written))
            chex.assert_trees_all_equal(jax.device_get(made), jax.device_get(expected))
        for path, weight in found.params.items():
            assert weight.sharding == like.params[path].sharding, path
    runs.checkpoints.close()


@pytest.mark.slow
def test_remat_saves_memory_in_its_order() -> None:
    """Full remat saves least; selective remat saves all but attention.

    On one device, where loops separate the forward from the backward pass, as XLA on
    CPU removes the barriers between them.
    """
    memory = {"none": _one_device()[2]}
    for mode in ("selective", "full"):
        model, step, state = _build({}, shapes_only=True, ac_mode=mode)
        compiled = step.lower(state, _batches(model)[0]).compile()
        memory[mode] = compiled.memory_analysis().temp_size_in_bytes
    print("bytes a device works in", memory)
    assert memory["full"] < memory["selective"] < memory["none"]


def _program(degrees: dict[str, int], **policies: Any) -> str:
    """Returns the step's program before compilation."""
    model, step, state = _build(degrees, shapes_only=True, **policies)
    x, y = _data(model)
    batch = place_batch({"x": x[:1], "y": y[:1]}, model.parallel_config.mesh)
    return step.lower(state, batch).as_text()


def _gathers(**policies: Any) -> int:
    """Counts the parameter gathers in the program."""
    return _program({"dp_shard": 4}, **policies).count("stablehlo.all_gather")


@pytest.mark.slow
def test_gathers_of_blocks_and_of_parameters_that_stay() -> None:
    """The more blocks stay gathered, the fewer gathers there are."""
    counts = [_gathers(reshard_after_forward=n) for n in (True, 5, False)]
    print("gathers", counts)
    again, five, kept = counts
    assert again > five > kept
    assert _gathers(min_shard_size=10**9) == 0, "nothing is split"
    some = _gathers(keep_whole=("stages/*",), reshard_after_forward=False)
    assert 0 < some < 20, "decoder and head are split, the stages stay whole"


def _types(text: str, collective: str) -> list[str]:
    """Returns operand and result types of each collective of a kind."""
    parts = text.split(f"stablehlo.{collective}")[1:]
    return [part[part.index(" : (") :].splitlines()[0] for part in parts]


@pytest.mark.slow
def test_weights_travel_in_bfloat16_and_gradients_in_float32() -> None:
    text = _program({"dp_shard": 4}, mp_policy=default_mp_policy())
    gathers, scatters = (_types(text, k) for k in ("all_gather", "reduce_scatter"))
    assert gathers
    assert all("bf16" in types for types in gathers), "weights are cast, then gathered"
    assert scatters
    assert not any("bf16" in types for types in scatters), "gradients are summed wide"


@pytest.mark.slow
def test_bfloat16_stays_near_float32_with_gradients_summed_in_it() -> None:
    policy = default_mp_policy(reduce_dtype="bfloat16", output_dtype="bfloat16")
    model, step, state = _build(HSDP, mp_policy=policy)
    x, y = _data(model)
    batch = place_batch({"x": x[:1], "y": y[:1]}, model.parallel_config.mesh)
    lowered = step.lower(state, batch)
    scatters = _types(lowered.as_text(), "reduce_scatter")
    assert scatters
    assert all("bf16" in types for types in scatters)
    new, info = lowered.compile()(state, batch)
    losses, norms, _ = _one_device()
    assert_close(info["loss"][0], losses[0], 2e-2, "bfloat16 loss")
    assert_close(info["grad_norm"], norms[0], 5e-2, "norm, summed in bfloat16")
    assert all(p.dtype == jnp.float32 for p in new.params.values())


@pytest.mark.slow
def test_a_fresh_state_is_made_in_shards() -> None:
    """The compiled initialization contains no split parameter or moment as a whole."""
    model, _, state = _build({"dp_shard": 8}, shapes_only=True)
    start = jax.jit(partial(init_state, model, adamw()))
    text = start.lower(jax.random.key(0)).compile().as_text()
    made = {
        tuple(int(n) for n in shape.split(","))
        for shape in re.findall(r"[a-z]+\d+\[([\d,]+)\]", text)
    }
    split = {path for path, spec in model.specs.items() if "dp_shard" in spec}
    whole = {state.params[path].shape for path in split}
    local = sum(
        leaf.size // (8 if path in split else 1) for path, leaf in state.params.items()
    )
    largest = max(math.prod(shape) for shape in made)
    total = sum(leaf.size for leaf in state.params.values())
    print(f"{total} numbers, {local} on a device, largest array {largest}")
    assert len(split) > 20
    assert not whole & made, f"whole on one device: {whole & made}"
    # Values are drawn for all shards of a device at once.
    assert largest <= local < total / 4
    assert "all-gather" not in text


def test_loss_scale_follows_that_of_torch(torch: Any) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=INITIAL_SCALE)
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=0.0)
    ours = LossScale(jnp.float32(INITIAL_SCALE), jnp.int32(0))
    after = jax.jit(LossScale.after)
    rng = np.random.default_rng(0)
    finite = [True] * 2001 + (rng.random(60) > 0.4).tolist() + [True] * 2100
    for number, good in enumerate(finite):
        scaler.scale(weight.sum()).backward()
        weight.grad[:] = 1.0 if good else float("inf")
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        ours = after(ours, good)
        assert float(ours.scale) == scaler.get_scale(), f"after update {number}"
    assert float(ours.scale) != INITIAL_SCALE


@pytest.fixture(scope="module")
def float16() -> Any:
    """A model, its step and a fresh state on the host, as a step donates its state."""
    model, step, state = _build({"dp_shard": 2}, mp_policy=default_mp_policy("float16"))
    return model, step, lambda: jax.tree.map(jnp.copy, state)


@pytest.mark.slow
def test_float16_leaves_out_updates_that_overflow(float16: Any) -> None:
    """With a target of 1e5 the gradient overflows float16 at the first scale."""
    model, step, fresh = float16
    x, y = _data(model)
    batch = place_batch({"x": x[:1], "y": 1e5 * y[:1]}, model.parallel_config.mesh)
    state, scales, skipped, moved = fresh(), [], [], []
    for _ in range(12):
        before = jax.device_get(state.params)
        state, info = step(state, batch)
        assert np.isfinite(info["loss"]).all()
        scales.append(float(info["loss_scale"]))
        skipped.append(bool(info["skipped"]))
        after = jax.device_get(state.params)
        moved.append(any((after[p] != before[p]).any() for p in before))
    print("scales", scales, "skipped", skipped)
    assert skipped[0]
    assert not skipped[-1], "the scale fell until the gradient was finite"
    assert moved == [not s for s in skipped], "updates are left out whole"
    count = int(optax.tree.get(state.opt_state, "count"))
    assert count == skipped.count(False), "Adam counts the updates that were made"
    assert int(state.update_step) == 12, "the average and the schedule go on"
    halved = [s for s, left_out in zip(scales, skipped, strict=True) if left_out]
    assert halved == [INITIAL_SCALE / 2**n for n in range(len(halved))]


@pytest.mark.slow
def test_float16_trains_near_float32(float16: Any) -> None:
    model, step, fresh = float16
    x, y = _data(model)
    state, losses = fresh(), []
    for pair in zip(x, y, strict=True):
        batch = {name: part[None] for name, part in zip("xy", pair, strict=True)}
        state, info = step(state, place_batch(batch, model.parallel_config.mesh))
        losses.append(float(info["loss"][0]))
    assert_close(np.asarray(losses), _one_device()[0], 2e-3, "float16 losses")


CASES.rows(
    lambda **policy: lambda: _build({}, **policy),
    {"ac_mode": "some"},
    {"reshard_after_forward": -1},
    {"keep_whole": ("nowhere/*",)},
)
for name in ("float8", "int8"):
    CASES.rows(default_mp_policy, {"param_dtype": name}, {"matmul_precision": name})
    CASES.rows(Precision.of, name)
