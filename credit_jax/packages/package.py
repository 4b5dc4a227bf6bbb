"""Opens packages: all files are checked before any is used; adapters need a base."""

from __future__ import annotations

import copy
import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib import import_module
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from credit_jax.checkpoint.artifact import Artifact
from credit_jax.checkpoint.run import config_in, open_run
from credit_jax.checkpoint.store import AVERAGE, LAST, label_of
from credit_jax.config import Config, ConfigError
from credit_jax.config.base import nearest_key
from credit_jax.config.custom_objects import register_objects
from credit_jax.config.inference import InferenceDataConfig
from credit_jax.config.load import (
    CONFIG_NAME,
    config_of,
    read_model_section,
    read_with_objects,
)
from credit_jax.config.sources.registry import source_config
from credit_jax.config.sources.sections import LocalConfig
from credit_jax.config.sources.source import FIELD_TYPES
from credit_jax.config.yaml_file import read_yaml
from credit_jax.data import ChannelSchema
from credit_jax.data.sources.file_source import descriptive
from credit_jax.models.model_def import ModelDef, Weights
from credit_jax.models.parallel_model import ParallelModel, build_parallel_model
from credit_jax.models.registry import build
from credit_jax.named_fields.coordinates import Coordinates, check_shared_grid
from credit_jax.nn.low_rank import LowRank, is_matrix, merged
from credit_jax.nn.parameters import ModelState
from credit_jax.packages import arrays
from credit_jax.packages import manifest as file_names
from credit_jax.packages.manifest import (
    AdapterRecord,
    Manifest,
    check_files,
    read_manifest,
)
from credit_jax.packages.references import FILE, GRID, PLACE, STATIC, references
from credit_jax.parallel.mesh.dims import ParallelDims
from credit_jax.plan.finetune import Base, check_type, find_base, finetuned, kind_of
from credit_jax.plan.run_record import RunRecord
from credit_jax.state_dict.key_map import Arrays, HostModelState
from credit_jax.state_dict.key_table import compare_shapes


def model_with_adapters(config: Config) -> ModelDef:
    """Returns the model of a run with LoRA, with its frozen parameters and adapters."""
    finetune, origin = config.trainer.finetune, "--adapters: trainer.finetune"
    if finetune is None or finetune.lora is None:
        raise ValueError(f"{origin}.lora: missing; the run has no adapters")
    if finetune.new_channels is not None:
        raise ValueError(
            f"{origin}.new_channels: the base has other channels, so the frozen "
            "weights are not all its own; make a package of all weights, without "
            "--adapters"
        )
    return finetuned(build(config.model), finetune)


def adapter_record(
    config: Config, model_def: ModelDef, params: Arrays
) -> AdapterRecord:
    """Returns what a package says of adapters, with `params` of base and training."""
    finetune, low_rank = config.trainer.finetune, model_def.low_rank
    assert finetune is not None, "a run with adapters"
    assert low_rank is not None, "and so is its model"
    adapters = low_rank.param_specs(model_def.param_specs)
    trained = model_def.trainable.keys() - adapters.keys()
    lacking = params.keys() - model_def.trainable.keys()
    return AdapterRecord(
        low_rank.rank,
        low_rank.scale,
        sorted(low_rank.targets),
        sorted(trained),
        Path(finetune.base).name,
        finetune.weights,
        digest_of_base({path: params[path] for path in lacking}),
    )


def digest_of_base(params: Mapping[str, np.ndarray]) -> str:
    """SHA-256 of the paths, dtypes, shapes and bytes of arrays."""
    # So a base is known in whatever file it is: a run, a package, or one of PyTorch.
    total = hashlib.sha256()
    for path in sorted(params):
        array = np.ascontiguousarray(params[path])
        total.update(f"{path} {array.dtype.name} {array.shape}\n".encode())
        total.update(array.reshape(-1).view(np.uint8).data)
    return total.hexdigest()


def with_base(
    path: Path, record: AdapterRecord, model_def: ModelDef, base: Artifact
) -> tuple[Arrays, HostModelState]:
    """Reads adapters and adds them to the weights of their base: all by path, state."""
    specs = model_def.param_specs
    matrices = {name for name, spec in specs.items() if is_matrix(spec)}
    unknown = sorted(({*record.targets} - matrices) | ({*record.trained} - {*specs}))
    if unknown:
        raise ValueError(
            f"{path.parent}: adapters of {unknown} do not fit model.yml beside it; get "
            "the package again"
        )
    low_rank = LowRank(record.rank, record.scale, frozenset(record.targets))
    frozen = frozenset(specs.keys() - {*record.trained})
    with_adapters = replace(model_def, frozen=frozen, low_rank=low_rank)
    trained, model_state = arrays.read_weights(path, with_adapters)
    weights = {**read_base(record, with_adapters, base), **trained}
    return jax.device_get(merged(weights, low_rank, specs)), model_state


def read_base(record: AdapterRecord, model_def: ModelDef, base: Artifact) -> Arrays:
    """Reads the weights that a package of adapters lacks, by path."""
    check_type(base.files, model_def.config.type)
    weights, _ = base.weights
    specs = model_def.param_specs
    lacking = {name: specs[name].shape for name in specs.keys() - model_def.trainable}
    weights = {name: x for name, x in weights.items() if name in lacking}
    problems = compare_shapes({name: x.shape for name, x in weights.items()}, lacking)
    digest = "" if problems else digest_of_base(weights)
    if digest != record.base_digest:
        why = problems[0] if problems else f"their digest is {digest}"
        raise ValueError(
            f"{base.files.key}: the weights of {base.where} are not those that the "
            f"adapters were trained on: {why}, expected {record.base_digest}; give "
            f"{record.base}, as it was then"
        )
    return weights


_LOG = logging.getLogger("credit_jax")
# Placeholder for the path of variables that forecasts do not read.
_NOWHERE = "not in the package"
# Kinds of paths of a config that are files of the package.
_INSIDE = FILE, GRID, STATIC


@dataclass(frozen=True, kw_only=True)
class Package(Artifact):
    """A model package whose files are checked against their digests."""

    manifest: Manifest
    # Channels of "input", "output", and each further input, in order.
    channels: Mapping[str, Sequence[Mapping[str, Any]]]
    # Weights that a package of adapters lacks; None for one with all weights.
    base: Base | None = None

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the weights, of adapters alone in a package of them."""
        return self.manifest.files[self.manifest.weights_file].sha256

    @cached_property
    def schema(self) -> ChannelSchema:
        """Channels of x and y; the times of a variable are not recorded."""
        return ChannelSchema(
            *(arrays.groups_of(self.channels[k]) for k in ("input", "output"))
        )

    def config(
        self,
        overrides: Sequence[str] = (),
        data: str | Path | None = None,
        *,
        unread: Sequence[str] = ("diagnostic",),
        sections: Mapping[str, Any] = MappingProxyType({}),
    ) -> Config:
        """The config of forecasts, with the keys of a YAML file of data, if any."""
        config = {**self.resolved(), **sections, "save_loc": str(self.path)}
        inference = config.setdefault("inference", {})
        section = inference if "data" in inference else config
        origin = "inference.data" if section is inference else "data"
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
                f"FILE, or with --set {origin}.source.NAME.variables.KIND.path=PATTERN"
            ) from None
        # What may differ are the data, of which a package has none.
        self.record.compare(RunRecord.of(changed, forecasts=True), forecasts=True)
        return changed

    @cached_property
    def record(self) -> RunRecord:
        """What its run is."""
        return RunRecord.of(self.resolved(), str(self.path))

    def resolved(self) -> dict[str, Any]:
        """`model.yml` with absolute paths of the files of the package."""
        config = copy.deepcopy(dict(self.files.written))
        for reference in references(config, *_INSIDE):
            reference.set(str(self.path / reference.path))
        return config

    @cached_property
    def model_def(self) -> ModelDef:
        """See `Artifact.model_def`."""
        return build(self.resolved()["model"])

    def on_host(self, model_def: ModelDef) -> tuple[Arrays, HostModelState]:
        """See `Artifact.on_host`; raises, too, if the base is not that of adapters."""
        path, record = self.path / self.manifest.weights_file, self.manifest.adapters
        if record is None:
            return arrays.read_weights(path, model_def)
        assert self.base is not None, "`open_package` asks for it"
        base = open_artifact(self.base, weights=record.base_weights)
        return with_base(path, record, model_def, base)

    def of_data(
        self,
        schema: ChannelSchema,
        further: Mapping[str, ChannelSchema],
        latitude: np.ndarray,
        longitude: np.ndarray,
    ) -> Package:
        """See `Artifact.of_data`."""
        groups = arrays.channel_groups(schema, further)
        for name in dict.fromkeys((*self.channels, *groups)):
            pair = arrays.groups_of(self.channels.get(name, ())), groups.get(name, ())
            expected, actual = (
                ", ".join(f"{group.var_key} x {group.n_levels}" for group in each)
                for each in pair
            )
            if actual != expected:
                raise ValueError(
                    f"{name} channels are {actual or 'none'}, expected "
                    f"{expected or 'none'}; give data with the variables of "
                    f"{self.path / file_names.CHANNELS}, in this order"
                )
        path, grid = self.path / file_names.GRID, (latitude, longitude)
        check_shared_grid(
            arrays.read_grid(path), grid, "the data", f"the package ({path})"
        )
        return self


def open_package(folder: str | Path, base: str | Path | None = None) -> Package:
    """Opens a package, adapters with their base; checks all files, reads no weights."""
    path = Path(folder).absolute()
    manifest = read_manifest(path)
    check_files(path, manifest)
    written = read_yaml(path / file_names.CONFIG)
    register_objects(written, source=str(path / file_names.CONFIG), package=path)
    _check_config(path, manifest, written)
    channels = arrays.read_channels(path / file_names.CHANNELS)
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
    at = manifest.provenance.get(file_names.COORDINATES)
    origin = str(path / file_names.CHANNELS)
    units = {
        entry["key"]: entry["units"]
        for entry in chain.from_iterable(channels.values())
        if isinstance(entry["units"], str)
    }
    return Package(
        files=Base(path, "package", written),
        path=path,
        average=manifest.average,
        step=manifest.step,
        coordinates=at and Coordinates.from_json(at, str(path), units),
        units={key: (unit, origin) for key, unit in units.items()},
        described={entry["key"]: descriptive(entry) for entry in channels["output"]},
        manifest=manifest,
        channels=channels,
        base=opened,
    )


def open_artifact(
    source: str | Path | Base,
    step: int | None = None,
    weights: str | None = None,
    *,
    base: str | Path | None = None,
    verify: bool = True,
) -> Artifact:
    """Opens a run, a package or a checkpoint of CREDIT; arrays are read on access."""
    is_base = isinstance(source, Base)
    path, kind = (source.path, source.kind) if is_base else (source, kind_of(source))
    if kind == "package":
        package = open_package(path, base)
        held = AVERAGE if package.average else LAST
        if weights not in (None, held) or step not in (None, package.step):
            raise ValueError(
                f"{path} is a package of the {label_of(average=package.average)} "
                f"of checkpoint {package.step}; got weights={weights!r}, "
                f"step={step}: leave them out, or open the run"
            )
        return package
    if base is not None:
        raise ValueError(f"base: {path} is a run with all its weights; leave it out")
    if kind == "run":
        run = open_run(path, step, weights, verify=verify)
        # Errors name the key or the option that the base is from.
        return replace(run, files=source) if is_base else run
    files = source if is_base else find_base(path, "checkpoint")
    try:
        # By name, since it imports torch.
        bridge = import_module("credit_torch_bridge.checkpoint.torch_to_jax")
    except ModuleNotFoundError as error:
        raise ValueError(
            f"{files.key}: {path} is a checkpoint of CREDIT, which "
            f"needs {error.name}: install credit_jax[bridge], or convert it where that "
            "is installed (credit-jax convert --to jax) and give the run"
        ) from None
    return bridge.TorchArtifact.open(files, weights)


def base_of_run(config: Config) -> Artifact | None:
    """Opens the base that `trainer.finetune` names; None without that section."""
    finetune = config.trainer.finetune
    if finetune is None:
        return None
    base = find_base(finetune.base)
    check_type(base, config.model["type"])
    return open_artifact(base, weights=finetune.weights)


def restore(
    folder: str | Path,
    mesh: Mesh | ParallelDims,
    *,
    step: int | None = None,
    weights: str | None = None,
    **options: Any,
) -> tuple[ParallelModel, Weights, ModelState]:
    """The model of a run on a mesh, with the weights of one of its checkpoints.

    Its `channels` are those of the run's data, by channel_schema.yaml or model.yml.

    Args:
        folder: folder of a trained or converted run; its model.yml describes the model.
            Or a package, or the folder of a checkpoint of CREDIT with its model.yml.
        mesh: a mesh or degrees, as for `build_parallel_model`; may be another one than
            that which wrote the checkpoint.
        step: step of the checkpoint; None takes the newest.
        weights: "average", "last", or None for the moving average if there is one.
        options: options of `build_parallel_model`.

    Raises:
        FileNotFoundError: there is no model.yml or no checkpoint.
        ValueError: the model does not fit the mesh, the checkpoint not the model,
            model.yml is not that of the training, or there is no moving average.

    >>> model, params, model_state = credit_jax.restore("RUN", mesh)
    >>> sorted(params)
    ['dense/bias', 'dense/down', 'dense/up']
    >>> [model.channels.describe(channel) for channel in range(6)]
    ['U 1', 'U 4.6', 'T 1', 'T 4.6', 'SP', 'TP']
    """
    written = Path(folder) / CONFIG_NAME
    section: Any = read_model_section(written)
    artifact = open_artifact(folder, step, weights)
    is_package = isinstance(artifact, Package)
    for note in [] if is_package else artifact.compare(config_in(written)):
        _LOG.warning("note: %s", note)
    section = artifact.model_def if is_package else section
    model = build_parallel_model(section, mesh, **options)
    return replace(model, channels=artifact.schema), *artifact.restore(model)


def _check_config(path: Path, manifest: Manifest, written: dict[str, Any]) -> None:
    """Checks that every path of the config is that of a file of the package."""
    origin = path / file_names.CONFIG
    for section in ("model", "data"):
        if not isinstance(written.get(section), dict):
            raise ValueError(f"{origin}: {section}: missing; get the package again")
    stores = (k.partition(".zarr/")[0] for k in manifest.files if ".zarr/" in k)
    names = {*manifest.files, *(f"{name}.zarr" for name in stores)}
    for reference in references(written, *_INSIDE):
        if reference.path not in names:
            raise ValueError(
                f"{origin}: {reference.dotted}: {reference.path!r} is no file of the "
                f"package; expected one of {', '.join(sorted(names))}. Do not use this "
                "package"
            )
    for reference in references(written, PLACE):
        raise ValueError(
            f"{origin}: {reference.dotted}: a package names no data, got "
            f"{reference.path!r}; remove it, and give --data where you know the package"
        )
    actual, expected = written["model"].get("type"), manifest.model_type
    if actual != expected:
        raise ValueError(
            f"{origin}: model.type is {actual!r}, {file_names.MANIFEST} says "
            f"{expected!r}; get the package again"
        )


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
