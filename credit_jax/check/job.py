"""A config, its model and its mesh put together, with every problem that shows."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from credit_jax.config.base import ConfigError
from credit_jax.config.data import DataConfig
from credit_jax.config.root import Config, model_problems
from credit_jax.data import ChannelSchema, Loader, Split, build_loader, splits
from credit_jax.data.files import discover
from credit_jax.data.latitude import read_latitude
from credit_jax.losses.build import build_loss
from credit_jax.metrics.build import build_metrics
from credit_jax.models.model_def import ModelDef
from credit_jax.models.registry import build, parse_model
from credit_jax.parallel.mesh.axes import DOMAIN, EP, PP, TP, MeshAxes
from credit_jax.parallel.mesh.devices import required_devices
from credit_jax.parallel.mesh.dims import ParallelDims
from credit_jax.parallel.mesh.model_fit import model_notes
from credit_jax.parallel.mesh.model_fit import model_problems as degree_fit
from credit_jax.transforms import build_pipeline


@dataclass(frozen=True)
class Job:
    """What `inspect_job` found.

    Attributes:
        config: the config.
        model: its validated model block; None if the block is wrong.
        architecture: its model; None if its sizes do not fit together.
        num_devices: devices that the job is looked at for.
        axes: the mesh axes on these devices; None if the degrees do not fit.
        problems: lines that keep the job from running.
        notes: lines that a user should know, such as files that are not there yet.
        loaders: by split ("train", "valid"), of dp rank 0; those that could be built.
    """

    config: Config
    model: Any
    model_def: ModelDef | None
    num_devices: int
    axes: MeshAxes | None
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    loaders: dict[str, Loader] = field(default_factory=dict)


def inspect_job(
    config: Config, *, num_devices: int | None = None, with_data: bool = True
) -> Job:
    """Put a config together as training does, and collect all that is wrong.

    No device is touched and no weight is made.

    Args:
        config: the config.
        num_devices: devices to look at; None takes `trainer.num_devices`, or the fewest
            that the parallelism block can run on.
        with_data: whether to look for the data files.

    Returns:
        The job; it can run if it has no problems.
    """
    problems: list[str] = []
    notes: list[str] = []
    block = config.trainer.parallelism
    devices = num_devices or config.trainer.num_devices or required_devices(block)
    axes = _axes(config, devices, problems, notes)
    model = _model(config, problems, notes)
    sound = model is not None and not model.problems()
    model_def = build(config.model) if sound else None
    channels = _target_channels(config, model)
    problems += _loss_problems(config, channels)
    problems += _metric_problems(config, channels)
    problems += _problems_of(
        build_pipeline, config.preblocks, config.postblocks, but=OSError
    )
    missing = missing_files(config) if with_data else []
    notes += missing
    if with_data:
        for key, path in _latitude_files(config).items():
            problems += _problems_of(read_latitude, path, key, but=OSError)
    job = Job(config, model, model_def, devices, axes, problems, notes)
    if with_data and not missing and not problems:
        _open_data(job)
    return job


def _axes(
    config: Config, num_devices: int, problems: list[str], notes: list[str]
) -> MeshAxes | None:
    """The mesh axes that `build_device_mesh` would make on so many devices."""
    try:
        dims = ParallelDims.from_config(config.trainer.parallelism, num_devices)
    except ConfigError as error:
        problems += [f"trainer.parallelism: {line}" for line in error.problems]
        return None
    if dims.world_size < num_devices:
        notes.append(f"data: none uses {dims.world_size} of {num_devices} devices")
    return dims.mesh_axes


def _model(config: Config, problems: list[str], notes: list[str]) -> Any:
    """The model block, looked at on the mesh and against the data; None if wrong."""
    block = config.trainer.parallelism
    try:
        model = parse_model(config.model)
    except ValueError as error:
        problems += getattr(error, "problems", [str(error)])
        return None
    degrees = {TP: block.tensor, DOMAIN: block.domain, EP: block.ep, PP: block.pp}
    problems += degree_fit(model, degrees)
    problems += model_problems(
        config,
        frames=model.frames,
        input_channels=model.input_channels,
        output_channels=model.output_channels,
    )
    if not model.problems():
        notes += model_notes(model, block.domain)
    return model


def _target_channels(config: Config, model: Any) -> dict[str, int]:
    """Number of channels of each target variable, by key."""
    levels = {
        name: len(source.levels) if source.levels else getattr(model, "levels", 1)
        for name, source in config.data.source.items()
    }
    schema = ChannelSchema.from_config(config.data, levels)
    return {group.var_key: group.n_levels for group in schema.target}


def _loss_problems(config: Config, channels: dict[str, int]) -> list[str]:
    """What the loss section asks for and is not there."""
    found = []
    for validation in (False, True):
        found += _problems_of(
            build_loss,
            config.loss,
            channels,
            latitude=np.zeros(1),
            validation=validation,
        )
    return list(dict.fromkeys(found))


def _metric_problems(config: Config, channels: dict[str, int]) -> list[str]:
    """What the metrics section asks for and is not there."""
    return _problems_of(
        build_metrics,
        config.metrics,
        channels,
        latitude=np.zeros(1),
        climatology=lambda: np.zeros((1, 1, 1)),
    )


def _open_data(job: Job) -> None:
    """Add the loaders, and what the files say against the config."""
    found: list[str] = []
    dp_size = job.axes.num_data if job.axes else 1

    def add(split: Split) -> None:
        job.loaders[split] = build_loader(
            job.config, split=split, local_dp_ranks=(0,), dp_size=dp_size
        )

    for split in splits(job.config):
        found += _problems_of(add, split)
    job.problems.extend(dict.fromkeys(found))


def _problems_of(
    build: Callable[..., Any],
    *args: Any,
    but: type[Exception] | tuple[()] = (),
    **kwargs: Any,
) -> list[str]:
    """The lines of the error that `build` ends with, if it does and it is not `but`."""
    try:
        build(*args, **kwargs)
    except but:
        return []
    except (OSError, ValueError) as error:
        return list(getattr(error, "problems", [str(error)]))
    return []


def missing_files(config: Config) -> list[str]:
    """Lines for all files that a config names and that are not there."""
    found = _missing("data", config.data)
    if config.validation_data != config.data:
        found += _missing("validation_data", config.validation_data)
    for key, path in _latitude_files(config).items():
        found += _absent(key, path)
    for phase in ("ic_only", "per_step"):
        for name, block in getattr(config.preblocks, phase).items():
            for key, value in block.args.items():
                if key.endswith("_path") and isinstance(value, str):
                    found += _absent(f"preblocks.{phase}.{name}.args.{key}", value)
    return list(dict.fromkeys(found))


def _latitude_files(config: Config) -> dict[str, str]:
    """The files of latitudes that a run reads, by the key that names each."""
    metrics = config.metrics.args if config.metrics else {}
    named = {}
    if config.loss.use_latitude_weights:
        named["loss.latitude_weights"] = config.loss.latitude_weights
    if metrics.get("use_latitude_weights") and not config.trainer.skip_validation:
        named["metrics.args.latitude_weights"] = metrics.get("latitude_weights")
    return {key: path for key, path in named.items() if path}


def _absent(where: str, path: str) -> list[str]:
    return [] if Path(path).exists() else [f"{where}: {path} does not exist"]


def _missing(path: str, data: DataConfig) -> list[str]:
    lines = []
    for name, source in data.source.items():
        for kind in type(source.variables).model_fields:
            field = getattr(source.variables, kind)
            where = f"{path}.source.{name}.variables.{kind}.path"
            if field is not None:
                found = _problems_of(discover, field.path, where)
                lines += [line.split(" (searched")[0] for line in found]
    return lines
