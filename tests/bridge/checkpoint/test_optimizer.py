"""State of optimizers and schedules beside PyTorch and CREDIT."""

import warnings
from dataclasses import replace

import chex
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import yaml

from credit_jax.checkpoint import Progress
from credit_jax.models.conversion import idle_keys, key_map_for
from credit_jax.models.registry import build
from credit_jax.training.optimizer import build_schedule
from credit_torch_bridge.checkpoint.jax_checkpoint import Moments
from credit_torch_bridge.checkpoint.optimizer import (
    CORRECTED,
    read_moments,
    write_moments,
)
from credit_torch_bridge.checkpoint.schedulers import (
    read_plateau,
    read_position,
    settings_of,
    write_position,
)
from tests.reference.training import GEN2_CONFIG
from tests.support.credit_modules import credit_attribute
from tests.training.settings import trainer_config

MODEL = yaml.safe_load(GEN2_CONFIG.read_text())["model"] | {"depth": [1, 1, 1, 1]}
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
def moments(rng):
    def drawn():
        return {
            path: rng.normal(size=d.shape).astype("f4")
            for path, d in build(MODEL).param_specs.items()
        }

    return Moments(drawn(), drawn(), 7)


@pytest.fixture
def written(moments):
    return write_moments(moments, PLAN, trainer_config(), 1e-4)


def change(written, key, **entry):
    written["state"][key] = written["state"][key] | entry
    return written


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


def test_counts_may_differ_only_where_it_does_not_matter(written):
    change(written, 3, step=torch.tensor(6.0))
    with pytest.raises(ValueError, match=r"a different number of times, 6 \(layers"):
        read_moments(written, PLAN)
    for key in written["state"]:
        change(written, key, step=torch.tensor(float(CORRECTED + key)))
    count = read_moments(written, PLAN)[0].count
    assert count == CORRECTED + len(PLAN.keys) - 1
    change(written, 3, step=torch.tensor(0.0))
    assert read_moments(written, PLAN)[0].count == count


def _broken(written):
    group = written["param_groups"][0]
    return {
        "betas": (group | {"betas": (0.9, 0.999)}, None, "betas are (0.9, 0.999)"),
        "amsgrad": (group | {"amsgrad": True}, None, "amsgrad is on"),
        "eps": (group | {"eps": 1e-6}, None, "eps is 1e-06"),
        "adam": (group | {"decoupled_weight_decay": False}, None, "it is Adam, not"),
        "too few": (group | {"params": [0, 1]}, None, "has 2 parameters, the model"),
        "no list": ({"lr": 1.0}, None, "does not list its parameters"),
        "unknown": (group, {"step": 1}, "state for 999, which is no parameter"),
        "sgd": (group, {"momentum_buffer": 1}, "expected ['exp_avg', 'exp_avg_sq'"),
        "shape": (group, {"exp_avg": torch.zeros(9)}, "exp_avg: the PyTorch state"),
        "nan": (group, {"exp_avg_sq": torch.full((4,), float("nan"))}, "not finite"),
        "text": (group, {"step": "many"}, "step of layers.0.0.convs.0.1.bias is"),
        "half": (group, {"step": 1.5}, "expected a count"),
    }


@pytest.mark.parametrize("name", list(_broken({"param_groups": [{}]})))
def test_what_cannot_be_taken(written, name):
    group, entry, words = _broken(written)[name]
    key = 999 if name == "unknown" else 0
    full = written["state"][0] | (entry or {})
    state = written["state"] | {key: entry if name == "sgd" else full}
    with pytest.raises(ValueError, match="optimizer") as caught:
        read_moments({"state": state, "param_groups": [group]}, PLAN)
    assert words in str(caught.value)


def test_a_frozen_parameter_is_in_the_group_and_has_no_state(moments):
    path = next(entry.path for entry in PLAN.entries if entry.path.endswith("bias"))
    keys = {entry.key for entry in PLAN.entries if entry.path == path}
    plan = replace(PLAN, frozen=frozenset({path}))
    trained = Moments(
        *(
            {p: x for p, x in kind.items() if p != path}
            for kind in (moments.mu, moments.nu)
        ),
        moments.count,
    )
    state = write_moments(trained, plan, trainer_config(), 1e-4)
    numbers = {plan.keys.index(key) for key in keys}
    assert state["param_groups"][0]["params"] == list(range(len(plan.keys)))
    assert set(range(len(plan.keys))) - set(state["state"]) == numbers
    back, _ = read_moments(state, plan)
    assert back.count == moments.count
    for ours, given in ((back.mu, trained.mu), (back.nu, trained.nu)):
        assert ours.keys() == given.keys()
        assert all(np.array_equal(ours[p], x) for p, x in given.items())


def test_moments_of_a_frozen_parameter_are_refused(written):
    path = next(entry.path for entry in PLAN.entries if entry.path.endswith("bias"))
    plan = replace(PLAN, frozen=frozenset({path}))
    ignored = "CREDIT ignores trainer.finetune: leave it out of the config if all"
    with pytest.raises(ValueError, match=ignored) as raised:
        read_moments(written, plan)
    assert "has the moment exp_avg, but the model keeps" in str(raised.value)


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


@pytest.mark.reference
@pytest.mark.parametrize("name", CASES)
def test_the_state_is_credit_s_own_and_is_read_back(stepped, name):
    section, micro_steps = CASES[name]
    scheduler, rate = stepped(section, micro_steps)
    state, ours = write_position(config(section), micro_steps, BATCHES)
    print(f"{name}: rate {ours}, CREDIT {rate}")
    assert ours == rate
    assert state == scheduler.state_dict()
    assert read_position(state, section["scheduler_type"], BATCHES) == micro_steps


@pytest.mark.reference
@pytest.mark.parametrize("name", [name for name in CASES if "lambda" not in name])
def test_the_rate_is_that_of_our_schedule(name):
    section, micro_steps = CASES[name]
    _, rate = write_position(config(section), micro_steps, BATCHES)
    schedule = build_schedule(config(section), batches_per_epoch=BATCHES)
    ours = float(schedule(jnp.int32(micro_steps)))
    print(f"{name}: rate {ours}, PyTorch's {rate}")
    assert ours == pytest.approx(rate, rel=1e-5, abs=1e-12)


@pytest.mark.reference
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


@pytest.mark.reference
def test_a_constant_rate_has_no_state():
    trainer = trainer_config(learning_rate=BASE)
    assert write_position(trainer, 12, None) == (None, BASE)


@pytest.mark.reference
def test_another_schedule_and_an_unknown_epoch_are_refused(stepped):
    section, steps = CASES["cosine"]
    state = stepped(section, steps)[0].state_dict()
    with pytest.raises(ValueError, match="not the state of 'linear-warmup-cosine'"):
        read_position(state, "linear-warmup-cosine", BATCHES)
    with pytest.raises(ValueError, match="give --batches-per-epoch"):
        read_position(state, "cosine-annealing", None)
    with pytest.raises(ValueError, match="give --batches-per-epoch"):
        write_position(config(section), steps, None)


@pytest.mark.reference
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
