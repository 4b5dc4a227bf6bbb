"""The recipes of docs/data.md: from the analyses of IFS and GFS to a forecast.

Their scripts and YAMLs are run as they stand there, on datasets like those that cfgrib
makes of the GRIB files.
"""

import re
import sys
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pandas as pd
import pytest
import xarray as xr
import yaml

from credit_jax.checkpoint import CheckpointStore, Progress
from credit_jax.cli.check.command import main as check
from credit_jax.cli.commands import OK
from credit_jax.cli.forecast.command import main as forecast
from credit_jax.models.registry import build
from tests.cli.check.test_check import MODEL

DOCS = Path(__file__).parents[2] / "docs" / "data.md"
DATE = "2026-04-01"
LATITUDE, LONGITUDE = np.linspace(90.0, -90.0, 32), np.arange(64) * 5.625
PRESSURE = "isobaric{}hPa".format("In")  # as cfgrib names it
# In the order of the GRIB messages; one level is not the model's.
LEVELS = [1000, 925, 850, 700, 600, 500, 400, 300, 250, 200, 150, 100, 70, 50]


def block(language: str, number: int = 0) -> str:
    """A code block of the recipe in a language."""
    _, _, text = DOCS.read_text().partition("## A forecast from today's analysis")
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)[number]


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


UPPER = messages(["u", "v", "t", "q"], LEVELS)
PRESSURE_AT_GROUND = messages(["sp"], None, surface=0.0)
NEAR_GROUND = messages(["t2m"], None, heightAboveGround=2.0)
# Center -> product, and the inventory's line of a message of each kind -> the dataset
# of all. cfgrib has one set of names for both.
INVENTORIES = {
    "ifs": (
        "oper",
        {
            ":t:500:pl:": UPPER,
            ":sp:sfc:": PRESSURE_AT_GROUND,
            ":2t:sfc:": NEAR_GROUND,
        },
    ),
    "gfs": (
        "pgrb2.0p25",
        {
            ":SPFH:500 mb:anl:": UPPER,
            ":PRES:surface:anl:": PRESSURE_AT_GROUND,
            ":TMP:2 m above ground:anl:": NEAR_GROUND,
            # Neither level is wanted, nor is the surface.
            ":TMP:0.4 mb:anl:": None,
            ":TMP:30-0 mb above ground:anl:": None,
            ":TMP:surface:anl:": None,
            ":PRES:max wind:anl:": None,
        },
    ),
}


class Herbie:
    """Datasets of one analysis, by the search strings of the recipe."""

    def __init__(self, date: str, *, model: str, product: str, fxx: int) -> None:
        expected, self.inventory = INVENTORIES[model]
        assert (date, product, fxx) == (DATE, expected, 0)

    def xarray(self, search: str, remove_grib: bool = False) -> xr.Dataset:
        """The messages that match."""
        (found,) = (
            dataset
            for message, dataset in self.inventory.items()
            if re.search(search, message)
        )
        assert found is not None
        return found


@pytest.mark.slow
@pytest.mark.parametrize("center", INVENTORIES)
def test_from_an_analysis_to_a_forecast(center, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "herbie", SimpleNamespace(Herbie=Herbie))
    monkeypatch.setattr(sys, "argv", ["states.py", DATE, center])
    exec(compile(block("python"), "states.py", "exec"), {})
    config = yaml.safe_load(block("yaml").replace("{...}", "null"))
    channels = {"levels": 13, "channels": 4, "surface_channels": 2}
    config["model"] = {
        **MODEL,
        **channels,
        "input_only_channels": 3,
        "output_only_channels": 0,
    }
    config["preblocks"] = {"per_step": {"concat": {"type": "concat"}}}
    config["postblocks"] = {"per_step": {"reconstruct": {"type": "reconstruct"}}}
    Path("today.yaml").write_text(yaml.safe_dump(config))
    messages(["Z_GDS4_SFC", "LSM"], None).drop_vars(
        ["time", "step", "valid_time"]
    ).to_netcdf("static.nc")
    write_weights(config)
    assert check(["--config", "today.yaml"]) == OK
    line = "--config today.yaml --checkpoint runs/wxformer --length 10d --format zarr"
    assert f"credit-jax forecast {line}" in DOCS.read_text()
    shorter = line.replace("10d", "6h").split()
    assert forecast([*shorter, "--out", "out", "--cache", "none"]) == OK
    with xr.open_dataset("out/forecast.zarr") as store:
        start = store.isel(time=0, prediction_timedelta=0)
        upper = UPPER.sel({PRESSURE: start["level"].values})
        parts = [upper, PRESSURE_AT_GROUND, NEAR_GROUND]
        state = xr.merge(parts, compat="override")
        for name in ("u", "v", "t", "q", "sp", "t2m"):
            ours = start[name if name == "t2m" else name.upper()].values
            np.testing.assert_array_equal(ours, state[name].values, err_msg=name)
        last = store.isel(time=0, prediction_timedelta=1)
        assert all(np.isfinite(field).all() for field in last.data_vars.values())


def write_weights(config):
    """Writes a checkpoint of fresh weights as that of the run."""
    model_def = build(config["model"])
    keys = jax.random.split(jax.random.key(0))
    params = model_def.init(keys[0])
    state = model_def.init_model_state(keys[1], params)
    params, state = jax.device_get((params, state))
    store = CheckpointStore(Path(config["save_loc"]))
    store.save(1, {"weights": {"params": params, **state}}, Progress(epoch=0))
    store.close()
