"""Weights that a run begins with: bases, and earlier runs."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

from credit_jax.checkpoint import EMA, CheckpointStore
from credit_jax.checkpoint.run import open_run
from credit_jax.cli import check, forecast
from credit_jax.cli.commands import OK, USER_ERROR
from credit_jax.cli.train import main
from credit_jax.config import build_config
from credit_jax.config.yaml_file import read_yaml
from credit_jax.extensions.packaging import command as package
from credit_jax.models.channel_change import CHANNELS_FIRST
from credit_jax.models.registry import build
from credit_jax.packages.package import open_artifact
from credit_jax.plan.run_record import RunRecord
from credit_jax.training import earlier_run
from credit_jax.training.earlier_run import (
    end_interrupted_move,
    move_earlier_run,
    refuse_earlier_run,
)
from tests.data.world import EXACT, MODEL
from tests.forecast.tiny_run import make_run
from tests.training.tiny import tiny_config, write_yaml

FROZEN = "dense/up"
SETTINGS = {
    "trainer__batches_per_epoch": 2,
    "trainer__skip_validation": True,
    "trainer__grad_accum_every": 1,
}
Run = Callable[..., tuple[int, str]]


@pytest.fixture
def base(world: Path, tmp_path: Path) -> Path:
    """The folder of a run with one checkpoint."""
    return make_base(world, tmp_path / "base")


def make_base(world: Path, folder: Path, **changes: Any) -> Path:
    config = Path(make_run(world, folder, **changes))
    shutil.copy(config, config.parent / "run" / "model.yml")
    return config.parent / "run"


@pytest.fixture
def run(world: Path, tmp_path: Path, capsys: Any) -> Run:
    """`run(finetune section, *flags, **changes)` -> exit code and output."""

    def run_it(
        section: dict[str, Any] | None, *flags: str, **changes: Any
    ) -> tuple[int, str]:
        settings = SETTINGS | {"trainer__finetune": section} | changes
        mapping = tiny_config(world, tmp_path / "run", **settings)
        path = write_yaml(tmp_path / "config.yml", mapping)
        code = main(["--config", path, "--cache", "none", "--devices", "1", *flags])
        return code, " ".join("".join(capsys.readouterr()).split())

    return run_it


def weights_of(folder: Path, weights: str | None = None) -> tuple[Any, Any]:
    opened = open_run(folder, weights=weights)
    return opened.on_host(build({**MODEL, "type": "tiny"}))


@pytest.mark.usefixtures("tiny_model")
def test_a_run_begins_with_another_and_needs_it_no_more(
    run: Run, base: Path, tmp_path: Path
) -> None:
    section = {"from": str(base), "freeze": ["*/up"]}
    code, text = run(section)
    assert code == OK, text
    assert f"Beginning with the weights of {base}/checkpoints/3, " in text
    assert "parameters are trained; 1 array frozen: dense/up" in text
    before, state = weights_of(base)
    folder = tmp_path / "run"
    for weights in ("last", "average"):
        params, after = weights_of(folder, weights)
        assert np.array_equal(params[FROZEN], before[FROZEN])
        for side in "uv":
            vectors = (s["spectral_norm"][FROZEN][side] for s in (after, state))
            assert np.array_equal(*vectors)
        for path in ("dense/down", "dense/bias"):
            moved = np.abs(params[path] - before[path]).max()
            assert 0 < moved < 0.1, "two updates away from the base"
    store = CheckpointStore(folder)
    assert EMA in store.item_names(2)
    store.close()
    shutil.rmtree(base)
    code, text = run(section, "--resume", "--set", "trainer.epochs=2")
    assert code == OK, text
    assert np.array_equal(weights_of(folder)[0][FROZEN], before[FROZEN])


@pytest.mark.usefixtures("tiny_model")
def test_other_files_than_those_of_the_base_are_noted(base: Path) -> None:
    raw = read_yaml(base / "model.yml")
    record = open_artifact(base).record
    assert record is not None
    here = RunRecord.of(build_config(raw))
    assert not record.compare(here, begins=True)
    args, other = raw["preblocks"]["per_step"]["norm"]["args"], base / "other.nc"
    other.write_bytes(Path(args["mean_path"]).read_bytes() + b"more")
    args["mean_path"] = str(other)
    (note,) = record.compare(RunRecord.of(build_config(raw)), begins=True)
    assert "preblocks.per_step.norm.args.mean_path ('SHA-256 " in note


@pytest.mark.usefixtures("tiny_model")
@pytest.mark.slow
def test_a_package_and_its_run_are_the_same_base(
    run: Run, base: Path, tmp_path: Path
) -> None:
    config, out = base / "model.yml", tmp_path / "package"
    options = ["--config", str(config), "--checkpoint", str(base), "--out", str(out)]
    assert package.main(options) == OK
    trained = []
    for place in (base, out):
        code, text = run({"from": str(place)}, "--fresh")
        assert code == OK, text
        trained.append(weights_of(tmp_path / "run")[0])
    for path, value in trained[0].items():
        assert np.array_equal(value, trained[1][path]), path


@pytest.mark.usefixtures("tiny_model")
def test_bases_are_refused_in_one_error(run: Run, base: Path, tmp_path: Path) -> None:
    code, text = run({"from": str(tmp_path / "none")})
    assert code != OK
    assert "trainer.finetune.from: " in text
    assert "no such file or folder" in text
    section = {"from": str(base), "freeze": ["nothing/*"]}
    code, text = run(section, model__hidden=16)
    assert code != OK
    assert "freeze: 'nothing/*' matches no parameter" in text
    section |= {"freeze": []}
    code, text = run(section, model__hidden=16)
    assert code != OK
    assert "model.hidden: 16, in the base 8" in text
    written = read_yaml(base / "model.yml")
    write_yaml(base / "model.yml", {**written, "model": MODEL})
    shutil.rmtree(base / "checkpoints")
    (base / "checkpoints").mkdir()
    lora = {"rank": 1, "alpha": 2, "targets": ["*nothing*"]}
    for keys, message in (
        ({"train": ["nothing/*"]}, "train: 'nothing/*' matches no parameter"),
        ({"lora": lora}, "lora.targets: '*nothing*' matches no parameter"),
    ):
        code, text = run(section | keys)
        assert code != OK
        assert message in text
    code, text = run(section)
    assert code != OK
    assert "has a model of type wxformer, the config has tiny" in text
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("tiny_model")
@pytest.mark.slow
def test_levels_of_a_base_are_those_of_the_data(
    run: Run, base: Path, tmp_path: Path, capsys: Any
) -> None:
    """Of a run that records them, and of one whose config alone is known."""
    data, config = "data__source__ERA5__levels", str(tmp_path / "config.yml")
    assert run({"from": str(base)})[0] == OK
    shutil.move(tmp_path / "run", tmp_path / "trained")
    words = "U has the levels [2.0, 5.0], in the base [1.0, "
    for place in (tmp_path / "trained", base):
        code, text = run({"from": str(place)}, "--fresh", **{data: [2.0, 5.0]})
        assert code != OK
        assert words in text
        assert check.main(["--config", config, "--devices", "1"]) != OK
        assert words in " ".join("".join(capsys.readouterr()).split())


@pytest.mark.usefixtures("tiny_model")
@pytest.mark.slow
def test_channels_in_another_order_are_refused(
    run: Run, base: Path, tmp_path: Path
) -> None:
    code, text = run({"from": str(base)})
    assert code == OK, text
    shutil.copytree(tmp_path / "run", tmp_path / "trained")
    order = {"data__source__ERA5__variables__prognostic__vars_3D": ["T", "U"]}
    section = {"from": str(tmp_path / "trained")}
    code, text = run(section, "--fresh", **order)
    assert code != OK
    assert "has other channels: input: variable 1 is T (2 levels), in the che" in text


def changed_files(
    world: Path, folder: Path, change: Callable[[xr.Dataset], xr.Dataset]
) -> dict[str, str]:
    """Writes the files of the data anew; returns the changes of a config to them."""
    folder.mkdir()
    for path in world.glob("w_*.nc"):
        with xr.open_dataset(path) as file:
            change(file).to_netcdf(folder / path.name)
    kinds = ("prognostic", "dynamic_forcing", "diagnostic")
    keys = [f"data__source__ERA5__variables__{kind}__path" for kind in kinds]
    return dict.fromkeys(keys, f"{folder}/w_%Y.nc")


def in_unit(file: xr.Dataset, unit: str) -> xr.Dataset:
    values = file["T"] - 273.15 * (unit == "degC")
    return file.assign(T=values.assign_attrs(units=unit))


@pytest.mark.usefixtures("tiny_model")
@pytest.mark.slow
def test_a_run_that_begins_with_weights_may_have_another_calendar(
    run: Run, base: Path, world: Path, tmp_path: Path
) -> None:
    """It is said; the same run is not resumed in another one."""
    assert run({"from": str(base)})[0] == OK
    shutil.move(tmp_path / "run", tmp_path / "trained")
    noleap = changed_files(
        world, tmp_path / "noleap", lambda file: file.convert_calendar("noleap")
    )
    section = {"from": str(tmp_path / "trained")}
    code, text = run(section, **noleap)
    assert code == OK, text
    where = f"{tmp_path}/trained/checkpoints/2, moving average"
    words = "note: data: the dates are in the calendar noleap, those of"
    assert f"{words} {where} in standard; they are taken as they are" in text
    code, text = run(section, "--resume", "--set", "trainer.epochs=2")
    assert code != OK
    assert "data: the dates are in the calendar standard, expected noleap as in" in text


@pytest.mark.usefixtures("tiny_model")
@pytest.mark.slow
def test_a_variable_in_another_unit_is_converted_or_refused(
    run: Run, base: Path, world: Path, tmp_path: Path, capsys: Any
) -> None:
    """By the checkpoint of a run and by the channels of its package."""
    units = {
        unit: changed_files(world, tmp_path / unit, partial(in_unit, unit=unit))
        for unit in ("K", "m", "degC")
    }
    code, text = run({"from": str(base)}, **units["K"])
    assert code == OK, text
    trained, packed = tmp_path / "trained", tmp_path / "package"
    shutil.move(tmp_path / "run", trained)
    assert package.main(["--checkpoint", str(trained), "--out", str(packed)]) == OK
    data, paths = tmp_path / "data.yml", {"path": f"{tmp_path}/m/w_%Y.nc"}
    variables = dict.fromkeys(("prognostic", "dynamic_forcing"), paths)
    write_yaml(data, {"source": {"ERA5": {"variables": variables}}})
    for place, where in (
        (trained, f"checkpoint {trained}/checkpoints/2"),
        (packed, f"{packed}/channels.json"),
    ):
        section = {"from": str(place)}
        code, text = run(section, "--fresh", **units["m"])
        problem = (
            f"{tmp_path}/m/w_1999.nc: variable 'T' has units 'm', expected 'K' "
            f"as in {where}; bring the file to that unit"
        )
        assert code != OK
        assert problem in text
        config = str(tmp_path / "config.yml")
        assert check.main(["--config", config, "--devices", "1"]) != OK
        assert problem in " ".join("".join(capsys.readouterr()).split())
        of_run = ["--config", config, "--checkpoint", str(place)]
        of_package = ["--package", str(place), "--data", str(data)]
        given = of_package if place == packed else of_run
        options = [*given, "--init-time", "2000-01-01", "--steps", "1"]
        assert forecast.main([*options, "--out", str(tmp_path / "no")]) != OK
        assert problem in " ".join("".join(capsys.readouterr()).split())
        code, text = run(section, "--fresh", **units["degC"])
        assert code == OK, text
        assert "T is in 'degC', and read in 'K'" in " ".join(text.split())
        code, text = run(section, "--fresh", **units["K"])
        assert code == OK, text
    code, text = run(section, "--resume", "--set", "trainer.epochs=2", **units["m"])
    assert code != OK
    assert f"data: variable 'T' has units 'm', expected 'K' as in {tmp_path}" in text


@pytest.mark.usefixtures("tiny_model")
@pytest.mark.slow
def test_moments_of_the_base_go_on(run: Run, base: Path, tmp_path: Path) -> None:
    """As with CREDIT's keys, which take weights and optimizer from `save_loc`."""
    folder, alone = tmp_path / "run", {"trainer__use_ema": False}
    code, text = run({"from": str(base)}, **alone)
    assert code == OK, text
    shutil.copytree(folder, tmp_path / "trained")
    loads = {"trainer__load_weights": True, "trainer__load_optimizer": True}
    assert run(None, **alone, **loads)[0] == OK
    expected = weights_of(folder)[0]
    section = {"from": str(tmp_path / "trained")}
    for moments in (True, False):
        code, text = run({**section, "moments": moments}, "--fresh", **alone)
        assert code == OK, text
        params = weights_of(folder)[0]
        same = [np.array_equal(params[path], x) for path, x in expected.items()]
        assert all(same) == moments
    frozen = {**section, "moments": True, "freeze": ["*/up"]}
    code, text = run(frozen, "--fresh", **alone)
    assert code == OK, text
    lora = {"rank": 1, "alpha": 2, "targets": ["dense/up"]}
    adapted = {**section, "lora": lora, "train": ["dense/bias"]}
    biases = []
    for moments in (True, False):
        code, text = run({**adapted, "moments": moments}, "--fresh", **alone)
        assert code == OK, text
        biases.append(weights_of(folder)[0]["dense/bias"])
    assert not np.array_equal(*biases), "what is trained besides has moments"
    code, text = run({"from": str(base), "moments": True}, "--fresh", **alone)
    assert code != OK
    assert "moments: the optimizer of " in text
    assert check.main(["--config", str(tmp_path / "config.yml")]) != OK


@pytest.mark.usefixtures("tiny_model")
@pytest.mark.slow
def test_moments_of_a_base_that_was_fine_tuned_itself(
    run: Run, base: Path, tmp_path: Path
) -> None:
    """Of what it trained: adapters of the base are in its matrices, and begin anew."""
    lora = {"rank": 1, "alpha": 2, "targets": ["dense/up"]}
    section = {"from": str(base), "lora": lora, "train": ["dense/bias"]}
    assert run(section)[0] == OK
    shutil.move(tmp_path / "run", tmp_path / "trained")
    section |= {"from": str(tmp_path / "trained"), "lora": lora | {"rank": 2}}
    biases = []
    for moments in (True, False):
        code, text = run({**section, "moments": moments}, "--fresh")
        assert code == OK, text
        biases.append(weights_of(tmp_path / "run", "last")[0]["dense/bias"])
    assert not np.array_equal(*biases), "what both train goes on"


@pytest.mark.usefixtures("tiny_model")
@pytest.mark.slow
def test_adapters_are_trained_resumed_and_merged(
    run: Run, base: Path, tmp_path: Path
) -> None:
    """Checkpoints have the sums, so that forecasts and PyTorch need no adapters."""
    lora = {"rank": 1, "alpha": 2, "targets": ["dense/*"]}
    section, folder = {"from": str(base), "lora": lora}, tmp_path / "run"
    code, text = run(section, "--set", "trainer.epochs=2")
    assert code == OK, text
    whole = (weights_of(folder), weights_of(folder, "last"))
    before = weights_of(base)[0]
    for path in ("dense/up", "dense/down"):
        assert not np.array_equal(whole[0][0][path], before[path])
        change = whole[1][0][path] - before[path]
        values = np.linalg.svd(change, compute_uv=False)
        assert values[1] < 1e-5 * values[0], "a change of rank 1"
    assert np.array_equal(whole[0][0]["dense/bias"], before["dense/bias"])
    shutil.move(folder, tmp_path / "undisturbed")
    assert run(section)[0] == OK
    code, text = run(section, "--resume", "--set", "trainer.epochs=2")
    assert code == OK, text
    for (params, _), weights in zip(whole, (None, "last"), strict=True):
        again = weights_of(folder, weights)[0]
        for path, value in params.items():
            assert np.array_equal(again[path], value), path


@pytest.mark.usefixtures("tiny_model")
@pytest.mark.slow
def test_new_channels_of_frozen_layers_are_refused(
    run: Run, world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(CHANNELS_FIRST, "tiny", True)
    few = {"data__source__ERA5__variables__prognostic__vars_3D": ["U"]}
    base = make_base(world, tmp_path / "few", **EXACT, **few, model__channels=1)
    lora = {"rank": 1, "alpha": 1, "targets": ["dense/up"]}
    section = {"from": str(base), "new_channels": "zero", "lora": lora}
    code, text = run(section, **EXACT)
    assert code == USER_ERROR, text
    assert "new outputs would never be trained, as dense/down is frozen; name" in text
    assert "new inputs" not in text, "dense/up has an adapter"
    code, text = run(section | {"train": ["dense/down"]}, **EXACT)
    assert code == OK, text
    assert "output 3: T 5: new, begins with 0" in text


@pytest.mark.usefixtures("tiny_model")
@pytest.mark.slow
def test_variables_in_another_order_move_with_their_weights(
    run: Run, world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The base has no channel_schema.yaml: its config says what its channels are."""
    base = make_base(world, tmp_path / "exact", **EXACT)
    monkeypatch.setitem(CHANNELS_FIRST, "tiny", True)
    order = {"data__source__ERA5__variables__prognostic__vars_3D": ["T", "U"]}
    few = {"trainer__learning_rate": 1e-9, "trainer__use_scheduler": False}
    section = {"from": str(base), "new_channels": "mean"}
    code, text = run(section, **order, **few, **EXACT, trainer__weight_decay=0)
    assert code == OK, text
    assert "input 0: T 1: channel 2 of the base" in text
    assert "output 3: U 5: channel 1 of the base" in text
    before, after = weights_of(base)[0], weights_of(tmp_path / "run")[0]
    places = [2, 3, 0, 1]
    for moved, old in (
        (after["dense/up"], before["dense/up"]),
        (after["dense/down"].T, before["dense/down"].T),
        (after["dense/bias"], before["dense/bias"]),
    ):
        np.testing.assert_allclose(moved[:4], old[places], atol=1e-6)
        np.testing.assert_allclose(moved[4:], old[4:], atol=1e-6)


@pytest.mark.usefixtures("tiny_model")
@pytest.mark.slow
def test_the_best_checkpoint_of_a_run_with_adapters_is_scored(
    run: Run, base: Path, tmp_path: Path
) -> None:
    """The rate is so large that the second epoch is the worse one."""
    lora = {"rank": 1, "alpha": 2, "targets": ["dense/*"]}
    large = {
        "trainer__learning_rate": 0.5,
        "trainer__use_scheduler": False,
        "trainer__use_ema": False,
        "trainer__skip_validation": False,
    }
    options = ["--set", "trainer.epochs=2"]
    code, text = run({"from": str(base), "lora": lora}, *options, **large)
    assert code == OK, text
    store = CheckpointStore(tmp_path / "run")
    assert store.best_step() == 2 < max(store.steps())
    store.close()
    assert "RMSE, global, 1 start date" in " ".join(text.split())


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


@pytest.mark.parametrize(
    "name",
    ["checkpoints/6/x", "training_log.csv", "checkpoint.pt", "best_checkpoint_0.pt"],
)
def test_work_is_refused(name, tmp_path):
    fill(tmp_path, {name: "x"})
    text = f"holds an earlier run .{name.partition('/')[0]}.*--resume.*--fresh"
    with pytest.raises(ValueError, match=text):
        refuse_earlier_run(tmp_path)


def test_a_start_without_updates_is_no_work(tmp_path):
    fill(tmp_path, {"training_steps.jsonl": '{"event": "start"}\n', **SHARED})
    (tmp_path / "checkpoints").mkdir()
    refuse_earlier_run(tmp_path)
    fill(tmp_path, {"training_steps.jsonl": FILES["training_steps.jsonl"]})
    with pytest.raises(ValueError, match=r"training_steps\.jsonl"):
        refuse_earlier_run(tmp_path)


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
    earlier = move_earlier_run(tmp_path, earlier_run.files_of(config, "my.yml"))
    assert files_of(earlier) == others
    for name, text in {**inputs, **SHARED}.items():
        assert (tmp_path / name).read_text() == text
    moved = move_earlier_run(tmp_path, earlier_run.files_of(config, "my.yml"))
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
