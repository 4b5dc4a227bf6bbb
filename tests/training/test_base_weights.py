"""Weights that a run begins with: bases, and earlier runs."""

import os
import shutil
from functools import partial
from pathlib import Path

import chex
import numpy as np
import pytest
import xarray as xr

from credit_jax.checkpoint import EMA, CheckpointStore
from credit_jax.checkpoint.run import open_run
from credit_jax.cli import check, forecast
from credit_jax.cli.commands import OK
from credit_jax.cli.train import main
from credit_jax.config import build_config
from credit_jax.config.yaml_file import read_yaml
from credit_jax.extensions.packaging import command as package
from credit_jax.models.channel_change import CHANNELS_FIRST
from credit_jax.models.registry import build
from credit_jax.packages.package import open_artifact
from credit_jax.plan.run_record import RunRecord
from credit_jax.training import run as training_run
from credit_jax.training.run import (
    end_interrupted_move,
    move_earlier_run,
    refuse_earlier_run,
)
from tests.data.world import EXACT, MODEL
from tests.forecast.tiny_run import make_run
from tests.messages.engine import *  # noqa: F403
from tests.messages.engine import Cases
from tests.training.tiny import tiny_config, write_yaml

pytestmark = pytest.mark.usefixtures("tiny_model")
CASES = Cases("bases")
FROZEN = "dense/up"
LORA = {"rank": 1, "alpha": 2, "targets": ["dense/up"]}
ORDER = {"data__source__ERA5__variables__prognostic__vars_3D": ["T", "U"]}
AGAIN = ("--resume", "--set", "trainer.epochs=2")


def make_base(world, folder, **changes):
    config = Path(make_run(world, folder, **changes))
    shutil.copy(config, config.parent / "run" / "model.yml")
    return config.parent / "run"


def train(world, folder, section, *flags, **changes):
    """Trains two updates an epoch in FOLDER/run; returns the exit code."""
    few = {"trainer__batches_per_epoch": 2, "trainer__skip_validation": True}
    settings = few | {"trainer__grad_accum_every": 1, "trainer__finetune": section}
    mapping = tiny_config(world, folder / "run", **settings | changes)
    path = write_yaml(folder / "config.yml", mapping)
    return main(["--config", path, "--cache", "none", "--devices", "1", *flags])


@pytest.fixture(scope="module")
def base(world, tiny_model, tmp_path_factory):
    """The folder of a run with one checkpoint."""
    return make_base(world, tmp_path_factory.mktemp("bases") / "base")


@pytest.fixture(scope="module")
def trained(world, base, tmp_path_factory):
    """The folder of a run that began with the base."""
    folder = tmp_path_factory.mktemp("trained")
    assert train(world, folder, {"from": str(base)}) == OK
    return folder / "run"


@pytest.fixture
def run(world, tmp_path, capsys):
    """`run(section, *flags, code=OK, **changes)` -> output of a run in tmp_path/run."""

    def run_it(section, *flags, code=OK, **changes):
        capsys.readouterr()
        actual = train(world, tmp_path, section, *flags, **changes)
        text = " ".join("".join(capsys.readouterr()).split())
        assert (actual == OK) == (code == OK), text
        return text

    return run_it


def weights_of(folder, weights=None):
    opened = open_run(folder, weights=weights)
    return opened.on_host(build({**MODEL, "type": "tiny"}))


def test_a_run_begins_with_another_and_needs_it_no_more(run, base, tmp_path):
    shutil.copytree(base, tmp_path / "base")
    section = {"from": str(tmp_path / "base"), "freeze": ["*/up"]}
    text = run(section)
    assert f"Beginning with the weights of {tmp_path}/base/checkpoints/3, " in text
    assert "parameters are trained; 1 array frozen: dense/up" in text
    before, state = weights_of(base)
    folder = tmp_path / "run"
    for weights in ("last", "average"):
        params, after = weights_of(folder, weights)
        assert np.array_equal(params[FROZEN], before[FROZEN])
        vectors = (s["spectral_norm"][FROZEN] for s in (after, state))
        chex.assert_trees_all_equal(*vectors)
        for path in ("dense/down", "dense/bias"):
            moved = np.abs(params[path] - before[path]).max()
            assert 0 < moved < 0.1, "two updates away from the base"
    store = CheckpointStore(folder)
    assert EMA in store.item_names(2)
    store.close()
    shutil.rmtree(tmp_path / "base")
    run(section, *AGAIN)
    assert np.array_equal(weights_of(folder)[0][FROZEN], before[FROZEN])


def test_other_files_than_those_of_the_base_are_noted(base, tmp_path):
    raw = read_yaml(base / "model.yml")
    record = open_artifact(base).record
    assert not record.compare(RunRecord.of(build_config(raw)), begins=True)
    args, other = raw["preblocks"]["per_step"]["norm"]["args"], tmp_path / "other.nc"
    other.write_bytes(Path(args["mean_path"]).read_bytes() + b"more")
    args["mean_path"] = str(other)
    (note,) = record.compare(RunRecord.of(build_config(raw)), begins=True)
    assert "preblocks.per_step.norm.args.mean_path ('SHA-256 " in note


@pytest.mark.slow
def test_a_package_and_its_run_are_the_same_base(run, base, tmp_path):
    config, out = base / "model.yml", tmp_path / "package"
    options = ["--config", str(config), "--checkpoint", str(base), "--out", str(out)]
    assert package.main(options) == OK
    weights = []
    for place in (base, out):
        run({"from": str(place)}, "--fresh")
        weights.append(weights_of(tmp_path / "run")[0])
    chex.assert_trees_all_equal(*weights)


def refused(keys=(), from_=None, config=(), **changes):
    """A run that begins with the base with changes of its config, or with another."""

    def case(base, world, tmp_path, tiny_model):
        shutil.copytree(base, tmp_path / "base")
        if config:
            raw = read_yaml(base / "model.yml")
            write_yaml(tmp_path / "base" / "model.yml", raw | dict(config))
        section = {"from": f"{tmp_path}/{from_ or 'base'}", **dict(keys)}
        settings = {"trainer__finetune": section} | changes
        mapping = tiny_config(world, tmp_path / "run", **settings)
        path = write_yaml(tmp_path / "config.yml", mapping)
        options = ["--config", path, "--cache", "none", "--devices", "1"]
        return lambda: main(options)

    return case


NOTHING = {"rank": 1, "alpha": 2, "targets": ["*nothing*"]}
CASES.call("no folder", refused(from_="none"))
CASES.call("freeze", refused({"freeze": ["nothing/*"]}, model__hidden=16))
CASES.call("hidden", refused(model__hidden=16))
CASES.call("train", refused({"train": ["nothing/*"]}))
CASES.call("lora", refused({"lora": NOTHING}))
CASES.call("another type", refused(config={"model": MODEL}))
CASES.call("levels", refused(data__source__ERA5__levels=[2.0, 5.0]))
CASES.call("moments of a base without", refused({"moments": True}))


@pytest.mark.slow
def test_what_a_base_records_is_compared(run, trained, tmp_path, capsys):
    """Its levels, by `check`, too, and the order of its channels."""
    section = {"from": str(trained)}
    words = "U has the levels [2.0, 5.0], in the base [1.0, "
    assert words in run(section, code=1, data__source__ERA5__levels=[2.0, 5.0])
    config = str(tmp_path / "config.yml")
    assert check.main(["--config", config, "--devices", "1"]) != OK
    assert words in " ".join("".join(capsys.readouterr()).split())
    words = "has other channels: input: variable 1 is T (2 levels), in the che"
    assert words in run(section, code=1, **ORDER)


def changed_files(world, folder, change):
    """Writes the files of the data anew; returns the changes of a config to them."""
    folder.mkdir()
    for path in world.glob("w_*.nc"):
        with xr.open_dataset(path) as file:
            change(file).to_netcdf(folder / path.name)
    kinds = ("prognostic", "dynamic_forcing", "diagnostic")
    keys = [f"data__source__ERA5__variables__{kind}__path" for kind in kinds]
    return dict.fromkeys(keys, f"{folder}/w_%Y.nc")


@pytest.mark.slow
def test_a_run_that_begins_with_weights_may_have_another_calendar(
    run, trained, world, tmp_path
):
    """It is said; the same run is not resumed in another one."""
    noleap = changed_files(
        world, tmp_path / "noleap", lambda file: file.convert_calendar("noleap")
    )
    section = {"from": str(trained)}
    words = "note: data: the dates are in the calendar noleap, those of"
    where = f"{trained}/checkpoints/2, moving average"
    text = run(section, **noleap)
    assert f"{words} {where} in standard; they are taken as they are" in text
    text = run(section, *AGAIN, code=1)
    assert "data: the dates are in the calendar standard, expected noleap as in" in text


@pytest.mark.slow
def test_a_variable_in_another_unit_is_converted_or_refused(
    run, base, world, tmp_path, capsys
):
    """By the checkpoint of a run and by the channels of its package."""

    def in_unit(file, unit):
        values = file["T"] - 273.15 * (unit == "degC")
        return file.assign(T=values.assign_attrs(units=unit))

    units = {
        unit: changed_files(world, tmp_path / unit, partial(in_unit, unit=unit))
        for unit in ("K", "m", "degC")
    }
    run({"from": str(base)}, **units["K"])
    trained, packed = tmp_path / "trained", tmp_path / "package"
    shutil.move(tmp_path / "run", trained)
    assert package.main(["--checkpoint", str(trained), "--out", str(packed)]) == OK
    data, paths = tmp_path / "data.yml", {"path": f"{tmp_path}/m/w_%Y.nc"}
    variables = dict.fromkeys(("prognostic", "dynamic_forcing"), paths)
    write_yaml(data, {"source": {"ERA5": {"variables": variables}}})
    config = str(tmp_path / "config.yml")
    for place, where, options in (
        (trained, "/checkpoints/2", ["--config", config, "--checkpoint", str(trained)]),
        (packed, "/channels.json", ["--package", str(packed), "--data", str(data)]),
    ):
        section = {"from": str(place)}
        where = f"{'checkpoint ' * (place == trained)}{place}{where}"
        problem = (
            f"{tmp_path}/m/w_1999.nc: variable 'T' has units 'm', expected 'K' "
            f"as in {where}; bring the file to that unit"
        )
        assert problem in run(section, "--fresh", code=1, **units["m"])
        dates = ["--init-time", "2000-01-01", "--steps", "1"]
        for command, words in (
            (check, ["--config", config, "--devices", "1"]),
            (forecast, [*options, *dates, "--out", str(tmp_path / "no")]),
        ):
            assert command.main(words) != OK
            assert problem in " ".join("".join(capsys.readouterr()).split())
        text = run(section, "--fresh", **units["degC"])
        assert "T is in 'degC', and read in 'K'" in text
        run(section, "--fresh", **units["K"])
    text = run(section, *AGAIN, code=1, **units["m"])
    assert f"data: variable 'T' has units 'm', expected 'K' as in {tmp_path}" in text


@pytest.mark.slow
def test_moments_of_the_base_go_on(run, base, tmp_path):
    """As with CREDIT's keys, which take weights and optimizer from `save_loc`.

    Of a base that was fine-tuned itself those of what it trained: its adapters are in
    its matrices, and begin anew.
    """
    folder, alone = tmp_path / "run", {"trainer__use_ema": False}
    run({"from": str(base)}, **alone)
    shutil.copytree(folder, tmp_path / "trained")
    loads = {"trainer__load_weights": True, "trainer__load_optimizer": True}
    run(None, **alone, **loads)
    expected = weights_of(folder)[0]

    def weights(section, moments=True):
        run({**section, "moments": moments}, "--fresh", **alone)
        return weights_of(folder)[0]

    section = {"from": str(tmp_path / "trained")}
    chex.assert_trees_all_equal(weights(section), expected)
    assert not np.array_equal(weights(section, False)[FROZEN], expected[FROZEN])
    weights({**section, "freeze": ["*/up"]})
    adapted = {**section, "lora": LORA, "train": ["dense/bias"]}
    biases = [weights(adapted, moments)["dense/bias"] for moments in (False, True)]
    assert not np.array_equal(*biases), "what is trained besides has moments"
    shutil.copytree(folder, tmp_path / "adapted")
    adapted |= {"from": str(tmp_path / "adapted"), "lora": LORA | {"rank": 2}}
    biases = [weights(adapted, moments)["dense/bias"] for moments in (False, True)]
    assert not np.array_equal(*biases), "what both train goes on"
    section = {"from": str(base), "moments": True}
    assert "moments: the optimizer of " in run(section, "--fresh", code=1, **alone)
    assert check.main(["--config", str(tmp_path / "config.yml")]) != OK


@pytest.mark.slow
def test_adapters_are_trained_resumed_and_merged(run, base, tmp_path):
    """Checkpoints have the sums, so that forecasts and PyTorch need no adapters."""
    lora, folder = {**LORA, "targets": ["dense/*"]}, tmp_path / "run"
    section = {"from": str(base), "lora": lora}
    run(section, "--set", "trainer.epochs=2")
    average, last = (weights_of(folder, weights)[0] for weights in (None, "last"))
    before = weights_of(base)[0]
    for path in ("dense/up", "dense/down"):
        assert not np.array_equal(average[path], before[path])
        values = np.linalg.svd(last[path] - before[path], compute_uv=False)
        assert values[1] < 1e-5 * values[0], "a change of rank 1"
    assert np.array_equal(average["dense/bias"], before["dense/bias"])
    run(section, "--fresh")
    run(section, *AGAIN)
    for params, weights in ((average, None), (last, "last")):
        chex.assert_trees_all_equal(weights_of(folder, weights)[0], params)


@pytest.mark.slow
def test_new_channels_of_frozen_layers_are_refused(run, world, tmp_path, monkeypatch):
    monkeypatch.setitem(CHANNELS_FIRST, "tiny", True)
    few = {"data__source__ERA5__variables__prognostic__vars_3D": ["U"]}
    base = make_base(world, tmp_path / "few", **EXACT, **few, model__channels=1)
    section = {"from": str(base), "new_channels": "zero", "lora": LORA}
    text = run(section, code=1, **EXACT)
    assert "new outputs would never be trained, as dense/down is frozen; name" in text
    assert "new inputs" not in text, "dense/up has an adapter"
    text = run(section | {"train": ["dense/down"]}, **EXACT)
    assert "output 3: T 5: new, begins with 0" in text


@pytest.mark.slow
def test_variables_in_another_order_move_with_their_weights(
    run, world, tmp_path, monkeypatch
):
    """The base has no channel_schema.yaml: its config says what its channels are."""
    base = make_base(world, tmp_path / "exact", **EXACT)
    monkeypatch.setitem(CHANNELS_FIRST, "tiny", True)
    few = {"trainer__learning_rate": 1e-9, "trainer__use_scheduler": False}
    section = {"from": str(base), "new_channels": "mean"}
    text = run(section, **ORDER, **few, **EXACT, trainer__weight_decay=0)
    assert "input 0: T 1: channel 2 of the base" in text
    assert "output 3: U 5: channel 1 of the base" in text
    before, after = weights_of(base)[0], weights_of(tmp_path / "run")[0]
    for path in ("dense/up", "dense/down", "dense/bias"):
        axis = 1 if path == "dense/down" else 0
        count = before[path].shape[axis]
        expected = before[path].take([2, 3, 0, 1, *range(4, count)], axis)
        np.testing.assert_allclose(after[path], expected, atol=1e-6)


@pytest.mark.slow
def test_the_best_checkpoint_of_a_run_with_adapters_is_scored(run, base, tmp_path):
    """The rate is so large that the second epoch is the worse one."""
    large = {"learning_rate": 0.5, "use_scheduler": False, "use_ema": False}
    large = {f"trainer__{k}": v for k, v in {**large, "skip_validation": False}.items()}
    section = {"from": str(base), "lora": {**LORA, "targets": ["dense/*"]}}
    text = run(section, "--set", "trainer.epochs=2", **large)
    store = CheckpointStore(tmp_path / "run")
    assert store.best_step() == 2 < max(store.steps())
    store.close()
    assert "RMSE, global, 1 start date" in text


# The work of an earlier run is neither written over nor split nor lost.


FILES = {
    "checkpoints/6/weights/d": "w",
    "training_log.csv": "index,epoch\n0,0\n",
    "training_steps.jsonl": '{"event": "start"}\n{"step": 1}\n',
    "scores/scores.csv": "s",
    "forecast/forecast.zarr/x": "f",
}
SHARED = {"jobs/train.sh": "#!/bin/bash", "cache/program": "c"}


def fill(folder, files):
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def files_of(folder):
    paths = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_text() for path in paths}


def work(**files):
    def case(tmp_path):
        fill(tmp_path, {name.replace("__", "/"): text for name, text in files.items()})
        return lambda: refuse_earlier_run(tmp_path)

    return case


for name in ("checkpoints__6__x", "training_log.csv", "checkpoint.pt"):
    CASES.call(name, work(**{name: "x"}))
CASES.call("best checkpoint", work(**{"best_checkpoint_0.pt": "x"}))
CASES.call("steps", work(**{"training_steps.jsonl": FILES["training_steps.jsonl"]}))
CASES.call(
    "a start", work(**{"training_steps.jsonl": '{"event": "start"}\n', **SHARED})
)


def test_runs_move_whole_each_to_its_folder(tmp_path):
    earlier = []
    for number in range(3):
        fill(tmp_path, SHARED | {k: f"{v}{number}" for k, v in FILES.items()})
        earlier.append(move_earlier_run(tmp_path))
        refuse_earlier_run(tmp_path)
    assert len(set(earlier)) == 3
    for number, folder in enumerate(earlier):
        assert files_of(folder) == {k: f"{v}{number}" for k, v in FILES.items()}
    assert {p.name for p in tmp_path.iterdir()} - {p.name for p in earlier} == {
        "jobs",
        "cache",
    }
    assert move_earlier_run(tmp_path) is None


def test_what_the_new_run_reads_stays(tmp_path, monkeypatch):
    """Whatever key of its config names it, and the config itself."""
    inputs = {
        "mean.nc": "m",
        "scalers/deep/s.json": "s",
        "d_2000.nc": "d",
        "my.yml": "c",
    }
    others = {"model.yml": "o", "e_2000.nc": "e", "forecasts/x": "x", **FILES}
    fill(tmp_path, {**inputs, **others, **SHARED})
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HERE", str(tmp_path))
    config = {
        "save_loc": str(tmp_path),
        "inference": {"save_forecast": str(tmp_path / "forecasts")},
        "data": {"source": {"A": {"path": str(tmp_path / "d_%Y.nc")}}},
        "preblocks": [{"args": {"mean_path": "$HERE/mean.nc", "levels": [1]}}],
        "scaler_path": "scalers/deep/s.json",
        "run_mode": "forecast",
    }
    earlier = move_earlier_run(tmp_path, training_run.files_of(config, "my.yml"))
    assert files_of(earlier) == others
    for name, text in {**inputs, **SHARED}.items():
        assert (tmp_path / name).read_text() == text
    moved = move_earlier_run(tmp_path, training_run.files_of(config, "my.yml"))
    assert moved is None, "there is nothing left to move"


@pytest.mark.parametrize("at", range(7))
def test_a_move_that_is_killed_is_ended(at, tmp_path, monkeypatch):
    fill(tmp_path, FILES)
    rename, done = os.rename, []

    def killed(*paths):
        if len(done) == at:
            raise SystemExit
        done.append(rename(*paths))

    with monkeypatch.context() as patch:
        patch.setattr("os.rename", killed)
        if at <= len(FILES):
            with pytest.raises(SystemExit):
                move_earlier_run(tmp_path)
        else:
            move_earlier_run(tmp_path)
    end_interrupted_move(tmp_path)
    (folder,) = tmp_path.iterdir()
    assert files_of(folder) == FILES
