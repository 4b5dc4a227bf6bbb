"""The sections of a config for files that were found, after an example config."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from credit_jax.cli.init.groups import FileGroup
from credit_jax.config import ConfigError
from credit_jax.config.base import ConfigWarning
from credit_jax.config.dates import date_label, duration, duration_text
from credit_jax.models.registry import MODELS, parse_model

PROGNOSTIC, FORCING, DIAGNOSTIC = "prognostic", "dynamic_forcing", "diagnostic"
ROLES = (PROGNOSTIC, FORCING, DIAGNOSTIC)

# Fields without levels whose role is known by their usual names, of ECMWF, CESM and
# CMIP, besides those of the examples; upper and lower case are the same. Fluxes and
# precipitation are made in a step, and no state.
_KNOWN = {
    FORCING: (
        "tsi",
        "tisr",
        "SOLIN",
        "rsdt",
        "toa_incident_solar_radiation",
        "co2vmr",
        "SST",
        "tos",
        "ICEFRAC",
        "siconc",
    ),
    DIAGNOSTIC: (
        "PRECT",
        "total_precipitation",
        "total_precipitation_6hr",
        "tp",
        "pr",
        "evaporation",
        "evspsbl",
        "FSNT",
        "FLNT",
        "FSNS",
        "FLNS",
        "SHFLX",
        "LHFLX",
        "QFLX",
        "CLDTOT",
        "clt",
        "hfls",
        "hfss",
        "rsds",
        "rsus",
        "rsut",
        "rlds",
        "rlus",
        "rlut",
    ),
    PROGNOSTIC: (
        "SP",
        "PS",
        "surface_pressure",
        "mean_sea_level_pressure",
        "msl",
        "psl",
        "t2m",
        "tas",
        "TREFHT",
        "2m_temperature",
        "u10",
        "v10",
        "10m_u_component_of_wind",
        "10m_v_component_of_wind",
    ),
}
# The share of the times that are held out for validation.
_HELD_OUT = 0.1
# Padding is searched up to so many points more than the least.
_MOST_PADDING = 320
# Keys that count the channels of a model on one grid.
_COUNTS = (
    "channels",
    "surface_channels",
    "input_only_channels",
    "output_only_channels",
)

Ask = Callable[[str, str, Sequence[str]], str]


@dataclass(frozen=True)
class Roles:
    """Field type of each variable with time, by name."""

    of: Mapping[str, str]

    def choose(self, names: Sequence[str], role: str) -> list[str]:
        """The variables of a field type."""
        return [name for name in names if self.of[name] == role]


def assign_roles(
    groups: Sequence[FileGroup],
    example: Mapping[str, Any],
    chosen: Mapping[str, Sequence[str]],
    ask: Ask,
) -> Roles:
    """Finds out which variables are predicted, forced or diagnosed.

    Args:
        groups: the files.
        example: config whose variables have their roles.
        chosen: role -> names of the command line.
        ask: (question, option, answers) -> answer, for a variable that neither the
            command line nor a usual name says.

    Raises:
        ValueError: a name of the command line is not in the files, or there is nobody
            to ask; names all variables whose role is not known.
    """
    deep = [name for group in groups for name in group.deep]
    flat = [name for group in groups for name in group.flat]
    usual = {name.lower(): role for role, names in _KNOWN.items() for name in names}
    known = {name: usual[name.lower()] for name in flat if name.lower() in usual}
    known |= dict(_roles_of(example))
    requested = {name: role for role, names in chosen.items() for name in names}
    unknown = sorted(set(requested) - {*deep, *flat})
    if unknown:
        raise ValueError(
            f"--{_option(requested[unknown[0]])} {unknown[0]}: no variable with times; "
            f"there are {', '.join([*deep, *flat])}"
        )
    roles = {name: requested.get(name, PROGNOSTIC) for name in deep}
    problems = []
    for name in flat:
        role = requested.get(name) or known.get(name)
        if role is None:
            try:
                role = _asked(name, ask)
            except ValueError as error:
                problems.append(str(error))
                continue
        roles[name] = role
    if problems:
        raise ValueError("\n".join(problems))
    return Roles(roles)


def _asked(name: str, ask: Ask) -> str:
    """The role of a variable, from the user."""
    role = ask(
        f"{name}: is it a state that is fed back (prognostic), read at every step "
        "(forcing), or made in a step (diagnostic)?",
        f"--prognostic {name}, --forcing {name} or --diagnostic {name}",
        tuple(_option(role) for role in ROLES),
    )
    return FORCING if role == "forcing" else role


def _option(role: str) -> str:
    return "forcing" if role == FORCING else role


def _roles_of(example: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for source in ((example.get("data") or {}).get("source") or {}).values():
        for role, fields in (source.get("variables") or {}).items():
            if role in ROLES and isinstance(fields, Mapping):
                for name in (*fields.get("vars_3D", ()), *fields.get("vars_2D", ())):
                    yield name, role


def data_sections(
    groups: Sequence[FileGroup],
    roles: Roles,
    timestep: pd.Timedelta,
    history_len: int = 1,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The sections `data` and `validation_data`; the last times are held out.

    Args:
        groups: the files.
        roles: roles of their variables.
        timestep: time step of the model.
        history_len: times of its input.

    Raises:
        ValueError: nothing is predicted, or the files have too few common times.
    """
    times: Any = _common_times(groups)
    sources = _sources(groups, roles)
    if not any(PROGNOSTIC in source["variables"] for source in sources.values()):
        raise ValueError(
            "--data: no variable is predicted and fed back; name one by --prognostic"
        )
    span = times[-1] - times[0]
    held_out = max(span * _HELD_OUT, 2 * timestep)
    border = (times[-1] - held_out).floor("D")
    if border - timestep <= times[0]:
        border = times[-1] - 2 * timestep
    if len(times) < 6 or border - timestep <= times[0]:
        raise ValueError(
            f"--data: {len(times)} common times from {times[0]} to {times[-1]} are too "
            "few to train and to validate; give more files"
        )
    spans = [
        _spans(part, timestep)
        for part in (times[times < border], times[times >= border])
    ]
    one = max(map(len, spans)) == 1
    data = {
        "source": sources,
        **_dates(spans[0], one),
        "timestep": duration_text(timestep),
        "history_len": history_len,
        "forecast_len": 1,
    }
    return data, _dates(spans[1], one)


def _spans(times: Any, timestep: pd.Timedelta) -> list[list[str]]:
    """First and last time of each stretch without a gap."""
    starts = [
        0,
        *(i for i in range(1, len(times)) if times[i] - times[i - 1] > timestep),
    ]
    ends = [*(start - 1 for start in starts[1:]), len(times) - 1]
    return [
        [times[a].isoformat(), times[b].isoformat()]
        for a, b in zip(starts, ends, strict=True)
        # A sample needs two times.
        if b > a
    ]


def _dates(spans: list[list[str]], one: bool) -> dict[str, Any]:
    """The dates of a data section: a start and an end, or ranges between gaps."""
    if not one:
        return {"date_ranges": spans}
    return {"start_datetime": spans[0][0], "end_datetime": spans[0][1]}


def ranges_of(data: Mapping[str, Any]) -> list[list[pd.Timestamp]]:
    """First and last time of each range of a data section that `_dates` wrote."""
    spans = data.get("date_ranges") or [[data["start_datetime"], data["end_datetime"]]]
    return [[date_label(end) for end in span] for span in spans]


def time_step(groups: Sequence[FileGroup], text: str | None, ask: Ask) -> pd.Timedelta:
    """The commonest difference of times of the predicted variables, or that given."""
    _common_times(groups)
    if text is None:
        steps: Any = [
            pd.Series(group.times).diff().mode()[0]
            for group in groups
            if len(group.times) > 1
        ]
        text = (
            duration_text(max(steps))
            if steps
            else ask("the time step of the model, such as 6h?", "--timestep 6h", ())
        )
    try:
        step: Any = duration(text)
    except ValueError:
        step = pd.Timedelta(0)
    if not step > pd.Timedelta(0):
        raise ValueError(f"--timestep must be a duration such as 6h, got {text!r}")
    return step


def _common_times(groups: Sequence[FileGroup]) -> pd.DatetimeIndex:
    timed = [group.times for group in groups if len(group.times)]
    if not timed:
        raise ValueError("--data: no file has times; give those of the states, too")
    common = timed[0]
    for times in timed[1:]:
        common = common.intersection(times)
    if not len(common):
        raise ValueError("--data: the files have no time in common")
    return pd.DatetimeIndex(common)


def _sources(groups: Sequence[FileGroup], roles: Roles) -> dict[str, Any]:
    """One source, or several where a field type is in several groups of files."""
    names = ["data", *(f"data_{n}" for n in range(2, len(groups) + 1))]
    sources: dict[str, dict[str, Any]] = {}
    for group in groups:
        fields = {
            role: {
                key: chosen
                for key, names in (("vars_3D", group.deep), ("vars_2D", group.flat))
                if (chosen := roles.choose(names, role))
            }
            for role in ROLES
        }
        static = {"vars_3D": group.static_deep, "vars_2D": group.static}
        fields["static"] = {key: [*names] for key, names in static.items() if names}
        for role in ("prognostic", "dynamic_forcing", "static", "diagnostic"):
            if not fields[role]:
                continue
            free = next(
                name
                for name in names
                if role not in sources.get(name, {}).get("variables", {})
                and _alike(sources.get(name, {}), group)
            )
            source = sources.setdefault(free, _source(group))
            if not source.get("level_coord"):
                source.update(_levels(group))
            source["variables"][role] = {**fields[role], "path": group.template}
    return {
        name: {**section, "variables": section.pop("variables")}
        for name, section in sources.items()
    }


def _alike(source: Mapping[str, Any], group: FileGroup) -> bool:
    """Whether a source can have fields of a group of files as well."""
    level = source.get("level_coord")
    time = source.get("time_coord", group.time_coord)
    levels_fit = not (level and group.levels) or (
        level == group.level_coord and source["levels"] == [*group.levels]
    )
    return levels_fit and group.time_coord in (None, time)


def _source(group: FileGroup) -> dict[str, Any]:
    source: dict[str, Any] = {"dataset_type": "local"}
    if group.time_coord not in (None, "time"):
        source["time_coord"] = group.time_coord
    return {**source, **_levels(group), "variables": {}}


def _levels(group: FileGroup) -> dict[str, Any]:
    if not group.levels:
        return {}
    return {"level_coord": group.level_coord, "levels": [*group.levels]}


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
        ConfigError: the model does not fit the grid with any padding.
    """
    model = copy.deepcopy(dict(example))
    fields = MODELS[model["type"]].config.model_fields
    missing = [key for key in _COUNTS if key not in fields]
    if missing:
        raise ValueError(
            f"--like: a {model['type']} has no {missing[0]}: its fields are not those "
            "of one grid and one kind of levels. Leave --data out, which writes the "
            "example with its comments, and write your paths into it; or take another "
            "example, such as wxformer_1deg"
        )
    for key in ("post_conf", "gen1_post_conf"):
        model.pop(key, None)
    if "img_size" in fields:
        model["img_size"] = [*shape]
    if isinstance(model.get("diffusion"), dict):
        model["diffusion"]["image_size"] = [*shape]
    counts = {
        (role, key): sum(
            len((source["variables"].get(role) or {}).get(key, ()))
            for source in sources.values()
        )
        for role in (*ROLES, "static")
        for key in ("vars_3D", "vars_2D")
    }
    only = counts[FORCING, "vars_2D"] + counts["static", "vars_2D"]
    only += (counts[FORCING, "vars_3D"] + counts["static", "vars_3D"]) * num_levels
    num_diagnostic = (
        counts[DIAGNOSTIC, "vars_2D"] + counts[DIAGNOSTIC, "vars_3D"] * num_levels
    )
    model |= {
        **({} if "img_size" in fields else _image(shape)),
        "levels": max(num_levels, 1),
        "channels": counts[PROGNOSTIC, "vars_3D"],
        "surface_channels": counts[PROGNOSTIC, "vars_2D"],
        "input_only_channels": only,
        "output_only_channels": num_diagnostic,
    }
    return _padded(model, "padding_conf" in fields)


def _image(shape: tuple[int, int]) -> dict[str, int]:
    return {"image_height": shape[0], "image_width": shape[1]}


def _padded(model: dict[str, Any], pads: bool) -> dict[str, Any]:
    """The model with the smallest padding for which it has no problems.

    Args:
        model: the section.
        pads: whether the model has padding.
    """
    fewest = _problems(model)
    if not fewest:
        return model
    default = model.get("padding_conf") or {"mode": "earth", "pad_lat": 0, "pad_lon": 0}
    for key in ("pad_lat", "pad_lon") if pads else ():
        for extra in range(_MOST_PADDING + 1):
            ends = [extra - extra // 2, extra // 2]
            padding = {
                **model.get("padding_conf", default),
                "activate": True,
                key: ends,
            }
            tried = {**model, "padding_conf": padding}
            problems = _problems(tried)
            if len(problems) < len(fewest):
                model, fewest = tried, problems
            if not problems:
                return tried
    raise ConfigError(
        [*fewest, "take another --like, or a grid whose sizes have more divisors"],
        "the model of --like with the grid of --data",
    )


def _problems(model: Mapping[str, Any]) -> list[str]:
    try:
        with warnings.catch_warnings():
            # Keys of the example without effect are no news here.
            warnings.simplefilter("ignore", ConfigWarning)
            return parse_model(model).problems()
    except ConfigError as error:
        return [*error.problems]


def other_sections(
    example: Mapping[str, Any],
    data: Mapping[str, Any],
    out: Path,
    latitude_file: str | None,
) -> dict[str, Any]:
    """Blocks, loss, metrics and trainer: those of the example, for these files.

    Args:
        example: the whole config.
        data: section `data`.
        out: path of the config, whose stem names run and statistics.
        latitude_file: a file with the latitudes of rows; None on other grids.
    """
    stem = out.stem
    statistics = {
        f"{kind}_path": str(out.with_name(f"{stem}_{kind}.nc"))
        for kind in ("mean", "std")
    }
    weights: dict[str, Any] = {"use_latitude_weights": latitude_file is not None}
    if latitude_file is not None:
        weights["latitude_weights"] = latitude_file
    loss = dict(example["loss"])
    if loss.get("type") == "base":
        loss = {"training_loss": "mse"}
    for key in ("variable_weights", "use_variable_weights", *weights):
        loss.pop(key, None)
    twin = {"in_key": "y", "out_key": "y_target_processed"}
    return {
        "preblocks": {
            "per_step": {
                "normalize": {"type": "era5_normalizer", "args": statistics},
                "concat": {"type": "concat"},
            }
        },
        "postblocks": {
            "per_step": {
                "reconstruct": {"type": "reconstruct"},
                "reconstruct_target": {"type": "reconstruct", "args": twin},
            }
        },
        "loss": {**loss, **weights},
        "metrics": {
            "type": "combined",
            "args": {"metrics": {"rmse": {}, "acc": {}}, **weights},
        },
        "trainer": _trainer(example["trainer"], data),
    }


def _trainer(example: Mapping[str, Any], data: Mapping[str, Any]) -> dict[str, Any]:
    """The trainer of the example; its batches are those that there are."""
    trainer = copy.deepcopy(dict(example))
    for key in ("batches_per_epoch", "valid_batches_per_epoch"):
        trainer.pop(key, None)
    step = duration(data["timestep"])
    samples = sum(int((last - first) / step) for first, last in ranges_of(data))
    for key in ("train_batch_size", "valid_batch_size"):
        trainer[key] = max(1, min(int(trainer.get(key, 1)), samples // 4))
    trainer["valid_batch_size"] = 1
    scheduler = trainer.get("scheduler")
    if isinstance(scheduler, dict) and "total_steps" in scheduler:
        updates = max(1, samples // trainer["train_batch_size"])
        scheduler["total_steps"] = updates * int(trainer.get("epochs", 1))
        warm = int(scheduler.get("warmup_steps", 0))
        scheduler["warmup_steps"] = min(warm, scheduler["total_steps"] // 10)
    return trainer
