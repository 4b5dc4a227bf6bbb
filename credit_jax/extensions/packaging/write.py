"""Makes a package of a run: weights, all that forecasts need except data, a card."""

from __future__ import annotations

import json
import os
import re
import shutil
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

from credit_jax.checkpoint.run import RunArtifact
from credit_jax.checkpoint.store import label_of
from credit_jax.config import Config, dump_config
from credit_jax.config.inference import InferenceConfig, read_attributes
from credit_jax.config.messages import counted, printable, typeset_units
from credit_jax.data import ChannelGroup, ChannelSchema
from credit_jax.data.forecast_data import DIAGNOSTIC, ForecastData, open_forecast_data
from credit_jax.data.sources.file_source import descriptive
from credit_jax.extensions.plots.canvas import field_text
from credit_jax.forecast.archive import software
from credit_jax.io.activity import activity
from credit_jax.io.anemoi import DATA, is_anemoi
from credit_jax.io.atomic import new_folder
from credit_jax.io.digests import record_files
from credit_jax.io.metadata import METADATA_FILES
from credit_jax.io.open_files import opened
from credit_jax.models.model_def import ModelDef
from credit_jax.models.registry import build
from credit_jax.named_fields.coordinates import Coordinates, as_values
from credit_jax.packages import manifest as file_names
from credit_jax.packages import package
from credit_jax.packages.arrays import (
    NATIVE,
    channel_groups,
    names_of,
    write_axes,
    write_channels,
    write_grid,
    write_static,
    write_weights,
)
from credit_jax.packages.manifest import COORDINATES, AdapterRecord, Manifest, kind_of
from credit_jax.packages.references import (
    FILE,
    GRID,
    PLACE,
    STATIC,
    locate,
    normalized,
    references,
)
from credit_jax.plan.forecast import forecast_pipeline, forecast_schema

# Scores in the card: this metric of forecasts in this region, with at most so many lead
# times and channels.
_METRIC, _REGION = "rmse", "global"
_MAX_LEADS, _MAX_CHANNELS = 6, 12
_COLUMNS = ("metric", "system", "channel", "units", "region", "lead_hours", "value")


def write_card(
    path: Path, facts: Mapping[str, Any], data: str, scores: Path | None = None
) -> None:
    """Writes the card: facts by their names in card.md, and YAML lines of the data."""
    template = (
        files("credit_jax.extensions.packaging").joinpath("card.md").read_text("utf-8")
    )
    texts = {k: markdown_text(v) if isinstance(v, str) else v for k, v in facts.items()}
    text = template.format(
        **texts,
        spdx=_yaml_text(facts["license"]),
        tag=_yaml_text(facts["model_type"]),
        data=data,
        scores="None were given." if scores is None else _score_table(scores),
    )
    path.write_text(text, encoding="utf-8")


def markdown_text(text: str) -> str:
    r"""A text of others as it is shown in Markdown: no links, HTML, cells or lines.

    >>> markdown_text("T|<b>\n[x](y)")
    'T\\|\\<b\\>\\\\n\\[x\\](y)'
    """
    displayed = printable(text).replace("\n", "\\n").replace("\t", " ")
    return re.sub(r"[\\`|<>\[\]*&]", r"\\\g<0>", displayed)


def _score_table(path: Path) -> str:
    """RMSE of forecasts by channel and lead time, as Markdown."""
    table = pd.read_csv(path, low_memory=False)
    missing = [name for name in _COLUMNS if name not in table.columns]
    if missing:
        raise ValueError(
            f"--scores: {path} has no column {', '.join(missing)}; expected scores.csv "
            "of credit-jax score"
        )
    chosen = {"metric": _METRIC, "region": _REGION, "system": "forecast"}
    table_rows = table.loc[(table[[*chosen]] == [*chosen.values()]).all(axis=1)]
    if table_rows.empty:
        return f"`scores.csv` has no {_METRIC} of forecasts; all scores are there."
    channels = list(dict.fromkeys(table_rows["channel"]))[:_MAX_CHANNELS]
    leads = sorted(set(table_rows["lead_hours"]))
    # Evenly spaced, the last one among them.
    leads = leads[::-1][:: -(-len(leads) // _MAX_LEADS)][::-1]
    rows = [["RMSE, global", *(f"{lead:g} h" for lead in leads)]]
    for name in channels:
        part = table_rows.loc[table_rows["channel"] == name].set_index("lead_hours")
        unit = typeset_units(str(part["units"].iloc[0]))
        row, label = part.iloc[0], str(name)  # the key, of earlier versions
        if "level_units" in row:
            units = row["level_units"] if isinstance(row["level_units"], str) else ""
            label = field_text(str(row["variable"]), float(row["level"]), units)
        label = f"{label} ({unit})" if unit and unit != "nan" else label
        cells = (part["value"].get(lead) for lead in leads)
        rows.append([label, *(f"{c:.4g}" if c is not None else "" for c in cells)])
    lines = [f"| {' | '.join(map(markdown_text, row))} |" for row in rows]
    lines.insert(1, "|" + "---|" * len(rows[0]))
    # Whether they are of training dates, by the scores.nc beside the table.
    beside, seen = path.with_suffix(".nc"), "unknown"
    if beside.is_file():
        with opened(beside) as scores:
            seen = str(scores.attrs.get("training_dates", seen))
    sentence = {
        "unknown": "Whether their dates are held out is not recorded.",
        "none": "No date is in the training period.",
    }.get(seen, f"{seen[:1].upper()}{seen[1:]}.")
    return "\n".join((*lines, "", f"{sentence} All scores are in `scores.csv`."))


def data_lines(keys: Sequence[str]) -> str:
    """Returns YAML lines of a data section whose dotted keys a user fills in."""
    tree: dict[str, Any] = {}
    for dotted in keys:
        *parents, last = dotted.split(".")
        node = tree
        for part in parents:
            node = node.setdefault(part, {})
        node[last] = "..."
    text = "{}  # every source finds its data itself"
    if tree:
        text = yaml.safe_dump(tree, indent=4, sort_keys=False).replace("'...'", "...")
    return textwrap.indent(text.rstrip(), "    ")


def _yaml_text(text: str) -> str:
    """A text as YAML has it: in quotes unless it is a plain name."""
    return text if re.fullmatch(r"[A-Za-z][\w.-]*", text) else json.dumps(text)


_UNSAFE = re.compile(r"[^\w.+-]")


@dataclass(frozen=True)
class Contents:
    """The contents of a package besides weights: of a run, and of its forecasts."""

    config: Config
    model_def: ModelDef
    data: ForecastData
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
    options: dict[str, Any] = {"shared_grid": pipeline.grid is None}
    options["like"] = like if inference.data is None else None
    opened = open_forecast_data(section, [dates.ranges[0][0]], 1, **options)
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
    return Contents(config, model_def, opened, schema, latitude, longitude)


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
        model_def = package.model_with_adapters(contents.config)
        arrays = weights.parts_on_host(model_def)
        record = package.adapter_record(contents.config, model_def, arrays[0])
        base = package.base_of_run(contents.config)
        assert base is not None, "`model_with_adapters` asks for it"
        package.read_base(record, model_def, base)
    else:
        arrays = weights.on_host(model_def)
    facts = _facts(contents, weights, record, name or target.name, license)
    config = normalized(dump_config(contents.config))
    with new_folder(target) as folder:
        _copy_files(config, folder)
        # The static fields that forecasts read; sets their paths in the config.
        forecasts = "inference" if "data" in config["inference"] else "data"
        for reference in references(config, STATIC):
            target = None
            if reference.keys[0] == forecasts:
                source = reference.keys[reference.keys.index("source") + 1]
                target = f"{file_names.STATIC}/{_UNSAFE.sub('_', source)}.nc"
                write_static(folder / target, contents.data.sources[source])
            reference.set(target)
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
    inputs = [", ".join(contents.schema.names["input"])]
    for input_name, schema in contents.data.further.items():
        inputs.append(f"{input_name}: {', '.join(schema.names['input'])}")
    for input_name, which in contents.data.data.time_encoding.items():
        inputs.append(f"{input_name}: times of {', '.join(which)}")
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
        "inputs": "; ".join(inputs),
        "outputs": ", ".join(contents.schema.names["target"]),
        "dates": ", ".join(f"{first} to {last}" for first, last in config.data.ranges),
        "training": f"loss {_loss(config)}, seed {config.seed}{training}",
        "version": software().get("credit-jax", "unknown"),
        "schema": file_names.SCHEMA_VERSION if is_whole else file_names.WITH_ADAPTERS,
        "file": file_names.WEIGHTS if is_whole else file_names.ADAPTERS,
        "options": "" if is_whole else " --base BASE",
    }
