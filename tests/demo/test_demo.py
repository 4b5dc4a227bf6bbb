"""The demo data set: physics, files, and what an interruption leaves behind."""

import os
import re
import socket
import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from rich.console import Console

from credit_jax.config.demo import DemoConfig
from credit_jax.data import open_dataset
from credit_jax.demo import dataset as demo
from credit_jax.demo import physics as demo_physics
from credit_jax.demo import write as demo_write
from credit_jax.demo.__main__ import main
from credit_jax.demo.dataset import ensure_demo_data
from tests.data.world import parsed, raw_config

QUIET = Console(quiet=True)
DAYS = ["--days", "3", "--spinup-days", "1", "--held-out-days", "1"]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Three days after one of spin-up, the last one held out."""
    folder = tmp_path_factory.mktemp("demo") / "t21"
    assert main(["--out", str(folder), *DAYS]) == 0
    return folder


def test_layout(made):
    names = ["demo.json", "demo_2000.zarr", "mean.nc", "static.nc", "std.nc"]
    assert sorted(path.name for path in made.iterdir()) == names
    assert [path.name for path in made.parent.iterdir()] == ["t21"]
    data = xr.open_dataset(made / "demo_2000.zarr")
    assert dict(data.sizes) == {
        "time": 12,
        "level": 8,
        "latitude": 32,
        "longitude": 64,
    }
    assert data["T"].dims == ("time", "level", "latitude", "longitude")
    assert data["T"].dtype == np.float32
    assert str(data.time.values[0])[:13] == "2000-01-01T00"
    assert data.latitude.values[0] > 80 > -80 > data.latitude.values[-1]
    for name, variable in data.data_vars.items():
        assert {"units", "long_name", "standard_name"} <= set(variable.attrs), name
        assert np.isfinite(variable.values).all(), name
    static = xr.open_dataset(made / "static.nc")
    assert np.array_equal(static.latitude, data.latitude)
    assert set(np.unique(static["LSM"])) == {0.0, 1.0}


def test_values_are_those_of_an_atmosphere(made):
    data = xr.open_dataset(made / "demo_2000.zarr")
    assert 180 < data["T"].min() < data["T"].max() < 330
    assert 85_000 < data["SP"].min() < data["SP"].max() < 108_000
    assert 0 <= data["Q"].min() < data["Q"].max() < 0.05
    assert 0 <= data["TP"].min() < data["TP"].max() < 0.2
    assert 4.8e4 < data["Z500"].min() < data["Z500"].max() < 6e4
    assert abs(data["U"]).max() < 120
    assert 250 < data["tsi"].mean() < 350
    # V at 500 hPa lies between the levels around it where the surface is at 1000 hPa.
    around = data["V"].sel(level=[0.4375, 0.5625])
    close = (abs(data["SP"] - 1e5) < 100) & (around.min("level") != 0)
    inside = (data["V500"] <= around.max("level") + 1e-3) & (
        data["V500"] >= around.min("level") - 1e-3
    )
    assert bool(inside.where(close, True).all())


def test_statistics_are_of_the_training_days(made):
    data = xr.open_dataset(made / "demo_2000.zarr").isel(time=slice(0, 8))
    mean, std = (xr.open_dataset(made / f"{name}.nc") for name in ("mean", "std"))
    dims = ("time", "latitude", "longitude")
    for name in data.data_vars:
        fields = data[name].astype(np.float64)
        over = [dim for dim in dims if dim in fields.dims]
        assert np.allclose(mean[name], fields.mean(over), rtol=1e-9), name
        assert np.allclose(std[name], fields.std(over), rtol=1e-6), name


def test_the_loader_reads_it(made):
    raw = raw_config(made)
    path = str(made / "demo_%Y.zarr")
    raw["data"] |= {"start_datetime": "2000-01-01", "end_datetime": "2000-01-02T18:00"}
    raw["data"]["source"]["ERA5"] = {
        "dataset_type": "local",
        "level_coord": "level",
        "variables": {
            "prognostic": {
                "vars_3D": ["U", "V", "T", "Q"],
                "vars_2D": ["SP"],
                "path": path,
            },
            "dynamic_forcing": {"vars_2D": ["tsi"], "path": path},
            "static": {
                "vars_2D": ["Z_GDS4_SFC", "LSM"],
                "path": str(made / "static.nc"),
            },
            "diagnostic": {"vars_2D": ["V500", "TP"], "path": path},
        },
    }
    dataset = open_dataset(parsed(raw).data)
    assert len(dataset) == 7
    assert dataset.schema.num_input_channels == 36
    assert dataset.schema.num_target_channels == 35


def test_it_is_kept(made, monkeypatch):
    monkeypatch.setattr(demo, "_make", lambda *_: pytest.fail("made again"))
    wanted = DemoConfig(out=str(made), days=3, spinup_days=1, held_out_days=1)
    assert ensure_demo_data(wanted, QUIET) == made
    other = wanted.model_copy(update={"days": 5, "seed": 2})
    text = "holds another demo data set: days 3 instead of 5, seed 0 instead of 2"
    with pytest.raises(ValueError, match=text):
        ensure_demo_data(other, QUIET)


def test_same_seed_same_numbers(made, tmp_path):
    again = tmp_path / "again"
    main(["--out", str(again), *DAYS])
    first, second = (
        xr.open_dataset(folder / "demo_2000.zarr").load() for folder in (made, again)
    )
    assert first.identical(second)


def test_foreign_folders_are_left_alone(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="is not a demo data set"):
        ensure_demo_data(DemoConfig(out=str(tmp_path), days=3, held_out_days=1), QUIET)
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_failure_leaves_nothing(tmp_path, monkeypatch):
    def fail(settings, folder, advance):
        (folder / "demo_2000.zarr").mkdir()
        raise KeyboardInterrupt

    monkeypatch.setattr(demo, "_make", fail)
    wanted = DemoConfig(out=str(tmp_path / "deep" / "t21"), days=3, held_out_days=1)
    with pytest.raises(KeyboardInterrupt):
        ensure_demo_data(wanted, QUIET)
    assert list((tmp_path / "deep").iterdir()) == []


def test_leftovers_of_a_killed_process_are_removed(tmp_path):
    """A killed run's folder has a name of its own, and goes next time."""
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    killed = tmp_path / f".t21.partial-{socket.gethostname()}-{done.pid}"
    running = tmp_path / f".t21.partial-{socket.gethostname()}-{os.getppid()}"
    for folder in (killed, running):
        folder.mkdir()
    demo_write.remove_leftovers(tmp_path / "t21")
    assert not killed.exists()
    assert running.exists()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--truncation", "T7"], "truncation"),
        (["--days", "1"], "days"),
        (["--days", "9", "--held-out-days", "9"], "leave no day for training"),
    ],
)
def test_command_line_errors(tmp_path, capsys, arguments, text):
    assert main(["--out", str(tmp_path / "x"), *arguments]) == 2
    assert text in re.sub(r"\s+", " ", capsys.readouterr().err)
    assert not (tmp_path / "x").exists()


def test_solar_irradiance():
    """Daily means against Hartmann (1994), fig. 2.6, and noon at the equator."""
    hours = np.arange(0, 24, 0.25)[:, None, None] / 24.0
    latitude = np.radians([[-90.0, 0.0, 90.0]])[..., None]
    days = demo_physics.solar_irradiance(172.0 + hours, latitude, np.zeros((1, 1, 1)))
    south, equator, north = days.mean(axis=0).ravel()
    assert south == 0
    assert np.isclose(north, 525, rtol=0.01)
    assert np.isclose(equator, 385, rtol=0.01)
    noon = demo_physics.solar_irradiance(79.5, np.zeros(1), np.zeros(1))
    assert np.isclose(noon[0], 1361, rtol=0.01)


def test_saturation():
    """Bolton's formula: 3.8 g/kg at 0 C and 14.7 g/kg at 20 C, 1000 hPa."""
    q = demo_physics.saturation_specific_humidity(
        jnp.array([273.15, 293.15]), jnp.array([1e5, 1e5])
    )
    assert np.allclose(q, [0.00381, 0.0147], rtol=0.01)


def test_merged_statistics(rng):
    whole = rng.normal(3, 2, (12, 5, 4, 6)).astype(np.float32)
    statistics = demo_write.Statistics()
    for part in np.split(whole, [1, 7]):
        statistics.add("T", part)
    count, mean, squares = statistics._sums["T"]
    assert np.allclose(mean, whole.mean((0, 2, 3), dtype=np.float64))
    std = whole.astype(np.float64).std((0, 2, 3))
    assert np.allclose(np.sqrt(squares / count), std)


def test_years_are_split(tmp_path, rng):
    axes = demo_write.Axes(np.array([0.5]), np.array([45.0, -45.0]), np.array([0.0]))
    writer = demo_write.YearWriter(tmp_path, axes)
    times = pd.date_range("2000-12-30", periods=16, freq="6h")
    fields = rng.normal(size=(16, 2, 1)).astype(np.float32)
    for part in (slice(0, 4), slice(4, 16)):
        writer.add(times[part], {"SP": fields[part]})
    years = [xr.open_dataset(tmp_path / f"demo_{y}.zarr") for y in (2000, 2001)]
    assert [year.sizes["time"] for year in years] == [8, 8]
    joined = np.concatenate([year["SP"].values for year in years])
    assert np.array_equal(joined, fields)
    found = np.concatenate([year.time.values for year in years])
    assert np.array_equal(found, times.values)
