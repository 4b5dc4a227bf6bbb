"""Schedules against CREDIT's scheduler classes, step by step."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from credit_jax.training.optimizer import build_schedule, with_first_rate_at
from tests.training.settings import trainer_config

BASE = 2e-3
trainer = partial(trainer_config, learning_rate=BASE)


def with_scheduler(**scheduler):
    return trainer(use_scheduler=True, scheduler=scheduler)


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
    config = trainer(**keys)
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
    assert our_rates(trainer(), 5, 5) == pytest.approx([BASE] * 5)


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
