"""Write a config for one's own files: `python -m credit_jax.init --data FILE`.

The files say what is read, an example which model, loss and trainer; what does not fit
is for `check` to say.
"""

from __future__ import annotations

import copy
import os
import re
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, count, pairwise, product
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

import credit_jax
from credit_jax.cli.commands import OK, Command, option, print_line
from credit_jax.config import ConfigError, build_config
from credit_jax.config.base import ConfigWarning
from credit_jax.config.custom_objects import SECTION, absolute_paths, register_objects
from credit_jax.config.dates import Timestep, duration, duration_text
from credit_jax.config.messages import hint
from credit_jax.config.sources.source import variables_of
from credit_jax.config.yaml_file import CompactDumper, read_yaml
from credit_jax.data.calendars import names_of_times
from credit_jax.data.sources.files import discover, time_format
from credit_jax.data.sources.reader import OpenFile, Reader
from credit_jax.io.atomic import new_file, refuse_existing
from credit_jax.io.open_files import OpenFiles
from credit_jax.io.remote import is_url
from credit_jax.models.registry import MODELS, parse_model
from credit_jax.named_fields.axes import Horizontal, coordinate, level_values

# A date in a file's name: a year, or one with month, day and hour, such as 200001,
# 2000-01-31, 20000131T06 or 20000131.t06z.
_DATE = re.compile(
    r"(?<!\d)(?P<Y>(?:1[6-9]|2[0-2])\d\d)"
    r"(?:(?P<sep>[-_.]?)(?P<m>0[1-9]|1[0-2])"
    r"(?:(?P=sep)(?P<d>0[1-9]|[12]\d|3[01])"
    r"(?:[-_.]?[Tt]?(?P<H>[01]\d|2[0-3]))?)?)?(?!\d)"
)
# Types of `custom_objects` that are taken from an example.
_OBJECTS = ("model", "loss", "metric")
PROGNOSTIC, FORCING, DIAGNOSTIC = "prognostic", "dynamic_forcing", "diagnostic"
# Options of the command line, by field type.
OPTIONS = {PROGNOSTIC: "prognostic", FORCING: "forcing", DIAGNOSTIC: "diagnostic"}
_DIMS = ("vars_3D", "vars_2D")

# Fields without levels whose role is known by their usual names, of ECMWF, CESM, CMIP
# and UFS, besides those of the examples, in lower case. Fluxes and precipitation are
# made in a step, and no state.
_USUAL = {
    FORCING: "tsi tisr solin rsdt toa_incident_solar_radiation co2vmr sst tos icefrac "
    "siconc dswrf_avetoa",
    DIAGNOSTIC: "prect total_precipitation total_precipitation_6hr tp pr evaporation "
    "evspsbl fsnt flnt fsns flns shflx lhflx qflx cldtot clt hfls hfss rsds rsus rsut "
    "rlds rlus rlut prate_ave prateb_ave",
    # Of stores that give all fields times.
    "static": "geopotential_at_surface land_sea_mask z lsm phis landfrac orog sftlf "
    "hgtsfc land",
    PROGNOSTIC: "sp ps surface_pressure mean_sea_level_pressure msl psl t2m tas trefht "
    "2m_temperature u10 v10 10m_u_component_of_wind 10m_v_component_of_wind pressfc "
    "tmp2m spfh2m ugrd10m vgrd10m",
}
# Of fields on levels those that follow from others, or are products of them.
_DERIVED = (
    "relative_humidity relhum hur r divergence vorticity potential_vorticity pv d vo "
    "wind_speed uu vv vu uq vq ut vt wspeed omegat omegau z3zm"
)
# The share of the times that are held out for validation.
_HELD_OUT = 0.1
# Padding is searched up to so many points more than the least.
_MOST_PADDING = 320
# Sections that are the same for all files.
_TEMPLATE = """
preblocks:
  per_step:
    normalize: {{type: era5_normalizer, args: {{mean_path: {mean}, std_path: {std}}}}}
    concat: {{type: concat}}
postblocks:
  per_step:
    reconstruct: {{type: reconstruct}}
    reconstruct_target: {{type: reconstruct, args: {{in_key: y, out_key: y_target_processed}}}}
metrics: {{type: combined, args: {{metrics: {{rmse: {{}}, acc: {{}}}}}}}}
inference:
  run_mode: single
  single_forecast: {{start_datetime: {start}, forecast_length: {length}}}
  save_forecast: runs/{name}/forecast
  output: {{format: zarr}}
"""  # noqa: E501


class Init(Command):
    """Write a config for your own files, after one of the examples."""

    example = "--like wxformer_1deg --data 'era5_%Y.zarr' static.nc --out my.yaml"

    like: str = option(
        "an example, such as wxformer_1deg, or a YAML file, of which model, loss and "
        "trainer are taken",
        "demo",
        "NAME",
    )
    data: tuple[str, ...] = option(
        "your NetCDF files and Zarr stores, or names with %Y, %m for dates",
        (),
        "DATA",
        nargs="*",
    )
    out: str = option("the YAML to write; not there yet", metavar="FILE")
    prognostic: tuple[str, ...] = option(
        "variables that are predicted and fed back", (), "NAME", nargs="*"
    )
    forcing: tuple[str, ...] = option(
        "variables that are read at every step", (), "NAME", nargs="*"
    )
    diagnostic: tuple[str, ...] = option(
        "variables that are predicted and not fed back", (), "NAME", nargs="*"
    )
    timestep: Timestep | None = option(
        "of the model (default: of the files)", None, "DURATION"
    )

    def run(self) -> int:
        """Writes the config, and prints the two commands that come next."""
        out = Path(self.out)
        refuse_existing(out)
        path = _example(self.like)
        text = self._text(path, out) if self.data else path.read_text()
        with new_file(out) as partial:
            partial.write_text(text, encoding="utf-8")
        print_line(f"written: {out}, after {path.stem}")
        print_line(
            f"credit-jax preprocess --config {out}"
            if self.data
            else "Write your paths into its data section; or give --data FILE ..."
        )
        print_line(f"credit-jax check --config {out}")
        return OK

    def _text(self, path: Path, out: Path) -> str:
        """The config after an example: what was found, and comments for sections."""
        example = read_yaml(path)
        # Before files are read: of models of one's own the entry is needed below.
        register_objects(example, source=str(path))
        objects = absolute_paths(example.get(SECTION) or {})
        used = {k: v for k, v in objects.items() if v["object_type"] in _OBJECTS}
        groups = _inspect_files(self.data)
        chosen = {role: getattr(self, option) for role, option in OPTIONS.items()}
        roles = _assign_roles(groups, example, chosen)
        frames = int(example["model"].get("frames", 1))
        data, valid = _data_sections(groups, roles, self.timestep, frames)
        # The smallest files are those without times.
        by_size = sorted(groups, key=lambda group: len(group.times))
        latitudes = [group.first_path for group in by_size if group.has_latitudes]
        levels = max(group.num_levels for group in groups)
        model, sources = example["model"], data["source"]
        config: dict[str, Any] = {
            "save_loc": f"runs/{out.stem}",
            "seed": 1000,
            **({SECTION: used} if used else {}),
            "data": data,
            "validation_data": valid,
            "model": _model_section(model, sources, groups[0].shape, levels),
            **_other_sections(example, data, valid, out, (*latitudes, None)[0]),
        }
        build_config(config, source="the config for these files")
        lines = [
            f"# Written by credit-jax init: {path.stem} for the files",
            *(f"#   {group}" for group in groups),
            "#",
            *(
                f"#   credit-jax {name} --config {out}"
                for name in ("preprocess", "check", "train")
            ),
            "",
        ]
        comments = {
            "validation_data": "The last tenth of the times, unseen by training.",
            "model": f"That of {path.stem}; its padding fits the grid.",
            "preblocks": "preprocess writes the two files of statistics.",
            "trainer": f"That of {path.stem}; check says what a mesh needs.",
        }
        if not latitudes:
            comments["loss"] = "Rows count alike: the files have no latitudes of rows."
        options: Any = {"Dumper": CompactDumper, "sort_keys": False, "width": 88}
        for key, value in config.items():
            lines += [f"# {comments[key]}"] if key in comments else []
            lines += [yaml.dump({key: value}, **options).rstrip("\n"), ""]
        return "\n".join(lines)


main = Init.main


def _example(name: str) -> Path:
    """The file of an example, or the path of a user's own."""
    if name.endswith((".yml", ".yaml")) and Path(name).is_file():
        return Path(name)
    root = Path(credit_jax.__file__).parent
    # In an installed package, and in a checkout.
    folders = (root / "configs", root.parent / "configs")
    folder = next((each for each in folders if each.is_dir()), folders[0])
    names = sorted(path.stem for path in folder.glob("*.yaml"))
    if name not in names:
        raise ValueError(
            f"--like: {name!r} is no example and no YAML file; there are: "
            f"{', '.join(names)}{hint(name, names)}"
        )
    return folder / f"{name}.yaml"


@dataclass(frozen=True)
class _FileGroup:
    """Files that one path template names."""

    # Path with %Y, %m, ... where the date is, or the path of the only file.
    template: str
    first_path: str  # the first file
    # Names of the dims; None if the files have none.
    time_coord: str | None
    level_coord: str | None
    # Variables with time, by vars_3D (with levels) and vars_2D.
    timed: Mapping[str, list[str]]
    # Variables without time or with a single one, likewise.
    static: Mapping[str, list[str]]
    num_levels: int  # number of levels; 0 without any
    levels: tuple[float, ...]  # values of the level coordinate, if it has some
    times: pd.DatetimeIndex = field(repr=False)  # (time,) labels of all files
    calendar: str  # calendar of the times
    shape: tuple[int, int]  # number of rows and columns
    has_latitudes: bool  # whether rows have latitudes, as on no other grids

    def __str__(self) -> str:
        levels = f", {self.num_levels} levels" if self.num_levels else ""
        times = "no times"
        if len(self.times):
            times = f"{len(self.times)} times from {self.times[0]} to {self.times[-1]}"
            times += f", calendar {self.calendar}"
        rows, columns = self.shape
        return f"{self.template}: {rows} x {columns} points{levels}, {times}"


def _inspect_files(paths: Sequence[str]) -> list[_FileGroup]:
    """Reads the metadata of files, and groups those whose names differ by a date."""
    groups = [_group(template, members) for template, members in _templates(paths)]
    templates: dict[tuple[str, str], str] = {}
    for group in groups:
        fields = (*group.timed.items(), *group.static.items())
        for dims, name in ((dims, name) for dims, names in fields for name in names):
            first = templates.setdefault((dims, name), group.template)
            if first != group.template:
                raise ValueError(
                    f"--data: {name} is in {first} and in {group.template}; expected "
                    "files of one variable under one name that differs by a date. "
                    "Give that name, with %Y, %m, %d or %H where the date is, or write "
                    "all times into one Zarr store"
                )
    return groups


def _templates(paths: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Yields templates, and the files that each matches, in order."""
    by_template: dict[str, list[str]] = {}
    for path in paths:
        if time_format(path) or is_url(path):
            by_template.setdefault(path, []).extend(discover(path, "--data").paths)
            continue
        if not os.path.exists(path):
            raise FileNotFoundError(f"--data: there is no {path}")
        path = template = path.rstrip("/")
        if dates := list(_DATE.finditer(os.path.basename(path))):
            # Codes of strftime where the last date of the name is.
            start = len(path) - len(os.path.basename(path))
            for code in "HdmY":
                first, last = dates[-1].span(code)
                if first >= 0:
                    head, tail = template[: start + first], template[start + last :]
                    template = f"{head}%{code}{tail}"
        by_template.setdefault(template, []).append(path)
    for template, matches in by_template.items():
        # A single file has all times, whatever its name.
        alone = len(matches) == 1 and template not in paths
        yield (matches[0] if alone else template), sorted(matches)


def _group(template: str, paths: Sequence[str]) -> _FileGroup:
    # The dim whose coordinate has dates.
    dataset = OpenFiles().dataset(paths[0], None)
    names = [name for name in names_of_times(dataset) if name in dataset.dims]
    time_coord = names[0] if names else None
    reader = Reader(time_coord or "time", None)
    opened = [reader.open(path) for path in paths]
    first = opened[0]
    data, sizes = first.dataset, first.dataset.sizes
    rows, columns = _space(first)
    dims = {
        str(name): [str(dim) for dim in first.variable(str(name)).dims]
        for name, variable in data.data_vars.items()
        if variable.dtype.kind in "fiu"
    }
    # Bounds of coordinates, and coefficients of hybrid levels, are not on the grid.
    on_grid = {k: d for k, d in dims.items() if {rows, columns} <= {*d}}
    kinds: tuple[Horizontal, ...] = ("latitude", "longitude")
    points = [coordinate(data, kind, 2) for kind in kinds]
    for name in (str(each.name) for each in points if each is not None):
        on_grid.pop(name, None)
    others = {dim for used in on_grid.values() for dim in used}
    others -= {time_coord, rows, columns}
    if len(others) > 1:
        listed = ", ".join(sorted(others))
        raise ValueError(
            f"--data: {first.path} has the dims {listed} beside time, {rows} and "
            f"{columns}, expected one of levels; write files with one"
        )
    level = next(iter(others), None)
    times = [file.times for file in opened if file.times is not None]
    labels: Any = [label for index in times for label in index.values]
    # The source `local` reads static fields at the only time that they have.
    labels = np.array(labels if len(labels) > 1 else [], "datetime64[ns]")
    fields = {
        timed: {
            key: [
                name
                for name, used in on_grid.items()
                if (len(labels) > 0 and time_coord in used) == timed
                and (level in used) == deep
            ]
            for key, deep in (("vars_3D", True), ("vars_2D", False))
        }
        for timed in (True, False)
    }
    values = ()
    if level in data.coords:
        values = level_values(data.coords[level], first.path)
    return _FileGroup(
        template,
        first.path,
        time_coord,
        level,
        timed=fields[True],
        static=fields[False],
        num_levels=0 if level is None else int(sizes[level]),
        levels=tuple(int(v) if v == int(v) else float(v) for v in values),
        times=pd.DatetimeIndex(labels),
        calendar=first.calendar,
        shape=(int(sizes[rows]), int(sizes[columns])),
        has_latitudes=first.latitude is not None,
    )


def _space(opened: OpenFile) -> tuple[str, str]:
    """Names of the dims of rows and columns."""
    if opened.latitude is not None and opened.longitude is not None:
        return str(opened.latitude.dims[0]), str(opened.longitude.dims[0])
    for points in opened.dataset.coords.values():
        if points.ndim == 2:
            return str(points.dims[0]), str(points.dims[1])
    raise ValueError(
        f"--data: {opened.path} has no latitudes and longitudes; give them to the file "
        "as coordinates"
    )


def _assign_roles(
    groups: Sequence[_FileGroup],
    example: Mapping[str, Any],
    chosen: Mapping[str, Sequence[str]],
) -> dict[str, str]:
    """Finds out which variables with time are predicted, forced or diagnosed."""
    # Others have no role: what is on levels and derived, and fields of unknown names.
    deep, flat = (
        [name for group in groups for name in group.timed[key]] for key in _DIMS
    )
    usual = {name: role for role, names in _USUAL.items() for name in names.split()}
    roles = {x: PROGNOSTIC for x in deep if x.lower() not in _DERIVED.split()}
    roles |= {name: usual[name.lower()] for name in flat if name.lower() in usual}
    known = variables_of((example.get("data") or {}).get("source") or {}, [*OPTIONS])
    roles |= {name: key.split("/")[1] for name, key in known if name in flat}
    for role, names in chosen.items():
        roles |= dict.fromkeys(names, role)
        for name in names:
            if name not in (*deep, *flat):
                raise ValueError(
                    f"--{OPTIONS[role]} {name}: no variable with times; there are "
                    f"{', '.join([*deep, *flat])}"
                )
    left = [name for name in (*deep, *flat) if name not in roles]
    if left:
        print_line(
            f"note: left out: {', '.join(left)}; these are derived from others, or the "
            "files do not say whether they are fed back (--prognostic NAME), read at "
            "every step (--forcing NAME) or made in one (--diagnostic NAME)",
            "yellow",
        )
    return roles


def _data_sections(
    groups: Sequence[_FileGroup],
    roles: Mapping[str, str],
    timestep: str | None,
    history_len: int,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The sections `data` and `validation_data`; the last times are held out."""
    timed = [group.times for group in groups if len(group.times)]
    if not timed:
        raise ValueError("--data: no file has times; give those of the states, too")
    times: Any = timed[0]
    for other in timed[1:]:
        times = times.intersection(other)
    if timestep is None:
        steps: list[Any] = [pd.Series(each).diff().mode()[0] for each in timed]
        timestep = duration_text(max(steps))
    step = duration(timestep)
    if len(times) < 6:
        listed = f" from {times[0]} to {times[-1]}" if len(times) else ""
        raise ValueError(
            f"--data: {len(times)} common times{listed} are too few to train and to "
            "validate; give more files"
        )
    held_out = max((times[-1] - times[0]) * _HELD_OUT, 2 * step)
    border = (times[-1] - held_out).floor("D")
    if border - step <= times[0]:
        border = times[-1] - 2 * step
    spans = [_spans(times[times < border], step), _spans(times[times >= border], step)]
    train, valid = (
        {"start_datetime": each[0][0], "end_datetime": each[0][1]}
        if max(map(len, spans)) == 1
        else {"date_ranges": each}
        for each in spans
    )
    window = {"timestep": timestep, "history_len": history_len, "forecast_len": 1}
    return {"source": _sources(groups, roles), **train, **window}, valid


def _spans(times: Any, step: Any) -> list[list[str]]:
    """First and last time of each stretch without a gap; a sample needs two times."""
    gaps = [i for i in range(1, len(times)) if times[i] - times[i - 1] > step]
    return [
        [times[a].isoformat(), times[b - 1].isoformat()]
        for a, b in pairwise([0, *gaps, len(times)])
        if b - a > 1
    ]


def _sources(
    groups: Sequence[_FileGroup], roles: Mapping[str, str]
) -> dict[str, dict[str, Any]]:
    """One source, or several where a field type is in several groups of files."""
    sources: dict[str, dict[str, Any]] = {}
    for group, role in product(groups, (PROGNOSTIC, FORCING, "static", DIAGNOSTIC)):
        static = group.static if role == "static" else {}
        fields = {
            key: [*static.get(key, ()), *(n for n in names if roles.get(n) == role)]
            for key, names in group.timed.items()
        }
        fields = {key: names for key, names in fields.items() if names}
        if not fields:
            continue
        axes: dict[str, Any] = {}
        if group.levels:
            axes = {"level_coord": group.level_coord, "levels": [*group.levels]}
        time_coord, source = group.time_coord, dict[str, Any]()
        for number in count(1):
            source = sources.setdefault(
                f"data_{number}" if number > 1 else "data",
                {
                    "dataset_type": "local",
                    "time_coord": time_coord or "time",
                    "variables": {},
                },
            )
            taken = {name for name, _ in variables_of({"": source})}
            if (
                role not in source["variables"]
                and not taken.intersection(chain(*fields.values()))
                and all(source.get(key, value) == value for key, value in axes.items())
                and time_coord in (None, source["time_coord"])
            ):
                break
        source |= axes
        source["variables"][role] = {**fields, "path": group.template}
    for source in sources.values():
        source["variables"] = source.pop("variables")
        if source["time_coord"] == "time":
            del source["time_coord"]
    return sources


def _model_section(
    example: Mapping[str, Any],
    sources: Mapping[str, Any],
    shape: tuple[int, int],
    num_levels: int,
) -> dict[str, Any]:
    """The model of the example for other variables and rows and columns."""
    # Padding is the smallest with which its windows and strides divide the grid.
    deep, flat = (
        Counter(key.split("/")[1] for _, key in variables_of(sources) if dim in key)
        for dim in ("/3d/", "/2d/")
    )
    forced = flat[FORCING] + flat["static"]
    counts = {
        "channels": deep[PROGNOSTIC],
        "surface_channels": flat[PROGNOSTIC],
        "input_only_channels": forced + (deep[FORCING] + deep["static"]) * num_levels,
        "output_only_channels": flat[DIAGNOSTIC] + deep[DIAGNOSTIC] * num_levels,
    }
    model = copy.deepcopy(dict(example))
    fields = MODELS[model["type"]].config.model_fields
    missing = [key for key in counts if key not in fields]
    if missing:
        raise ValueError(
            f"--like: a {model['type']} has no {missing[0]}: its fields are not those "
            "of one grid and one kind of levels. Leave --data out, which writes the "
            "example with its comments, and write your paths into it; or take another "
            "example, such as wxformer_1deg"
        )
    for key in ("post_conf", "gen1_post_conf"):
        model.pop(key, None)
    if isinstance(model.get("diffusion"), dict):
        model["diffusion"]["image_size"] = [*shape]
    image = {"image_height": shape[0], "image_width": shape[1]}
    model |= {"img_size": [*shape]} if "img_size" in fields else image
    model |= {"levels": max(num_levels, 1), **counts}
    if "padding_conf" in fields:
        for key in ("pad_lat", "pad_lon"):
            model = _padded(model, key)
    return model


def _padded(model: dict[str, Any], key: str) -> dict[str, Any]:
    """The model with the fewest problems, of those with more or less padding."""
    conf = model.get("padding_conf") or {"mode": "earth", "pad_lat": 0, "pad_lon": 0}
    best, fewest = model, _num_problems(model)
    for extra in range(_MOST_PADDING + 1):
        if not fewest:
            break
        ends = [extra - extra // 2, extra // 2]
        padding = {**conf, "activate": True, key: ends}
        tried = {**model, "padding_conf": padding}
        if (number := _num_problems(tried)) < fewest:
            best, fewest = tried, number
    return best


def _num_problems(model: Mapping[str, Any]) -> int:
    try:
        with warnings.catch_warnings():
            # Keys of the example without effect are no news here.
            warnings.simplefilter("ignore", ConfigWarning)
            return len([*parse_model(model).problems()])
    except ConfigError as error:
        return len(error.problems)


def _other_sections(
    example: Mapping[str, Any],
    data: Mapping[str, Any],
    valid: Mapping[str, Any],
    out: Path,
    latitude_file: str | None,
) -> dict[str, Any]:
    """Blocks, loss, metrics, trainer and forecasts, for these files."""
    step = duration(data["timestep"])
    trained, (valid_range, *_) = (
        each.get("date_ranges") or [[each["start_datetime"], each["end_datetime"]]]
        for each in (data, valid)
    )
    first, last = map(pd.Timestamp, valid_range)
    # Five days, or the times that are held out.
    length = max(step, min(last - first, duration("5d") // step * step))
    sections = yaml.safe_load(
        _TEMPLATE.format(
            mean=out.with_name(f"{out.stem}_mean.nc"),
            std=out.with_name(f"{out.stem}_std.nc"),
            start=f"'{first.isoformat()}'",
            length=f"{int(length.total_seconds() // 3600)}h",
            name=out.stem,
        )
    )
    # Statistics are found by the name alone: z on levels, z of the surface.
    variables = sorted(variables_of(data["source"]), key=itemgetter(1))
    deep = {name for name, key in variables if "/3d/" in key}
    new = {k: f"{k}_surface" for name, k in variables if name in deep and "/2d/" in k}
    if new:
        rename = {"rename": {"type": "rename", "args": {"mapping": new}}}
        blocks = sections["preblocks"]
        blocks["per_step"] = rename | blocks["per_step"]
    weights: dict[str, Any] = {"use_latitude_weights": latitude_file is not None}
    if latitude_file is not None:
        weights["latitude_weights"] = latitude_file
    loss = copy.deepcopy(dict(example["loss"]))
    if loss.get("type") == "base":
        loss = {"training_loss": "mse"}
    for key in ("variable_weights", "use_variable_weights", "latitude_weights"):
        loss.pop(key, None)
    sections["loss"] = loss | weights
    sections["metrics"]["args"] |= weights
    trainer = copy.deepcopy(dict(example["trainer"]))
    for key in ("batches_per_epoch", "valid_batches_per_epoch"):
        trainer.pop(key, None)
    # The example's batch, or what a few times allow.
    samples = sum(
        int((pd.Timestamp(end) - pd.Timestamp(start)) / step) for start, end in trained
    )
    size = max(1, min(int(trainer.get("train_batch_size", 1)), samples // 4))
    trainer |= {"train_batch_size": size, "valid_batch_size": 1}
    scheduler = trainer.get("scheduler")
    if isinstance(scheduler, dict) and "total_steps" in scheduler:
        total = max(1, samples // size) * int(trainer.get("epochs", 1))
        warm = min(int(scheduler.get("warmup_steps", 0)), total // 10)
        scheduler |= {"total_steps": total, "warmup_steps": warm}
    sections["trainer"] = trainer
    return {
        key: sections[key]
        for key in (
            *("preblocks", "postblocks", "loss", "metrics"),
            *("trainer", "inference"),
        )
    }
