"""Invalid forecasts and scores give one error before anything is compiled."""

import os
import shutil
from dataclasses import replace
from functools import partial

import jax
import numpy as np
import pandas as pd
import pytest
import xarray as xr
import yaml

from credit_jax.cli.score import main as score_main
from credit_jax.config.inference import read_attributes
from credit_jax.data.schedule import ForecastSchedule
from credit_jax.forecast import autoregression, forecaster
from credit_jax.forecast.archive import Archive
from tests.data.damaged import rewrite
from tests.data.world import GRID, make_fields
from tests.forecast.tiny_run import forecast, make_run, write_config, write_weights
from tests.messages.engine import *  # noqa: F403
from tests.messages.engine import Cases
from tests.training.tiny import MODEL, write_yaml

CASES = Cases("forecast")


@pytest.fixture
def nothing_compiled(monkeypatch):
    """Makes every compilation fail, and that of scores."""
    for module in (autoregression, forecaster):
        monkeypatch.setattr(module, "compile_program", None)
    monkeypatch.setattr(jax, "device_get", None)


def called(*options, config, tmp_path, nothing_compiled):
    return lambda: forecast(config, tmp_path / "out", *options)


CASES.rows(
    called,
    ("--init-time", "2003-05-01"),
    ("--init-time", "Monday"),
    ("--init-time", "0500-01-01"),
    ("--init-time", "2000-01-09T12", "--steps", "4"),
    ("--length", "nat"),
    ("--length", "10h"),
    ("--shard", "3/2"),
    *((f"--stop-after={limit}",) for limit in ("soon", "-3h", "0s")),
    ("--members", "2", "--score", "there"),
    ("--format", "none"),
    ("--regions", "tropics"),
    ("--init-time", "2000-01-09T18", "--steps", "2", "--score", "there"),
    ("--score", "there", "--variables", "Z500"),
)


def changed(world, run, tmp_path, nothing_compiled, options=(), **changes):
    changes = yaml.safe_load(yaml.safe_dump(changes).replace("{world}", str(world)))
    config = write_config(world, run / "run", tmp_path, **changes)
    return lambda: forecast(config, tmp_path / "out", *options)


OUTPUT, NETCDF = "inference__output", ("--format", "netcdf")
NOISE = "inference__perturbation"
WIND = {"prognostic": {"vars_3D": ["U"], "path": "{world}/w_%Y.nc"}}
SOURCE = {"dataset_type": "local", "level_coord": "level", "levels": [1.0, 4.6]}
OTHER = {"source": {"ERA5": SOURCE | {"variables": WIND}}, "timestep": "6h"}
CASES.rows(
    changed,
    {f"{OUTPUT}__variables": []},
    {f"{OUTPUT}__variables": ["ERA5/prognostic/2d/t2m"]},
    {f"{OUTPUT}__variables": [{"name": "ERA5/prognostic/3d/T", "levels": [500]}]},
    {f"{OUTPUT}__metadata": "$NO_SUCH_FOLDER/own.yaml"},
    {f"{OUTPUT}__metadata": "era6.yaml"},
    {f"{OUTPUT}__encoding": {"T": {"dtype": "float16"}}, "options": NETCDF},
    {f"{OUTPUT}__encoding": {"chunksizes": [1, 2]}, "options": NETCDF},
    {f"{OUTPUT}__output_interval": "5d"},
    {NOISE: {"std": {"T": 0.1, "t2m": 0.1}}, "options": ("--members", "2")},
    {NOISE: {"type": "lagged", "lag": "6h"}, "options": ("--members", "40")},
    {"postblocks": {"per_step": {}}},
    {"inference": {"run_mode": "single"}, "options": ("--steps", "1")},
    {"inference__data": OTHER},
)


@CASES.case
def channels_in_another_order(world, run, tmp_path, nothing_compiled):
    data = yaml.safe_load((run / "model.yml").read_text())["data"]
    data["source"]["ERA5"]["variables"]["prognostic"]["vars_3D"].reverse()
    return changed(world, run, tmp_path, nothing_compiled, inference__data=data)


def without_training(dates, run, tmp_path):
    raw = yaml.safe_load((run / "model.yml").read_text())
    for key in ("start_datetime", "end_datetime"):
        del raw["data"][key]
    del raw["loss"], raw["trainer"], raw["validation_data"]
    raw |= {"data": raw["data"] | dates, "inference": {}}
    config = write_yaml(tmp_path / "alone.yml", raw)
    return lambda: forecast(config, tmp_path / "out")


SOON = {"start_datetime": "1999-12-30", "timestep": "soon"}
CASES.rows(without_training, (SOON,), ({},), name="without training")


@CASES.case
def a_checkpoint_of_another_model(config, tmp_path, request):
    write_weights(MODEL | {"type": "tiny", "hidden": 4}, tmp_path / "other")
    request.getfixturevalue("nothing_compiled")
    other = ("--checkpoint", str(tmp_path / "other"))
    return lambda: forecast(config, tmp_path / "out", *other)


def bad_values(variable, step, value, world, run, tmp_path):
    start = np.datetime64("2000-01-02")
    shutil.copytree(world, tmp_path, dirs_exist_ok=True)

    def spoiled(fields):
        place = {"time": start + step * np.timedelta64(6, "h")}
        field = fields[variable].sel(place)
        fields[variable].loc[place] = xr.where(field == field.max(), value, field)
        return fields

    rewrite(tmp_path / "w_2000.nc", spoiled)
    for name, number in (("mean", 0.0), ("std", 1.0)):
        rewrite(tmp_path / f"{name}.nc", partial(xr.Dataset.assign, tsi=number))
    other = tmp_path / "other"
    config = write_config(tmp_path, run / "run", other, data__on_outlier="raise")
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


@CASES.case
def weights_too_large_for_float32(world, tmp_path):
    return forecast(make_run(world, tmp_path, scale=1e38), tmp_path / "out")


# Folders that hold forecasts.


def again(world, run, whole, tmp_path, nothing_compiled, options=(), **changes):
    config = write_config(world, run / "run", tmp_path, **changes)
    return lambda: forecast(config, whole, *options)


CASES.rows(
    again,
    {},
    {"options": ("--resume", "--steps", "2")},
    {"options": ("--resume", *NETCDF)},
    {"options": ("--resume",), "data__source__ERA5__levels": [2.0, 4.6]},
    name="again",
)
ONE = ("--init-time", "1999-12-30", "--steps", "1")


def another_ensemble(world, run, tmp_path, **changes):
    noise = {"inference__members": 2, NOISE: {"std": 0.1}, "seed": 1000}
    one = write_config(world, run / "run", tmp_path / "one", **noise)
    other = write_config(world, run / "run", tmp_path / "other", **noise | changes)
    assert forecast(one, tmp_path / "out", *ONE) == 0
    return lambda: forecast(other, tmp_path / "out", *ONE, "--resume")


CASES.rows(
    another_ensemble,
    {"seed": 5},
    {NOISE: {"std": 0.1, "length_scale": 5}},
    name="an ensemble with",
)


def unknown_origin(record, config, tmp_path):
    """Such as CREDIT's own, which are not written over."""
    (tmp_path / "20000101_0000Z").mkdir()
    if record:
        (tmp_path / "forecast.json").write_text(record)
    return lambda: forecast(config, tmp_path, *ONE, *NETCDF)


CASES.rows(unknown_origin, "", '{"identity": 3}', name="a record")


@CASES.case
def processes_that_read_other_files(config, tmp_path, monkeypatch):
    create = Archive.create

    def of_the_first_process(self):
        create(replace(self, digests=dict.fromkeys(self.digests, "other")))

    monkeypatch.setattr(Archive, "create", of_the_first_process)
    return forecast(config, tmp_path / "out")


@CASES.case
def statistics_that_were_fitted_again(world, run, tmp_path):
    mean, out = tmp_path / "mean.nc", tmp_path / "out"
    shutil.copy(world / "mean.nc", mean)
    changes = {"preblocks__per_step__norm__args__mean_path": str(mean)}
    config = write_config(world, run / "run", tmp_path, **changes)
    assert forecast(config, out, *ONE) == 0
    shutil.rmtree(out / "done")
    rewrite(mean, lambda fitted: fitted + 1)
    return lambda: forecast(config, out, *ONE, "--resume")


AXES = {**GRID, "level": np.array([500.0, 850.0])}
NAMES = ("preblocks.per_step.scale.args.mean_path", "model.edge_path")


@pytest.fixture
def archive(tmp_path):
    date = np.array(["2000-01-01"], "datetime64[ns]")
    schedule = ForecastSchedule(date, 2, pd.Timedelta("6h"))
    digests = dict.fromkeys(NAMES, "1")
    made = Archive(tmp_path, schedule, {"steps": 2}, {}, AXES, digests=digests)
    made.create()
    return made


def other_archive(name, archive):
    changes = {
        "latitude": AXES["latitude"][::-1],
        "longitude": (AXES["longitude"] + 180) % 360,
        "level": AXES["level"][::-1],
        "latitude moved": AXES["latitude"] + 1,
        "level moved": np.array([500.0, 925.0]),
        "latitude of a curvilinear grid": np.ones((6, 10)),
    }
    if name in changes:
        axes = AXES | {name.split()[0]: changes[name]}
        other = replace(archive, coordinates=axes)
    else:
        other = replace(archive, digests={NAMES[0]: "1", NAMES[1]: "2"})
    return lambda: other.check((), resume=True)


CASES.rows(
    other_archive,
    *("latitude", "longitude", "level", "latitude moved", "level moved"),
    *("latitude of a curvilinear grid", "files"),
    name="a record of other",
)


def test_what_is_no_other_forecast(archive):
    archive.check((), resume=True)
    rounded = {name: np.float32(values) for name, values in AXES.items()}
    replace(archive, coordinates=rounded).check((), resume=True)
    # What the record has no digest of is not compared, nor is an earlier version's.
    replace(archive, digests={"another": "1"}).check((), resume=True)
    path = archive.folder / "forecast.json"
    path.write_text('{"identity": {"steps": 2}, "provenance": {}}')
    turned = {name: values[::-1] for name, values in AXES.items()}
    replace(archive, coordinates=turned).check((), resume=True)


# Attributes of files.


def attributes(text, tmp_path):
    (tmp_path / "own.yaml").write_text(text)
    return lambda: str(read_attributes(str(tmp_path / "own.yaml")))


CASES.rows(attributes, "T: {units: null}", "T: units = K", "T:", name="attributes")


@pytest.mark.parametrize("name", ["2d", "3d"])
def test_attributes_that_credit_cannot_read(name):
    """The lines of CREDIT's files are text."""
    found = read_attributes(f"conus404.{name}.yaml")
    assert all("units" in own for own in found.values())


# Scores of files.


def score(folder, out, *options):
    fixed = ["--forecast", os.fspath(folder), "--out", os.fspath(out)]
    return score_main([*fixed, "--cache", "none", *options])


CHANGES = {
    "the same": lambda x: x,
    "other dates": lambda x: x.sel(time=slice("2000-01-01", None)),
    "other places": lambda x: x.isel(latitude=slice(1, None)),
    "other levels": lambda x: x.assign_coords(level=[10.0, 20.0, 50.0]),
    "other names": lambda x: x.rename(T="t", U="u", SP="sp", TP="tp"),
    "other units": lambda x: x.assign(T=x["T"].assign_attrs(units="m")),
}


def compared(change, *options, whole, tmp_path):
    path, forecasts = tmp_path / "truth.nc", whole
    CHANGES[change](make_fields()).to_netcdf(path, engine="h5netcdf")
    if change == "other units":
        with xr.open_dataset(whole / "forecast.zarr") as store:
            warm = store.load()
        warm["T"].attrs["units"] = "K"
        forecasts = tmp_path / "other.zarr"
        warm.to_zarr(forecasts, consolidated=False)
    options = ("--truth", str(path), *options)
    return lambda: score(forecasts, tmp_path / "out", *options)


CASES.rows(
    compared,
    *(name for name in CHANGES if name != "the same"),
    ("the same", "--variables", "V"),
    ("the same", "--regions", "atlantis"),
    ("the same", "--members", "3"),
    name="a truth of",
)


@CASES.case
def forecasts_that_are_not_finished(config, tmp_path):
    assert forecast(config, tmp_path / "some", "--shard", "1/2") == 0
    return lambda: score(tmp_path / "some", tmp_path / "scores")


@CASES.case
def a_truth_without_a_data_section(whole, tmp_path):
    (tmp_path / "no.yml").write_text("model: {}")
    options = ("--truth", str(tmp_path / "no.yml"))
    return lambda: score(whole, tmp_path / "scores", *options)
