"""Converts gen1's flat `data:` section to gen2's sources, dates and normalizer."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from glob import glob
from typing import Any, NamedTuple

import pandas as pd

from credit_torch_bridge.config.editor import ConfigEditor

_CODE = re.compile(r"%[a-zA-Z]")
_YEAR = "%Y"


def year_ranges(years: Sequence[int], hours: int) -> list[list[str]]:
    """The first and last time of each year, as gen2's `date_ranges`.

    >>> year_ranges([1999, 2001], 6)[0]
    ['1999-01-01 00:00:00', '1999-12-31 18:00:00']
    """
    step: Any = pd.Timedelta(hours=hours)
    ranges = []
    # gen1 has one file a year, and no sample spans two files, as in gen2 two ranges.
    for year in range(*years):
        first: Any = pd.Timestamp(year=year, month=1, day=1)
        after: Any = pd.Timestamp(year=year + 1, month=1, day=1)
        last = first + (after - first - pd.Timedelta(seconds=1)) // step * step
        ranges.append([str(first), str(last)])
    return ranges


def template_of(pattern: str) -> tuple[str, str]:
    """Converts gen1's wildcard path to gen2's template, with a note ("" if none).

    >>> template_of("era5_????_*.zarr")
    ('era5_%Y_*.zarr', '')
    """
    if _CODE.search(pattern) or not re.search(r"[*?\[]", pattern):
        return pattern, ""
    if pattern.count("????") == 1:
        return pattern.replace("????", _YEAR), ""
    if pattern.count("*") != 1:
        return pattern, "say with %Y where the year stands in the names of the files"
    # The text before the year in the `*` of a pattern, from the names of the files.
    head, tail = (len(part) for part in os.path.expandvars(pattern).split("*"))
    endings = set()
    for path in glob(os.path.expandvars(pattern)):
        match = re.match(r"(\D*)\d{4}(?!\d)|(\D*)\d{6,}", path[head : len(path) - tail])
        endings.add(None if match is None else match[1] or match[2] or "")
    previous = endings.pop() if len(endings) == 1 else None
    if previous is not None:
        return pattern.replace("*", f"{previous}{_YEAR}*"), ""
    return (
        pattern.replace("*", f"{_YEAR}*"),
        "the year is taken to be the first thing that * stands for; correct it if not",
    )


MAIN, SURFACE, FORCING, STATIC = "ERA5", "SURFACE", "FORCING", "STATIC"


class VariableGroup(NamedTuple):
    """One of gen1's lists of variables."""

    # Keys of `data` with the variables and their files.
    key: str
    path_key: str
    field_type: str  # the corresponding key of a gen2 source
    rank: int  # position among the input channels of a gen2 source


# By their roles in this package.
GROUPS = {
    role: VariableGroup(
        f"{name}_variables".lstrip("_"), f"save_loc_{name}".rstrip("_"), kind, rank
    )
    for role, name, kind, rank in (
        ("upper", "", "prognostic", 0),
        ("surface", "surface", "prognostic", 0),
        ("static", "static", "static", 1),
        ("dynamic", "dynamic_forcing", "dynamic_forcing", 2),
        ("forcing", "forcing", "dynamic_forcing", 2),
        ("diagnostic", "diagnostic", "diagnostic", 3),
    )
}
STATIC_FIRST = ("upper", "surface", "static", "dynamic", "forcing")
STATIC_LAST = ("upper", "surface", "dynamic", "forcing", "static")


def read_variables(editor: ConfigEditor) -> dict[str, list[str]]:
    """Returns names of variables by role; errors go to `editor.problems`."""
    by_role: dict[str, list[str]] = {}
    for role, group in GROUPS.items():
        names = editor.get(f"data.{group.key}", [])
        if not isinstance(names, list) or not all(isinstance(n, str) for n in names):
            editor.problem(
                f"data.{group.key}", f"must be a list of names, got {names!r}"
            )
        elif names and not isinstance(editor.get(f"data.{group.path_key}"), str):
            editor.problem(f"data.{group.path_key}", f"missing, for {group.key}")
        else:
            by_role[role] = names
    if not by_role.get("upper") and not editor.problems:
        editor.problem("data.variables", "missing; gen1 needs variables with levels")
    every = [name for names in by_role.values() for name in names]
    twice = sorted({name for name in every if every.count(name) > 1})
    if twice:
        editor.problem(
            "data",
            f"{', '.join(twice)} stands in two lists of variables, which CREDIT's "
            "parser refuses",
        )
    return by_role


def build_sources(
    editor: ConfigEditor, names: dict[str, list[str]], level_coord: str
) -> dict[str, Any]:
    """Builds the sources that reproduce gen1's order of channels."""
    is_first = not editor.has("data.static_first") or editor.get("data.static_first")
    titles = {"surface": SURFACE, "forcing": FORCING, "static": STATIC}
    source, rank, origin = MAIN, 0, dict[str, str]()
    for role in STATIC_FIRST if is_first else STATIC_LAST:
        if names[role]:
            paths = [editor.get(f"data.{GROUPS[r].path_key}") for r in ("upper", role)]
            is_apart = role == "forcing" or (role == "surface" and paths[0] != paths[1])
            if is_apart or GROUPS[role].rank < rank or source == FORCING:
                source = titles.get(role, role.upper())
            origin[role], rank = source, GROUPS[role].rank
    if names["diagnostic"]:
        origin["diagnostic"] = [s for s in origin.values() if s != FORCING][-1]
    sources: dict[str, dict[str, Any]] = {}
    for role, source in origin.items():
        group = GROUPS[role]
        block = sources.setdefault(source, {"dataset_type": "local", "variables": {}})
        key = f"data.{group.path_key}"
        pattern = editor.get(key)
        is_yearly = role not in ("static", "forcing")
        path, doubt = template_of(pattern) if is_yearly else (pattern, "")
        editor.moved(key, f"its source's path = {path!r}")
        if doubt:
            editor.note(key, f"{pattern!r}: {doubt}")
        field = block["variables"].setdefault(group.field_type, {})
        list_key = "vars_3D" if role == "upper" else "vars_2D"
        field.setdefault(list_key, names[role])
        field["path"] = path
        at = f"data.source.{source}.variables.{group.field_type}.{list_key}"
        editor.moved(f"data.{group.key}", at)
    for group in GROUPS.values():
        editor.drop(f"data.{group.key}", "names no variables")
        editor.drop(f"data.{group.path_key}", f"there are no {group.key}")
    sources[MAIN]["level_coord"] = level_coord
    editor.note(
        "data.source.ERA5.level_coord",
        f"{level_coord!r}: gen1 has no key for it; --level-coord sets another name",
    )
    if editor.has("data.level_ids"):
        sources[MAIN]["levels"] = editor.get("data.level_ids")
        editor.moved(
            "data.level_ids",
            "data.source.ERA5.levels",
            "gen1 takes all levels of the files, gen2 those nearest to these values: "
            "the same where the level coordinate has just these values",
        )
    if FORCING in sources:
        sources[FORCING]["temporal_mode"] = "cyclic"
    if len(sources) > 1:
        editor.note(
            "data.source",
            f"{len(sources)} sources ({', '.join(sources)}), to keep the order of "
            "gen1's channels and files",
        )
    return sources


BATCHER = "ERA5_MultiStep_Batcher"
# The range of years of datetime64[ns].
FIRST_YEAR, LAST_YEAR = 1678, 2262
ONE_SAMPLE, SINGLE = "ERA5_and_Forcing_MultiStep", "ERA5_and_Forcing_SingleStep"
DATASETS = (
    BATCHER,
    "MultiprocessingBatcher",
    "MultiprocessingBatcherPrefetch",
    ONE_SAMPLE,
    SINGLE,
)

_FIT = (
    "; write a gen2 config with a bridgescaler_transform, which credit-jax preprocess "
)
_FIT += "fits"
# What to do instead of gen1's other scalers.
SCALERS = {
    "std": "; CREDIT has it no longer: write std_new, with a file of means and one of "
    "standard deviations, by variable and level",
    "quantile-cached": _FIT,
    "bridgescaler": _FIT,
    "std-wrf": "; configs/wrf_1h.yaml has its data as gen2 sources",
    "std-les": "; write a gen2 config with an era5_normalizer, which credit-jax "
    "preprocess fits",
}

_APART = "one a year: gen1 pairs no times of two files"
_PARSED = "CREDIT's parser makes it from the other keys"
_UNREAD = {
    "one_shot": "it changes nothing with this data set and these steps",
    "skip_periods": "1 is the only step of gen2",
    "static_first": "the order of gen2's sources says it",
    "dataset_type": "gen2's sources say how they are read",
    "scaler_type": "the preblocks say it",
    "max_forecast_len": "no data set of gen1 that is left uses it",
    "total_time_steps": "no data set of gen1 that is left uses it",
    "retain_graph": "false is the only way of gen2",
    "sst_forcing": "it is not active",
    "levels": "model.levels says it",
    "save_loc_physics": "no active block of model.post_conf reads it",
    "all_varnames": _PARSED,
    "flag_surface": _PARSED,
    "flag_dyn_forcing": _PARSED,
    "flag_diagnostic": _PARSED,
    "flag_forcing": _PARSED,
    "flag_static": _PARSED,
}


def data_to_gen2(editor: ConfigEditor, level_coord: str) -> None:
    """Converts `data` to gen2's `data`, `validation_data` and `preblocks`."""
    _refuse(editor)
    if editor.get("data.retain_graph") and editor.get("data.forecast_len"):
        # Gradients go across steps.
        if editor.get("data.history_len") == 1:
            editor.move("data.retain_graph", "trainer.backprop", "full")
        else:
            editor.problem(
                "data.retain_graph",
                "true with several input times: gen1 keeps the gradients of the newest "
                "time alone; use false, or history_len: 1",
            )
    names = read_variables(editor)
    hours = _whole(editor, "data.lead_time_periods")
    history = _whole(editor, "data.history_len")
    steps = _whole(editor, "data.forecast_len", least=0)
    for key, least in (("valid_history_len", 1), ("valid_forecast_len", 0)):
        if editor.get(f"data.{key}") is not None:
            _whole(editor, f"data.{key}", least)
    for key in ("train_years", "valid_years"):
        years = editor.get(f"data.{key}")
        if years is None and key == "valid_years":
            continue
        is_pair = isinstance(years, list) and [*map(type, years)] == [int, int]
        first, last = years if years and is_pair else (0, 0)
        if not FIRST_YEAR <= first < last <= LAST_YEAR:
            why = f"must be [first year, last + 1], got {years!r}"
            editor.problem(f"data.{key}", why)
    chosen = editor.get("data.backprop_on_timestep", [])
    if not isinstance(chosen, list):
        editor.problem("data.backprop_on_timestep", f"must be a list, got {chosen!r}")
    if names.get("forcing") and hours is not None and 24 % hours:
        editor.problem(
            "data.forcing_variables",
            f"with steps of {hours} h: gen2 counts such steps from January 1 of the "
            "periodic file's own year, and misses the day of the month",
        )
    if editor.problems or hours is None or history is None or steps is None:
        return
    shared = _shared(editor, steps + 1)
    valid = _validation(editor, hours, history, steps)
    # gen2 orders channels source by source: some of gen1's orders need several.
    sources = build_sources(editor, names, level_coord)
    _normalizer(editor)
    ranges = year_ranges(editor.get("data.train_years"), hours)
    editor.moved("data.train_years", "data.date_ranges", _APART)
    editor.moved("data.lead_time_periods", f"data.timestep = '{hours}h'")
    editor.compute(
        "data.forecast_len", steps + 1, f"gen1 counts one step as 0: {steps}"
    )
    for key, why in _UNREAD.items():
        editor.drop(f"data.{key}", why)
    for key in editor.keys("data"):
        if key not in ("history_len", "forecast_len", *shared):
            editor.drop(("data", key), "CREDIT's training with gen1 does not read it")
    window = {
        "timestep": f"{hours}h",
        "history_len": history,
        "forecast_len": steps + 1,
    }
    data = {"source": sources, "date_ranges": ranges, **window, **shared}
    editor.put("data", data)
    if valid is not None:
        editor.put("validation_data", {**valid, **shared})


def _refuse(editor: ConfigEditor) -> None:
    """Records keys whose effect gen2 cannot express."""
    kind = editor.get("data.dataset_type", BATCHER)
    forecast_len = editor.get("data.forecast_len", 0)
    steps = forecast_len if isinstance(forecast_len, int) else 0
    skipped, scaler = editor.get("data.skip_periods", 1), editor.get("data.scaler_type")
    old_single = kind == SINGLE or (
        not editor.has("data.dataset_type") and editor.get("trainer.type") == "standard"
    )
    levels = editor.get("data.levels")
    of_model = editor.get("model.levels", levels)
    problems = {
        f"data.dataset_type: {kind!r} has no counterpart in gen2; there are: "
        f"{', '.join(DATASETS)}": kind not in DATASETS,
        f"data.skip_periods: {skipped} takes times out of the middle of a file's "
        "steps, and gen2 does not; write data of the model's own time "
        "step": skipped != 1,
        f"data.scaler_type: {scaler!r} cannot be converted; expected std_new (mean and "
        "standard deviation from files) or std_cached (normalized files)"
        f"{SCALERS.get(str(scaler), '')}": scaler not in ("std_new", "std_cached"),
        "data.sst_forcing: active: gen2 has no step that keeps sea surfaces as they "
        "were at the start; write them so into the files, or leave it out with --drop "
        "data.sst_forcing": editor.get("data.sst_forcing.activate"),
        "data.one_shot: true asks for a loss on the last of several steps; gen2 has "
        "backprop_on_timestep instead, which reads every step; use false": steps
        and old_single
        and editor.get("data.one_shot") is True,
        f"data.levels: {levels} differs from model.levels {of_model}; gen2 has the "
        "latter alone": levels is not None and levels != of_model,
    }
    editor.refuse_if(problems)


def _whole(editor: ConfigEditor, key: str, least: int = 1) -> int | None:
    """A required integer."""
    value = editor.get(key)
    if type(value) is not int or value < least:
        wrong = f"must be a number from {least}, got {value!r}"
        editor.problem(key, "missing" if value is None else wrong)
        return None
    return value


def _shared(editor: ConfigEditor, steps: int) -> dict[str, Any]:
    """The keys that `data` and `validation_data` of gen2 share."""
    shared = {}
    clamp = editor.get("data.data_clamp")
    if clamp is not None:
        shared["data_clamp"] = clamp
    chosen = editor.get("data.backprop_on_timestep")
    if chosen is None:
        return shared
    within = [step for step in range(1, steps + 1) if step in chosen]
    if within == list(range(1, steps + 1)):
        editor.drop(
            "data.backprop_on_timestep", "all steps that there are: the default"
        )
        return shared
    editor.compute("data.backprop_on_timestep", within, f"there are {steps} steps")
    return {**shared, "backprop_on_timestep": within}


def _validation(
    editor: ConfigEditor, hours: int, history: int, steps: int
) -> dict[str, Any] | None:
    """`validation_data`, with every key that CREDIT requires."""
    years = editor.get("data.valid_years")
    lengths = {
        "history_len": editor.get("data.valid_history_len", history),
        "forecast_len": editor.get("data.valid_forecast_len", steps) + 1,
    }
    for name, value in lengths.items():
        editor.moved(f"data.valid_{name}", f"validation_data.{name} = {value}")
    if years is None:
        editor.note("data.valid_years", "absent: gen2 validates on the training years")
        return None
    editor.moved("data.valid_years", "validation_data.date_ranges", _APART)
    return {
        "date_ranges": year_ranges(years, hours),
        "timestep": f"{hours}h",
        **lengths,
    }


def _normalizer(editor: ConfigEditor) -> None:
    """Converts `scaler_type` and its files to preblocks."""
    blocks: dict[str, Any] = {"concat": {"type": "concat"}}
    if editor.get("data.scaler_type") == "std_new":
        args = {key: editor.get(f"data.{key}") for key in ("mean_path", "std_path")}
        for key, path in args.items():
            if not isinstance(path, str):
                editor.problem(f"data.{key}", "missing; scaler_type std_new needs it")
            editor.moved(f"data.{key}", f"preblocks.per_step.norm.args.{key}")
        blocks = {"norm": {"type": "era5_normalizer", "args": args}, **blocks}
        editor.note(
            "preblocks.per_step.norm",
            "era5_normalizer scales every variable that both files hold; gen1 never "
            "scales static_variables and forcing_variables, so the files must not hold "
            "them",
        )
    else:
        for key in ("mean_path", "std_path"):
            editor.drop(f"data.{key}", "scaler_type std_cached does not normalize")
    editor.compute("preblocks", {"per_step": blocks}, "gen1 does it in its data set")
