"""State of optimizers and schedules beside PyTorch and CREDIT."""

import warnings
from dataclasses import replace

import chex
import jax.numpy as jnp
import pytest
import torch

from credit_jax.checkpoint import Progress
from credit_jax.models.conversion import idle_keys, key_map_for
from credit_jax.models.registry import build
from credit_jax.training.optimizer import build_schedule
from credit_torch_bridge.checkpoint.jax_checkpoint import Moments
from credit_torch_bridge.checkpoint.optimizer import (
    CORRECTED,
    read_moments,
    read_plateau,
    read_position,
    settings_of,
    write_moments,
    write_position,
)
from tests.bridge.runs import CONFIG, draw
from tests.messages.engine import *  # noqa: F403
from tests.messages.engine import Cases
from tests.support.credit_modules import credit_attribute
from tests.training.settings import trainer_config

CASES = Cases("optimizer")
MODEL = CONFIG["model"] | {"depth": [1, 1, 1, 1]}
BLOCKS = {
    "spectral norm": MODEL,
    "no spectral norm": MODEL | {"use_spectral_norm": False},
    "deep": MODEL | {"depth": [2, 1, 11, 1]},
    "crossformer": MODEL | {"type": "crossformer"},
    "crossformer, interpolating": MODEL
    | {"type": "crossformer", "upsample_v_conv": True, "attention_type": "mixed"},
}
PLAN = key_map_for(build(MODEL)).parameters


@pytest.mark.reference
@pytest.mark.parametrize("name", BLOCKS)
def test_keys_are_in_pytorch_s_order(credit, name):
    model = credit.build_credit(BLOCKS[name])
    plan = key_map_for(build(BLOCKS[name]))
    assert plan.keys == list(model.state_dict())
    assert plan.parameters.keys == [key for key, _ in model.named_parameters()]


@pytest.mark.reference
@pytest.mark.parametrize("patch", [1, 2])
def test_idle_parameters_are_those_without_a_gradient(credit, patch):
    size = {"image_height": 32 * patch, "image_width": 64 * patch}
    block = MODEL | size | {"patch_height": patch, "patch_width": patch}
    case = credit.credit_case(block)
    idle = [key for key in case.parameters if key not in case.gradients]
    assert idle_keys(build(block)) == idle
    assert bool(idle) == (patch == 1)


@pytest.fixture
def moments():
    return Moments(draw(1, build(MODEL)), draw(2, build(MODEL)), 7)


@pytest.fixture
def written(moments):
    return write_moments(moments, PLAN, trainer_config(), 1e-4)


@pytest.mark.parametrize("data", ["none", "fsdp2"])
def test_the_round_trip_is_bitwise(moments, data):
    trainer = trainer_config(parallelism={"data": data}, weight_decay=0.5)
    state = write_moments(moments, PLAN, trainer, 1e-4)
    back, group = read_moments(state, PLAN)
    assert (group["lr"], group["weight_decay"], back.count) == (1e-4, 0.5, 7)
    chex.assert_trees_all_equal((moments.mu, moments.nu), (back.mu, back.nu))


def test_torch_takes_the_state(written):
    shapes = [p.arrangement.torch_shape(p.shape) for p in PLAN.entries]
    parameters = [torch.nn.Parameter(torch.zeros(shape)) for shape in shapes]
    optimizer = torch.optim.AdamW(parameters, lr=1.0)
    optimizer.load_state_dict(written)
    assert optimizer.state_dict()["param_groups"][0]["betas"] == (0.9, 0.95)


BETAS = {"betas": (0.9, 0.999)}
# Changes of the group, and of the state of the first parameter.
BROKEN = {
    "betas": (BETAS, {}),
    "amsgrad": ({"amsgrad": True}, {}),
    "eps": ({"eps": 1e-6}, {}),
    "adam": ({"decoupled_weight_decay": False}, {}),
    "too few": ({"params": [0, 1]}, {}),
    "no list": (None, {}),
    "unknown": ({}, {}),
    "sgd": ({}, None),
    "shape": ({}, {"exp_avg": torch.zeros(9)}),
    "nan": ({}, {"exp_avg_sq": torch.full((4,), float("nan"))}),
    "text": ({}, {"step": "many"}),
    "half": ({}, {"step": 1.5}),
    "another count": ({}, {"step": torch.tensor(6.0)}),
}


def read(name, written):
    group, entry = BROKEN[name]
    group = {"lr": 1.0} if group is None else written["param_groups"][0] | group
    full = written["state"][0]
    entry = {"momentum_buffer": 1} if entry is None else full | entry
    state = written["state"] | {999 if name == "unknown" else 0: entry}
    read_moments({"state": state, "param_groups": [group]}, PLAN)


CASES.rows(read, *BROKEN)


def test_counts_may_differ_where_it_does_not_matter(written):
    for key, entry in written["state"].items():
        entry["step"] = torch.tensor(float(CORRECTED + key))
    count = read_moments(written, PLAN)[0].count
    assert count == CORRECTED + len(PLAN.keys) - 1
    written["state"][3]["step"] = torch.tensor(0.0)
    assert read_moments(written, PLAN)[0].count == count


def test_a_frozen_parameter_is_in_the_group_and_has_no_state(moments, written):
    path = next(entry.path for entry in PLAN.entries if entry.path.endswith("bias"))
    keys = {entry.key for entry in PLAN.entries if entry.path == path}
    plan = replace(PLAN, frozen=frozenset({path}))
    mu, nu = (
        {p: x for p, x in kind.items() if p != path}
        for kind in (moments.mu, moments.nu)
    )
    trained = Moments(mu, nu, moments.count)
    state = write_moments(trained, plan, trainer_config(), 1e-4)
    numbers = {*range(len(plan.keys))}
    assert {*state["param_groups"][0]["params"]} == numbers
    assert numbers - {*state["state"]} == {plan.keys.index(key) for key in keys}
    back, _ = read_moments(state, plan)
    chex.assert_trees_all_equal(vars(back), vars(trained))
    ignored = "CREDIT ignores trainer.finetune: leave it out of the config if all"
    with pytest.raises(ValueError, match=ignored) as raised:
        read_moments(written, plan)
    assert "has the moment exp_avg, but the model keeps" in str(raised.value)


BATCHES = 5
BASE = 3e-4
WARM_UP = {"scheduler_type": "linear-warmup-cosine"}
FLOOR = {"min_lr": 1e-6}
RESTARTS = {"scheduler_type": "cosine-annealing-restarts", "max_lr": 1e-3}
RESTARTS |= {"min_lr": 1e-5}
COSINE = {"scheduler_type": "cosine-annealing"}
# name: the scheduler section, micro-batches seen (whole epochs if it counts those)
SCHEDULES = {
    "warm-up, before": (WARM_UP | FLOOR | {"warmup_steps": 20, "total_steps": 60}, 15),
    "warm-up, after": (WARM_UP | FLOOR | {"warmup_steps": 7, "total_steps": 60}, 35),
    "warm-up, over": (WARM_UP | FLOOR | {"warmup_steps": 0, "total_steps": 10}, 20),
    "restarts, first": (
        RESTARTS | {"first_cycle_steps": 10, "warmup_steps": 4, "cycle_mult": 2.0}
        | {"gamma": 0.7}, 5,
    ),
    "restarts, third": (
        RESTARTS | {"first_cycle_steps": 6, "warmup_steps": 2, "cycle_mult": 1.5}
        | {"gamma": 0.7}, 25,
    ),
    "restarts, unchanged": (RESTARTS | {"first_cycle_steps": 5}, 10),
    "cosine": (COSINE | {"T_max": 7, "eta_min": 1e-6}, 15),
    "cosine, back": (COSINE | {"T_max": 2}, 15),
    "lambda": ({"scheduler_type": "lambda"}, 15),
    "lambda, falling": ({"scheduler_type": "lambda"}, 100),
    "at the start": (WARM_UP, 0),
}  # fmt: skip
PER_EPOCH = {"cosine-annealing": 1, "lambda": 2}


@pytest.fixture
def scheduler_of(credit):
    """`scheduler_of(section)` -> CREDIT's scheduler and its optimizer."""

    def build_it(section):
        load = credit_attribute("scheduler", "load_scheduler")
        optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=BASE)
        trainer = {"use_scheduler": True, "scheduler": dict(section)}
        return load(optimizer, {"trainer": trainer}), optimizer

    return build_it


@pytest.fixture
def stepped(scheduler_of):
    """`stepped(section, micro_steps)` -> CREDIT's scheduler and its rate."""

    def step(section, micro_steps):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            scheduler, optimizer = scheduler_of(section)
            optimizer.step()
            per_epoch = PER_EPOCH.get(section["scheduler_type"])
            epochs = micro_steps // BATCHES * (per_epoch or 0)
            for _ in range(epochs if per_epoch else micro_steps):
                scheduler.step()
        return scheduler, optimizer.param_groups[0]["lr"]

    return step


def config(section):
    return trainer_config(learning_rate=BASE, use_scheduler=True, scheduler=section)


@pytest.mark.reference
@pytest.mark.parametrize("name", SCHEDULES)
def test_the_state_is_credit_s_own_and_is_read_back(stepped, name):
    """Its rate is that of our schedule, too."""
    section, micro_steps = SCHEDULES[name]
    scheduler, rate = stepped(section, micro_steps)
    state, ours = write_position(config(section), micro_steps, BATCHES)
    print(f"{name}: rate {ours}, CREDIT {rate}")
    assert ours == rate
    assert state == scheduler.state_dict()
    assert read_position(state, section["scheduler_type"], BATCHES) == micro_steps
    if "lambda" not in name:
        schedule = build_schedule(config(section), batches_per_epoch=BATCHES)
        trained = float(schedule(jnp.int32(micro_steps)))
        assert trained == pytest.approx(rate, rel=1e-5, abs=1e-12)


@pytest.mark.reference
def test_settings_and_states_of_schedules(stepped):
    """CREDIT's settings take precedence, as they do in its resume."""
    section, steps = SCHEDULES["warm-up, after"]
    state = stepped(section, steps)[0].state_dict()
    kept = {key: section[key] for key in ("warmup_steps", "total_steps", "min_lr")}
    expected = {f"trainer.scheduler.{key}": value for key, value in kept.items()}
    expected["trainer.learning_rate"] = BASE
    assert settings_of(state, section["scheduler_type"]) == expected
    constant = trainer_config(learning_rate=BASE)
    assert write_position(constant, 12, None) == (None, BASE)
    section, steps = SCHEDULES["cosine"]
    state = stepped(section, steps)[0].state_dict()
    with pytest.raises(ValueError, match="not the state of 'linear-warmup-cosine'"):
        read_position(state, "linear-warmup-cosine", BATCHES)
    with pytest.raises(ValueError, match="give --batches-per-epoch"):
        read_position(state, "cosine-annealing", None)
    with pytest.raises(ValueError, match="give --batches-per-epoch"):
        write_position(config(section), steps, None)


@pytest.mark.reference
@pytest.mark.parametrize(
    "values", [[], [3.0, 1.0, 2.0], [1.0, 2.0, 2.0, 2.0], [1.0] + [2.0] * 9]
)
def test_the_state_of_a_plateau(scheduler_of, values):
    """Round trip of CREDIT's state between two reductions and in a cooldown."""
    section = {"scheduler_type": "plateau", "patience": 1, "cooldown": 2, "factor": 0.5}
    trainer = config(section)
    scheduler, optimizer = scheduler_of(section)
    for value in values:
        scheduler.step(value)
    rate, state = optimizer.param_groups[0]["lr"], scheduler.state_dict()
    plateau = read_plateau(state)
    assert plateau.epochs == len(values)
    progress = Progress(learning_rate=rate, plateau=plateau)
    assert write_position(trainer, 99, None, progress) == (state, rate)
    expected = trainer.scheduler.model_dump(exclude={"scheduler_type"})
    found = settings_of(state, "plateau")
    assert found == {f"trainer.scheduler.{k}": v for k, v in expected.items()}
    with pytest.raises(ValueError, match="not the state of 'plateau'"):
        read_plateau({"last_epoch": 3})
