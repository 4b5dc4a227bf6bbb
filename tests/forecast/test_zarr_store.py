"""The Zarr store of forecasts: the layout that evaluation tools expect."""

import errno
import json
import shutil

import h5py
import numpy as np
import pandas as pd
import pytest
import xarray as xr
import zarr

from credit_jax.config.inference import OutputConfig
from credit_jax.data.schedule import ForecastSchedule, Task
from credit_jax.data.sources.stored_files import open_zarr_array
from credit_jax.evaluation.opening import open_forecasts
from credit_jax.forecast import zarr_store
from credit_jax.forecast.outputs import Outputs
from credit_jax.forecast.zarr_store import ZarrStore
from credit_jax.io.errors import WriteError, write_errors
from credit_jax.io.open_files import OpenFiles
from credit_jax.named_fields.variables import Variable
from tests.forecast.tiny_run import forecast, read, write_config

HOUR = np.timedelta64(1, "h")


def test_the_layout_of_weatherbench(whole, world):
    store = read(whole)
    dims = ("time", "prediction_timedelta", "level", "latitude", "longitude")
    assert store["T"].dims == dims
    assert store["SP"].dims == tuple(dim for dim in dims if dim != "level")
    starts = pd.date_range("1999-12-30", "2000-01-01", freq="12h")
    assert np.array_equal(store["time"], starts.to_numpy())
    assert np.array_equal(store["prediction_timedelta"] / HOUR, [0, 6, 12, 18])
    assert np.array_equal(store["level"], [1.0, 4.6])
    assert store["T"].dtype == np.float32
    with xr.open_mfdataset(str(world / "w_*.nc")) as truth:
        for name in ("T", "U", "SP"):
            first = truth[name].sel(time=starts)
            first = first.isel(level=[0, 2]) if name != "SP" else first
            ours = store[name].isel(prediction_timedelta=0)
            assert np.array_equal(ours, first.astype(np.float32)), name
    assert np.isnan(store["TP"].isel(prediction_timedelta=0)).all()
    assert np.isfinite(store["TP"].isel(prediction_timedelta=slice(1, None))).all()
    assert store.attrs["Conventions"] == "CF-1.11"
    assert json.loads(store.attrs["config"])["model"]["type"] == "tiny"
    assert store.attrs["checkpoint_step"] == 3
    assert len(store.attrs["checkpoint_digest"]) == 64
    assert store.attrs["credit-jax"]
    assert store.attrs["command"]


def test_variables_are_described_as_in_the_data_files(world, run, tmp_path):
    """Diagnostic variables, too, which are not read; CREDIT's files are not."""
    given = {
        "T": {"long_name": "temperature", "standard_name": "air_temperature"},
        "SP": {"units": "Pa", "comment": "of the model's orography"},
        "TP": {"units": "m", "long_name": "precipitation"},
        "level": {"units": "hPa"},
    }
    described = shutil.copytree(world, tmp_path / "described")
    for path in described.glob("w_*.nc"):
        with h5py.File(path, "r+") as file:
            for name, attributes in given.items():
                file[name].attrs.update(attributes)
    metadata = tmp_path / "own.yaml"
    metadata.write_text("T: {units: K, long_name: Temperature}")
    output = {"format": "zarr", "metadata": str(metadata)}
    config = write_config(described, run / "run", tmp_path, inference__output=output)
    same = ("--init-time", "2000-01-01", "--steps", "1")
    assert forecast(config, tmp_path / "out", *same) == 0
    store = read(tmp_path / "out")
    assert store["level"].attrs == {"long_name": "level", "axis": "Z", "units": "hPa"}
    found = {name: array.attrs for name, array in store.items()}
    assert found == {
        "T": {**given["T"], "units": "K", "long_name": "Temperature"},
        "U": {},
        "SP": {"units": "Pa"},
        "TP": given["TP"],
    }
    assert forecast(config, tmp_path / "files", *same, "--format", "netcdf") == 0
    (path,) = (tmp_path / "files").rglob("*.nc")
    with xr.open_dataset(path) as file:
        assert file["T"].attrs == {"units": "K", "long_name": "Temperature"}
        assert file["SP"].attrs == {}, "as in CREDIT"


@pytest.mark.slow(but=["2-True", "3-False"])
@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("version", [2, 3])
def test_chunks_are_whole_globes(config, tmp_path, monkeypatch, version, large):
    if large:
        monkeypatch.setattr(zarr_store, "MANY_LEVELS", 100)
    out = tmp_path / "out"
    arguments = ("--zarr-format", str(version), "--init-time", "2000-01-01")
    assert forecast(config, out, *arguments) == 0
    group = zarr.open_group(str(out / "forecast.zarr"), mode="r")
    assert group.metadata.zarr_format == version
    assert group.metadata.consolidated_metadata is not None
    array = group["T"]
    assert array.chunks == (1, 1, 1 if large else 2, 6, 10)
    assert array.shards == ((1, 1, 2, 6, 10) if version == 3 and large else None)
    assert read(out)["T"].shape == (1, 4, 2, 6, 10)


@pytest.mark.slow
def test_a_part_of_the_variables_levels_and_lead_times(world, run, config, tmp_path):
    three = [{"name": "ERA5/prognostic/3d/T", "levels": [4.6]}, "ERA5/prognostic/3d/U"]
    output = {"format": "zarr", "output_interval": "12h", "metadata": "era5.yaml"}
    output |= {"variables": [*three, "ERA5/prognostic/2d/SP"]}
    own = write_config(world, run / "run", tmp_path, inference__output=output)
    assert forecast(own, tmp_path / "part", "--length", "1d") == 0
    part = read(tmp_path / "part")
    assert set(part.data_vars) == {"T", "U", "SP"}
    assert np.array_equal(part["prediction_timedelta"] / HOUR, [0, 12, 24])
    assert part["T"].attrs["standard_name"] == "air_temperature"
    assert forecast(config, tmp_path / "all", "--length", "1d") == 0
    whole = read(tmp_path / "all").isel(prediction_timedelta=[0, 2, 4])
    assert np.isnan(part["T"].sel(level=1.0)).all()
    assert np.array_equal(part["T"].sel(level=4.6), whole["T"].sel(level=4.6))
    assert np.array_equal(part["U"], whole["U"])


def stored(folder, dims, starts, steps=1, **options):
    """A store of fields of one variable, and the variable."""
    latitude, longitude, levels, calendar = dims
    kind = "2d/SP" if levels is None else "3d/T"
    variable = Variable(f"A/prognostic/{kind}", levels)
    outputs = Outputs((variable,), latitude, longitude, calendar)
    schedule = ForecastSchedule(
        np.array(starts, "datetime64[ns]"),
        steps,
        options.pop("step", pd.Timedelta("6h")),
        calendar,
        num_members=options.pop("members", 1),
    )
    store = ZarrStore(folder, outputs, schedule, **options)
    store.create()
    return store, variable


def test_a_curvilinear_grid_and_another_calendar(tmp_path, rng):
    latitude, longitude = np.mgrid[30:50:5.0, 220:280:10.0]
    store, variable = stored(
        tmp_path,
        (latitude, longitude, np.array([10, 20]), "noleap"),
        ["2004-02-28", "2004-03-01"],
        2,
        step=pd.Timedelta("30min"),
        config=OutputConfig(encoding={"T": {"zlib": False}}),
    )
    assert not zarr.open_array(store.path / "T").compressors
    fields = rng.normal(size=(2, 4, 6)).astype(np.float32)
    for job in store.writer(Task(1, 0)).add(2, {variable.key: fields}):
        job()
    found = read(tmp_path)
    assert found["T"].dims == ("time", "prediction_timedelta", "level", "y", "x")
    assert np.array_equal(found["latitude"], latitude)
    assert set(found["T"].coords) >= {"latitude", "longitude", "level"}
    days = found["time"].values[1] - found["time"].values[0]
    assert days.days == 1, "no 29 February"
    minutes = found["prediction_timedelta"] / np.timedelta64(1, "m")
    assert np.array_equal(minutes, [0, 30, 60])
    assert np.array_equal(found["T"].values[1, 2], fields)
    assert np.isnan(found["T"].values[0]).all()


@pytest.mark.parametrize("version", [2, 3])
def test_every_reader_has_the_values_that_were_written(tmp_path, version):
    """Zeros, too: the equator, 0 E, the first member and the start."""
    expected = {
        "latitude": np.array([30.0, 0.0, -30.0]),
        "longitude": np.array([0.0, 180.0]),
        "level": np.array([0, 500]),
    }
    starts = np.array(["1970-01-01"], "datetime64[ns]")
    dims = (*expected.values(), "standard")
    store, variable = stored(tmp_path, dims, starts, zarr_format=version, members=2)
    fields = np.zeros((2, 2, 2, 3, 2), np.float32)
    fields[1, 1, 1, 1] = -0.0, 1e-38
    for member, step in np.ndindex(2, 2):
        store.write(Task(0, member), step, {variable.key: fields[member, step]})
    expected |= {"T": fields[None], "number": np.arange(2), "time": starts}
    expected |= {"prediction_timedelta": np.array([0, 6 * HOUR])}
    group = zarr.open_group(str(store.path), mode="r")
    assert np.array_equal(group["T"][...].view("u4"), fields[None].view("u4"))
    assert group["time"][...].tolist() == [0]
    assert group["prediction_timedelta"][...].tolist() == [0, 6]
    own = OpenFiles().dataset(str(store.path))
    with xr.open_zarr(store.path, decode_timedelta=True) as theirs:
        for found in (own, theirs):
            for name, values in expected.items():
                np.testing.assert_array_equal(found[name].values, values, name)
                if name != "prediction_timedelta":  # which `own` has as hours
                    assert found[name].dtype == values.dtype, name
    array = open_zarr_array(str(store.path), "T", own["T"].variable)
    out = np.ones((1, *fields.shape), np.float32)
    array.read((slice(None),) * 6, out)
    np.testing.assert_array_equal(out.view("u4"), fields[None].view("u4"))
    files = open_forecasts(str(store.path))
    assert files.leads / HOUR == [6]
    for axis in ("latitude", "longitude"):
        np.testing.assert_array_equal(getattr(files.grid, axis), expected[axis])


@pytest.mark.parametrize("version", [2, 3])
def test_a_failing_write_is_an_error_of_the_system(tmp_path, version):
    """TensorStore reports it by a ValueError, which commands take for bad input."""
    dims = np.arange(4.0), np.arange(6.0), None, "standard"
    store, variable = stored(tmp_path, dims, ["2004-02-28"], 2, zarr_format=version)
    fields = {variable.key: np.zeros((1, 4, 6), np.float32)}
    store.write(Task(0, 0), 1, fields)
    shutil.rmtree(store.path / "SP")
    (store.path / "SP").touch()
    with (
        pytest.raises(WriteError, match=rf"{store.path}: .*directory") as found,
        write_errors(store.path),
    ):
        store.write(Task(0, 0), 2, fields)
    assert found.value.errno in (errno.ENOTDIR, errno.EISDIR, errno.EEXIST)
