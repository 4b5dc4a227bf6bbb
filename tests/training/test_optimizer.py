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
from credit_jax.models.model_def import ModelDef
from credit_jax.nn.low_rank import LowRank
from credit_jax.parallel.mesh.device_mesh import DOMAIN, DP_SHARD, TP
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
from tests.support import assert_close, assert_trees_close
from tests.training.settings import trainer_config
from tests.training.toy_runs import MODEL_DEF, mse, toy_batches, toy_model, train_toy

SHAPES = {"kernel": (8, 6), "bias": (4,), "scale": ()}


def trainer(weight_decay=0.1, grad_max_norm=0.0):
    return trainer_config(weight_decay=weight_decay, grad_max_norm=grad_max_norm)


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
    optimizer = build_optimizer(trainer(weight_decay, max_norm))
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
    assert DOMAIN in mesh.axis_names
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


def test_small_gradients_are_not_scaled(rng):
    grads = draw(rng, size=1e-3)
    assert_trees_close(clip(grads, 1.0), grads, 0.0, "gradient")


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


def test_given_norm_is_used(rng):
    optimizer = build_optimizer(trainer(grad_max_norm=1.0))
    params, grads = draw(rng), draw(rng)
    state = optimizer.init(params)
    rate = jnp.float32(1e-3)
    norm = global_norm(grads)
    own = optimizer.update(grads, state, params, learning_rate=rate)
    given = optimizer.update(grads, state, params, learning_rate=rate, grad_norm=norm)
    assert_trees_close(given[0], own[0], 0.0, "updates")


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


def test_state_that_is_not_elementwise_is_refused_where_parameters_are_split() -> None:
    optimizer = optax.adafactor(1e-2, min_dim_size_to_factor=4)
    train_toy(toy_model(), optimizer, 1)
    with pytest.raises(ValueError, match="elementwise") as error:
        state_specs(toy_model(**MESH), optimizer)
    text = str(error.value)
    assert "v_row.dense/down has the shape (6,) for whole parameters and (" in text


def test_updates_that_mix_shards_are_refused() -> None:
    """optax's own clipping would use the norm of local shards."""
    optimizer = optax.chain(optax.clip_by_global_norm(0.1), optax.sgd(1e-2))
    train_toy(toy_model(domain=2), optimizer, 1)
    with pytest.raises(ValueError, match="'dense/bias' differs over the mesh") as error:
        train_toy(toy_model(**MESH), optimizer, 1)
    assert "credit_jax.training.optimizer.clip_by_global_norm" in str(error.value)


def test_adamw_needs_a_schedule() -> None:
    with pytest.raises(ValueError, match="no learning rate; pass `schedule`"):
        train_toy(toy_model(), adamw(), 1)


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


@pytest.mark.parametrize("degrees", [{}, {"dp": 2, "tp": 2, "domain": 2}])
def test_a_parameter_is_frozen_by_its_name(degrees: dict[str, int]) -> None:
    frozen = optax.multi_transform(
        {"rest": adamw(weight_decay=0.1), "bias": optax.set_to_zero()}, _labels
    )
    schedule = optax.constant_schedule(1e-2)
    start, state, _ = train_toy(toy_model(**degrees), frozen, 2, schedule=schedule)
    same = {
        path: np.array_equal(value, start.params[path])
        for path, value in state.params.items()
    }
    assert same == {path: path == "dense/bias" for path in MODEL_DEF.param_specs}


def test_weights_decay_by_name() -> None:
    """Without a gradient only those that decay move."""
    decayed = optax.chain(
        optax.set_to_zero(),
        optax.add_decayed_weights(
            -0.5, mask=lambda params: {path: path.endswith("bias") for path in params}
        ),
    )
    start, state, _ = train_toy(toy_model(), decayed, 1)
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


ADAPTED = replace(
    MODEL_DEF,
    frozen=frozenset(MODEL_DEF.param_specs) - {"dense/bias"},
    low_rank=LowRank(2, 1.0, frozenset({"dense/up", "dense/down"})),
)


@pytest.mark.slow
@pytest.mark.parametrize("model_def", [MODEL_DEF, ADAPTED], ids=["all", "adapters"])
def test_moments_of_another_state_go_on_over_meshes(model_def: ModelDef) -> None:
    """With adapters those of what is trained besides; adapters begin with 0."""
    optimizer, schedule = adamw(), optax.constant_schedule(1e-2)
    trained = train_toy(toy_model(), optimizer, 2, schedule=schedule)[1]
    adam = trained.opt_state[ADAM]
    mu, nu = (
        {path: x for path, x in part.items() if path in model_def.trainable}
        for part in adam[1:]
    )
    assert ("dense/up" in mu) == (model_def is MODEL_DEF)
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


BASE = 2e-3
trainer_of_schedules = partial(trainer_config, learning_rate=BASE)


def with_scheduler(**scheduler):
    return trainer_of_schedules(use_scheduler=True, scheduler=scheduler)


def credit_rates(scheduler, num_steps, batches_per_epoch):
    """Returns the rate of every micro-batch, stepped as by CREDIT's trainer."""
    import torch
    from credit.scheduler import load_scheduler, update_on_batch

    weight = torch.nn.Parameter(torch.zeros(1))
    weight.grad = torch.zeros(1)
    optimizer = torch.optim.AdamW([weight], lr=BASE)
    conf = {"trainer": {"use_scheduler": True, "scheduler": dict(scheduler)}}
    stepper = load_scheduler(optimizer, conf)
    kind, rates = scheduler["scheduler_type"], []
    optimizer.step()
    for step in range(num_steps):
        if kind == "lambda" and step % batches_per_epoch == 0:
            stepper.step()
        rates.append(optimizer.param_groups[0]["lr"])
        ends_epoch = (step + 1) % batches_per_epoch == 0
        if kind in update_on_batch or ends_epoch:
            stepper.step()
    return np.array(rates)


def our_rates(config, num_steps, batches_per_epoch):
    schedule = build_schedule(config, batches_per_epoch=batches_per_epoch)
    steps = jnp.arange(num_steps, dtype=jnp.int32)
    return np.asarray(jax.jit(jax.vmap(schedule))(steps))


RESTARTS = {"scheduler_type": "cosine-annealing-restarts", "min_lr": 1e-6}
CASES = {
    "linear": {
        "scheduler_type": "linear-warmup-cosine",
        "warmup_steps": 10,
        "total_steps": 100,
        "min_lr": 1e-5,
    },
    "linear_no_warmup": {
        "scheduler_type": "linear-warmup-cosine",
        "warmup_steps": 0,
        "total_steps": 70,
        "min_lr": 0.0,
    },
    "restarts": {
        **RESTARTS,
        "first_cycle_steps": 50,
        "max_lr": 1e-3,
        "warmup_steps": 10,
    },
    "restarts_growing": {
        **RESTARTS,
        "first_cycle_steps": 11,
        "cycle_mult": 1.7,
        "max_lr": 1e-3,
        "warmup_steps": 3,
        "gamma": 0.8,
    },
    "restarts_slow": {
        **RESTARTS,
        "first_cycle_steps": 9,
        "cycle_mult": 1.05,
        "max_lr": 1e-3,
        "gamma": 0.9,
    },
    "cosine": {"scheduler_type": "cosine-annealing", "T_max": 7, "eta_min": 1e-6},
    "lambda": {"scheduler_type": "lambda"},
}


@pytest.mark.parametrize("name", CASES)
def test_equals_credit(name, credit):
    per_epoch = 3
    num_steps = 330
    expected = credit_rates(CASES[name], num_steps, per_epoch)
    rates = our_rates(with_scheduler(**CASES[name]), num_steps, per_epoch)
    error = np.abs(rates - expected).max() / np.abs(expected).max()
    relative = np.abs(rates - expected) / np.maximum(np.abs(expected), 1e-12)
    print(f"{name}: error {error:.1e} of the top, {relative.max():.1e} relative")
    assert error < 1e-6, f"{name}: step {np.abs(rates - expected).argmax()}"
    assert relative[expected > 1e-7].max() < 1e-5, f"{name}: step {relative.argmax()}"


@pytest.mark.parametrize("name", ["linear", "restarts", "cosine", "lambda"])
def test_update_learning_rate_sets_the_first_rate(name, credit, tmp_path):
    """CREDIT sets it when all is loaded, also where there is nothing to load."""
    import torch
    from credit.scheduler import update_on_batch
    from credit.trainers.utils import load_model_states_and_optimizer

    keys = {
        "learning_rate": BASE,
        "use_scheduler": True,
        "scheduler": CASES[name],
        "update_learning_rate": True,
    }
    given = {"save_loc": f"{tmp_path}", "trainer": keys | {"weight_decay": 0.0}}
    given["trainer"] |= {"amp": False, "scheduler": dict(CASES[name])}
    _, _, optimizer, stepper, _ = load_model_states_and_optimizer(
        given, torch.nn.Linear(1, 1), "cpu"
    )
    optimizer.step()
    expected = []
    for _ in range(4):
        if name == "lambda" and not expected:
            stepper.step()
        expected.append(optimizer.param_groups[0]["lr"])
        if CASES[name]["scheduler_type"] in update_on_batch:
            stepper.step()
    config = trainer_of_schedules(**keys)
    schedule = build_schedule(config, batches_per_epoch=4)
    if config.sets_first_rate:
        schedule = with_first_rate_at(schedule, 0, config.learning_rate)
    rates = [float(schedule(step)) for step in range(4)]
    np.testing.assert_allclose(rates, expected, rtol=1e-6)
    assert config.sets_first_rate == (name in ("linear", "restarts"))


def test_first_rate_of_a_warmup_is_zero():
    assert our_rates(with_scheduler(**CASES["linear"]), 2, 5)[0] == 0.0


def test_a_long_warmup_is_exact_from_its_first_steps(credit):
    scheduler = {
        "scheduler_type": "linear-warmup-cosine",
        "warmup_steps": 10_000,
        "total_steps": 500_000,
    }
    expected = credit_rates(scheduler, 40, 5)
    rates = our_rates(with_scheduler(**scheduler), 40, 5)
    error = np.abs(rates[1:] / expected[1:] - 1).max()
    print(f"linear, 10,000 steps of warm-up: {error:.1e} relative")
    assert error < 1e-6


def test_constant():
    assert our_rates(trainer_of_schedules(), 5, 5) == pytest.approx([BASE] * 5)


def test_a_long_run_keeps_its_precision():
    scheduler = {
        "scheduler_type": "linear-warmup-cosine",
        "warmup_steps": 1000,
        "total_steps": 500_000,
        "min_lr": 0.0,
    }
    schedule = build_schedule(with_scheduler(**scheduler), batches_per_epoch=1)
    step = 499_000
    expected = BASE * 0.5 * (1 + np.cos(np.pi * (step - 1000) / 499_000))
    rate = float(schedule(jnp.asarray(step, jnp.int32)))
    assert rate == pytest.approx(expected, rel=1e-5)


def test_shrinking_cycles_are_refused():
    with pytest.raises(ValueError, match=r"(?s)cycle_mult.*greater than or equal to 1"):
        with_scheduler(**RESTARTS, first_cycle_steps=10, cycle_mult=0.5)
