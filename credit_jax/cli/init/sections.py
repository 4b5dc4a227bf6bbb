"""The sections of a config for files that were found, after an example config."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping, Sequence
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from credit_jax.cli.init.groups import FileGroup
from credit_jax.config import ConfigError
from credit_jax.config.base import ConfigWarning
from credit_jax.config.dates import duration, duration_text
from credit_jax.models.registry import MODELS, parse_model

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


def assign_roles(
    groups: Sequence[FileGroup],
    example: Mapping[str, Any],
    chosen: Mapping[str, Sequence[str]],
) -> dict[str, str]:
    """Finds out which variables with time are predicted, forced or diagnosed.

    Args:
        groups: the files.
        example: config whose variables have their roles.
        chosen: role -> names of the command line.

    Returns:
        The field type of each variable.

    Raises:
        ValueError: a name of the command line is not in the files, or nothing says the
            role of a variable; names all of these.
    """
    deep, flat = (
        [name for group in groups for name in group.timed[key]] for key in _DIMS
    )
    usual = {name: role for role, names in _USUAL.items() for name in names.split()}
    roles = dict.fromkeys(deep, PROGNOSTIC)
    roles |= {name: usual[name.lower()] for name in flat if name.lower() in usual}
    for source in ((example.get("data") or {}).get("source") or {}).values():
        for role, fields in (source.get("variables") or {}).items():
            if role in OPTIONS and isinstance(fields, Mapping):
                names = {name for key in _DIMS for name in fields.get(key, ())}
                roles |= dict.fromkeys(names.intersection(flat), role)
    for role, names in chosen.items():
        roles |= dict.fromkeys(names, role)
        for name in names:
            if name not in (*deep, *flat):
                raise ValueError(
                    f"--{OPTIONS[role]} {name}: no variable with times; there are "
                    f"{', '.join([*deep, *flat])}"
                )
    problems = [
        f"the files do not say: {name}: is it a state that is fed back (prognostic), "
        "read at every step (forcing), or made in a step (diagnostic)? Give "
        f"--prognostic {name}, --forcing {name} or --diagnostic {name}"
        for name in flat
        if name not in roles
    ]
    if problems:
        raise ValueError("\n".join(problems))
    return roles


def data_sections(
    groups: Sequence[FileGroup],
    roles: Mapping[str, str],
    timestep: str | None,
    history_len: int,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The sections `data` and `validation_data`; the last times are held out.

    Args:
        groups: the files.
        roles: roles of their variables.
        timestep: time step of the model; None for the commonest of the files.
        history_len: times of its input.

    Raises:
        ValueError: the files have too few common times, or the time step is no
            duration.
    """
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
    if not step > pd.Timedelta(0):
        raise ValueError(f"--timestep must be a duration such as 6h, got {timestep!r}")
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


def ranges_of(data: Mapping[str, Any]) -> list[list[Any]]:
    """First and last time of each range of a data section."""
    spans = data.get("date_ranges") or [[data["start_datetime"], data["end_datetime"]]]
    return [[pd.Timestamp(end) for end in span] for span in spans]


def _sources(
    groups: Sequence[FileGroup], roles: Mapping[str, str]
) -> dict[str, dict[str, Any]]:
    """One source, or several where a field type is in several groups of files."""
    sources: dict[str, dict[str, Any]] = {}
    for group in groups:
        fields = {
            role: {
                key: [name for name in names if roles[name] == role]
                for key, names in group.timed.items()
            }
            for role in OPTIONS
        }
        fields["static"] = {
            key: [*names, *(n for n in group.timed[key] if roles[n] == "static")]
            for key, names in group.static.items()
        }
        for role in (PROGNOSTIC, FORCING, "static", DIAGNOSTIC):
            names = {key: list(names) for key, names in fields[role].items() if names}
            if not names:
                continue
            number = next(
                n
                for n in range(1, len(groups) + 2)
                if _takes(sources.get(_name(n), {}), group, role, names)
            )
            empty = {"dataset_type": "local", "variables": {}}
            source = sources.setdefault(_name(number), empty)
            if group.time_coord not in (None, "time"):
                source["time_coord"] = group.time_coord
            if group.levels:
                source |= {"level_coord": group.level_coord, "levels": [*group.levels]}
            source["variables"][role] = {**names, "path": group.template}
    return {
        name: {**source, "variables": source.pop("variables")}
        for name, source in sources.items()
    }


def _name(number: int) -> str:
    return "data" if number == 1 else f"data_{number}"


def _takes(
    source: Mapping[str, Any],
    group: FileGroup,
    role: str,
    names: Mapping[str, Sequence[str]],
) -> bool:
    """Whether a source can have fields of a group of files as well."""
    if not source:
        return True
    taken = {
        name
        for fields in source["variables"].values()
        for key in _DIMS
        for name in fields.get(key, ())
    }
    if taken.intersection(chain(*names.values())):
        return False
    levels = source.get("level_coord"), source.get("levels")
    return (
        role not in source["variables"]
        and (
            not (group.levels and levels[0])
            or levels == (group.level_coord, [*group.levels])
        )
        and group.time_coord in (None, source.get("time_coord", "time"))
    )


def model_section(
    example: Mapping[str, Any],
    sources: Mapping[str, Any],
    shape: tuple[int, int],
    num_levels: int,
) -> dict[str, Any]:
    """The model of the example for other variables and another grid.

    Padding is the smallest with which its windows and strides divide the grid.

    Args:
        example: its section `model`.
        sources: `data.source`.
        shape: rows and columns.
        num_levels: number of levels of variables with levels.

    Raises:
        ValueError: the model is not one of one grid and one kind of levels.
    """

    def count(key: str, *roles: str) -> int:
        fields = [
            source["variables"].get(role, {})
            for source in sources.values()
            for role in roles
        ]
        return sum(len(names.get(key, ())) for names in fields)

    counts = {
        "channels": count("vars_3D", PROGNOSTIC),
        "surface_channels": count("vars_2D", PROGNOSTIC),
        "input_only_channels": count("vars_2D", FORCING, "static")
        + count("vars_3D", FORCING, "static") * num_levels,
        "output_only_channels": count("vars_2D", DIAGNOSTIC)
        + count("vars_3D", DIAGNOSTIC) * num_levels,
    }
    model = copy.deepcopy(dict(example))
    known = MODELS[model["type"]].config.model_fields
    missing = [key for key in counts if key not in known]
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
    model |= {"img_size": [*shape]} if "img_size" in known else image
    model |= {"levels": max(num_levels, 1), **counts}
    if "padding_conf" in known:
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


def other_sections(
    example: Mapping[str, Any],
    data: Mapping[str, Any],
    valid: Mapping[str, Any],
    out: Path,
    latitude_file: str | None,
) -> dict[str, Any]:
    """Blocks, loss, metrics, trainer and forecasts, for these files.

    Args:
        example: the whole config.
        data, valid: sections `data` and `validation_data`.
        out: path of the config, whose stem names run and statistics.
        latitude_file: a file with the latitudes of rows; None on other grids.
    """
    step, trained = duration(data["timestep"]), ranges_of(data)
    first, last = ranges_of(valid)[0]
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
    keys = {
        (dims, f"{source}/{kind}/{dims[-2:].lower()}/{name}")
        for source, section in data["source"].items()
        for kind, fields in section["variables"].items()
        for dims in _DIMS
        for name in fields.get(dims, ())
    }
    deep = {key.rsplit("/", 1)[1] for dims, key in keys if dims == "vars_3D"}
    flat = sorted(key for dims, key in keys if dims == "vars_2D")
    new = {key: f"{key}_surface" for key in flat if key.rsplit("/", 1)[1] in deep}
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
    samples = sum(int((end - start) / step) for start, end in trained)
    size = max(1, min(int(trainer.get("train_batch_size", 1)), samples // 4))
    trainer |= {"train_batch_size": size, "valid_batch_size": 1}
    scheduler = trainer.get("scheduler")
    if isinstance(scheduler, dict) and "total_steps" in scheduler:
        total = max(1, samples // size) * int(trainer.get("epochs", 1))
        warm = min(int(scheduler.get("warmup_steps", 0)), total // 10)
        scheduler |= {"total_steps": total, "warmup_steps": warm}
    return sections | {"trainer": trainer}
