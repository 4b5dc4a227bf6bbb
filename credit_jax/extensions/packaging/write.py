"""Makes a package of a run: weights, and all that forecasts need except data."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from credit_jax.checkpoint.run import RunArtifact
from credit_jax.checkpoint.store import label_of
from credit_jax.config import Config, dump_config
from credit_jax.config.inference import InferenceConfig, read_attributes
from credit_jax.config.messages import counted
from credit_jax.data import ChannelGroup, ChannelSchema
from credit_jax.data.forecast_data import DIAGNOSTIC, ForecastData, open_forecast_data
from credit_jax.data.sources.file_source import descriptive
from credit_jax.extensions.packaging.card import data_lines, write_card
from credit_jax.forecast.archive import software
from credit_jax.io.activity import activity
from credit_jax.io.anemoi import DATA, is_anemoi
from credit_jax.io.atomic import new_folder
from credit_jax.io.digests import record_files
from credit_jax.io.metadata import METADATA_FILES
from credit_jax.models.model_def import ModelDef
from credit_jax.models.registry import build
from credit_jax.named_fields.coordinates import Coordinates, as_values
from credit_jax.packages import manifest as file_names
from credit_jax.packages.adapters import adapter_record, model_with_adapters, read_base
from credit_jax.packages.grids import (
    channel_groups,
    write_axes,
    write_channels,
    write_grid,
    write_static,
)
from credit_jax.packages.manifest import COORDINATES, AdapterRecord, Manifest, kind_of
from credit_jax.packages.package import base_of_run
from credit_jax.packages.references import (
    FILE,
    GRID,
    PLACE,
    STATIC,
    locate,
    normalized,
    references,
)
from credit_jax.packages.weights import NATIVE, names_of, write_weights
from credit_jax.plan.forecast import forecast_pipeline, forecast_schema
from credit_jax.transforms import Pipeline

_UNSAFE = re.compile(r"[^\w.+-]")


@dataclass(frozen=True)
class Contents:
    """The contents of a package besides weights: of a run, and of its forecasts."""

    config: Config
    model_def: ModelDef
    data: ForecastData
    pipeline: Pipeline
    schema: ChannelSchema
    latitude: np.ndarray  # degrees, of the model's grid
    longitude: np.ndarray


def open_contents(config: Config, like: Coordinates | None = None) -> Contents:
    """Opens the contents of a package without reading fields."""
    inference = config.inference or InferenceConfig()
    model_def = build(config.model)
    section = inference.data or config.data
    dates = section if section.start_datetime or section.date_ranges else config.data
    pipeline = forecast_pipeline(config, inference)
    of_run = like if inference.data is None else None
    opened = open_forecast_data(
        section,
        [dates.ranges[0][0]],
        1,
        like=of_run,
        shared_grid=pipeline.grid is None,
    )
    schema = forecast_schema(config, inference, model_def.config, pipeline, opened)
    grid = pipeline.grid
    latitude, longitude = (
        opened.latitude_longitude() if grid is None else (grid.latitude, grid.longitude)
    )
    if latitude is None or longitude is None:
        raise ValueError(
            "the weight file of the regrid block gives no latitudes and longitudes of "
            "rows and columns, which a package holds"
        )
    return Contents(config, model_def, opened, pipeline, schema, latitude, longitude)


@activity("writing the package")
def write_package(
    contents: Contents,
    weights: RunArtifact,
    out: str | Path,
    *,
    name: str | None = None,
    license: str = "unknown",
    scores: str | Path | None = None,
    adapters: bool = False,
) -> Manifest:
    """Writes a package; the folder appears when it is complete."""
    target = Path(out)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ValueError(f"--out: {target} exists; give another folder")
    model_def, record = contents.model_def, None
    if adapters:
        model_def = model_with_adapters(contents.config)
        arrays = weights.parts_on_host(model_def)
        record = adapter_record(contents.config, model_def, arrays[0])
        base = base_of_run(contents.config)
        assert base is not None, "`model_with_adapters` asks for it"
        read_base(record, model_def, base)
    else:
        arrays = weights.on_host(model_def)
    facts = _facts(contents, weights, record, name or target.name, license)
    config = normalized(dump_config(contents.config))
    with new_folder(target) as folder:
        _copy_files(config, folder)
        _write_static_fields(config, contents, folder)
        places = references(config, PLACE)
        for reference in places:
            reference.set(None)
        plain = json.loads(json.dumps(config))
        text = yaml.safe_dump(plain, sort_keys=False, width=88)
        (folder / file_names.CONFIG).write_text(text, encoding="utf-8")
        write_weights(folder / facts["file"], model_def, *arrays)
        write_grid(folder / file_names.GRID, contents.latitude, contents.longitude)
        groups = channel_groups(contents.schema, contents.data.further)
        levels, described = _levels(groups, config), _described(contents, groups)
        write_channels(folder / file_names.CHANNELS, groups, levels, described)
        table = None if scores is None else Path(scores)
        if table is not None:
            shutil.copyfile(table, folder / file_names.SCORES)
        # Forecasts read no diagnostic variable.
        section = "inference.data." if "data" in config["inference"] else "data."
        dotted = (place.dotted for place in places)
        keys = [key.removeprefix(section) for key in dotted if key.startswith(section)]
        data = data_lines([key for key in keys if f".{DIAGNOSTIC}." not in key])
        write_card(folder / file_names.CARD, facts, data, table)
        manifest = Manifest(
            facts["model_type"],
            weights.step,
            weights.average,
            weights.digest,
            facts["names"],
            record_files(folder),
            _provenance(contents),
            facts["schema"],
            record,
        )
        manifest.write(folder)
    return manifest


def _copy_files(config: dict[str, Any], folder: Path) -> None:
    """Copies the files that blocks read, and sets their paths in the config."""
    copied: dict[Path, str] = {}
    for reference in references(config, FILE):
        source = locate(reference).resolve()
        if source not in copied:
            stem = _UNSAFE.sub("_", source.stem)
            suffix, used = kind_of(source), set(copied.values())
            names = (f"{stem}_{n}" if n else stem for n in range(len(used) + 1))
            paths = (f"{file_names.FILES}/{name}{suffix}" for name in names)
            copied[source] = next(path for path in paths if path not in used)
            _copy(source, folder / copied[source])
        reference.set(copied[source])
    for number, reference in enumerate(references(config, GRID)):
        target = f"{file_names.FILES}/grid_of_source_{number}.nc"
        write_axes(folder / target, os.path.expandvars(reference.path))
        reference.set(target)


def _copy(source: Path, target: Path) -> None:
    """Copies a file or a folder; of anemoi data the statistics alone are needed."""

    def values(folder: str, names: list[str]) -> list[str]:
        left_out = is_statistics and Path(folder) == source / DATA
        return [name for name in names if left_out and name not in METADATA_FILES]

    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        is_statistics = is_anemoi(source)
        shutil.copytree(source, target, ignore=values)
    else:
        shutil.copyfile(source, target)


def _write_static_fields(
    config: dict[str, Any], contents: Contents, folder: Path
) -> None:
    """Writes the static fields that forecasts read; sets their paths in the config."""
    forecasts = "inference" if "data" in config["inference"] else "data"
    for reference in references(config, STATIC):
        if reference.keys[0] != forecasts:
            reference.set(None)
            continue
        source = reference.keys[reference.keys.index("source") + 1]
        target = f"{file_names.STATIC}/{_UNSAFE.sub('_', source)}.nc"
        write_static(folder / target, contents.data.sources[source])
        reference.set(target)


def _levels(
    groups: Mapping[str, Sequence[ChannelGroup]], config: Mapping[str, Any]
) -> dict[str, Any]:
    """Source -> its levels as listed in the config, or else of the files."""
    data = config["inference"].get("data") or config["data"]
    listed = {name: source.get("levels") for name, source in data["source"].items()}
    recorded = {
        group.source: group.levels
        for group in chain.from_iterable(groups.values())
        if group.levels
    }
    return {name: levels or recorded.get(name) for name, levels in listed.items()}


def _described(
    contents: Contents, groups: Mapping[str, Sequence[ChannelGroup]]
) -> dict[str, dict[str, str]]:
    """Key -> unit and names, of the data files or else of the output's metadata."""
    inference = contents.config.inference or InferenceConfig()
    attributes = read_attributes(inference.output.metadata)
    recorded = {key: dict(values) for key, values in contents.data.attributes().items()}
    for key, (unit, _) in contents.data.units().items():
        recorded.setdefault(key, {})["units"] = unit
    described = {}
    for group in chain.from_iterable(groups.values()):
        metadata = descriptive(attributes.get(group.variable, {}))
        described[group.var_key] = metadata | recorded.get(group.var_key, {})
    return described


def _provenance(contents: Contents) -> dict[str, Any]:
    """Versions of packages, and facts of the training, without local paths."""
    config = contents.config
    versions = {key: value for key, value in software().items() if key != "command"}
    return {
        "software": versions,
        "training": {
            "dates": [list(period) for period in config.data.ranges],
            "timestep": str(config.data.timestep),
            "loss": _loss(config),
            "seed": config.seed,
        },
        COORDINATES: replace(
            contents.data.coordinates(),
            latitude=as_values(contents.latitude),
            longitude=as_values(contents.longitude),
        ).to_json(),
    }


def _loss(config: Config) -> str:
    written = dump_config(config).get("loss") or {}
    return str(written.get("training_loss") or written.get("type") or "unknown")


def _inputs(contents: Contents) -> str:
    """Describes the channels of x, and the further inputs of the model."""
    parts = [", ".join(contents.schema.names["input"])]
    for name, schema in contents.data.further.items():
        parts.append(f"{name}: {', '.join(schema.names['input'])}")
    for name, which in contents.data.data.time_encoding.items():
        parts.append(f"{name}: times of {', '.join(which)}")
    return "; ".join(parts)


def _facts(
    contents: Contents,
    weights: RunArtifact,
    record: AdapterRecord | None,
    name: str,
    license: str,
) -> dict[str, Any]:
    """What card.md says of the model."""
    config, model_def, latitude = contents.config, contents.model_def, contents.latitude
    is_whole = record is None
    shape = f"{model_def.image_height} x {model_def.image_width}"
    of_weights, training = label_of(average=weights.average), ""
    if record is not None:
        of_weights = f"adapters of rank {record.rank}, {of_weights}"
        base = f"{record.base}, whose weights have the digest {record.base_digest}"
        training = f", adapters on {base}"
    return {
        "name": name,
        "license": license,
        "model_type": str(model_def.config.type),
        "parameters": model_def.num_parameters,
        "weights": of_weights,
        "step": weights.step,
        "names": names_of(model_def) if is_whole else NATIVE,
        "grid": f"{shape}, latitudes {latitude.flat[0]:g} to {latitude.flat[-1]:g}",
        "timestep": str(config.data.timestep),
        "times": counted(model_def.frames, "time"),
        "inputs": _inputs(contents),
        "outputs": ", ".join(contents.schema.names["target"]),
        "dates": ", ".join(f"{first} to {last}" for first, last in config.data.ranges),
        "training": f"loss {_loss(config)}, seed {config.seed}{training}",
        "version": software().get("credit-jax", "unknown"),
        "schema": file_names.SCHEMA_VERSION if is_whole else file_names.WITH_ADAPTERS,
        "file": file_names.WEIGHTS if is_whole else file_names.ADAPTERS,
        "options": "" if is_whole else " --base BASE",
    }
