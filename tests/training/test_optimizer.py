"""Optimizers and schedules against PyTorch, and the norm of a sharded gradient."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from credit_jax.checkpoint.store import ADAM
from credit_jax.config import parse
from credit_jax.config.schedules import CosineAnnealingRestartsConfig, PlateauConfig
from credit_jax.nn.low_rank import LowRank
from credit_jax.parallel.mesh.device_mesh import DP_SHARD, TP
from credit_jax.training.optimizer import (
    adamw,
    build_optimizer,
    build_schedule,
    clip_by_global_norm,
    global_norm,
    with_first_rate_at,
)
from credit_jax.training.state import init_state, state_specs, with_moments
from credit_jax.training.step import make_train_step
from tests.messages.engine import *  # noqa: F403
from tests.messages.engine import Cases
from tests.support import assert_close, assert_trees_close
from tests.training.settings import trainer_config
from tests.training.toy_runs import MODEL_DEF, mse, toy_batches, toy_model, train_toy

CASES = Cases("optimizers")
SHAPES = {"kernel": (8, 6), "bias": (4,), "scale": ()}


def draw(rng, size=1.0):
    return {
        name: jnp.asarray(size * rng.normal(size=shape), jnp.float32)
        for name, shape in SHAPES.items()
    }


@pytest.mark.parametrize("max_norm", [0.0, 1.0, "dynamic"])
@pytest.mark.parametrize("weight_decay", [0.0, 0.3])
def test_equals_torch(torch, max_norm, weight_decay, rng):
    params = draw(rng) | {"scale": jnp.float32(1.0)}
    theirs = {k: torch.nn.Parameter(torch.tensor(v)) for k, v in numpy(params).items()}
    adamw = torch.optim.AdamW(
        theirs.values(), lr=1e-2, weight_decay=weight_decay, betas=(0.9, 0.95)
    )
    optimizer = build_optimizer(
        trainer_config(weight_decay=weight_decay, grad_max_norm=max_norm)
    )
    state = optimizer.init(params)
    update = jax.jit(optimizer.update)
    for step in range(8):
        grads, rate = draw(rng, size=0.1 + step), 1e-2 * step
        for name, parameter in theirs.items():
            parameter.grad = torch.tensor(numpy(grads)[name])
        if max_norm:
            # CREDIT's "dynamic" clips to the norm that it has just computed.
            norm = torch.stack([p.grad.norm() for p in theirs.values()]).norm()
            largest = norm if max_norm == "dynamic" else max_norm
            torch.nn.utils.clip_grad_norm_(theirs.values(), largest)
        adamw.param_groups[0]["lr"] = rate
        adamw.step()
        updates, state = update(grads, state, params, learning_rate=jnp.float32(rate))
        params = optax.apply_updates(params, updates)
        expected = {k: v.detach().numpy() for k, v in theirs.items()}
        assert_trees_close(params, expected, 1e-6, f"parameters after step {step}")
    assert int(optax.tree.get(state, "count")) == 8


def numpy(tree):
    return {k: np.array(v) for k, v in tree.items()}


def clip(grads, max_norm):
    return clip_by_global_norm(max_norm).update(grads, optax.EmptyState())[0]


@pytest.mark.parametrize(("dtype", "bound"), [("float32", 1e-6), ("float64", 1e-15)])
def test_norm_of_large_and_small_gradients(rng, dtype, bound):
    """Large ones are summed by themselves, small ones as one vector."""
    shapes = ((2048, 1100), (3,), (17, 5), (40, 80, 100), (3, 600, 500), ())
    with jax.enable_x64(dtype == "float64"):
        grads = [jnp.asarray(rng.normal(size=shape), dtype) for shape in shapes]
        for part in (grads, grads[:1], grads[1:3]):
            squares = sum(np.square(np.asarray(g, np.float64)).sum() for g in part)
            norm = global_norm(part)
            assert_close(norm, np.sqrt(squares), bound, f"{len(part)} arrays")


SPECS = {
    "kernel": [P(), P(DP_SHARD, TP), P(TP, None), P(None, DP_SHARD)],
    "bias": [P(), P(DP_SHARD), P(TP), P()],
    "scale": [P()] * 4,
}


@pytest.mark.parametrize("case", range(4))
def test_norm_of_a_sharded_gradient(case, rng, make_mesh):
    """Every shard counts once; replicated leaves and axes do not count twice."""
    mesh = make_mesh(dp=2, tp=2, domain=2)
    grads = draw(rng)
    specs = {name: SPECS[name][case] for name in SHAPES}
    placed = {
        k: jax.device_put(v, NamedSharding(mesh, specs[k])) for k, v in grads.items()
    }

    def local(shards):
        norm = global_norm(shards)
        return norm, clip(shards, 0.5)

    step = jax.shard_map(
        local, mesh=mesh, in_specs=(specs,), out_specs=(P(), specs), check_vma=True
    )
    norm, clipped = jax.jit(step)(placed)
    serial = jnp.sqrt(sum(jnp.sum(g**2) for g in grads.values()))
    assert_close(norm, serial, 1e-6, "norm")
    assert_close(global_norm(grads), serial, 1e-6, "norm on one device")
    assert_trees_close(clipped, clip(grads, 0.5), 1e-6, "clipped gradient")


def test_clipping_to_the_norm_itself_equals_torch(torch, rng):
    """1e-6 is added to the norm, which matters for small gradients."""
    for size in (1e-6, 1e-4, 1.0):
        grads = draw(rng, size)
        theirs = {k: torch.zeros(g.shape) for k, g in grads.items()}
        for name, tensor in theirs.items():
            tensor.grad = torch.tensor(numpy(grads)[name])
        norm = torch.nn.utils.get_total_norm([t.grad for t in theirs.values()])
        torch.nn.utils.clip_grad_norm_(theirs.values(), norm)
        expected = {k: t.grad.numpy() for k, t in theirs.items()}
        assert_trees_close(clip(grads, None), expected, 1e-6, f"gradient of {size}")


MESH = {"dp": 2, "tp": 2, "domain": 2}
RATE = optax.cosine_decay_schedule(1e-2, 20)
EVERY_SECOND = optax.MultiSteps(optax.adam(1e-2), 2).gradient_transformation()
OPTIMIZERS = {
    "sgd with momentum": optax.sgd(1e-2, momentum=0.9, nesterov=True),
    "adam, own schedule": optax.adam(RATE),
    "lion": optax.lion(1e-3, weight_decay=0.1),
    "amsgrad after our clipping": optax.chain(
        clip_by_global_norm(0.1), optax.amsgrad(1e-2)
    ),
    "two groups": optax.partition(
        {"matrices": optax.adam(1e-2), "rest": optax.sgd(1e-1)},
        lambda params: {
            path: "matrices" if path.startswith("dense/") else "rest" for path in params
        },
    ),
    "hyperparameters as state": optax.inject_hyperparams(optax.adam)(1e-2),
    "every second step": EVERY_SECOND,
}


@pytest.mark.slow(but=["two groups"])
@pytest.mark.parametrize("name", [*OPTIMIZERS])
def test_an_own_optimizer_moves_parameters_as_on_one_device(name: str) -> None:
    optimizer = OPTIMIZERS[name]
    start, expected, losses = train_toy(toy_model(), optimizer, 6)
    _, state, on_mesh = train_toy(toy_model(**MESH), optimizer, 6)
    assert_close(on_mesh, losses, 1e-6, f"{name}: losses")
    moved = {path: p - start.params[path] for path, p in state.params.items()}
    should = {path: p - start.params[path] for path, p in expected.params.items()}
    assert all(abs(change).max() > 0 for change in should.values()), "all must move"
    assert_trees_close(moved, should, 1e-4, f"{name}: change of the parameters")


def test_state_is_split_like_its_parameters() -> None:
    model = toy_model(**MESH)
    specs = state_specs(model, OPTIMIZERS["two groups"])
    assert specs.params["dense/down"] == P("tp", "dp_shard")
    found = [
        (jax.tree_util.keystr(path, simple=True, separator="."), spec)
        for path, spec in jax.tree_util.tree_flatten_with_path(
            specs.opt_state, is_leaf=lambda leaf: isinstance(leaf, P)
        )[0]
    ]
    moments = {name: spec for name, spec in found if ".mu." in name or ".nu." in name}
    paths = {name.split("u.")[-1] for name in moments}
    assert paths == {"dense/up", "dense/down", "dense/bias"}, "those of the group"
    for name, spec in moments.items():
        assert spec == model.specs[name.split("u.")[-1]], name
    others = [spec for name, spec in found if name not in moments]
    assert others
    assert all(spec == P() for spec in others), "counts are whole"


def adafactor():
    optimizer = optax.adafactor(1e-2, min_dim_size_to_factor=4)
    train_toy(toy_model(), optimizer, 1)
    return lambda: state_specs(toy_model(**MESH), optimizer)


def clipped_by_the_norm_of_local_shards():
    optimizer = optax.chain(optax.clip_by_global_norm(0.1), optax.sgd(1e-2))
    train_toy(toy_model(domain=2), optimizer, 1)
    return lambda: train_toy(toy_model(**MESH), optimizer, 1)


CASES.call("state that is not elementwise", adafactor)
CASES.call("updates that mix shards", clipped_by_the_norm_of_local_shards)
CASES.call("no schedule", lambda: train_toy(toy_model(), adamw(), 1))


def test_extra_arguments_are_for_those_who_take_them() -> None:
    """A schedule does not affect an optimizer with its own learning rate."""
    optimizer = optax.adam(1e-2)
    _, expected, _ = train_toy(toy_model(), optimizer, 2)
    schedule = optax.constant_schedule(5.0)
    _, state, _ = train_toy(toy_model(), optimizer, 2, schedule=schedule)
    for path, value in expected.params.items():
        assert np.array_equal(state.params[path], value), path


def test_the_learning_rate_counts_micro_batches() -> None:
    """AdamW's own count is of updates; the schedule gets micro-batches."""
    seen: list[Any] = []

    def schedule(step: Any) -> Any:
        jax.debug.callback(lambda s: seen.append(int(s)), step)
        return 1e-3

    _, state, _ = train_toy(toy_model(), adamw(), 3, schedule=schedule)
    jax.effects_barrier()
    assert sorted(seen) == [0, 1, 2]
    assert int(optax.tree.get(state.opt_state, "count")) == 3


def _labels(params: Any) -> dict[str, str]:
    return {path: "bias" if path.endswith("bias") else "rest" for path in params}


@pytest.mark.parametrize("degrees", [{}, MESH], ids=str)
def test_a_parameter_is_frozen_or_decays_by_its_name(degrees: dict[str, int]) -> None:
    kinds = {"rest": adamw(weight_decay=0.1), "bias": optax.set_to_zero()}
    frozen = optax.multi_transform(kinds, _labels)
    schedule = optax.constant_schedule(1e-2)
    start, state, _ = train_toy(toy_model(**degrees), frozen, 2, schedule=schedule)
    for path, value in state.params.items():
        same = np.array_equal(value, start.params[path])
        assert same == (path == "dense/bias"), path
    # Without a gradient only those that decay move.
    mask = lambda params: {p: kind == "bias" for p, kind in _labels(params).items()}  # noqa: E731
    decay = optax.add_decayed_weights(-0.5, mask=mask)
    decayed = optax.chain(optax.set_to_zero(), decay)
    start, state, _ = train_toy(toy_model(**degrees), decayed, 1)
    for path, value in state.params.items():
        factor = 0.5 if path == "dense/bias" else 1.0
        assert np.array_equal(value, factor * start.params[path]), path


@pytest.mark.slow
def test_a_vector_of_small_parameters_is_updated_as_each_by_itself() -> None:
    """`adamw` alone is given the vector; in a chain it is given every parameter."""
    optimizer = adamw(weight_decay=0.1, max_norm=0.1)
    schedule = optax.constant_schedule(1e-2)
    runs = [
        train_toy(toy_model(), one, 3, schedule=schedule)[1]
        for one in (optimizer, optax.chain(optimizer))
    ]
    for state in runs:
        for name in ("mu", "nu"):
            moments = optax.tree.get(state.opt_state, name)
            assert moments.keys() == MODEL_DEF.param_specs.keys()
            assert all(np.any(moment) for moment in moments.values())
    assert_trees_close(runs[0].params, runs[1].params, 1e-6, "parameters")


@pytest.mark.slow
@pytest.mark.parametrize("adapted", [False, True])
def test_moments_of_another_state_go_on_over_meshes(adapted: bool) -> None:
    """With adapters those of what is trained besides; adapters begin with 0."""
    model_def, optimizer = MODEL_DEF, adamw()
    if adapted:
        frozen = frozenset(MODEL_DEF.param_specs) - {"dense/bias"}
        lora = LowRank(2, 1.0, frozenset({"dense/up", "dense/down"}))
        model_def = replace(MODEL_DEF, frozen=frozen, low_rank=lora)
    schedule = optax.constant_schedule(1e-2)
    trained = train_toy(toy_model(), optimizer, 2, schedule=schedule)[1]
    adam = trained.opt_state[ADAM]
    mu, nu = (
        {path: x for path, x in part.items() if path in model_def.trainable}
        for part in adam[1:]
    )
    assert ("dense/up" in mu) != adapted
    moments = optax.ScaleByAdamState(adam.count, mu, nu)
    updated = []
    for degrees, go_on in (({}, True), (MESH, True), ({}, False)):
        model = toy_model(model_def=model_def, **degrees)
        state = init_state(model, optimizer, jax.random.key(0))
        if go_on:
            state = with_moments(state, moments)
            placed = jax.device_get(state).opt_state[ADAM].mu
            for path, value in placed.items():
                assert np.array_equal(value, mu.get(path, np.zeros_like(value))), path
        step = make_train_step(model, optimizer, mse, schedule=schedule)
        state, _ = step(state, *toy_batches(model, 1))
        updated.append(jax.device_get(state))
    one, mesh, fresh = updated
    for name in ("mu", "nu"):
        parts = [getattr(state.opt_state[ADAM], name) for state in (mesh, one)]
        assert_trees_close(*parts, 1e-5, name)
    assert_trees_close(mesh.params, one.params, 1e-6, "parameters")
    assert not np.allclose(one.params["dense/bias"], fresh.params["dense/bias"])


# Schedules against CREDIT's scheduler classes, step by step.


BASE, PER_EPOCH = 2e-3, 3
RESTARTS = {"scheduler_type": "cosine-annealing-restarts", "min_lr": 1e-6}
WARMUP = {"scheduler_type": "linear-warmup-cosine"}
COSINE = {"scheduler_type": "cosine-annealing", "T_max": 7, "eta_min": 1e-6}
GROWING = {"first_cycle_steps": 11, "cycle_mult": 1.7, "max_lr": 1e-3, "gamma": 0.8}
SLOW = {"first_cycle_steps": 9, "cycle_mult": 1.05, "max_lr": 1e-3, "gamma": 0.9}
SCHEDULES = {
    "linear": {**WARMUP, "warmup_steps": 10, "total_steps": 100, "min_lr": 1e-5},
    "no warmup": {**WARMUP, "warmup_steps": 0, "total_steps": 70, "min_lr": 0.0},
    "long": {**WARMUP, "warmup_steps": 10_000, "total_steps": 500_000},
    "restarts": {
        **RESTARTS,
        **{"first_cycle_steps": 50, "max_lr": 1e-3, "warmup_steps": 10},
    },
    "growing": {**RESTARTS, **GROWING, "warmup_steps": 3},
    "slow": {**RESTARTS, **SLOW},
    "cosine": COSINE,
    "lambda": {"scheduler_type": "lambda"},
}
trainer_of_schedules = partial(trainer_config, learning_rate=BASE)


def with_scheduler(**scheduler):
    return trainer_of_schedules(use_scheduler=True, scheduler=scheduler)


def credit_rates(kind, optimizer, stepper, num_steps, per_epoch):
    """Returns the rate of every micro-batch, stepped as by CREDIT's trainer."""
    from credit.scheduler import update_on_batch

    rates = []
    optimizer.step()
    for step in range(num_steps):
        if kind == "lambda" and step % per_epoch == 0:
            stepper.step()
        rates.append(optimizer.param_groups[0]["lr"])
        if kind in update_on_batch or (step + 1) % per_epoch == 0:
            stepper.step()
    return np.array(rates)


@pytest.mark.parametrize("name", SCHEDULES)
def test_rates_equal_those_of_credit(name, torch, credit):
    from credit.scheduler import load_scheduler

    scheduler, num_steps = SCHEDULES[name], 40 if name == "long" else 330
    weight = torch.nn.Parameter(torch.zeros(1))
    weight.grad = torch.zeros(1)
    optimizer = torch.optim.AdamW([weight], lr=BASE)
    conf = {"trainer": {"use_scheduler": True, "scheduler": dict(scheduler)}}
    stepper, kind = load_scheduler(optimizer, conf), scheduler["scheduler_type"]
    expected = credit_rates(kind, optimizer, stepper, num_steps, PER_EPOCH)
    schedule = build_schedule(with_scheduler(**scheduler), batches_per_epoch=PER_EPOCH)
    rates = np.asarray(jax.jit(jax.vmap(schedule))(jnp.arange(num_steps)))
    error = np.abs(rates - expected).max() / np.abs(expected).max()
    relative = np.abs(rates - expected) / np.maximum(np.abs(expected), 1e-12)
    print(f"{name}: error {error:.1e} of the top, {relative.max():.1e} relative")
    assert error < 1e-6, f"{name}: step {np.abs(rates - expected).argmax()}"
    bound = 1e-6 if name == "long" else 1e-5
    assert relative[expected > 1e-7].max() < bound, f"{name}: step {relative.argmax()}"


@pytest.mark.parametrize("name", ["linear", "restarts", "cosine", "lambda"])
def test_update_learning_rate_sets_the_first_rate(name, torch, credit, tmp_path):
    """CREDIT sets it when all is loaded, also where there is nothing to load."""
    from credit.trainers.utils import load_model_states_and_optimizer

    scheduler = SCHEDULES[name]
    keys = {"learning_rate": BASE, "use_scheduler": True, "update_learning_rate": True}
    others = {"weight_decay": 0.0, "amp": False, "scheduler": dict(scheduler)}
    conf = {"save_loc": f"{tmp_path}", "trainer": keys | others}
    _, _, optimizer, stepper, _ = load_model_states_and_optimizer(
        conf, torch.nn.Linear(1, 1), "cpu"
    )
    kind = scheduler["scheduler_type"]
    expected = credit_rates(kind, optimizer, stepper, 4, 100)
    config = trainer_of_schedules(**keys, scheduler=scheduler)
    schedule = build_schedule(config, batches_per_epoch=4)
    if config.sets_first_rate:
        schedule = with_first_rate_at(schedule, 0, config.learning_rate)
    rates = [float(schedule(step)) for step in range(4)]
    np.testing.assert_allclose(rates, expected, rtol=1e-6)
    assert config.sets_first_rate == (name in ("linear", "restarts"))


def test_a_long_run_keeps_its_precision():
    """And a run without a schedule its rate."""
    scheduler = {**WARMUP, "warmup_steps": 1000, "total_steps": 500_000, "min_lr": 0.0}
    schedule = build_schedule(with_scheduler(**scheduler), batches_per_epoch=1)
    step = 499_000
    expected = BASE * 0.5 * (1 + np.cos(np.pi * (step - 1000) / 499_000))
    rate = float(schedule(jnp.asarray(step, jnp.int32)))
    assert rate == pytest.approx(expected, rel=1e-5)
    constant = build_schedule(trainer_of_schedules(), batches_per_epoch=5)
    assert float(constant(jnp.int32(7))) == pytest.approx(BASE)


def parsed(schedule, scheduler_type):
    return lambda **keys: parse(schedule, {"scheduler_type": scheduler_type, **keys})


plateau = parsed(PlateauConfig, "plateau")
CASES.rows(plateau, {"factor": 1.0}, {"mode": "least"}, {"epsilon": 1e-8})
cycles = parsed(CosineAnnealingRestartsConfig, RESTARTS["scheduler_type"])
CASES.rows(cycles, {"first_cycle_steps": 10, "cycle_mult": 0.5})
