"""Invalid forecasts give one error before anything is compiled."""

import shutil
from functools import partial
from typing import Any

import jax
import numpy as np
import pytest
import xarray as xr
import yaml

from credit_jax.checkpoint import CheckpointStore, Progress
from credit_jax.cli.commands import OK, USER_ERROR
from credit_jax.config.inference import read_attributes
from credit_jax.forecast import autoregression, forecaster
from credit_jax.models.registry import build
from tests.data.damaged import rewrite
from tests.forecast.tiny_run import forecast, make_run
from tests.messages.engine import *  # noqa: F403
from tests.messages.engine import Cases

CASES = Cases("forecast")


@pytest.fixture
def nothing_compiled(monkeypatch):
    """Makes every compilation fail."""

    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("compiled")

    for module in (autoregression, forecaster):
        monkeypatch.setattr(module, "compile_program", never)


CALLS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "an init time that the data lack": ({}, ("--init-time", "2003-05-01")),
    "a date that is none": ({}, ("--init-time", "Monday")),
    "a year that labels lack": ({}, ("--init-time", "0500-01-01")),
    "a length that is none": ({}, ("--length", "nat")),
    "a length between two steps": ({}, ("--length", "10h")),
    "no variable at all": ({"inference__output__variables": []}, ()),
    "a perturbation of what is not predicted": (
        {"inference__perturbation": {"std": {"T": 0.1, "t2m": 0.1}}},
        ("--members", "2"),
    ),
    "missing forcing for the last leads": (
        {},
        ("--init-time", "2000-01-09T12", "--steps", "4"),
    ),
    "a variable that is not predicted": (
        {"inference__output__variables": ["ERA5/prognostic/2d/t2m"]},
        (),
    ),
    "a level that is not predicted": (
        {
            "inference__output__variables": [
                {"name": "ERA5/prognostic/3d/T", "levels": [500]}
            ]
        },
        (),
    ),
    "attributes in a folder that no variable names": (
        {"inference__output__metadata": "$NO_SUCH_FOLDER/own.yaml"},
        (),
    ),
    "an unknown file of attributes": ({"inference__output__metadata": "era6.yaml"}, ()),
    "a dtype that NetCDF lacks": (
        {"inference__output__encoding": {"T": {"dtype": "float16"}}},
        ("--format", "netcdf"),
    ),
    "chunks of other dims": (
        {"inference__output__encoding": {"chunksizes": [1, 2]}},
        ("--format", "netcdf"),
    ),
    "an interval longer than the forecast": (
        {"inference__output__output_interval": "5d"},
        (),
    ),
    "no named fields": ({"postblocks": {"per_step": {}}}, ()),
    "no start date": ({"inference": {"run_mode": "single"}}, ("--steps", "1")),
    "a part of none": ({}, ("--shard", "3/2")),
    "other forecast data": (
        {
            "inference__data": {
                "source": {
                    "ERA5": {
                        "dataset_type": "local",
                        "level_coord": "level",
                        "levels": [1.0, 4.6],
                        "variables": {
                            "prognostic": {"vars_3D": ["U"], "path": "{world}/w_%Y.nc"}
                        },
                    }
                },
                "timestep": "6h",
            }
        },
        (),
    ),
}


def _in_world(value: Any, world: Any) -> Any:
    return yaml.safe_load(yaml.safe_dump(value).replace("{world}", str(world)))


def wrong(name, world, tmp_path, tiny_model, nothing_compiled, capsys):
    changes, options = CALLS[name]
    config = make_run(world, tmp_path, **_in_world(changes, world))
    return lambda: forecast(config, tmp_path / "out", *options)


CASES.rows(wrong, *CALLS)


@pytest.mark.slow
def test_a_checkpoint_of_another_model(
    world, tmp_path, tiny_model, capsys, nothing_compiled
):
    config = make_run(world, tmp_path)
    raw = yaml.safe_load((tmp_path / "model.yml").read_text())
    model_def = build(raw["model"] | {"hidden": 4})
    keys = jax.random.split(jax.random.key(0))
    params = model_def.init(keys[0])
    state = model_def.init_model_state(keys[1], params)
    params, state = jax.device_get((params, state))
    weights = {"params": params, **state}
    store = CheckpointStore(tmp_path / "other")
    store.save(1, {"weights": weights}, Progress(epoch=0))
    store.close()
    other = ("--checkpoint", str(tmp_path / "other"))
    assert forecast(config, tmp_path / "out", *other) == USER_ERROR
    assert "does not fit" in capsys.readouterr().err


def bad_values(variable, step, value, world, tmp_path, tiny_model):
    start = np.datetime64("2000-01-02")
    for path in world.iterdir():
        shutil.copy(path, tmp_path)
    with xr.open_dataset(tmp_path / "w_2000.nc") as fields:
        changed = fields.load()
    place = {"time": start + step * np.timedelta64(6, "h")}
    field = changed[variable].sel(place)
    changed[variable].loc[place] = xr.where(field == field.max(), value, field)
    changed.to_netcdf(tmp_path / "w_2000.nc")
    for name, number in (("mean", 0.0), ("std", 1.0)):
        statistics = partial(xr.Dataset.assign, tsi=number)
        rewrite(tmp_path / f"{name}.nc", statistics)
    config = make_run(tmp_path, tmp_path / "run", data__on_outlier="raise")
    options = ("--init-time", str(start), "--steps", "4")
    return forecast(config, tmp_path / "out", *options)


CASES.rows(
    bad_values,
    ("T", 0, np.nan),
    ("T", 0, -9999.0),
    ("tsi", 2, np.nan),
    ("T", 0, 1e7),
    ("tsi", 2, 1e6),
)


def test_attributes_that_files_cannot_have(tmp_path):
    path = tmp_path / "own.yaml"
    for text, expected in (
        ("T: {units: null}", "T: units: an attribute of a file is text, a number"),
        ("T: units = K", "T: expected attributes, got 'units = K'"),
    ):
        path.write_text(text)
        with pytest.raises(ValueError, match=expected):
            read_attributes(str(path))
    path.write_text("T:")
    assert read_attributes(str(path)) == {"T": {}}


@pytest.mark.parametrize("name", ["2d", "3d"])
def test_attributes_that_credit_cannot_read(name):
    """The lines of CREDIT's files are text."""
    found = read_attributes(f"conus404.{name}.yaml")
    assert all("units" in own for own in found.values())


@pytest.mark.slow
def test_a_folder_that_holds_other_forecasts(world, tmp_path, tiny_model, capsys):
    config, out = make_run(world, tmp_path), tmp_path / "out"
    dates = ("--init-time", "2000-01-01", "--steps", "2")
    assert forecast(config, out, *dates) == OK
    assert forecast(config, out, *dates) == USER_ERROR
    assert "--resume" in capsys.readouterr().err
    assert forecast(config, out, *dates, "--steps", "3", "--resume") == USER_ERROR
    assert "differ in steps (2 there, 3 here)" in capsys.readouterr().err
    assert forecast(config, out, *dates, "--resume", "--format", "netcdf") == USER_ERROR
    assert "format ('zarr 3' there, 'netcdf' here)" in capsys.readouterr().err
    changed = make_run(world, tmp_path / "b", data__source__ERA5__levels=[2.0, 4.6])
    assert forecast(changed, out, *dates, "--resume") == USER_ERROR
    error = capsys.readouterr().err
    assert "data.source.ERA5.levels ([1.0, 4.6] there, [2.0, 4.6] here)" in error


@pytest.mark.slow
def test_a_folder_of_forecasts_without_a_record(world, tmp_path, tiny_model, capsys):
    """Such as CREDIT's own, which are not written over."""
    config, out = make_run(world, tmp_path), tmp_path / "out"
    (out / "20000101_0000Z").mkdir(parents=True)
    options = ("--init-time", "2000-01-02", "--format", "netcdf")
    assert forecast(config, out, *options) == USER_ERROR
    assert "forecasts of unknown origin" in capsys.readouterr().err
    (out / "20000101_0000Z").rmdir()
    (out / "forecast.json").write_text('{"identity": 3}')
    assert forecast(config, out, *options) == USER_ERROR
    assert "forecast.json is no record of forecasts" in capsys.readouterr().err


@pytest.mark.slow
def test_one_length_alone(tmp_path, capsys):
    with pytest.raises(SystemExit):
        forecast("model.yml", tmp_path, "--steps", "2", "--length", "12h")
    assert "--length: not allowed with argument --steps" in capsys.readouterr().err
