"""Opens packages: all files are checked before any is used."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from credit_jax.checkpoint.store import label_of, takes_average
from credit_jax.config import Config, ConfigError
from credit_jax.config.base import nearest_key
from credit_jax.config.custom_objects import register_objects
from credit_jax.config.data import DateRange, raw_ranges
from credit_jax.config.fields import FIELD_TYPES
from credit_jax.config.inference import InferenceDataConfig
from credit_jax.config.load import config_of, read_with_objects
from credit_jax.config.sources.registry import source_config
from credit_jax.config.sources.sections import LocalConfig
from credit_jax.config.yaml_file import read_yaml
from credit_jax.data import ChannelGroup, ChannelSchema
from credit_jax.data.sources.file_source import descriptive
from credit_jax.forecast.outputs import Outputs
from credit_jax.models.model_def import Weights
from credit_jax.models.parallel_model import ParallelModel
from credit_jax.models.registry import build
from credit_jax.named_fields.coordinates import Coordinates
from credit_jax.nn.model_state import ModelState
from credit_jax.packages import manifest as file_names
from credit_jax.packages.adapters import with_base
from credit_jax.packages.channel_table import groups_of, read_channels
from credit_jax.packages.grids import check_same_grid
from credit_jax.packages.manifest import Manifest, check_files, read_manifest
from credit_jax.packages.references import (
    PathReference,
    file_references,
    grid_references,
    place_references,
    static_references,
)
from credit_jax.packages.weights import read_weights
from credit_jax.plan.finetune import Base, find_base
from credit_jax.plan.run_record import RunRecord
from credit_jax.state_dict.key_map import Arrays, HostModelState
from credit_jax.training.base_weights import BaseWeights
from credit_jax.training.restore import place_weights

# Placeholder for the path of variables that forecasts do not read.
_NOWHERE = "not in the package"


@dataclass(frozen=True)
class Package:
    """A model package whose files are checked against their digests.

    Attributes:
        path: its folder.
        manifest: manifest of the folder.
        written: contents of `model.yml`.
        channels: channels of "input", "output", and each further input, in order.
        base: weights that a package of adapters lacks; None for one with all weights.
    """

    path: Path
    manifest: Manifest
    written: Mapping[str, Any]
    channels: Mapping[str, Sequence[Mapping[str, Any]]]
    base: Base | None = None

    @property
    def step(self) -> int:
        """Step of the checkpoint with the weights."""
        return self.manifest.step

    @property
    def average(self) -> bool:
        """Whether the weights are the moving average."""
        return self.manifest.average

    @property
    def digest(self) -> str:
        """SHA-256 of the weights, of adapters alone in a package of them."""
        return self.manifest.files[self.manifest.weights_file].sha256

    @cached_property
    def coordinates(self) -> Coordinates | None:
        """Of the data of the run; None if the package does not record them."""
        recorded = self.manifest.provenance.get(file_names.COORDINATES)
        origin = str(self.path)
        return None if recorded is None else Coordinates.from_json(recorded, origin)

    @cached_property
    def units(self) -> dict[str, tuple[str, str]]:
        """Key -> unit of variables of its channels, and the file that says so."""
        where = str(self.path / file_names.CHANNELS)
        return {
            entry["key"]: (entry["units"], where)
            for entries in self.channels.values()
            for entry in entries
            if isinstance(entry["units"], str)
        }

    @property
    def training_dates(self) -> tuple[DateRange, ...]:
        """Date ranges of the training; () if unknown."""
        return raw_ranges(self.written)

    def described(self, outputs: Outputs) -> Outputs:
        """Returns the outputs with attributes of variables whose files give none."""
        described = {k["key"]: descriptive(k) for k in self.channels["output"]}
        described |= {k: v for k, v in outputs.described.items() if v}
        return replace(outputs, described=described)

    def config(
        self,
        overrides: Sequence[str] = (),
        data: str | Path | None = None,
        *,
        unread: Sequence[str] = ("diagnostic",),
        sections: Mapping[str, Any] = MappingProxyType({}),
    ) -> Config:
        """The config of forecasts.

        Args:
            overrides: see `load_config`.
            data: YAML file whose keys override those of the data section; its
                `custom_objects` are those of the user.
            unread: field types whose files are not opened.
            sections: further sections, which packages do not hold.

        Raises:
            ValueError: a source has no path, or the file is no data section.
            ConfigError: the config is invalid, or not that of the run.
        """
        config = {**self.resolved(), **sections, "save_loc": str(self.path)}
        inference = config.setdefault("inference", {})
        section = inference if "data" in inference else config
        where = "inference.data" if section is inference else "data"
        source = str(self.path / file_names.CONFIG)
        if data is not None:
            source = f"{source} with {data}"
            keys, fields = read_with_objects(data), InferenceDataConfig.model_fields
            for key in keys:
                if key not in fields:
                    raise ValueError(
                        f"--data {data}: {key}: unknown key of a data section, whose "
                        f"keys the file has at its top; {nearest_key(key, fields)}"
                    )
            section["data"] = _merged(section["data"], keys)
        _fill_paths(section["data"], unread)
        if section is inference:
            _fill_paths(config["data"], FIELD_TYPES)
        try:
            changed = config_of(config, overrides, forecasts=True, source=source)
        except ConfigError as error:
            if ".path: missing" not in str(error) and "base_path" not in str(error):
                raise
            raise ValueError(
                f"{error}\nA package holds no data: say where they are with --data "
                f"FILE, or with --set {where}.source.NAME.variables.KIND.path=PATTERN"
            ) from None
        # What may differ are the data, of which a package has none.
        self.record.compare(RunRecord.of(changed, forecasts=True), forecasts=True)
        return changed

    @property
    def record(self) -> RunRecord:
        """What its run is."""
        return RunRecord.of(self.resolved(), str(self.path))

    def resolved(self) -> dict[str, Any]:
        """`model.yml` with absolute paths of the files of the package."""
        config = copy.deepcopy(dict(self.written))
        for reference in _inside(config):
            reference.set(str(self.path / reference.path))
        return config

    def restore(self, model: ParallelModel) -> tuple[Weights, ModelState]:
        """Puts the weights on the mesh of a model."""
        return place_weights(model, *self.weights)

    @cached_property
    def weights(self) -> tuple[Arrays, HostModelState]:
        """Parameters by path and model state, on the host.

        Raises:
            ValueError: they are not those of the model in `model.yml`, or the base is
                not that of the adapters.
        """
        model_def = build(self.resolved()["model"])
        path, record = self.path / self.manifest.weights_file, self.manifest.adapters
        if record is None:
            return read_weights(path, model_def)
        assert self.base is not None, "`open_package` asks for it"
        return with_base(path, record, model_def, self.base)

    def check_data(
        self,
        groups: Mapping[str, Sequence[ChannelGroup]],
        latitude: np.ndarray,
        longitude: np.ndarray,
    ) -> None:
        """Checks that the data of forecasts have the channels and grid of the package.

        Args:
            groups: groups, as returned by `channel_groups`.
            latitude, longitude: latitude and longitude of the grid, degrees.

        Raises:
            ValueError: channels, their order, or the grid differ.
        """
        for name in dict.fromkeys((*self.channels, *groups)):
            pair = groups_of(self.channels.get(name, ())), groups.get(name, ())
            expected, actual = (
                [(group.var_key, group.n_levels) for group in each] for each in pair
            )
            if actual != expected:
                raise ValueError(
                    f"{name} channels are {_listed(actual) or 'none'}, expected "
                    f"{_listed(expected) or 'none'}; give data with the variables of "
                    f"{self.path / file_names.CHANNELS}, in this order"
                )
        check_same_grid(self.path / file_names.GRID, latitude, longitude)


def is_package(folder: str | Path) -> bool:
    """Whether a folder has the manifest of a package."""
    return (Path(folder) / file_names.MANIFEST).is_file()


def open_package(folder: str | Path, base: str | Path | None = None) -> Package:
    """Opens a package and checks all its files; weights are read on access.

    Args:
        folder: its folder.
        base: what adapters were trained on, a run, a package or a checkpoint of CREDIT;
            None for a package with all weights.

    Raises:
        FileNotFoundError: the folder is not a package, or there is no base.
        ValueError: a file is missing, unknown, changed, of another kind, a link, or
            outside of the folder; the schema is newer; channels are duplicated; an
            object that it refers to is not installed; or the package has adapters alone
            and no base is given, or all weights and one is.
    """
    path = Path(folder).absolute()
    manifest = read_manifest(path)
    check_files(path, manifest)
    written = read_yaml(path / file_names.CONFIG)
    register_objects(written, source=str(path / file_names.CONFIG), package=path)
    _check_config(path, manifest, written)
    channels = read_channels(path / file_names.CHANNELS)
    record, opened = manifest.adapters, None
    if base is not None:
        if record is None:
            raise ValueError(f"--base: {path} has all its weights; leave --base out")
        opened = find_base(base, "--base")
    elif record is not None:
        raise ValueError(
            f"{path} has adapters alone; --base must name the run, package or "
            f"checkpoint that they were trained on ({record.base}, digest "
            f"{record.base_digest})"
        )
    return Package(path, manifest, written, channels, opened)


def open_package_base(base: Base, weights: str | None) -> BaseWeights:
    """Opens a package as the weights that a run begins with.

    Args:
        base: the package.
        weights: "average", "last", or None for those that it has.

    Raises:
        ValueError: see `open_package`; or it has others than these weights.
    """
    package = open_package(base.path)
    if weights is not None:
        takes_average(weights, has_average=package.average, where=base.path)
        if weights == "last" and package.average:
            raise ValueError(f"{base.path} has the average alone; leave weights out")
    # The times of a variable are not recorded.
    channels = [groups_of(package.channels[name]) for name in ("input", "output")]
    return BaseWeights(
        base,
        f"package {base.path}, {label_of(average=package.average)}",
        lambda _: package.weights,  # of the model of model.yml
        ChannelSchema(*channels),
        package.coordinates,
        package.units,
        trained=package.record,
    )


def _check_config(path: Path, manifest: Manifest, written: dict[str, Any]) -> None:
    """Checks that every path of the config is that of a file of the package."""
    where = path / file_names.CONFIG
    for section in ("model", "data"):
        if not isinstance(written.get(section), dict):
            raise ValueError(f"{where}: {section}: missing; get the package again")
    stores = (k.partition(".zarr/")[0] for k in manifest.files if ".zarr/" in k)
    names = {*manifest.files, *(f"{name}.zarr" for name in stores)}
    for reference in _inside(written):
        if reference.path not in names:
            raise ValueError(
                f"{where}: {reference.dotted}: {reference.path!r} is no file of the "
                f"package; expected one of {', '.join(sorted(names))}. Do not use this "
                "package"
            )
    for reference in place_references(written):
        raise ValueError(
            f"{where}: {reference.dotted}: a package names no data, got "
            f"{reference.path!r}; remove it, and give --data where you know the package"
        )
    actual, expected = written["model"].get("type"), manifest.model_type
    if actual != expected:
        raise ValueError(
            f"{where}: model.type is {actual!r}, {file_names.MANIFEST} says "
            f"{expected!r}; get the package again"
        )


def _inside(config: Mapping[str, Any]) -> list[PathReference]:
    """The paths of a config that refer to files of the package."""
    static = chain.from_iterable(static_references(config).values())
    return [*file_references(config), *grid_references(config), *static]


def _fill_paths(data: dict[str, Any], kinds: Sequence[str]) -> None:
    """Sets missing paths of variables that forecasts do not read to a placeholder."""
    for source in data["source"].values():
        section = source_config(source.get("dataset_type"))
        reads_files = section is not None and issubclass(section, LocalConfig)
        variables = source.get("variables") or {}
        for kind in kinds:
            if reads_files and variables.get(kind):
                variables[kind].setdefault("path", _NOWHERE)


def _merged(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Merges nested mappings; the second overrides the first."""
    result = dict(under)
    for key, value in over.items():
        both = isinstance(value, Mapping) and isinstance(result.get(key), Mapping)
        result[key] = _merged(result[key], value) if both else value
    return result


def _listed(groups: Sequence[tuple[str, int]]) -> str:
    return ", ".join(f"{key} x {count}" for key, count in groups)
