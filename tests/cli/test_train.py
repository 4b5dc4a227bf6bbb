"""The command `train`: a whole run, and one readable error for every mistake."""

import importlib
import os

import jax
import numpy as np
import pytest
import xarray as xr

from credit_jax.cli.train import main
from credit_jax.config import ConfigError, load_config
from credit_jax.parallel.mesh.dims import ParallelDims
from credit_jax.plan import plan_run
from credit_jax.training.loop import FINISHED
from credit_jax.training.run import train_model
from credit_jax.training.setup import prepare
from tests.training.conftest import compiled_once, tiny_model, world
from tests.training.tiny import tiny_config, write_yaml

__all__ = ["compiled_once", "tiny_model", "world"]


@pytest.fixture
def run(world, tmp_path, capsys, tiny_model):
    """`run(*flags, **changes)` -> exit code and output."""

    def run_it(*flags, **changes):
        mapping = tiny_config(world, tmp_path / "run", **changes)
        path = write_yaml(tmp_path / "config.yml", mapping)
        code = main(["--config", path, "--cache", "none", "--devices", "1", *flags])
        return code, "".join(capsys.readouterr())

    return run_it


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
    assert {p.name for p in (folder / "scores").iterdir()} == {
        "scores.csv",
        "scores.html",
        "scores.nc",
    }
    with xr.open_zarr(folder / "forecast/forecast.zarr") as forecast:
        assert forecast["T"].dims[:2] == ("time", "prediction_timedelta")
        assert np.isfinite(forecast["T"]).all()
    assert {p.name for p in folder.iterdir()} == {
        "channel_schema.yaml",
        "checkpoints",
        "forecast",
        "forecast.png",
        "model.yml",
        "profile",
        "scores",
        "training_log.csv",
        "training_steps.jsonl",
    }
    assert list((folder / "profile").rglob("*.xplane.pb"))
    code, text = run("--set", "trainer.epochs=3", "--resume")
    assert code == 0, text
    assert "epoch 3, batch 1" in text
    assert "other contents" not in text
    assert len((folder / "training_log.csv").read_text().splitlines()) == 4


@pytest.mark.slow
def test_starting_again_is_refused(run, tmp_path):
    """Three times: without an option nothing changes, with --fresh nothing is lost."""
    few = {"trainer__epochs": 1, "trainer__skip_validation": True}
    assert run(**few)[0] == 0
    folder = tmp_path / "run"

    def files():
        paths = (p for p in folder.rglob("*") if p.is_file())
        return {p.relative_to(folder): p.read_bytes() for p in paths}

    before = files()
    code, text = run(**few)
    assert code == 2, text
    assert "holds an earlier run (checkpoints, training_log.csv" in text
    assert files() == before
    code, text = run("--fresh", "--resume", **few)
    assert code == 2, text
    assert "give one of them" in text
    # A run that cannot start moves nothing.
    code, text = run("--fresh", model__image_height=7)
    assert code == 2, text
    assert files() == before
    assert run("--fresh", **few)[0] == 0
    (earlier,) = folder.glob("earlier_*")
    after = files()
    assert {earlier.name / path: data for path, data in before.items()}.items() <= (
        after.items()
    )
    assert run("--resume", **few)[0] == 0


def test_a_run_that_cannot_start_leaves_no_folder(run, tmp_path):
    code, text = run("--save-loc", str(tmp_path / "a/b"), model__image_height=7)
    assert code == 2, text
    assert not (tmp_path / "a").exists()


@pytest.mark.slow
def test_metrics_that_nothing_measures(run):
    """Only validation uses a climatology."""
    metrics = {"type": "combined", "args": {"metrics": {"acc": {}}}}
    changes = {"trainer__skip_validation": True, "metrics": metrics}
    code, text = run(trainer__epochs=1, **changes)
    assert code == 0, text


def counted(monkeypatch, target, key):
    """Returns a list to which the keys of all calls of a function are appended."""
    module, name = target.rsplit(".", 1)
    function, calls = getattr(importlib.import_module(module), name), []

    def call(*args, **keywords):
        calls.append(key(*args, **keywords))
        return function(*args, **keywords)

    monkeypatch.setattr(target, call)
    return calls


@pytest.mark.slow
def test_each_section_is_parsed_once_and_each_file_opened_once(run, world, monkeypatch):
    """With two splits, two sections that read latitudes, and a normalizer."""
    files = counted(monkeypatch, "xarray.open_dataset", lambda path, **_: path)
    models = counted(
        monkeypatch, "credit_jax.plan.run.parse_model", lambda section: section
    )
    losses = counted(
        monkeypatch,
        "credit_jax.plan.objective.build_loss",
        lambda *_, validation, **__: validation,
    )
    metrics = counted(
        monkeypatch, "credit_jax.plan.objective.build_metrics", lambda *_, **__: 0
    )
    pipelines = counted(monkeypatch, "credit_jax.plan.run.build_pipeline", lambda *_: 0)
    from_config, dims = ParallelDims.from_config, []

    def counted_dims(*args, **keywords):
        dims.append(args)
        return from_config(*args, **keywords)

    monkeypatch.setattr(ParallelDims, "from_config", counted_dims)
    rows = {"use_latitude_weights": True, "latitude_weights": f"{world}/static.nc"}
    code, text = run(
        trainer__epochs=1,
        loss__latitude_weights=rows["latitude_weights"],
        metrics={"type": "combined", "args": {"metrics": {"acc": {}}, **rows}},
    )
    assert code == 0, text
    # Of a Zarr store, and of a NetCDF-4 file.
    stores = [getattr(path, "store", path) for path in files]
    paths = [
        getattr(path, "_filename", store)
        for path, store in zip(files, stores, strict=True)
    ]
    names = sorted(os.path.basename(str(path)) for path in paths)
    # The forecasts at the end take the transforms and the data of the training.
    others = ["forecast.zarr"]
    own = ["mean.nc", "static.nc", "std.nc", "w_1999.nc", "w_2000.nc"]
    assert names == sorted([*own, *others]), names
    assert (len(models), len(dims), len(pipelines)) == (1, 1, 1)
    assert (sorted(losses), len(metrics)) == ([False, True], 1)


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
    assert "acc/ERA5/prognostic/3d/T" in setup.objective.evaluated
    assert not setup.objective.metrics.names, "no mean of the period for batches"
    batch = setup.place_valid(setup.valid_loader.read([0, 1]))
    state = setup.fresh_state()
    with pytest.raises(AssertionError, match="called too early"):
        setup.steps().evaluate(state.params, state.model_state, batch)


@pytest.mark.slow
def test_resume_with_another_model(run, monkeypatch):
    code, text = run("--set", "trainer.epochs=1", "--set", "trainer.skip_validation=1")
    assert code == 0, text
    monkeypatch.setattr("jax.stages.Lowered.compile", forbidden)
    code, text = run("--resume", model__hidden=16)
    assert code == 2, text
    assert "checkpoints/6 was trained" in text
    assert "model.hidden (8 there, 16 here)" in text


@pytest.mark.slow
def test_a_run_without_the_command(world, tmp_path, tiny_model):
    changes = {"trainer__epochs": 1, "trainer__skip_validation": True}
    mapping = tiny_config(world, tmp_path / "run", **changes)
    config = load_config(write_yaml(tmp_path / "config.yml", mapping))
    outcome = train_model(config, num_devices=1)
    assert outcome.reason == FINISHED
    broken = config.model_copy(
        update={
            "model": {**config.model, "hidden": 0.5},
            "save_loc": str(tmp_path / "other"),
        }
    )
    with pytest.raises(ValueError, match="holds an earlier run"):
        train_model(config, num_devices=1)
    with pytest.raises(ConfigError, match="this run cannot start"):
        train_model(broken, num_devices=1)


def test_a_diverging_run(run):
    code, text = run(trainer__learning_rate=1e38, trainer__grad_max_norm=0.0)
    assert code == 3
    assert "at step" in text
    assert "training has stopped" in text


MISTAKES = {
    "resume without a checkpoint": (("--resume",), {}, "--resume needs a checkpoint"),
    "wrong grid": ((), {"model__image_height": 7}, "grid of 6 x 10"),
    "wrong channels": (
        (),
        {"model__input_only_channels": 5},
        "model 2 x 2 + 1 + 5 = 10; data U 2 + T 2 + SP 1 + LSM 1 + tsi 1 = 7",
    ),
    "a pattern without files": (
        (),
        {"data__source__ERA5__variables__prognostic__path": "data/nope_%Y.zarr"},
        "data.source.ERA5.variables.prognostic.path: no file matches "
        "'data/nope_%Y.zarr' (searched 'data/nope_*.zarr' in",
    ),
    "unknown training metric": (
        (),
        {"trainer__training_metric": "valid_acc"},
        "expected one of train_loss, valid_bias, valid_loss, valid_r2score, valid_rmse",
    ),
    "loss of an ensemble": (
        (),
        {"loss__training_loss": "KCRPS"},
        "KCRPS scores an ensemble: set trainer.ensemble_size to 2 or more (got 1)",
    ),
    "heads over tp": (
        ("--devices", "3"),
        {"trainer__parallelism": {"data": "none", "tensor": 3, "domain": 1}},
        "dense/down: 8 mlp are not divisible by tensor 3",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_one_readable_error(name, run, monkeypatch):
    flags, changes, message = MISTAKES[name]
    monkeypatch.setattr("jax.jit", forbidden)
    code, text = run(*flags, **changes)
    assert code == 2, text
    assert message in " ".join(text.split()), text
    assert "Traceback" not in text


def forbidden(*args, **kwargs):
    raise AssertionError("called too early")


def test_save_loc_that_cannot_be_written(run, tmp_path):
    (tmp_path / "file").write_text("")
    code, text = run("--save-loc", str(tmp_path / "file" / "run"))
    assert code == 2
    assert "save_loc (--save-loc): cannot write to" in text
