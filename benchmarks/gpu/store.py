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
_LEVELS = 2  # of a rehearsal
_MODEL_KEYS = (
    "frames",
    "channels",
    "surface_channels",
    "input_only_channels",
    "output_only_channels",
)


def prepare(
    name: str,
    folder: Path,
    *,
    times: int,
    forced: int,
    tiny: bool = False,
    grid: tuple[int, int] | None = None,
) -> dict[str, Any]:
    """Writes the data, unless they are there; returns the config, on one device.

    Args:
        name: "1deg" or "025deg", of configs/wxformer_NAME.yaml.
        folder: folder of the data.
        times: number of times of the state.
        forced: number of times of the forcing, for forecasts.
        tiny: whether to take a small grid, few levels, and a model of one layer.
        grid: rows and columns of a model of one layer; None is the model of the config.
    """
    text = json.dumps(read_yaml(CONFIGS / f"wxformer_{name}.yaml"))
    config = json.loads(text.replace(f"era5/{name}", str(folder)))
    (source,) = config["data"]["source"].values()
    if tiny:
        grid = (32, 64)
        source["levels"] = source["levels"][:_LEVELS]
    if grid is not None:
        # CREDIT's model of one layer.
        rows, columns = grid
        config["model"] = {
            **{key: config["model"][key] for key in _MODEL_KEYS},
            "type": "debugger",
            "image_height": rows,
            "image_width": columns,
            "levels": len(source["levels"]),
        }
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
