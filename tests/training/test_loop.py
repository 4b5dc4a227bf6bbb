"""Whole runs of a small model: resume, signals, NaN, early stopping, custom steps."""

import dataclasses
import io
import os
import signal
import sys
import time
from functools import partial
from types import SimpleNamespace

import chex
import jax
import numpy as np
import pytest
from rich.console import Console

from credit_jax.checkpoint import CheckpointStore, PlateauState
from credit_jax.cli.check import check_config
from credit_jax.config import build_config, dump_config
from credit_jax.data.sample_reader import SampleReader
from credit_jax.parallel.compiler import compile_program
from credit_jax.plan import plan_run
from credit_jax.training import loop
from credit_jax.training.display import Display
from credit_jax.training.loggers import read_log, read_records
from credit_jax.training.restore import RunStore, start_of_run
from credit_jax.training.run import run_training
from credit_jax.training.setup import Setup, prepare
from credit_jax.training.signals import StopRequests
from tests.messages.engine import *  # noqa: F403
from tests.messages.engine import Cases
from tests.support import assert_close
from tests.training.tiny import tiny_config, write_yaml

pytestmark = pytest.mark.usefixtures("tiny_model")
CASES = Cases("trainers")
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
        steps, notes = super().steps(**keywords), self.notes

        def train(state, batch, *further):
            if notes["before"]:
                notes["before"](len(notes["losses"]))
            state, info = steps.train(state, batch, *further)
            notes["rates"].append(float(info["learning_rate"]))
            notes["losses"] += np.asarray(info["loss"]).tolist()
            if notes["change"]:
                info = notes["change"](len(notes["losses"]), info)
            return state, info

        def place_train(group):
            for batch in group:
                notes["starts"] += batch.input_times.tolist()
            return steps.place_train(group)

        return dataclasses.replace(steps, train=train, place_train=place_train)


def set_up(world, folder, mesh="one", **changes):
    block, num = MESHES[mesh]
    size = 2 if mesh.startswith("dp2") else 4
    sizes = {"trainer__train_batch_size": size, "trainer__valid_batch_size": size}
    changes = {"trainer__parallelism": block} | sizes | changes
    config = build_config(tiny_config(world, folder, **changes))
    return prepare(plan_run(config, num_devices=num), jax.devices()[:num])


def prepared(world, folder, mesh="one", before_step=None, change_info=None, **changes):
    setup = set_up(world, folder, mesh, **changes)
    return Watched.of(setup, before_step, change_info)


@pytest.fixture
def make(world, tmp_path):
    """`make(mesh, before_step, change_info, **changes)` -> a run in `tmp_path`."""
    return partial(prepared, world, tmp_path)


def go(setup, folder, **options):
    display = Display(Console(file=(stream := io.StringIO()), width=200))
    outcome = run_training(setup, folder, display, **options)
    return outcome, " ".join(stream.getvalue().split())


def log_of(folder):
    return read_log(folder / "training_log.csv")


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


@pytest.fixture(scope="module")
def straight(world, tiny_model, tmp_path_factory):
    """A run of three epochs on one device that nothing disturbs."""
    folder = tmp_path_factory.mktemp("straight")
    trackers = {"trainer__use_tensorboard": True, "trainer__use_wandb": True}
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "wandb", wandb := FakeWandb())
        setup = prepared(world, folder, trainer__epochs=3, **trackers)
        outcome, text = go(setup, folder)
    values = {"losses": setup.notes["losses"], "rows": log_of(folder)}
    return SimpleNamespace(
        folder=folder, outcome=outcome, text=text, wandb=wandb, **values
    )


def test_a_whole_run(straight):
    folder, losses, rows = straight.folder, straight.losses, straight.rows
    assert straight.outcome.reason == loop.FINISHED
    assert "epoch 3/3 done" in straight.text
    assert [row["epoch"] for row in rows] == [0, 1, 2]
    assert_close(rows[1]["train_loss"], np.mean(losses[6:12]), 1e-6, "train_loss")
    # Epochs have the same samples; single batches differ by more than is learned.
    assert rows[2]["train_loss"] < rows[0]["train_loss"], "it learns something"
    columns = {"valid_loss", "valid_rmse", "valid_r2score", "lr"}
    assert {*columns, "valid_rmse/ERA5/prognostic/3d/T"} <= set(rows[0])
    names = {"model.yml", "channel_schema.yaml", "tensorboard"}
    assert names <= {path.name for path in folder.iterdir()}
    assert list((folder / "tensorboard").iterdir())
    assert 0 < rows[-1]["save_percent"] < 100
    assert 0 < rows[-1]["saved_minutes_ago"] < 60
    assert rows[0]["save_seconds"] == 0, "the epoch's own save is of the next row"
    start, *records = read_records(folder / "training_steps.jsonl")
    assert [r["step"] for r in records] == [*range(1, 19)]
    assert [r["loss"] for r in records] == losses
    assert [r["epoch"] for r in records[5:7]] == [0, 1]
    assert records[6]["save_seconds"] > 0, "the checkpoint between the epochs"
    assert records[-1]["model_flops"] > 0
    assert 0 < records[-1]["goodput"] < 1
    calls = straight.wandb.calls
    assert straight.wandb.options["id"] == f"{folder.name}-{int(start['time'])}"
    assert calls[0][1]["step/loss"] == records[0]["loss"]
    assert (calls[-1], len(calls)) == ("finish", 18 + 3 + 1)
    store = CheckpointStore(folder)
    assert store.steps() == [12, 18]
    assert store.item_names(18) == ["weights", "ema", "optimizer"]
    store.close()


@pytest.mark.slow(but=["one-dp2_tp2_domain2"])
@pytest.mark.parametrize(
    ("first", "second"),
    [("one", "one"), ("one", "dp2_tp2_domain2"), ("dp2_tp2_domain2", "domain4")],
)
def test_resume_gives_the_very_same_losses(first, second, make, straight, tmp_path):
    """Three micro-batches, SIGTERM within an epoch, and the rest on another mesh."""
    stopped = make(first, terminate_before(2), trainer__epochs=1)
    outcome, text = go(stopped, tmp_path)
    assert outcome.reason == "SIGTERM"
    assert "Stopped by SIGTERM after step 3" in text
    resumed = make(second, trainer__epochs=1)
    outcome, text = go(resumed, tmp_path, resume=True)
    assert outcome.reason == loop.FINISHED
    assert "epoch 1, batch 4" in text
    losses = stopped.notes["losses"] + resumed.notes["losses"]
    tolerance = 0 if first == second == "one" else 1e-6
    assert_close(losses, straight.losses[:6], tolerance, f"{first}, then {second}")
    for name in ("train_loss", "valid_loss", "valid_rmse"):
        ours, theirs = log_of(tmp_path)[0][name], straight.rows[0][name]
        assert_close(ours, theirs, tolerance, name)


@pytest.mark.slow
def test_saves_within_an_epoch(make, straight, tmp_path):
    """A stop after eleven updates and a damaged checkpoint do not change the run."""

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
    assert losses == straight.losses[:12]
    store = CheckpointStore(tmp_path)
    assert store.steps() == [6, 8, 10, 12]
    store.close()
    rows = log_of(tmp_path)
    assert rows[0]["save_seconds"] > 0
    for row, other in zip(rows, straight.rows[:2], strict=True):
        assert {name: row[name] for name in other.keys() - loop.TIME_COLUMNS} == {
            name: other[name] for name in row.keys() - loop.TIME_COLUMNS
        }


@pytest.mark.slow
@pytest.mark.parametrize("mesh", ["one", "dp2_tp2_domain2"])
def test_steps_are_traced_and_compiled_once(mesh, make, tmp_path, monkeypatch, caplog):
    """In three epochs with validation, and also in a run that resumes."""
    programs = set()

    def compile_once(function, mesh, **options):
        def program(*args):
            return function(*args)

        program.__name__ = function.__name__
        programs.add(program.__name__)
        checked = chex.assert_max_traces(program, n=1)
        return compile_program(checked, mesh, **options)

    monkeypatch.setattr("credit_jax.training.setup.compile_program", compile_once)
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
    chex.clear_trace_counter()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mesh", "size"), [("one", 6), ("dp2_tp2_domain2", 1), ("dp2_tp2_domain2", 3)]
)
def test_every_sample_once_with_another_batch_size(mesh, size, make, tmp_path):
    """Stopped within an epoch, and resumed with other batches on another mesh."""
    whole = {"trainer__epochs": 1, "trainer__batches_per_epoch": 0}
    whole["trainer__skip_validation"] = True
    stopped = make("one", terminate_before(2), **whole)
    assert go(stopped, tmp_path)[0].reason == "SIGTERM"
    count = len(stopped.train_loader.dataset)
    assert 0 < len(stopped.notes["starts"]) < count
    resumed = make(mesh, trainer__train_batch_size=size, **whole)
    assert go(resumed, tmp_path, resume=True)[0].reason == loop.FINISHED
    starts = stopped.notes["starts"] + resumed.notes["starts"]
    assert len(set(starts)) == len(starts), "none twice"
    batch = size * (2 if mesh.startswith("dp2") else 1)
    assert count - len(starts) < batch, "all but what fills no batch"


@pytest.mark.slow
def test_notes_validation_and_a_config_of_the_user(make, tmp_path):
    """The epochs that are trained are noted; a file of the user's is kept."""
    (tmp_path / "model.yml").write_text("mine: 1\n")
    few = {"trainer__num_epoch": 1, "trainer__skip_validation": True}
    outcome, text = go(make(trainer__epochs=2, **few), tmp_path)
    assert "trainer.num_epoch is 1: this trains epoch 1 of trainer.epochs 2" in text
    (row,) = log_of(tmp_path)
    assert "valid_loss" not in row
    assert outcome.progress.best_metric == pytest.approx(row["train_loss"])
    _, text = go(make(trainer__epochs=1), tmp_path, resume=True)
    assert "nothing is left to train: trainer.epochs is 1" in text
    assert "--set trainer.epochs=2 goes on" in text
    (aside,) = tmp_path.glob("model_*.yml")
    assert aside.read_text() == "mine: 1\n"


@pytest.mark.slow(but=["loss"])
@pytest.mark.parametrize("name", ["loss", "grad_norm"])
def test_what_is_not_finite_stops_the_run(name, make, tmp_path):
    """Before the first checkpoint, too; the newest one is finite."""
    at = {"loss": 8, "grad_norm": 2}[name]

    def change(done, info):
        return info | {name: info[name] * (np.nan if done == at else 1)}

    setup = make(change_info=change, trainer__epochs=2)
    with pytest.raises(loop.NonFiniteLossError) as error:
        go(setup, tmp_path)
    if name == "grad_norm":
        assert "norm of the gradient is nan at step 2" in str(error.value)
        assert "No checkpoint had been written yet" in str(error.value)
        return
    text = "the loss is nan at step 8 (epoch 2, batch 2, samples of "
    assert text in str(error.value)
    assert f"newest checkpoint is {tmp_path}/checkpoints/6;" in str(error.value)
    store, trainer = run_store(setup, tmp_path), setup.plan.config.trainer
    start = start_of_run(trainer, store, setup.fresh_state(), resume=True)
    leaves = jax.tree.leaves(start.state.params)
    assert all(np.isfinite(leaf).all() for leaf in leaves)
    store.checkpoints.close()


@pytest.mark.slow
def test_accumulation_with_a_short_last_group(make, tmp_path):
    setup = make(trainer__grad_accum_every=4, trainer__epochs=1)
    outcome, _ = go(setup, tmp_path)
    steps = int(outcome.state.micro_step), int(outcome.state.update_step)
    assert (*steps, len(setup.notes["losses"])) == (6, 2, 6)
    assert [len(group) for group in loop.grouped(iter(range(6)), 4)] == [4, 2]


@pytest.mark.slow
def test_variables_in_another_order_are_refused(make, tmp_path):
    """The arrays would fit: U and T have as many levels."""
    trained = make(trainer__epochs=1, trainer__batches_per_epoch=1)
    go(trained, tmp_path)
    source = dump_config(trained.plan.config)["data"]["source"]
    source["ERA5"]["variables"]["prognostic"]["vars_3D"].reverse()
    message = r"input: variable 1 is T \(2 levels\), in the checkpoint it is U \(2 lev"
    for keys, resume in ({}, True), ({"trainer__load_weights": True}, False):
        with pytest.raises(ValueError, match=message):
            go(make(data__source=source, **keys), tmp_path, resume=resume)


@pytest.mark.slow
def test_a_plateau_lowers_the_rate_and_a_run_stops_early(make, tmp_path):
    """The RMSE falls, so that its maximum, taken as best, is that of the first epoch.

    The plateau keeps its state and rate after a signal within an epoch.
    """
    plateau = {"scheduler_type": "plateau", "patience": 0, "factor": 0.5, "mode": "max"}
    settings = {
        "trainer__scheduler": plateau,
        "trainer__training_metric": "valid_rmse",
        "trainer__training_metric_direction": "max",
        "trainer__learning_rate": 0.01,
        "trainer__epochs": 9,
        "trainer__stopping_patience": 3,
    }
    straight, folder = make(**settings), tmp_path / "straight"
    outcome, text = go(straight, folder)
    assert outcome.reason == loop.EARLY
    assert "No better valid_rmse for 3 epochs" in text
    rows = log_of(folder)
    assert int(np.argmax([row["valid_rmse"] for row in rows])) == 0
    assert [row["lr"] for row in rows] == [0.01, 0.01, 0.005, 0.0025]
    expected = np.repeat([0.01, 0.01, 0.005, 0.0025], 6)
    assert straight.notes["rates"] == pytest.approx(expected, rel=1e-6)
    store = CheckpointStore(folder)
    assert (store.best_step(), store.latest_step()) == (6, 24)
    store.close()
    stopped = make("one", terminate_before(14), **settings)
    go(stopped, tmp_path)
    resumed = make("dp2_tp2_domain2", **settings)
    assert go(resumed, tmp_path, resume=True)[0].reason == loop.EARLY
    rates = stopped.notes["rates"] + resumed.notes["rates"]
    assert rates == straight.notes["rates"]
    losses = stopped.notes["losses"] + resumed.notes["losses"]
    assert_close(losses, straight.notes["losses"], 1e-6, "losses with plateau")


@pytest.mark.slow
def test_rates_of_a_run(make, tmp_path):
    """As in CREDIT, which steps schedules by epoch after logging the rate.

    `update_learning_rate` sets the first rate, also from fresh weights.
    """
    cosine = {"scheduler_type": "cosine-annealing", "T_max": 4}
    setup = make(trainer__epochs=3, trainer__scheduler=cosine)
    go(setup, tmp_path)
    rows, rate = log_of(tmp_path), setup.plan.config.trainer.learning_rate
    assert setup.notes["rates"][::6] == pytest.approx([row["lr"] for row in rows])
    assert rows[0]["lr"] == pytest.approx(rate)
    warmup = {"scheduler_type": "linear-warmup-cosine", "warmup_steps": 4}
    keys = {"trainer__scheduler": warmup, "trainer__epochs": 1}
    setup, other = make(**keys, trainer__update_learning_rate=True), make(**keys)
    go(setup, tmp_path / "set")
    go(other, tmp_path / "other")
    assert setup.notes["rates"][0] == pytest.approx(rate)
    assert other.notes["rates"][0] == 0.0
    assert setup.notes["rates"][1:] == other.notes["rates"][1:]


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
        for name in ("params", "ema"):
            both = (getattr(state, name) for state in (start.state, trained.state))
            chex.assert_trees_all_equal(*both)
        count = int(start.state.opt_state["adam"].count)
        counts = (count, int(start.state.micro_step), int(start.state.update_step))
        return counts, start.progress

    other = {"learning_rate": 0.5}
    counts, progress = begin(**other)
    assert (counts, progress.learning_rate) == ((0, 0, 6), 0.5), "the average goes on"
    assert progress.epoch == 0
    again = {"reload_epoch": True, **other}
    counts, progress = begin(load_scheduler=True, **again)
    assert (counts, progress.learning_rate) == ((0, 6, 6), 0.5), "a fresh optimizer"
    counts, progress = begin(load_optimizer=True, **again)
    assert (counts, progress.learning_rate) == ((6, 6, 6), 1e-3), "that rate, too"
    assert progress.epoch == 1
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
    assert [row["bad_samples"] for row in log_of(tmp_path)] == expected
    assert text.count("bad sample: ") == text.count("SP has NaN") == sum(expected) > 2


@pytest.mark.slow
def test_a_time_limit(make, tmp_path):
    """If it has passed, one update and a checkpoint follow, and the run can resume."""
    setup = make("one", trainer__epochs=1)
    outcome, text = go(setup, tmp_path, stop_at=time.monotonic())
    assert (outcome.reason, outcome.is_complete) == ("--stop-after", False)
    assert "Stopped by --stop-after after step 1" in text
    outcome, text = go(make("one", trainer__epochs=1), tmp_path, resume=True)
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


def test_better():
    values = [(1, None, "min"), (1, 2, "min"), (2, 1, "max")]
    assert all(loop.is_better(float(a), b, mode) for a, b, mode in values)
    assert not any(loop.is_better(a, 1.0, "min") for a in (1.0, float("nan")))


# A training step of one's own: the same run, another loss, and what is refused.

MODULE = """
from dataclasses import replace

import jax.numpy as jnp

import credit_jax


def scaled(model, optimizer, loss, *, factor=1.0, **options):
    def of_tree(tree, context):
        return factor * loss(tree, context)

    return credit_jax.make_train_step(model, optimizer, of_tree, **options)


def positional(model, optimizer):
    pass


def nothing(model, optimizer, loss, **options):
    pass


def broken(model, optimizer, loss, **options):
    return options["momentum"]


def step_of(change):
    def make(model, optimizer, loss, **options):
        step = credit_jax.make_train_step(model, optimizer, loss, **options)
        return lambda *arguments: change(*step(*arguments))

    return make


one_result = step_of(lambda state, info: state)
weights_alone = step_of(lambda state, info: (state.params, info))
other_dtype = step_of(
    lambda state, info: (replace(state, micro_step=state.micro_step * 1.0), info)
)
few_numbers = step_of(lambda state, info: (state, {"loss": info["loss"].sum()}))
fails = step_of(lambda state, info: info["gradient"])
"""


@pytest.fixture
def objects(tmp_path):
    """The changes of a config that make a function of the module its trainer."""
    module = tmp_path / "steps.py"
    module.write_text(MODULE)

    def changes(name, **args):
        custom = {"object_type": "trainer", "module_path": str(module)}
        section = {"custom_objects": {name: custom}, "trainer__type": name}
        return section | ({"trainer__args": args} if args else {})

    return changes


def test_a_run_of_a_custom_step(make, objects, tmp_path):
    """A step like ours, stopped and gone on with; one whose loss is twice as large."""
    straight = make("dp2", trainer__epochs=1)
    go(straight, tmp_path / "straight")
    expected = straight.notes["losses"]
    custom = objects("scaled")
    first = make("dp2", terminate_before(2), trainer__epochs=1, **custom)
    assert go(first, tmp_path)[0].reason == "SIGTERM"
    second = make("dp2", trainer__epochs=1, **custom)
    go(second, tmp_path, resume=True)
    assert first.notes["losses"] + second.notes["losses"] == expected
    other = {"trainer__skip_validation": True, **objects("scaled", factor=2.0)}
    twice = make("dp2", terminate_before(1), **other)
    go(twice, tmp_path / "twice")
    assert twice.notes["losses"][0] == 2 * expected[0]


def checked(name, world, objects, tmp_path, tiny_model):
    changes = objects("scaled" if name == "typing_error" else name)
    if name == "scaled":
        changes["trainer__args"] = {"scale": 2.0}
    if name == "typing_error":
        changes["trainer__type"] = "scale"
    mapping = tiny_config(world, tmp_path / "run", **changes)
    return check_config(write_yaml(tmp_path / "config.yml", mapping)).problems


CASES.rows(checked, "typing_error", "scaled", "positional", "nothing", "broken")
CASES.rows(checked, "one_result", "weights_alone", "other_dtype", "few_numbers")
CASES.rows(checked, "fails")


@CASES.case
def resume_without_a_checkpoint(make, tmp_path):
    setup = make()
    return lambda: go(setup, tmp_path, resume=True)
