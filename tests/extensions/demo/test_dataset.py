"""The demo data set: files, values, and clean-up after a failure."""

import numpy as np
import pytest
import xarray as xr
from rich.console import Console

from credit_jax.config.config import DemoConfig, ForcingConfig
from credit_jax.data import open_dataset
from credit_jax.extensions.demo import dataset as demo
from credit_jax.extensions.demo.command import main
from credit_jax.extensions.demo.dataset import ensure_demo_data
from tests.data.world import parsed, raw_config

QUIET = Console(quiet=True)
DAYS = ["--days", "3", "--spinup-days", "1", "--held-out-days", "1"]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A data set of three days after one of spin-up; the last day is held out."""
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
    other = wanted.model_copy(update={"forcing": ForcingConfig(season=0.2)})
    with pytest.raises(ValueError, match=r"forcing None instead of .*'season': 0.2"):
        ensure_demo_data(other, QUIET)


@pytest.mark.slow
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
