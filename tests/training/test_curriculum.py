"""Runs in stages: equal to runs by hand, resumed within a stage and at its border."""

import dataclasses

import chex
import jax
import numpy as np
import pytest

from credit_jax.checkpoint import CheckpointStore
from credit_jax.packages.package import base_of_run
from credit_jax.training.loggers import read_records
from tests.support import assert_close
from tests.training.test_base_weights import make_base
from tests.training.test_loop import Watched, go, log_of, set_up, terminate_before

pytestmark = pytest.mark.usefixtures("tiny_model")

# Three updates of one step, two of two steps with smaller batches at a rate of its own,
# and the rest of the run through whole forecasts of three steps.
STAGES = [
    {"until": 3},
    {
        "until": 5,
        "forecast_len": 2,
        "learning_rate": 1e-4,
        "train_batch_size": 2,
        "grad_accum_every": 2,
    },
    {"forecast_len": 3, "backprop": "full", "loss": {"training_loss": "mae"}},
]
# The same as keys of three runs.
BY_HAND = [
    {"trainer__epochs": 1, "trainer__batches_per_epoch": 3},
    {
        "trainer__epochs": 2,
        "trainer__batches_per_epoch": 4,
        "data__forecast_len": 2,
        "trainer__use_scheduler": False,
        "trainer__scheduler": None,
        "trainer__learning_rate": 1e-4,
        "trainer__train_batch_size": 2,
        "trainer__grad_accum_every": 2,
    },
    {
        "trainer__epochs": 3,
        "trainer__batches_per_epoch": 6,
        "data__forecast_len": 3,
        "trainer__backprop": "full",
        "loss__training_loss": "mae",
    },
]
RUN = {"trainer__epochs": 3, "trainer__curriculum": STAGES}


def staged(world, folder, mesh="one", stop=(-1, 0), **changes):
    """Prepares a run of stages.

    SIGTERM comes before the update that begins after `stop[1]` micro-batches of the
    stage with the index `stop[0]`.
    """
    files = {"mean_path": f"{world}/mean.nc", "std_path": f"{world}/std.nc"}
    norm = {"type": "era5_normalizer", "args": {**files, "levels": [1, 3]}}
    named = {"type": "reconstruct", "args": {"detach": False}}
    run = {
        "validation_data__forecast_len": 2,
        "postblocks": {"per_step": {"named": named, "norm": norm}},
    }
    setup = set_up(world, folder / "run", mesh, **run | changes)
    stages = tuple(
        Watched.of(stage, terminate_before(stop[1]) if index == stop[0] else None)
        for index, stage in enumerate(setup.stages)
    )
    return dataclasses.replace(setup, stages=stages)


@pytest.fixture
def make(world, tmp_path):
    """`make(mesh, stop, **changes)` prepares a run."""
    return lambda *args, **changes: staged(world, tmp_path, *args, **changes)


@pytest.fixture(scope="module")
def straight(world, tiny_model, tmp_path_factory):
    """Outcome, output and folder of a run of all stages that nothing disturbs."""
    folder = tmp_path_factory.mktemp("stages")
    return *go(staged(world, folder, **RUN), folder / "run"), folder / "run"


def values(folder, name="loss"):
    lines = read_records(folder / "training_steps.jsonl")
    return [line[name] for line in lines if "event" not in line]


def assert_same_states(ours, theirs):
    """Compares weights, averages, and the moments of the optimizer."""
    for name in ("params", "ema", "opt_state", "model_state", "micro_step"):
        both = (getattr(outcome.state, name) for outcome in (ours, theirs))
        chex.assert_trees_all_equal(*map(jax.device_get, both))


@pytest.mark.slow
def test_equals_runs_by_hand(make, straight, tmp_path):
    """Losses, rates, validation, weights, bit by bit."""
    outcome, text, folder = straight
    changes, by_hand = {}, tmp_path / "hand"
    for number, run in enumerate(BY_HAND):
        changes |= run
        hand, _ = go(make(**changes), by_hand, resume=number > 0)
    for name in ("loss", "learning_rate", "grad_norm"):
        assert values(folder, name) == values(by_hand, name), name
    assert_same_states(outcome, hand)
    rows = log_of(folder)
    for row, other in zip(rows, log_of(by_hand), strict=True):
        for name in ("train_loss", "valid_loss", "valid_rmse", "lr"):
            assert row[name] == other[name], name
    assert [row["stage"] for row in rows] == [1, 2, 3]
    assert [row["train_forecast_len"] for row in rows] == [1, 2, 3]
    assert [row["valid_forecast_len"] for row in rows] == [2, 2, 2]
    assert values(folder, "stage") == [1] * 3 + [2] * 2 + [3] * 3
    assert "stage 2/3, from update 4 to 5 updates: forecast_len 2, backprop" in text
    assert "epoch 2/3, stage 2/3 done" in text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "stop", "second"),
    [
        pytest.param("one", (1, 0), "one", id="within a stage"),
        pytest.param("one", (0, 2), "one", id="at its border"),
        pytest.param("dp2_tp2_domain2", (1, 0), "domain4", id="on meshes of other dp"),
    ],
)
def test_resume(first, stop, second, make, straight, tmp_path):
    """A run that stops and goes on has the losses of one that does not."""
    expected, _, theirs = straight
    run, ours = dict(RUN), tmp_path / "run"
    if first != "one":
        # Two ranks with half as many samples each.
        small = STAGES[1] | {"train_batch_size": STAGES[1]["train_batch_size"] // 2}
        run["trainer__curriculum"] = [STAGES[0], small, STAGES[2]]
    outcome, text = go(make(first, stop, **run), ours)
    assert outcome.reason == "SIGTERM", text
    done = len(values(ours))
    assert done == (4 if stop[0] else 3)
    outcome, text = go(make(second, **RUN), ours, resume=True)
    assert outcome.reason == "finished", text
    assert f"stage 2/3, from update {done + 1} to 5 updates" in text
    if first == second:
        assert values(ours) == values(theirs)
        assert_same_states(outcome, expected)
    assert_close(values(ours), values(theirs), 1e-6, "losses")
    for name in ("learning_rate", "stage"):
        assert values(ours, name) == values(theirs, name)
    for row, other in zip(log_of(ours), log_of(theirs), strict=True):
        assert_close(row["valid_loss"], other["valid_loss"], 1e-6, "valid_loss")


@pytest.mark.slow
def test_stages_of_a_base_with_adapters(make, world, tmp_path):
    """It goes on within a stage, bit by bit, and the frozen weights are the base's."""
    lora = {"rank": 1, "alpha": 2, "targets": ["dense/up", "dense/down"]}
    section = {"from": str(make_base(world, tmp_path / "base")), "lora": lora}
    run = {**RUN, "trainer__finetune": section | {"train": ["dense/bias"]}}
    setup, folder = make(**run), tmp_path / "run"
    base = base_of_run(setup.plan.config)
    before, _ = base.weights_for(setup.model.model_def, None)
    straight, _ = go(setup, tmp_path / "straight", base=base)
    stopped, text = go(make("one", (1, 0), **run), folder, base=base)
    assert (stopped.reason, len(values(folder))) == ("SIGTERM", 4), text
    outcome, text = go(make(**run), folder, resume=True)
    assert "stage 2/3, from update 5 to 5 updates" in text
    assert values(folder) == values(tmp_path / "straight")
    assert_same_states(outcome, straight)
    for path, value in outcome.state.params.items():
        assert np.array_equal(value, before[path]) == (path in lora["targets"]), path


@pytest.mark.slow
def test_schedules(make, tmp_path):
    """That of the run counts from its start, those of stages from theirs."""
    warmup = {"warmup_steps": 4, "total_steps": 9}
    warmup |= {"scheduler_type": "linear-warmup-cosine"}
    stages = [
        {"until": "2 epochs"},
        {"until": "3 epochs", "train_batch_size": 2},
        {
            "until": "5 epochs",
            "learning_rate": 2e-3,
            "scheduler": {"scheduler_type": "cosine-annealing", "T_max": 2},
        },
        {"scheduler": warmup},
    ]
    run = {
        "trainer__batches_per_epoch": 2,
        "trainer__valid_batches_per_epoch": 1,
        "trainer__epochs": 6,
        "trainer__scheduler": {"scheduler_type": "cosine-annealing", "T_max": 4},
        "trainer__curriculum": stages,
    }
    go(make(**run), tmp_path / "run")
    expected = [1e-3 * np.cos(np.pi * epoch / 8) ** 2 for epoch in (0, 0, 1, 1, 2, 2)]
    expected += [2e-3, 2e-3, 1e-3, 1e-3, 0, 5e-4]
    assert_close(values(tmp_path / "run", "learning_rate"), expected, 1e-6, "rates")
    rows = log_of(tmp_path / "run")
    assert [row["stage"] for row in rows] == [1, 1, 2, 3, 3, 4]
    logged = [*expected[:10:2], 1e-3]  # CREDIT logs the rate of the next batch
    assert_close([row["lr"] for row in rows], logged, 1e-6, "logged rates")
    store = CheckpointStore(tmp_path / "run")
    progress = store.progress(12)
    assert (progress.updates, progress.stage, progress.schedule_step) == (12, 3, 10)
    store.close()
    # Weights alone begin the curriculum anew.
    anew = {"trainer__load_weights": True, "trainer__epochs": 1}
    _, text = go(make(**run | anew), tmp_path / "run")
    assert "stage 1/4, from update 1 to 2 epochs" in text


@pytest.mark.slow
def test_a_rate_of_the_run_goes_on(make, tmp_path):
    """A stage begins at its rate; one without keeps that which plateau lowered."""
    stages = [
        {"until": "2 epochs"},
        {"until": "4 epochs", "learning_rate": 4e-4},
        {"train_batch_size": 2},
    ]
    # No epoch but the first of a stage is better.
    never = {"patience": 0, "factor": 0.5, "threshold_mode": "abs", "threshold": 10}
    run = {
        "trainer__batches_per_epoch": 1,
        "trainer__skip_validation": True,
        "trainer__training_metric": "train_loss",
        "trainer__epochs": 6,
        "trainer__scheduler": {"scheduler_type": "plateau", **never},
        "trainer__curriculum": stages,
    }
    outcome, _ = go(make(**run), tmp_path / "run")
    expected = [1e-3, 1e-3, 4e-4, 4e-4, 2e-4, 2e-4]
    assert_close(values(tmp_path / "run", "learning_rate"), expected, 1e-7, "rates")
    losses, best = values(tmp_path / "run"), outcome.progress.best_epoch
    assert best == 4 + int(np.argmin(losses[4:])), "the best of the last stage"


@pytest.mark.slow
def test_records_of_several_updates_end_with_a_stage(make, tmp_path):
    run = {"trainer__log_every_steps": 2, "trainer__epochs": 2}
    stages = [{"until": 3}, {"train_batch_size": 2}]
    few = {"trainer__batches_per_epoch": 3, "trainer__skip_validation": True}
    go(make(**run, **few, trainer__curriculum=stages), tmp_path / "run")
    assert values(tmp_path / "run", "step") == [2, 3, 5]
    assert values(tmp_path / "run", "stage") == [1, 1, 2]


def test_each_stage_reads_its_window(make):
    setup = make(**RUN)
    assert [len(s.train_loader.dataset) for s in setup.stages] == [32, 31, 30]
    for stage, steps in zip(setup.stages, (1, 2, 3), strict=True):
        batch = next(iter(stage.train_loader.epoch(0)))
        assert batch.y.shape[2] == steps
        assert ("forcing" in batch.arrays) == (steps > 1)


@pytest.mark.slow
def test_notes_on_stages_that_are_not_reached(make):
    setup = make(**RUN | {"trainer__epochs": 1})
    lines = [line for line in setup.plan.notes if "curriculum" in line]
    assert [line[:60] for line in lines] == [
        "trainer.curriculum.1: the run ends before this stage, after ",
        "trainer.curriculum.2: the run ends before this stage, after ",
    ]
    assert [length.updates for length in make(**RUN).plan.stage_lengths] == [3, 2, 3]
