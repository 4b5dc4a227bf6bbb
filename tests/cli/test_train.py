"""The command `train`: a whole run, its continuation, and what it computes when."""

import importlib
from pathlib import Path

import jax
import numpy as np
import pytest
import xarray as xr

from credit_jax.cli.train import main
from credit_jax.config import ConfigError, load_config
from credit_jax.plan import plan_run
from credit_jax.training.loop import FINISHED
from credit_jax.training.run import train_model
from credit_jax.training.setup import prepare
from tests.training.tiny import tiny_config, write_yaml


@pytest.fixture
def run(world, tmp_path, capsys, tiny_model):
    """`run(*flags, **changes)` -> exit code and output."""

    def run_it(*flags, **changes):
        mapping = tiny_config(world, tmp_path / "run", **changes)
        path = write_yaml(tmp_path / "config.yml", mapping)
        code = main(["--config", path, "--cache", "none", "--devices", "1", *flags])
        return code, "".join(capsys.readouterr())

    return run_it


def contents(folder: Path) -> dict[str, bytes]:
    paths = (p for p in folder.rglob("*") if p.is_file())
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in paths}


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_a_whole_run_and_its_continuation(run, tmp_path):
    code, text = run("--set", "trainer.epochs=2", "--profile", "2:3")
    assert code == 0, text
    assert "mesh   dp 1 x tp 1 x domain 1 on 1 cpu device, float32" in text
    assert "model  tiny, " in text
    assert "6 -> 6 channels" not in text
    folder, told = tmp_path / "run", " ".join(text.split())
    # Five days is all that is held out.
    assert "RMSE, global, 1 start date" in told
    assert f"Scores: {folder}/scores/scores.html" in told
    assert f"Forecast: {folder}/forecast, map: {folder}/forecast.png" in told
    assert (folder / "forecast.png").read_bytes().startswith(b"\x89PNG")
    assert names(folder / "scores") == {
        f"scores.{kind}" for kind in ("csv", "html", "nc")
    }
    with xr.open_zarr(folder / "forecast/forecast.zarr") as forecast:
        assert forecast["T"].dims[:2] == ("time", "prediction_timedelta")
        assert np.isfinite(forecast["T"]).all()
    assert names(folder) == {
        *("channel_schema.yaml", "checkpoints", "forecast", "forecast.png"),
        *("model.yml", "profile", "scores", "training_log.csv"),
        "training_steps.jsonl",
    }
    assert list((folder / "profile").rglob("*.xplane.pb"))
    code, text = run("--set", "trainer.epochs=3", "--resume")
    assert code == 0, text
    assert "epoch 3, batch 1" in text
    assert "other contents" not in text
    assert len((folder / "training_log.csv").read_text().splitlines()) == 4


def test_starting_again(run, tmp_path, monkeypatch):
    """Without an option nothing changes, with --fresh nothing is lost."""
    few = {"trainer__epochs": 1, "trainer__skip_validation": True}
    code, text = run("--save-loc", str(tmp_path / "a/b"), model__image_height=7)
    assert code == 2, text
    assert not (tmp_path / "a").exists(), "a run that cannot start leaves no folder"
    assert run(**few)[0] == 0
    folder = tmp_path / "run"
    before = contents(folder)
    for flags, changes, message in (
        ((), {}, "holds an earlier run (checkpoints, training_log.csv"),
        (("--fresh", "--resume"), {}, "give one of them"),
        (("--fresh",), {"model__image_height": 7}, "grid of 6 x 10"),
        (("--resume",), {"model__hidden": 16}, "model.hidden (8 there, 16 here)"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr("jax.stages.Lowered.compile", forbidden)
            code, text = run(*flags, **few, **changes)
        assert code == 2, text
        assert message in " ".join(text.split())
        assert contents(folder) == before
    assert "checkpoints/6 was trained" in text
    assert run("--fresh", **few)[0] == 0
    (earlier,) = folder.glob("earlier_*")
    assert contents(earlier) == before
    assert run("--resume", **few)[0] == 0


@pytest.mark.slow
def test_each_section_is_parsed_once_and_each_file_opened_once(run, world, monkeypatch):
    """With two splits, two sections that read latitudes, and a normalizer."""
    calls = {}

    def count(target, key=lambda *_, **__: 0):
        """Appends the keys of all calls of a function to a list of `calls`."""
        module, name = target.rsplit(".", 1)
        function = getattr(importlib.import_module(module), name)
        keys = calls[name] = []

        def call(*args, **keywords):
            keys.append(key(*args, **keywords))
            return function(*args, **keywords)

        monkeypatch.setattr(target, call)

    count("xarray.open_dataset", lambda path, **_: path)
    count("credit_jax.plan.run.parse_model")
    count("credit_jax.plan.run.build_pipeline")
    count("credit_jax.plan.objective.build_metrics")
    count("credit_jax.plan.objective.build_loss", lambda *_, **k: k["validation"])
    rows = {"use_latitude_weights": True, "latitude_weights": f"{world}/static.nc"}
    code, text = run(
        trainer__epochs=1,
        loss__latitude_weights=rows["latitude_weights"],
        metrics={"type": "combined", "args": {"metrics": {"acc": {}}, **rows}},
    )
    assert code == 0, text
    # Of a Zarr store, and of a NetCDF-4 file.
    paths = [
        str(getattr(path, "_filename", getattr(path, "store", path)))
        for path in calls.pop("open_dataset")
    ]
    # The forecasts at the end take the transforms and the data of the training.
    own = ["mean.nc", "static.nc", "std.nc", "w_1999.nc", "w_2000.nc"]
    assert sorted(Path(path).name for path in paths) == ["forecast.zarr", *own]
    assert sorted(calls.pop("build_loss")) == [False, True]
    assert {name: len(keys) for name, keys in calls.items()} == dict.fromkeys(calls, 1)


def forbidden(*args, **kwargs):
    raise AssertionError("called too early")


def test_the_first_step_waits_for_no_climatology(
    world, tmp_path, monkeypatch, tiny_model
):
    """Validation reads it later; the metrics are known before."""
    monkeypatch.setattr("credit_jax.plan.objective.mean_targets", forbidden)
    metrics = {"type": "combined", "args": {"metrics": {"acc": {}}}}
    config = tiny_config(world, tmp_path, metrics=metrics)
    plan = plan_run(load_config(write_yaml(tmp_path / "c.yml", config)))
    setup = prepare(plan, jax.devices())
    setup.steps()
    assert "acc/ERA5/prognostic/3d/T" in setup.plan.objective.evaluated
    assert not setup.plan.objective.metrics.names, "no mean of the period for batches"
    batch = setup.place_valid(setup.valid_loader.read([0, 1]))
    state = setup.fresh_state()
    with pytest.raises(AssertionError, match="called too early"):
        setup.steps().evaluate(state.params, state.model_state, batch)


@pytest.mark.slow
def test_a_run_without_the_command(world, tmp_path, tiny_model):
    changes = {"trainer__epochs": 1, "trainer__skip_validation": True}
    # Only validation would use a climatology.
    changes["metrics"] = {"type": "combined", "args": {"metrics": {"acc": {}}}}
    mapping = tiny_config(world, tmp_path / "run", **changes)
    config = load_config(write_yaml(tmp_path / "config.yml", mapping))
    assert train_model(config, num_devices=1).reason == FINISHED
    other = {"save_loc": str(tmp_path / "other")}
    broken = config.model_copy(
        update={"model": {**config.model, "hidden": 0.5}, **other}
    )
    with pytest.raises(ValueError, match="holds an earlier run"):
        train_model(config, num_devices=1)
    with pytest.raises(ConfigError, match="this run cannot start"):
        train_model(broken, num_devices=1)
