"""The position of every schedule, against CREDIT's own schedulers."""

import warnings

import jax.numpy as jnp
import pytest
import torch

from credit_jax.checkpoint import Progress
from credit_jax.training.optimizer import build_schedule
from credit_torch_bridge.checkpoint.schedulers import (
    read_plateau,
    read_position,
    settings_of,
    write_position,
)
from tests.support.credit_modules import credit_attribute
from tests.training.settings import trainer_config

pytestmark = pytest.mark.reference

BATCHES = 5
BASE = 3e-4
# name: the scheduler section, micro-batches seen (whole epochs if it counts those)
CASES = {
    "warm-up, before": ({"scheduler_type": "linear-warmup-cosine", "warmup_steps": 20,
                         "total_steps": 60, "min_lr": 1e-6}, 15),
    "warm-up, after": ({"scheduler_type": "linear-warmup-cosine", "warmup_steps": 7,
                        "total_steps": 60, "min_lr": 1e-6}, 35),
    "warm-up, over": ({"scheduler_type": "linear-warmup-cosine", "warmup_steps": 0,
                       "total_steps": 10, "min_lr": 1e-6}, 20),
    "restarts, first": ({"scheduler_type": "cosine-annealing-restarts",
                         "first_cycle_steps": 10, "warmup_steps": 4, "max_lr": 1e-3,
                         "min_lr": 1e-5, "cycle_mult": 2.0, "gamma": 0.7}, 5),
    "restarts, third": ({"scheduler_type": "cosine-annealing-restarts",
                         "first_cycle_steps": 6, "warmup_steps": 2, "max_lr": 1e-3,
                         "min_lr": 1e-5, "cycle_mult": 1.5, "gamma": 0.7}, 25),
    "restarts, unchanged": ({"scheduler_type": "cosine-annealing-restarts",
                             "first_cycle_steps": 5, "max_lr": 1e-3,
                             "min_lr": 1e-5}, 10),
    "cosine": ({"scheduler_type": "cosine-annealing", "T_max": 7, "eta_min": 1e-6}, 15),
    "cosine, back": ({"scheduler_type": "cosine-annealing", "T_max": 2}, 15),
    "lambda": ({"scheduler_type": "lambda"}, 15),
    "lambda, falling": ({"scheduler_type": "lambda"}, 100),
    "at the start": ({"scheduler_type": "linear-warmup-cosine"}, 0),
}  # fmt: skip
PER_EPOCH = {"cosine-annealing": 1, "lambda": 2}


@pytest.fixture
def stepped(credit):
    """`stepped(section, micro_steps)` -> CREDIT's scheduler and its rate."""

    def step(section, micro_steps):
        load = credit_attribute("scheduler", "load_scheduler")
        parameter = torch.nn.Parameter(torch.zeros(1))
        optimizer = torch.optim.AdamW([parameter], lr=BASE)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trainer = {"use_scheduler": True, "scheduler": section}
            scheduler = load(optimizer, {"trainer": trainer})
            optimizer.step()
            per_epoch = PER_EPOCH.get(section["scheduler_type"])
            count = micro_steps
            if per_epoch:
                count = micro_steps // BATCHES * per_epoch
            for _ in range(count):
                scheduler.step()
        return scheduler, optimizer.param_groups[0]["lr"]

    return step


def config(section):
    return trainer_config(learning_rate=BASE, use_scheduler=True, scheduler=section)


@pytest.mark.parametrize("name", CASES)
def test_the_state_is_credit_s_own_and_is_read_back(stepped, name):
    section, micro_steps = CASES[name]
    scheduler, rate = stepped(section, micro_steps)
    state, ours = write_position(config(section), micro_steps, BATCHES)
    print(f"{name}: rate {ours}, CREDIT {rate}")
    assert ours == rate
    assert state == scheduler.state_dict()
    assert read_position(state, section["scheduler_type"], BATCHES) == micro_steps


@pytest.mark.parametrize("name", [name for name in CASES if "lambda" not in name])
def test_the_rate_is_that_of_our_schedule(name):
    section, micro_steps = CASES[name]
    _, rate = write_position(config(section), micro_steps, BATCHES)
    schedule = build_schedule(config(section), batches_per_epoch=BATCHES)
    ours = float(schedule(jnp.int32(micro_steps)))
    print(f"{name}: rate {ours}, PyTorch's {rate}")
    assert ours == pytest.approx(rate, rel=1e-5, abs=1e-12)


def test_credit_s_settings_win_as_they_do_in_its_resume(stepped):
    section, steps = CASES["warm-up, after"]
    state = stepped(section, steps)[0].state_dict()
    found = settings_of(state, section["scheduler_type"])
    assert found == {
        "trainer.scheduler.warmup_steps": 7,
        "trainer.scheduler.total_steps": 60,
        "trainer.scheduler.min_lr": 1e-6,
        "trainer.learning_rate": BASE,
    }


def test_a_constant_rate_has_no_state():
    trainer = trainer_config(learning_rate=BASE)
    assert write_position(trainer, 12, None) == (None, BASE)


def test_another_schedule_and_an_unknown_epoch_are_refused(stepped):
    section, steps = CASES["cosine"]
    state = stepped(section, steps)[0].state_dict()
    with pytest.raises(ValueError, match="not the state of 'linear-warmup-cosine'"):
        read_position(state, "linear-warmup-cosine", BATCHES)
    with pytest.raises(ValueError, match="give --batches-per-epoch"):
        read_position(state, "cosine-annealing", None)
    with pytest.raises(ValueError, match="give --batches-per-epoch"):
        write_position(config(section), steps, None)


def test_the_state_of_a_plateau(credit):
    """Round trip of CREDIT's state between two reductions and in a cooldown."""
    section = {"scheduler_type": "plateau", "patience": 1, "cooldown": 2, "factor": 0.5}
    load = credit_attribute("scheduler", "load_scheduler")
    trainer = config(section)
    for values in ([], [3.0, 1.0, 2.0], [1.0, 2.0, 2.0, 2.0], [1.0] + [2.0] * 9):
        parameter = torch.nn.Parameter(torch.zeros(1))
        optimizer = torch.optim.AdamW([parameter], lr=BASE)
        conf = {"trainer": {"use_scheduler": True, "scheduler": dict(section)}}
        scheduler = load(optimizer, conf)
        for value in values:
            scheduler.step(value)
        rate = optimizer.param_groups[0]["lr"]
        state = scheduler.state_dict()
        plateau = read_plateau(state)
        assert plateau.epochs == len(values)
        progress = Progress(learning_rate=rate, plateau=plateau)
        assert write_position(trainer, 99, None, progress) == (state, rate)
        found = settings_of(state, "plateau")
        expected = trainer.scheduler.model_dump(exclude={"scheduler_type"})
        assert found == {f"trainer.scheduler.{k}": v for k, v in expected.items()}
    with pytest.raises(ValueError, match="not the state of 'plateau'"):
        read_plateau({"last_epoch": 3})
