"""The recipes of docs/data.md: from the analyses of IFS and GFS to a forecast.

Their scripts and YAMLs are run as they stand there, on datasets like those that cfgrib
makes of the GRIB files, and on files in NOAA's layout.
"""

import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray as xr
import yaml
from scipy.sparse import csr_array

from credit_jax.cli.check import main as check
from credit_jax.cli.commands import OK
from credit_jax.cli.forecast import main as forecast
from credit_jax.physics.files import read_coefficients
from tests.cli.test_check import MODEL
from tests.data.sources.server import served
from tests.forecast.tiny_run import write_weights
from tests.support import assert_close
from tests.support.code_blocks import code_blocks
from tests.training.tiny import write_yaml

DOCS = Path(__file__).parents[2] / "docs" / "data.md"
DATE = "2026-04-01"
LATITUDE, LONGITUDE = np.linspace(90.0, -90.0, 32), np.arange(64) * 5.625
PRESSURE = "isobaric{}hPa".format("In")  # as cfgrib names it
# In the order of the GRIB messages; one level is not the model's.
LEVELS = [1000, 925, 850, 700, 600, 500, 400, 300, 250, 200, 150, 100, 70, 50]


def block(language: str, number: int = 0) -> str:
    """A code block of the recipe in a language."""
    _, _, text = DOCS.read_text().partition("## A forecast from today's analysis")
    return code_blocks(text, language)[number]


def messages(names: list[str], levels: list[int] | None, **scalars: float):
    """A dataset as cfgrib makes one of messages at one time."""
    rng = np.random.default_rng(len(names))
    place = {"latitude": LATITUDE, "longitude": LONGITUDE}
    if levels is not None:
        place = {PRESSURE: np.array(levels, float), **place}
    shape = [len(values) for values in place.values()]
    fields = {
        name: (list(place), rng.uniform(1.0, 2.0, shape).astype("f4")) for name in names
    }
    time = pd.Timestamp(DATE).to_datetime64()
    coords = {"time": time, "step": np.timedelta64(0, "ns"), "valid_time": time}
    return xr.Dataset(fields, {**place, **coords, **scalars})


def write_static(*names: str) -> None:
    static = messages([*names], None)
    static.drop_vars(["time", "step", "valid_time"]).to_netcdf("static.nc")


UPPER = messages(["u", "v", "t", "q"], LEVELS)
PRESSURE_AT_GROUND = messages(["sp"], None, surface=0.0)
NEAR_GROUND = messages(["t2m"], None, heightAboveGround=2.0)
SETS = UPPER, PRESSURE_AT_GROUND, NEAR_GROUND
# Center -> product, and the inventory's line of a message of each set; cfgrib has one
# set of names for both. Of GFS neither of the last levels is wanted, nor the surface.
INVENTORIES = {
    "ifs": ("oper", ":t:500:pl:", ":sp:sfc:", ":2t:sfc:"),
    "gfs": (
        *("pgrb2.0p25", ":SPFH:500 mb:anl:", ":PRES:surface:anl:"),
        *(":TMP:2 m above ground:anl:", ":TMP:0.4 mb:anl:"),
        *(":TMP:30-0 mb above ground:anl:", ":TMP:surface:anl:", ":PRES:max wind:anl:"),
    ),
}


BLOCKS = {
    "preblocks": {"per_step": {"concat": {"type": "concat"}}},
    "postblocks": {"per_step": {"reconstruct": {"type": "reconstruct"}}},
}


def model(levels: int, surface: int, input_only: int) -> dict[str, Any]:
    """A model of four variables on levels."""
    sizes = {"levels": levels, "channels": 4, "surface_channels": surface}
    only = {"input_only_channels": input_only, "output_only_channels": 0}
    return {**MODEL, **sizes, **only}


class Herbie:
    """Datasets of one analysis, by the search strings of the recipe."""

    def __init__(self, date: str, *, model: str, product: str, fxx: int) -> None:
        expected, *self.messages = INVENTORIES[model]
        assert (date, product, fxx) == (DATE, expected, 0)

    def xarray(self, search: str, remove_grib: bool = False) -> xr.Dataset:
        """The messages that match."""
        (at,) = (k for k, line in enumerate(self.messages) if re.search(search, line))
        return SETS[at]


@pytest.mark.slow
@pytest.mark.parametrize("center", INVENTORIES)
def test_from_an_analysis_to_a_forecast(center, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "herbie", SimpleNamespace(Herbie=Herbie))
    monkeypatch.setattr(sys, "argv", ["states.py", DATE, center])
    exec(compile(block("python"), "states.py", "exec"), {})
    config = yaml.safe_load(block("yaml").replace("{...}", "null"))
    config |= {"model": model(13, 2, 3), **BLOCKS}
    write_yaml(Path("today.yaml"), config)
    write_static("Z_GDS4_SFC", "LSM")
    write_weights(config["model"], Path(config["save_loc"]))
    assert check(["--config", "today.yaml"]) == OK
    line = "--config today.yaml --checkpoint runs/wxformer --length 10d --format zarr"
    assert f"credit-jax forecast {line}" in DOCS.read_text()
    shorter = line.replace("10d", "6h").split()
    assert forecast([*shorter, "--out", "out", "--cache", "none"]) == OK
    with xr.open_dataset("out/forecast.zarr") as store:
        start = store.isel(time=0, prediction_timedelta=0)
        upper = UPPER.sel({PRESSURE: start["level"].values})
        state = xr.merge([upper, *SETS[1:]], compat="override")
        for name in ("u", "v", "t", "q", "sp", "t2m"):
            ours = start[name if name == "t2m" else name.upper()].values
            np.testing.assert_array_equal(ours, state[name].values, err_msg=name)
        last = store.isel(time=0, prediction_timedelta=1)
        assert all(np.isfinite(field).all() for field in last.data_vars.values())


GFS_LEVELS, GAUSSIAN = 9, (34, 68)
GFS = ("ugrd", "vgrd", "tmp", "spfh")


def write_analysis(folder: Path) -> xr.Dataset:
    """Writes an analysis of GFS in NOAA's layout; returns its upper file."""
    rng = np.random.default_rng(7)
    space = ("grid_yt", "grid_xt")
    nodes = np.polynomial.legendre.leggauss(GAUSSIAN[0])[0]
    lat, lon = np.meshgrid(
        np.rad2deg(np.arcsin(nodes[::-1])),
        np.arange(GAUSSIAN[1]) * 360 / GAUSSIAN[1],
        indexing="ij",
    )
    b = np.linspace(0.0, 1.0, GFS_LEVELS + 1) ** 2
    a = 6e4 * (np.sqrt(b) - b) + 20.0 * (1 - b)
    fields: dict = {
        name: (
            ("time", "pfull", *space),
            rng.uniform(1.0, 2.0, (1, GFS_LEVELS, *GAUSSIAN)).astype("f4"),
        )
        for name in GFS
    }
    surface = rng.uniform(9e4, 1.02e5, (1, *GAUSSIAN)).astype("f4")
    fields |= {"pressfc": (("time", *space), surface)}
    fields |= {"lat": (space, lat), "lon": (space, lon)}
    coords = {
        "time": [pd.Timestamp(DATE)],
        "pfull": (0.5 * (a + b * 1e5)[1:] + 0.5 * (a + b * 1e5)[:-1]) / 100,
    }
    analysis = xr.Dataset(fields, coords, {"ak": a, "bk": b})
    place = folder / f"gdas.{DATE.replace('-', '')}" / "00" / "atmos"
    place.mkdir(parents=True)
    analysis.to_netcdf(place / "gdas.t00z.atmanl.nc")
    analysis[["lat", "lon"]].to_netcdf(place / "gdas.t00z.sfcanl.nc")
    return analysis


def write_regrid(path: str) -> csr_array:
    """Writes weights of ESMF, of the two old points at each new one."""
    new = LATITUDE.size * LONGITUDE.size
    old = np.linspace(0, GAUSSIAN[0] * GAUSSIAN[1] - 2, new).astype(int)
    row, col = np.tile(np.arange(new), 2), np.concatenate([old, old + 1])
    share = np.repeat([0.25, 0.75], new)
    lat, lon = np.meshgrid(LATITUDE, LONGITUDE, indexing="ij")
    content = {
        "row": ("n_s", row + 1),
        "col": ("n_s", col + 1),
        "S": ("n_s", share),
        "dst_grid_dims": ("rank", [LONGITUDE.size, LATITUDE.size]),
        "xc_b": ("n_b", lon.ravel()),
        "yc_b": ("n_b", lat.ravel()),
        "xc_a": ("n_a", np.zeros(GAUSSIAN[0] * GAUSSIAN[1])),
    }
    xr.Dataset(content).to_netcdf(path)
    return csr_array((share, (row, col)), (new, GAUSSIAN[0] * GAUSSIAN[1]))


def on_levels_of_era5(analysis: xr.Dataset, name: str, numbers: list[int]) -> Any:
    """Columns of GFS on hybrid levels of ERA5, by numpy."""
    surface = analysis["pressfc"].values[0].ravel()
    half = np.outer(analysis.ak, np.ones_like(surface)) + np.outer(analysis.bk, surface)
    source = np.log(0.5 * (half[1:] + half[:-1]))
    a, b = read_coefficients("ERA5_Lev_Info.nc", "a_half", "b_half")
    wanted = np.outer(a, np.ones_like(surface)) + np.outer(b, surface)
    wanted = np.log(0.5 * (wanted[1:] + wanted[:-1])[[n - 1 for n in numbers]])
    columns = analysis[name].values[0].reshape(GFS_LEVELS, -1)
    made = [
        np.interp(wanted[:, i], source[:, i], columns[:, i])
        for i in range(surface.size)
    ]
    return np.stack(made, axis=1)


@pytest.mark.slow
def test_from_gfs_on_its_own_levels_to_a_forecast(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    analysis = write_analysis(tmp_path / "bucket")
    (path,) = Path("bucket").rglob("*atmanl.nc")
    monkeypatch.setattr(sys, "argv", ["once.py", str(path)])
    exec(compile(block("python", 1), "once.py", "exec"), {})
    matrix = write_regrid("gaussian_to_model.nc")
    write_static("LSM")
    config = yaml.safe_load(block("yaml", 1))
    steps = config["inference"]["preblocks"]["per_step"]
    numbers = steps["levels"]["args"]["dest_levels"]
    variables = {"vars_3D": [*"UVTQ"], "vars_2D": ["SP"], "path": "era5_%Y.nc"}
    source = {"dataset_type": "local", "level_coord": "level", "levels": numbers}
    source |= {"variables": {"prognostic": variables}}
    config |= {
        "save_loc": "runs/wxformer",
        "model": model(len(numbers), 1, 0),
        "data": {"timestep": "6h", "source": {"ERA5": source}},
        **BLOCKS,
    }
    write_weights(config["model"], Path(config["save_loc"]))
    with served(tmp_path / "bucket") as (address, _):
        config["inference"]["data"]["source"]["ERA5"]["store"] = address
        write_yaml(Path("model.yml"), config)
        line = f"--config model.yml --init-time {DATE}T00 --length 10d --format zarr"
        assert f"credit-jax forecast {line}" in DOCS.read_text()
        shorter = [*line.replace("10d", "12h").split(), "--checkpoint", "runs/wxformer"]
        assert forecast([*shorter, "--out", "out", "--cache", "none"]) == OK
    with xr.open_dataset("out/forecast.zarr") as store:
        start = store.isel(time=0, prediction_timedelta=0)
        for name, ours in zip(GFS, "UVTQ", strict=True):
            columns = on_levels_of_era5(analysis, name, numbers)
            expected = (matrix @ columns.T).T.reshape(len(numbers), *start["SP"].shape)
            assert_close(start[ours].values, expected, 1e-6, name)
        assert store["level"].values.tolist() == numbers
        last = store.isel(time=0, prediction_timedelta=2)
        assert all(np.isfinite(field).all() for field in last.data_vars.values())
