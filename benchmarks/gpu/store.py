"""A data set of noise in CREDIT's layout, and the config of a run on it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import xarray as xr
import yaml

from benchmarks.compiled_step import CONFIGS
from benchmarks.io.__main__ import write_store
from credit_jax.config.yaml_file import read_yaml

START = "2000-01-01"
_HOURS = 6
# Of a rehearsal: few levels and points, and CREDIT's model of one layer.
_LEVELS = 2
_TINY: Mapping[str, Any] = {
    "type": "debugger",
    "image_height": 32,
    "image_width": 64,
    "levels": _LEVELS,
}
_MODEL_KEYS = (
    "frames",
    "channels",
    "surface_channels",
    "input_only_channels",
    "output_only_channels",
)


def prepare(
    name: str, folder: Path, *, times: int, forced: int, tiny: bool
) -> dict[str, Any]:
    """Writes the data, unless they are there; returns the config, on one device.

    Args:
        name: "1deg" or "025deg", of configs/wxformer_NAME.yaml.
        folder: folder of the data.
        times: number of times of the state.
        forced: number of times of the forcing, for forecasts.
        tiny: whether to take a small grid, and a model of one layer.
    """
    text = json.dumps(read_yaml(CONFIGS / f"wxformer_{name}.yaml"))
    config = json.loads(text.replace(f"era5/{name}", str(folder)))
    (source,) = config["data"]["source"].values()
    if tiny:
        model = config["model"]
        config["model"] = {**_TINY, **{key: model[key] for key in _MODEL_KEYS}}
        source["levels"] = source["levels"][:_LEVELS]
    state, forcing = (
        pd.date_range(START, periods=count, freq=f"{_HOURS}h")
        for count in (times, max(forced, times))
    )
    config["data"] |= {"start_datetime": START, "end_datetime": str(state[-1])}
    config.pop("validation_data", None)
    config["trainer"] |= {
        "parallelism": {"data": "none", "tensor": 1, "domain": 1},
        "num_devices": 1,
    }
    config["trainer"].pop("fsdp", None)
    done = folder / "done"
    if not done.exists():
        write_store(config, folder, state, forced=forcing, compressed=False)
        # Fields are normalized as they are: CREDIT does it twice in a forecast.
        with xr.open_dataset(folder / "std.nc") as ones:
            zeros = (ones * 0).load()
        (folder / "mean.nc").unlink()
        zeros.to_netcdf(folder / "mean.nc")
        done.touch()
    return config


def write_config(config: Mapping[str, Any], path: Path) -> Path:
    """Writes the YAML of a config; returns its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(dict(config), sort_keys=False))
    return path
