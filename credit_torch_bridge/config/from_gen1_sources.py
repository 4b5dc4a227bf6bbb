"""Converts gen1's variables, years and file names to gen2's sources."""

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
