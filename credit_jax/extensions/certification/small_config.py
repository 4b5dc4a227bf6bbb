"""A config made small: a few days, a small grid, narrow layers, short epochs.

What a config is about stays: sources, variables, levels, blocks, loss, metrics,
schedule and numbers of steps. Its files are random fields, grids, and fitted scalers.
"""

from __future__ import annotations

import contextlib
import copy
import io
import os
import shutil
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from rich.console import Console

from credit_jax.config import Config, ConfigError, build_config, parse
from credit_jax.config.custom_objects import SECTION, absolute_paths, is_registered
from credit_jax.config.data import DataConfig
from credit_jax.config.finetune import finetune_of
from credit_jax.config.sources.sections import NativeArcoConfig
from credit_jax.config.sources.source import SourceConfig
from credit_jax.config.transforms import PreblocksConfig
from credit_jax.data.sources.source import field_key
from credit_jax.extensions.preprocess import scaler_fitting
from credit_jax.losses import needs_latitude
from credit_jax.models.graph.graph import nearest_edges
from credit_jax.models.registry import build, parse_model
from credit_jax.named_fields.tree import ChannelGroup
from credit_jax.parallel.mesh.devices import required_devices
from credit_jax.parallel.mesh.dims import ParallelDims
from credit_jax.plan.finetune import matching
from credit_jax.transforms import TRANSFORMS, TreeSchema
from credit_jax.transforms.build import GRID_TYPES, parse_pipeline
from credit_jax.transforms.pipeline import Block
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


def write_edges(model: Mapping[str, Any]) -> None:
    """Writes the edges of the grid of a model section to its `edge_path`."""
    edges = nearest_edges(**_coordinates(grid_of(model)), neighbors=NEIGHBORS)
    _write(edges, model["edge_path"])


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
        write_edges(config.model)
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


# Rows and columns; with padding they divide by all strides and windows.
GRID = (24, 56)
PAD = 4
UNPADDED = (32, 64)
SAMPLES = 16
TRAINER = {
    "batches_per_epoch": 2,
    "valid_batches_per_epoch": 1,
    "epochs": 1,
    "num_epoch": 1,
    "train_batch_size": 1,
    "valid_batch_size": 1,
    "thread_workers": 1,
    "valid_thread_workers": 1,
    "use_tensorboard": False,
    "finetune": None,
    "load_weights": False,
    "start_epoch": 0,
}
# Most micro-batches of an update of a certificate: how they are added does not depend
# on more.
MAX_ACCUMULATED = 3
# Most data-parallel ranks of a loss that depends on their number.
MAX_RANKS = 4
# So that FSDP splits the parameters of a small model, too.
MIN_SHARD_SIZE = 16
_STORES = ("store", "model_level_store")


def make_small(
    mapping: Mapping[str, Any], folder: Path, num_samples: int = SAMPLES
) -> dict[str, Any]:
    """A small config like another, of which two steps take seconds, in `folder`."""
    config = _moved(copy.deepcopy(dict(mapping)), str(folder))
    if SECTION in mapping:
        config[SECTION] = absolute_paths(mapping[SECTION])
    config["save_loc"] = str(folder / "run")
    preblocks = parse(PreblocksConfig, config.get("preblocks") or {})
    spectral = parse_pipeline(preblocks, types=("spectral_to_grid",)).blocks
    # They run on the host, the same on every mesh: the data are made after them.
    for blocks in (config.get("preblocks") or {}).values():
        for name in [k for k, block in blocks.items() if block["type"] in GRID_TYPES]:
            del blocks[name]
    for section in ("data", "validation_data"):
        if isinstance(config.get(section), dict):
            _shorten(config[section], config["data"], num_samples)
            for name, source in (config[section].get("source") or {}).items():
                if source["dataset_type"] == "arco_era5_co":
                    _make_fields(name, source, spectral)
                _make_source_small(source, folder / name)
    _make_model_small(config["model"])
    config["trainer"] |= TRAINER
    # Its stages count updates and lead times of the whole data.
    config["trainer"].pop("curriculum", None)
    return config


def _make_model_small(model: dict[str, Any]) -> None:
    parsed = parse_model(model)
    for key, value in copy.deepcopy(dict(parsed.small_keys)).items():
        inner = isinstance(value, Mapping)
        model[key] = {**(model.get(key) or {}), **value} if inner else value
    if is_registered("model", parsed.type):
        for key in ("image_height", "image_width"):
            model.setdefault(key, getattr(parsed, key))
        return
    padding = model.get("padding_conf")
    reads = "padding_conf" in type(parsed).model_fields
    if not (reads and padding and padding.get("activate", True)):
        padding = None
    is_padded = padding is not None or parsed.small_is_padded
    rows, columns = GRID if is_padded else UNPADDED
    if "img_size" in model:
        model["img_size"] = [rows, columns]
    elif "image_height" in model:
        model |= {"image_height": rows, "image_width": columns}
    else:
        return
    if is_padded:
        padding = padding or {"activate": True, "mode": "mirror"}
        pads = {"pad_lat": [PAD, PAD], "pad_lon": [PAD, PAD]}
        model["padding_conf"] = {**padding, **pads}
    if diffusion := model.get("diffusion"):
        diffusion["image_size"] = [*GRID]
        # Every pass of the network is differentiated and run again.
        if diffusion.get("sampling_timesteps"):
            diffusion["sampling_timesteps"] = min(diffusion["sampling_timesteps"], 3)


def grid_of(model: Mapping[str, Any], name: str = "x") -> tuple[int, int]:
    """Rows and columns of an input of a model section."""
    if "img_size" in model:
        rows, columns = model["img_size"]
        return rows, columns
    if "param_interior" in model:
        model = model["param_interior" if name == "x" else "param_outside"]
    return model["image_height"], model["image_width"]


def _moved(value: Any, folder: str) -> Any:
    """A value with its absolute paths moved below a folder."""
    if isinstance(value, dict):
        return {key: _moved(inner, folder) for key, inner in value.items()}
    if isinstance(value, list):
        return [_moved(inner, folder) for inner in value]
    if isinstance(value, str) and value.startswith(("/", "$")):
        return folder + "/" + value.lstrip("/").replace("$", "")
    return value


def _shorten(
    section: dict[str, Any], data: Mapping[str, Any], num_samples: int
) -> None:
    """Keeps the first times of a section."""
    ranges = section.pop("date_ranges", None) or data.get("date_ranges")
    first = ranges[0][0] if ranges else section.get("start_datetime")
    if first is None:
        return
    sources = [*(section.get("source") or data.get("source") or {}).values()]
    steps = sum(
        max([section.get(k, data.get(k, 1)), *(each.get(k, 1) for each in sources)])
        for k in ("history_len", "forecast_len")
    )
    # Such a source has none for a last step that ends with the data.
    steps += any(each.get("temporal_mode") == "next" for each in sources)
    step: Any = pd.Timedelta(section.get("timestep", data["timestep"]))
    start: Any = pd.Timestamp(first)
    section["start_datetime"] = str(start)
    section["end_datetime"] = str(start + (steps + num_samples - 2) * step)


def _make_fields(name: str, source: dict[str, Any], spectral: Sequence[Block]) -> None:
    """Sets fields instead of the coefficients that blocks make them of."""
    groups = [
        ChannelGroup(field_key(name, kind, dims, variable), 1, 1)
        for kind, section in parse(NativeArcoConfig, source).variables.by_type.items()
        for dims in ("3d", "2d")
        for variable in getattr(section, f"vars_{dims.upper()}")
    ]
    schema: TreeSchema = {"input": groups}
    for block in spectral:
        schema = block.transform.schema_after(schema)
    variables: dict[str, dict[str, list[str]]] = {}
    for group in schema["input"]:
        _, kind, dims, variable = group.var_key.split("/")
        by_dims = variables.setdefault(kind, {})
        by_dims.setdefault(f"vars_{dims.upper()}", []).append(variable)
    source.pop("grid_type", None)
    source["variables"] = variables


def _make_source_small(source: dict[str, Any], block: Path) -> None:
    """Sets the small grid, and local stores and files instead of others."""
    kind = source["dataset_type"]
    # GRIB is read on the host, the same on every mesh.
    is_replaced = kind.startswith("hrrr") or kind == "arco_era5_co"
    if is_registered("dataset", kind) or is_replaced:
        for key in {*source} - {*SourceConfig.model_fields}:
            del source[key]
        source["dataset_type"] = "local"
        source.setdefault("level_coord", "level")
        for field_type, fields in source["variables"].items():
            if fields is not None:  # as some are in CREDIT's configs of HRRR
                fields["path"] = f"{block}_{field_type}.zarr"
    if kind == "tisr" and "lat_spec" in source:
        rows, columns = GRID
        source["lat_spec"] = [90, -90, rows]
        source["lon_spec"] = [0, 360 - 360 / columns, columns]
    if kind in ("arco_era5", "weatherbench2_era5"):
        keys = _STORES if kind == "arco_era5" else _STORES[:1]
        source |= {key: f"{block}_{key}.zarr" for key in keys}


def certified_mapping(
    mapping: Mapping[str, Any], folder: Path, *, num_samples: int, num_updates: int
) -> dict[str, Any]:
    """Returns a small config, with its files in a folder, for a certificate."""
    trainer = mapping["trainer"]
    accumulated = min(trainer.get("grad_accum_every", 1), MAX_ACCUMULATED)
    count = num_samples * num_updates * accumulated
    config = make_small(mapping, folder, max(SAMPLES, count))
    config.pop("demo", None)
    config["trainer"]["fsdp"] = {"min_shard_size": MIN_SHARD_SIZE}
    config["trainer"]["ensemble_size"] = min(trainer.get("ensemble_size", 1), 2)
    if (finetune := finetune_of(mapping)) is not None:
        # What is frozen and has adapters, of the parameters that a small model has.
        model_def = build(config["model"])
        small: dict[str, Any] = {"from": finetune.base}
        for key in ("freeze", "train"):
            small[key] = matching(getattr(finetune, key), model_def)
        if finetune.lora is not None:
            targets = matching(finetune.lora.targets, model_def)
            small["lora"] = finetune.lora.model_dump() | {"targets": targets}
        config["trainer"]["finetune"] = small
    if stages := trainer.get("curriculum"):
        config["trainer"]["curriculum"] = stages
        # The longest forecast of a stage needs more times.
        data = config["data"]
        steps = max(stage.get("forecast_len") or 1 for stage in stages)
        more = max(0, steps - data.get("forecast_len", 1))
        end: Any = pd.Timestamp(data["end_datetime"])
        step: Any = pd.Timedelta(data["timestep"])
        data["end_datetime"] = str(end + more * step)
    return for_any_mesh(config, num_samples=num_samples, num_updates=num_updates)


def for_any_mesh(
    mapping: Mapping[str, Any], *, num_samples: int, num_updates: int
) -> dict[str, Any]:
    """A config with batches of so many samples, on no mesh of its own."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        config = build_config(mapping)
    ranks = config.trainer.ensemble_size if config.loss.members_are_ranks else None
    if config.shares_batches and not config.loss.members_are_ranks:
        # Ranks train on the same samples with other members, as in CREDIT: their number
        # is part of the function.
        ranks = min(dims_of_config(config).batch_size, MAX_RANKS)
    trainer = mapping["trainer"]
    accumulated = min(trainer.get("grad_accum_every", 1), MAX_ACCUMULATED)
    trainer = {
        **trainer,
        "train_batch_size": num_samples,
        "valid_batch_size": num_samples,
        "grad_accum_every": accumulated,
        "batches_per_epoch": num_updates * accumulated,
        "valid_batches_per_epoch": 1,
        # The data-parallel ranks that its loss needs; None for any.
        "num_devices": ranks,
        "parallelism": {"data": "ddp" if (ranks or 1) > 1 else "none"},
    }
    if stages := trainer.get("curriculum"):
        # Of one update each, with the batches of a certificate.
        sizes = ("until", "train_batch_size", "grad_accum_every", "batches_per_epoch")
        short = [{k: v for k, v in stage.items() if k not in sizes} for stage in stages]
        for number, stage in enumerate(short[:-1], 1):
            stage["until"] = number
        trainer["curriculum"] = short
    return {**mapping, "trainer": trainer}


def dims_of_config(config: Config) -> ParallelDims:
    """The degrees of the mesh that a config names."""
    parallelism = config.trainer.parallelism
    count = config.trainer.num_devices or required_devices(parallelism)
    return ParallelDims.from_config(parallelism, count)
