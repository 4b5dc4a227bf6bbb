"""Writes files in the layout of a config: random fields, grids, and fitted scalers."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from rich.console import Console

from credit_jax.config import Config, ConfigError
from credit_jax.config.data import DataConfig
from credit_jax.extensions.certification.small_config import grid_of
from credit_jax.extensions.preprocess import scaler_fitting
from credit_jax.losses import needs_latitude
from credit_jax.models.graph.graph import nearest_edges
from credit_jax.transforms import TRANSFORMS
from credit_jax.transforms.statistics import Fitted

_FILES = ("scaler_path", "mean_path", "std_path")
# Of a point of a graph, itself included.
NEIGHBORS = 6
# Name of a variable, in lower case -> smallest and largest value.
RANGES = {
    **dict.fromkeys(("sp", "ps", "surface_pressure", "pressfc"), (9.5e4, 1.02e5)),
    **dict.fromkeys(("t", "temperature", "var_2t", "t2m", "trefht"), (230.0, 300.0)),
    **dict.fromkeys(("q", "qtot", "specific_total_water"), (1e-4, 1e-2)),
    "specific_humidity": (1e-4, 1e-2),
}
_FLAT = ("latitude", "longitude")


@dataclass
class RandomFile:
    """The variables of one file by their dims; values of level dims by theirs."""

    grid: tuple[int, int]
    variables: dict[str, tuple[str, ...]] = field(default_factory=dict)
    times: set[pd.Timestamp] = field(default_factory=set)
    time_coord: str = "time"
    levels: dict[str, set[float]] = field(default_factory=dict)
    transposed: bool = False

    def dataset(self, seed: int) -> xr.Dataset:
        """The fields, drawn evenly between the limits of each variable."""
        rng = np.random.default_rng(seed)
        coords: dict[str, Any] = _coordinates(self.grid)
        coords |= {name: sorted(values) for name, values in self.levels.items()}
        if self.times:
            coords[self.time_coord] = sorted(self.times)
        fields = {}
        for name, dims in self.variables.items():
            if self.transposed:
                dims = (*dims[:-2], dims[-1], dims[-2])
            low, high = RANGES.get(name.lower(), (0.5, 1.5))
            shape = [len(coords[dim]) for dim in dims]
            fields[name] = (dims, rng.uniform(low, high, shape).astype(np.float32))
        return xr.Dataset(fields, coords)


def _coordinates(grid: tuple[int, int]) -> dict[str, np.ndarray]:
    """Latitudes and longitudes of a global grid of some rows and columns."""
    rows, columns = grid
    return {
        "latitude": np.linspace(90.0, -90.0, rows),
        "longitude": np.arange(columns) * 360.0 / columns,
    }


def write_files(config: Config) -> None:
    """Writes the data of a config, and the files of its grid."""
    grid = grid_of(config.model)
    stores: dict[str, RandomFile] = {}
    model_levels = int(config.model.get("levels", 1))
    for data in (config.data, config.validation_data):
        for source in data.source.values():
            if source.dataset_type != "tisr":
                _add_source(stores, source, data, config.model)
    if "edge_path" in config.model:
        edges = nearest_edges(**_coordinates(grid), neighbors=NEIGHBORS)
        _write(edges, config.model["edge_path"])
    extra = {
        path: _grid_variables(args, model_levels, grid) for path, args in _grids(config)
    }
    # Latitudes are the weights of rows.
    weights = [config.loss.latitude_file[1] if needs_latitude(config.loss) else None]
    if config.metrics is not None:
        weights.append(config.metrics.args.get("latitude_weights"))
    latitudes = [os.path.expandvars(path) for path in weights if path]
    for path in {*stores, *extra, *latitudes}:
        dataset = stores.get(path, RandomFile(grid)).dataset(len(path))
        dataset = dataset.merge(extra.get(path, xr.Dataset()), compat="override")
        _write(dataset, path)


def _add_source(
    stores: dict[str, RandomFile],
    source: Any,
    data: DataConfig,
    model: Mapping[str, Any],
) -> None:
    """Adds the variables of a source, at the times that samples read, to its files."""
    first, last = data.ranges[0]
    start: Any = pd.Timestamp(first)
    end: Any = pd.Timestamp(last)
    if source.temporal_mode == "cyclic":
        start = pd.Timestamp(year=start.year, month=1, day=1)
        end = start + pd.DateOffset(years=1)
    step: Any = pd.Timedelta(data.timestep)
    times: Any = pd.date_range(start, end + step, freq=step)
    model_levels = int(model.get("levels", 1))
    grid = grid_of(model, source.input)
    remote = source.dataset_type in ("arco_era5", "weatherbench2_era5")
    is_hybrid = source.dataset_type == "arco_era5" and source.level_coord == "hybrid"
    level = source.level_coord or "level"
    values = source.level_values or tuple(map(float, range(1, model_levels + 1)))
    for kind, section in source.variables.by_type.items():
        timed = kind != "static" or remote
        for deep, names in ((True, section.vars_3D), (False, section.vars_2D)):
            if not names:
                continue
            template = str(section.path)
            if remote:
                template = source.store
            if deep and is_hybrid:
                template = source.model_level_store
            for path, path_times in _paths(template, times if timed else times[:1]):
                store = stores.setdefault(path, RandomFile(grid))
                store.transposed = source.dataset_type == "weatherbench2_era5"
                store.time_coord = source.time_coord
                head = (source.time_coord,) if timed else ()
                head += (level,) if deep else ()
                store.variables |= dict.fromkeys(names, (*head, *_FLAT))
                if timed:
                    store.times |= set(path_times)
                if deep:
                    store.levels.setdefault(level, set()).update(values)


def _paths(template: str, times: Any) -> Iterator[tuple[str, list[pd.Timestamp]]]:
    """The files of a template, each with its times."""
    ending = "" if Path(template).suffix in (".zarr", ".nc") else "01-01.zarr"
    template = os.path.expandvars(template).replace("????", "%Y")
    template = template.replace("*", ending).replace("?", "0")
    by_path: dict[str, list[pd.Timestamp]] = {}
    for time in times:
        by_path.setdefault(time.strftime(template), []).append(time)
    yield from by_path.items()


def _grids(config: Config) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Path and arguments of every block that reads the physics of the grid."""
    conf = config.model.get("gen1_post_conf") or {}
    path = (conf.get("data") or {}).get("save_loc_physics")
    for block in conf.values():
        if path and block.get("lon_lat_level_name"):
            yield path, block
    for block in config.postblocks.per_step.values():
        if "save_loc_physics" in block.args:
            yield block.args["save_loc_physics"], block.args


def _grid_variables(
    args: Mapping[str, Any], num_levels: int, grid: tuple[int, int]
) -> xr.Dataset:
    """Longitude, latitude, a and b of hybrid levels, and the surface geopotential."""
    lon2d, lat2d = np.meshgrid(*reversed(_coordinates(grid).values()))
    lon, lat, *levels = args["lon_lat_level_name"]
    space = ("y", "x")
    fields: dict[str, Any] = {lon: (space, lon2d), lat: (space, lat2d)}
    number = num_levels + bool(args.get("midpoint", False))
    b = np.linspace(0.0, 1.0, number) ** 2
    for name, values in zip(levels, (5e4 * (b**0.5 - b), b), strict=False):
        fields[name] = ("level_edge", values)
    surface = args.get("surface_geopotential_name", [])
    for name in [surface] if isinstance(surface, str) else surface:
        fields[name] = (space, np.full_like(lat2d, 1000.0))
    return xr.Dataset(fields)


def _write(dataset: xr.Dataset, path: str) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    if path.endswith(".nc"):
        dataset.to_netcdf(path, engine="h5netcdf")
    else:
        dataset.to_zarr(path, zarr_format=2, consolidated=True, mode="w")


def fit_scalers(config: Config) -> None:
    """Fits the scalers of the preblocks; other files of scalers are copies of them."""
    blocks = [
        block
        for phase in (config.preblocks.ic_only, config.preblocks.per_step)
        for block in phase.values()
        if issubclass(TRANSFORMS["preblocks"].get(block.type, object), Fitted)
    ]
    if not blocks:
        return
    for path in _scaler_files(config):
        path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(ConfigError):
        scaler_fitting.fit_scalers(config, console=Console(file=io.StringIO()))
    existing = [path for path in _scaler_files(config) if path.exists()]
    for path in _scaler_files(config):
        if not path.exists():
            shutil.copy(existing[0], path)


def _scaler_files(config: Config) -> list[Path]:
    """Every file of a scaler that a block or the loss names."""
    phases = (config.preblocks.per_step, config.preblocks.ic_only)
    blocks = [block for phase in phases for block in phase.values()]
    blocks += config.postblocks.per_step.values()
    paths = [block.args.get(key) for block in blocks for key in _FILES]
    paths.append(config.loss.scaler_file)
    return [Path(path) for path in dict.fromkeys(paths) if path]
