"""Whole runs of a small model: resume, signals, NaN, early stopping, checkpoints."""

import dataclasses
import io
import os
import signal
import sys
import time

import chex
import jax
import numpy as np
import pytest
from rich.console import Console

from credit_jax.checkpoint import CheckpointStore, PlateauState
from credit_jax.config import build_config, dump_config
from credit_jax.data.sample_reader import SampleReader
from credit_jax.plan import plan_run
from credit_jax.training.display import Display
from credit_jax.training.epoch_end import is_better
from credit_jax.training.loggers import read_log
from credit_jax.training.loop import (
    EARLY,
    FINISHED,
    TIME_COLUMNS,
    NonFiniteLossError,
    grouped,
)
from credit_jax.training.records import read_records
from credit_jax.training.restore import RunStore, start_of_run
from credit_jax.training.run import run_training
from credit_jax.training.setup import CompiledSteps, Setup, prepare
from credit_jax.training.signals import StopRequests
from tests.support import assert_close
from tests.training.tiny import tiny_config

pytestmark = pytest.mark.usefixtures("tiny_model")

MESHES = {
    "one": ({"data": "none", "tensor": 1, "domain": 1}, 1),
    "dp2_tp2_domain2": ({"data": "fsdp2", "tensor": 2, "domain": 2}, 8),
    "domain4": ({"data": "none", "tensor": 1, "domain": 4}, 4),
    "dp2": ({"data": "fsdp2", "tensor": 1, "domain": 1}, 2),
}


class Watched(Setup):
    """Records the losses of a setup, and lets tests intervene in its steps."""

    @classmethod
    def of(cls, setup, before_step=None, change_info=None):
        fields = {f.name: getattr(setup, f.name) for f in dataclasses.fields(Setup)}
        watched = cls(**fields)
        notes = {"losses": [], "rates": [], "starts": []}
        notes |= {"before": before_step, "change": change_info}
        object.__setattr__(watched, "notes", notes)
        return watched

    def steps(self, **keywords):
        steps = super().steps(**keywords)

        def train_step(state, batch, *further):
            if self.notes["before"]:
                self.notes["before"](len(self.notes["losses"]))
            state, info = steps.train(state, batch, *further)
            self.notes["rates"].append(float(info["learning_rate"]))
            self.notes["losses"] += np.asarray(info["loss"]).tolist()
            if self.notes["change"]:
                info = self.notes["change"](len(self.notes["losses"]), info)
            return state, info

        def place_train(group):
            for batch in group:
                self.notes["starts"] += batch.input_times.tolist()
            return steps.place_train(group)

        values = {
            f.name: getattr(steps, f.name) for f in dataclasses.fields(CompiledSteps)
        }
        watched = {"train": train_step, "place_train": place_train}
        return CompiledSteps(**values | watched)


@pytest.fixture
def make(world, tmp_path):
    """`make(mesh, **changes)` prepares a run in `tmp_path`."""

    def make_it(mesh="one", before_step=None, change_info=None, **changes):
        block, num = MESHES[mesh]
        size = 2 if mesh.startswith("dp2") else 4
        sizes = {"trainer__train_batch_size": size, "trainer__valid_batch_size": size}
        changes = {"trainer__parallelism": block} | sizes | changes
        config = build_config(tiny_config(world, tmp_path, **changes))
        setup = prepare(plan_run(config, num_devices=num), jax.devices()[:num])
        return Watched.of(setup, before_step, change_info)

    return make_it


def go(setup, tmp_path, *, resume=False, base=None):
    stream = io.StringIO()
    display = Display(Console(file=stream, width=200))
    outcome = run_training(setup, tmp_path, display, resume=resume, base=base)
    return outcome, stream.getvalue()


def run_store(setup, folder):
    return RunStore(CheckpointStore(folder), setup.model.model_def.param_specs)


def terminate_before(step):
    return lambda n: os.kill(os.getpid(), signal.SIGTERM) if n == step else None


class FakeWandb:
    """A stand-in for the used part of wandb."""

    def __init__(self):
        self.calls = []

    def init(self, **options):
        self.options = options
        return self

    def log(self, values, step=None):
        self.calls.append((step, values))

    def finish(self):
        self.calls.append("finish")


def test_a_whole_run(make, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", wandb := FakeWandb())
    setup = make(
        trainer__epochs=3, trainer__use_tensorboard=True, trainer__use_wandb=True
    )
    outcome, text = go(setup, tmp_path)
    losses = setup.notes["losses"]
    assert outcome.reason == FINISHED
    assert len(losses) == 18
    rows = read_log(tmp_path / "training_log.csv")
    assert [row["epoch"] for row in rows] == [0, 1, 2]
    assert_close(rows[1]["train_loss"], np.mean(losses[6:12]), 1e-6, "train_loss")
    # Epochs have the same samples; single batches differ by more than is learned.
    assert rows[2]["train_loss"] < rows[0]["train_loss"], "it learns something"
    assert {"valid_loss", "valid_rmse", "valid_r2score", "lr"} <= set(rows[0])
    assert "valid_rmse/ERA5/prognostic/3d/T" in rows[0]
    assert (tmp_path / "model.yml").exists()
    assert (tmp_path / "channel_schema.yaml").exists()
    assert list((tmp_path / "tensorboard").iterdir())
    assert 0 < rows[-1]["save_percent"] < 100
    assert 0 < rows[-1]["saved_minutes_ago"] < 60
    start, *records = read_records(tmp_path / "training_steps.jsonl")
    assert [r["step"] for r in records] == [*range(1, 19)]
    assert [r["loss"] for r in records] == [float(loss) for loss in losses]
    assert [r["epoch"] for r in records[5:7]] == [0, 1]
    assert records[6]["save_seconds"] > 0, "the checkpoint between the epochs"
    assert records[-1]["model_flops"] > 0
    assert 0 < records[-1]["goodput"] < 1
    assert wandb.options["id"] == f"{tmp_path.name}-{int(start['time'])}"
    assert wandb.calls[0][1]["step/loss"] == records[0]["loss"]
    assert wandb.calls[-1] == "finish"
    assert len(wandb.calls) == 18 + 3 + 1
    assert "epoch 3/3 done" in text
    store = CheckpointStore(tmp_path)
    assert store.latest_step() == 18
    assert store.item_names(18) == ["weights", "ema", "optimizer"]
    store.close()


@pytest.mark.slow(but=["one-dp2_tp2_domain2"])
@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("one", "one"),
        ("one", "dp2_tp2_domain2"),
        ("dp2_tp2_domain2", "domain4"),
    ],
)
def test_resume_gives_the_very_same_losses(first, second, make, tmp_path):
    """Three micro-batches, SIGTERM within an epoch, and the rest on another mesh."""
    straight = make("one", save_loc=str(tmp_path / "straight"), trainer__epochs=1)
    go(straight, tmp_path / "straight")
    expected = straight.notes["losses"]

    stopped = make(first, terminate_before(2), trainer__epochs=1)
    outcome, text = go(stopped, tmp_path)
    assert outcome.reason == "SIGTERM"
    assert "Stopped by SIGTERM after step 3" in text
    resumed = make(second, trainer__epochs=1)
    outcome, text = go(resumed, tmp_path, resume=True)
    assert outcome.reason == FINISHED
    assert "epoch 1, batch 4" in text
    losses = stopped.notes["losses"] + resumed.notes["losses"]
    assert len(losses) == 6
    tolerance = 0 if first == second == "one" else 1e-6
    assert_close(losses, expected, tolerance, f"losses of {first}, then {second}")
    ours = read_log(tmp_path / "training_log.csv")[0]
    theirs = read_log(tmp_path / "straight" / "training_log.csv")[0]
    for name in ("train_loss", "valid_loss", "valid_rmse"):
        assert_close(ours[name], theirs[name], tolerance, name)


@pytest.mark.slow
def test_saves_within_an_epoch(make, tmp_path):
    """A stop after eleven updates and a damaged checkpoint do not change the run."""
    straight = make("one", save_loc=str(tmp_path / "straight"), trainer__epochs=2)
    go(straight, tmp_path / "straight")

    def killed(number):
        if number == 11:
            raise KeyboardInterrupt

    often = {"trainer__epochs": 2, "trainer__save_every_steps": 2}
    broken = make("one", killed, **often)
    with pytest.raises(KeyboardInterrupt):
        go(broken, tmp_path)
    store = CheckpointStore(tmp_path)
    assert store.steps() == [6, 8, 10], "the end of an epoch, and the newest two within"
    store.close()
    damaged = next((tmp_path / "checkpoints" / "10" / "weights").rglob("d/*"))
    damaged.write_bytes(damaged.read_bytes()[1:])
    resumed = make("one", **often)
    _, text = go(resumed, tmp_path, resume=True)
    assert f"not used: {damaged}: damaged, " in text
    assert "epoch 2, batch 3" in text, "the newest that is whole"
    losses = [*broken.notes["losses"][:8], *resumed.notes["losses"]]
    assert losses == straight.notes["losses"]
    theirs = run_store(straight, tmp_path / "straight").checkpoints
    ours = run_store(resumed, tmp_path).checkpoints
    assert ours.steps() == [6, 8, 10, 12]
    assert theirs.steps() == [6, 12]
    rows = read_log(tmp_path / "training_log.csv")
    expected = read_log(tmp_path / "straight" / "training_log.csv")
    assert rows[0]["save_seconds"] > 0
    assert expected[0]["save_seconds"] == 0, "the epoch's own save is of the next row"
    rows, expected = (
        [{k: v for k, v in row.items() if k not in TIME_COLUMNS} for row in own]
        for own in (rows, expected)
    )
    assert rows == expected


@pytest.fixture
def programs(monkeypatch):
    """Names of a run's compiled functions; tracing one of them twice raises."""
    from credit_jax.training import setup as setup_module

    compile_program = setup_module.compile_program
    compiled = set()

    def compile_once(function, mesh, **options):
        def program(*args):
            return function(*args)

        program.__name__ = function.__name__
        checked = chex.assert_max_traces(program, n=1)
        compiled.add(program.__name__)
        return compile_program(checked, mesh, **options)

    monkeypatch.setattr(setup_module, "compile_program", compile_once)
    chex.clear_trace_counter()
    yield compiled
    chex.clear_trace_counter()


@pytest.mark.slow
@pytest.mark.parametrize("mesh", ["one", "dp2_tp2_domain2"])
def test_steps_are_traced_and_compiled_once(mesh, make, tmp_path, programs, caplog):
    """In three epochs with validation, and also in a run that resumes."""
    for epochs, resume in ((3, False), (5, True)):
        caplog.clear()
        chex.clear_trace_counter()
        with jax.log_compiles():
            outcome, _ = go(make(mesh, trainer__epochs=epochs), tmp_path, resume=resume)
        assert int(outcome.state.micro_step) == 6 * epochs
        assert programs == {"step", "evaluate", "fuse_spectral_norm"}
        logged = [record.getMessage() for record in caplog.records]
        for name in programs:
            compiled = [line for line in logged if f"Compiling jit({name})" in line]
            assert len(compiled) == 1, f"{name}, {epochs} epochs: {compiled}"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mesh", "size"),
    [("one", 6), ("dp2_tp2_domain2", 1), ("dp2_tp2_domain2", 3)],
)
def test_every_sample_once_with_another_batch_size(mesh, size, make, tmp_path):
    """Stopped within an epoch, and resumed with other batches on another mesh."""
    whole = {"trainer__epochs": 1, "trainer__batches_per_epoch": 0}
    whole["trainer__skip_validation"] = True
    stopped = make("one", terminate_before(2), **whole)
    outcome, _ = go(stopped, tmp_path)
    assert outcome.reason == "SIGTERM"
    count = len(stopped.train_loader.dataset)
    assert 0 < len(stopped.notes["starts"]) < count
    resumed = make(mesh, trainer__train_batch_size=size, **whole)
    outcome, _ = go(resumed, tmp_path, resume=True)
    assert outcome.reason == FINISHED
    starts = stopped.notes["starts"] + resumed.notes["starts"]
    assert len(set(starts)) == len(starts), "none twice"
    batch = size * (2 if mesh.startswith("dp2") else 1)
    assert count - len(starts) < batch, "all but what fills no batch"


@pytest.mark.slow
def test_notes_on_the_epochs_that_are_trained(make, tmp_path):
    _, text = go(make(trainer__epochs=2, trainer__num_epoch=1), tmp_path)
    text = " ".join(text.split())
    assert "trainer.num_epoch is 1: this trains epoch 1 of trainer.epochs 2" in text
    _, text = go(make(trainer__epochs=1), tmp_path, resume=True)
    text = " ".join(text.split())
    assert "nothing is left to train: trainer.epochs is 1" in text
    assert "--set trainer.epochs=2 goes on" in text


@pytest.mark.slow
def test_a_config_of_the_user_in_the_folder_is_kept(make, tmp_path):
    (tmp_path / "model.yml").write_text("mine: 1\n")
    go(make(trainer__epochs=1), tmp_path)
    go(make(trainer__epochs=1), tmp_path, resume=True)
    (aside,) = tmp_path.glob("model_*.yml")
    assert aside.read_text() == "mine: 1\n"


def nan_at(step, name):
    def change(done, info):
        if done != step:
            return info
        return info | {name: np.full(np.shape(info[name]), np.nan)}

    return change


def test_a_nan_loss_stops_the_run(make, tmp_path):
    setup = make(change_info=nan_at(8, "loss"), trainer__epochs=2)
    with pytest.raises(NonFiniteLossError) as error:
        go(setup, tmp_path)
    text = str(error.value)
    assert "the loss is nan at step 8 (epoch 2, batch 2, samples of " in text
    assert f"The newest checkpoint is {tmp_path}/checkpoints/6;" in text
    store = run_store(setup, tmp_path)
    start = start_of_run(
        setup.plan.config.trainer, store, setup.fresh_state(), resume=True
    )
    leaves = jax.tree.leaves(start.state.params)
    assert all(np.isfinite(leaf).all() for leaf in leaves)
    store.checkpoints.close()


@pytest.mark.slow
def test_a_nan_gradient_stops_the_run(make, tmp_path):
    setup = make(change_info=nan_at(2, "grad_norm"))
    with pytest.raises(
        NonFiniteLossError, match="norm of the gradient is nan at step 2"
    ):
        go(setup, tmp_path)
    setup.notes["losses"].clear()
    with pytest.raises(NonFiniteLossError, match="No checkpoint had been written yet"):
        go(setup, tmp_path)


@pytest.mark.slow
def test_early_stopping_and_the_best_checkpoint(make, tmp_path):
    """The RMSE falls, so that its maximum, taken as best, is reached early."""
    setup = make(
        trainer__epochs=9,
        trainer__scheduler__total_steps=54,
        trainer__stopping_patience=2,
        trainer__training_metric="valid_rmse",
        trainer__training_metric_direction="max",
        trainer__learning_rate=0.05,
    )
    outcome, text = go(setup, tmp_path)
    rows = read_log(tmp_path / "training_log.csv")
    best = int(np.argmax([row["valid_rmse"] for row in rows]))
    assert outcome.reason == EARLY
    assert "No better valid_rmse for 2 epochs" in text
    assert len(rows) == best + 3
    store = CheckpointStore(tmp_path)
    assert store.best_step() == 6 * (best + 1)
    assert store.latest_step() == 6 * len(rows)
    store.close()


@pytest.mark.slow
def test_accumulation_with_a_short_last_group(make, tmp_path):
    setup = make(trainer__grad_accum_every=4, trainer__epochs=1)
    outcome, _ = go(setup, tmp_path)
    assert int(outcome.state.micro_step) == 6
    assert int(outcome.state.update_step) == 2
    assert len(setup.notes["losses"]) == 6
    assert [len(group) for group in grouped(iter(range(6)), 4)] == [4, 2]


@pytest.mark.slow
def test_weights_alone(make, tmp_path):
    """CREDIT's `load_weights`: the same weights, a new optimizer and schedule."""
    trained, _ = go(make(trainer__epochs=1), tmp_path)
    setup = make(trainer__load_weights=True)
    store = run_store(setup, tmp_path)
    start = start_of_run(
        setup.plan.config.trainer, store, setup.fresh_state(), resume=False
    )
    for path, value in trained.state.params.items():
        assert np.array_equal(start.state.params[path], value), path
        assert np.array_equal(start.state.ema[path], trained.state.ema[path]), path
    assert int(start.state.micro_step) == 0
    assert start.progress.epoch == 0
    both = make(
        trainer__load_weights=True,
        trainer__load_optimizer=True,
        trainer__reload_epoch=True,
    )
    trainer = both.plan.config.trainer
    start = start_of_run(trainer, store, both.fresh_state(), resume=False)
    assert int(start.state.micro_step) == 6
    assert start.progress.epoch == 1
    store.checkpoints.close()


@pytest.mark.slow
def test_variables_in_another_order_are_refused(make, tmp_path):
    """The arrays would fit: U and T have as many levels."""
    trained = make(trainer__epochs=1, trainer__batches_per_epoch=1)
    go(trained, tmp_path)
    source = dump_config(trained.plan.config)["data"]["source"]
    source["ERA5"]["variables"]["prognostic"]["vars_3D"].reverse()
    message = r"input: variable 1 is T \(2 levels\), in the checkpoint it is U \(2 lev"
    for keys, resume in ({}, True), ({"trainer__load_weights": True}, False):
        other = make(data__source=source, **keys)
        with pytest.raises(ValueError, match=message):
            go(other, tmp_path, resume=resume)
    assert {p.name for p in tmp_path.iterdir()} >= {"checkpoints", "model.yml"}


PLATEAU = {
    "trainer__scheduler": {"scheduler_type": "plateau", "patience": 0, "factor": 0.5},
    # The RMSE falls, so that no epoch after the first is better.
    "trainer__training_metric": "valid_rmse",
    "trainer__training_metric_direction": "max",
    "trainer__learning_rate": 0.01,
}
PLATEAU["trainer__scheduler"]["mode"] = "max"


@pytest.mark.slow
def test_a_plateau_lowers_the_rate_after_an_epoch(make, tmp_path):
    """It keeps its state and rate after a signal within an epoch."""
    straight = make(save_loc=str(tmp_path / "a"), trainer__epochs=4, **PLATEAU)
    go(straight, tmp_path / "a")
    rows = read_log(tmp_path / "a" / "training_log.csv")
    assert [row["lr"] for row in rows] == [0.01, 0.01, 0.005, 0.0025]
    expected = np.repeat([0.01, 0.01, 0.005, 0.0025], 6)
    assert straight.notes["rates"] == pytest.approx(expected, rel=1e-6)
    stopped = make("one", terminate_before(14), trainer__epochs=4, **PLATEAU)
    go(stopped, tmp_path)
    resumed = make("dp2_tp2_domain2", trainer__epochs=4, **PLATEAU)
    go(resumed, tmp_path, resume=True)
    rates = stopped.notes["rates"] + resumed.notes["rates"]
    assert rates == straight.notes["rates"]
    losses = stopped.notes["losses"] + resumed.notes["losses"]
    assert_close(losses, straight.notes["losses"], 1e-6, "losses with plateau")


@pytest.mark.slow
def test_schedules_by_epoch_log_the_rate_of_the_epoch(make, tmp_path):
    """As in CREDIT, which steps them after logging the rate."""
    scheduler = {"scheduler_type": "cosine-annealing", "T_max": 4}
    setup = make(trainer__epochs=3, trainer__scheduler=scheduler)
    go(setup, tmp_path)
    rows = read_log(tmp_path / "training_log.csv")
    assert setup.notes["rates"][::6] == pytest.approx([row["lr"] for row in rows])
    assert rows[0]["lr"] == pytest.approx(setup.plan.config.trainer.learning_rate)


@pytest.mark.slow
def test_what_the_load_keys_take(make, tmp_path):
    """Optimizer, schedule and average are restored as CREDIT does with these keys."""
    constant = {"trainer__use_scheduler": False, "trainer__scheduler": None}
    trained, _ = go(make(trainer__epochs=1, **constant), tmp_path)
    store = run_store(make(), tmp_path)

    def begin(**keys):
        keys = {f"trainer__{key}": value for key, value in keys.items()}
        setup = make(trainer__load_weights=True, **constant | keys)
        trainer = setup.plan.config.trainer
        start = start_of_run(trainer, store, setup.fresh_state(), resume=False)
        count = int(start.state.opt_state["adam"].count)
        counts = (count, int(start.state.micro_step), int(start.state.update_step))
        return counts, start.progress

    other = {"learning_rate": 0.5}
    counts, progress = begin(**other)
    assert (counts, progress.learning_rate) == ((0, 0, 6), 0.5), "the average goes on"
    again = {"reload_epoch": True, **other}
    counts, progress = begin(load_scheduler=True, **again)
    assert (counts, progress.learning_rate) == ((0, 6, 6), 0.5), "a fresh optimizer"
    counts, progress = begin(load_optimizer=True, **again)
    assert (counts, progress.learning_rate) == ((6, 6, 6), 1e-3), "that rate, too"
    counts, progress = begin(load_optimizer=True, update_learning_rate=True, **again)
    assert (counts, progress.learning_rate) == ((6, 6, 6), 0.5)
    counts, progress = begin(load_optimizer=True, **other)
    assert (counts, progress.epoch) == ((6, 0, 6), 0), "in epoch 0 no schedule"
    warmup = {"use_scheduler": True, "update_learning_rate": True}
    warmup |= {"scheduler": {"scheduler_type": "linear-warmup-cosine"}}
    assert begin(**warmup)[1].first_rate_at == 0
    assert begin(**warmup, load_scheduler=True, **again)[1].first_rate_at == 6
    assert begin(**warmup | {"update_learning_rate": False})[1].first_rate_at is None
    plateau = {"use_scheduler": True, "scheduler": {"scheduler_type": "plateau"}}
    assert begin(**plateau)[1].plateau == PlateauState()
    assert trained.progress.plateau is None
    store.checkpoints.close()


@pytest.mark.slow
def test_update_learning_rate_sets_the_first_rate_of_a_run(make, tmp_path):
    """As in CREDIT, also from fresh weights; the schedule gives the others."""
    scheduler = {"scheduler_type": "linear-warmup-cosine", "warmup_steps": 4}
    keys = {"trainer__scheduler": scheduler, "trainer__epochs": 1}
    setup = make(**keys, trainer__update_learning_rate=True)
    go(setup, tmp_path)
    other = make(**keys)
    go(other, tmp_path / "other")
    rate = setup.plan.config.trainer.learning_rate
    assert setup.notes["rates"][0] == pytest.approx(rate)
    assert other.notes["rates"][0] == 0.0
    assert setup.notes["rates"][1:] == other.notes["rates"][1:]


def test_resume_without_a_checkpoint(make, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"--resume needs a checkpoint, .*none"):
        go(make(), tmp_path, resume=True)


@pytest.mark.slow
def test_without_validation(make, tmp_path):
    outcome, _ = go(make(trainer__skip_validation=True, trainer__epochs=1), tmp_path)
    row = read_log(tmp_path / "training_log.csv")[0]
    assert "valid_loss" not in row
    assert outcome.progress.best_metric == pytest.approx(row["train_loss"])


@pytest.mark.slow
def test_bad_samples_are_counted_in_the_log(make, tmp_path):
    setup = make(data__on_bad_sample="skip", trainer__epochs=2)
    # Training samples that an earlier reader found bad; they remain bad.
    loader, bad = setup.train_loader, range(3, 9)
    loader.bad.update(dict.fromkeys(bad, "SP has NaN"))
    batches = [loader.sampler.batches(e)[: setup.batches_per_epoch] for e in range(2)]
    expected = [sum(int(i) in bad for own in b for i in own) for b in batches]
    read = SampleReader.read

    def damaged(reader, indices, **keywords):
        if reader is loader.samples and set(map(int, indices)) & set(loader.bad):
            raise ValueError("a field has NaN")
        return read(reader, indices, **keywords)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SampleReader, "read", damaged)
        _, text = go(setup, tmp_path)
    rows = read_log(tmp_path / "training_log.csv")
    shown = [line for line in text.splitlines() if line.startswith("bad sample: ")]
    print("bad samples by epoch:", expected)
    assert [row["bad_samples"] for row in rows] == expected
    assert len(shown) == sum(expected) > 2
    assert all(line.endswith("SP has NaN") for line in shown)


def test_better():
    assert is_better(1.0, None, "min")
    assert is_better(1.0, 2.0, "min")
    assert is_better(2.0, 1.0, "max")
    assert not is_better(1.0, 1.0, "min")
    assert not is_better(float("nan"), 1.0, "min")


@pytest.mark.slow
def test_a_time_limit(make, tmp_path):
    """If it has passed, one update and a checkpoint follow, and the run can resume."""
    setup = make("one", trainer__epochs=1)
    display = Display(Console(file=(stream := io.StringIO()), width=200))
    outcome = run_training(setup, tmp_path, display, stop_at=time.monotonic())
    assert outcome.reason == "--stop-after"
    assert not outcome.is_complete
    assert "Stopped by --stop-after after step 1" in stream.getvalue()
    resumed = make("one", trainer__epochs=1)
    outcome, text = go(resumed, tmp_path, resume=True)
    assert outcome.is_complete
    assert "epoch 1, batch 2" in text


def test_a_second_signal_ends_as_usual():
    usual = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: usual.append(number))
    try:
        with StopRequests() as requests:
            signal.raise_signal(signal.SIGTERM)
            assert requests.caught == requests.of_any_process() == "SIGTERM"
            assert not usual
            signal.raise_signal(signal.SIGTERM)
        assert usual == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)
