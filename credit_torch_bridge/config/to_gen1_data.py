"""Converts gen2's sources and dates to gen1's flat `data:` section."""

from __future__ import annotations

from typing import Any

from credit_torch_bridge.config.editor import ConfigEditor, same
from credit_torch_bridge.config.from_gen1_data import BATCHER
from credit_torch_bridge.config.from_gen1_sources import (
    GROUPS,
    MAIN,
    STATIC_FIRST,
    STATIC_LAST,
)
from credit_torch_bridge.config.times import hours_of, pattern_of, years_of
from credit_torch_bridge.config.to_gen2 import sources_equal

_ORDER = ("prognostic", "static", "dynamic_forcing")
_SAME_KEYS = ("data_clamp",)


def data_to_gen1(editor: ConfigEditor) -> None:
    """Converts `data`, `validation_data` and the normalizer to gen1's `data`.

    Refuses what gen1 cannot express: channels in another order, data sets other than
    files, several time steps with normalization, dates that are not whole years.
    """
    steps, hours = (
        editor.get("data.forecast_len"),
        hours_of(editor.get("data.timestep")),
    )
    if hours is None:
        step = editor.get("data.timestep")
        editor.problem("data.timestep", f"{step!r}: gen1 counts in whole hours")
    for section in ("data", "validation_data"):
        count = editor.get(f"{section}.forecast_len", steps)
        if type(count) is not int or count < 1:
            editor.problem(
                f"{section}.forecast_len", f"must be a number from 1, got {count!r}"
            )
    if not sources_equal(editor):
        editor.problem(
            "validation_data.source", "differs from data.source; gen1 has one for both"
        )
    written = _groups(editor)
    fed_back = _denormalized(editor)
    scaler = _normalizer(editor)
    if (
        scaler["scaler_type"] == "std_new"
        and type(steps) is int
        and steps > 1
        and (not fed_back)
    ):
        editor.problem(
            "data.forecast_len",
            f"{steps}: gen2 gives the normalized output of a step to era5_normalizer "
            "again, and gen1 does not",
        )
    years = _years(editor)
    if editor.problems:
        return
    flat = {**written, **scaler, **years, **_lengths(editor)}
    flat |= {
        "lead_time_periods": hours,
        "one_shot": False,
        "skip_periods": None,
        "dataset_type": BATCHER,
    }
    flat |= {k: editor.get(f"data.{k}") for k in _SAME_KEYS if editor.has(f"data.{k}")}
    chosen = editor.get("data.backprop_on_timestep")
    if chosen is not None:
        flat["backprop_on_timestep"] = chosen
    if editor.get("trainer.backprop") == "full":
        editor.moved("trainer.backprop", "data.retain_graph = true")
        flat["retain_graph"] = True
    editor.drop("trainer.backprop", "gen1's default")
    _finish(editor, flat)


def _finish(editor: ConfigEditor, flat: dict[str, Any]) -> None:
    """Records the change of each key, and sets the new section."""
    editor.moved("data.source", "data's lists of variables and their save_loc keys")
    editor.moved(
        "data.timestep", f"data.lead_time_periods = {flat['lead_time_periods']}"
    )
    if flat["forecast_len"] != editor.get("data.forecast_len"):
        why = "gen1 counts one step as 0"
        editor.compute("data.forecast_len", flat["forecast_len"], why)
    for section in ("data", "validation_data"):
        name = "train_years" if section == "data" else "valid_years"
        for key in ("date_ranges", "start_datetime", "end_datetime"):
            editor.moved(f"{section}.{key}", f"data.{name} = {flat[name]}")
    for key in ("history_len", "forecast_len"):
        editor.moved(f"validation_data.{key}", f"data.valid_{key}")
    editor.drop("validation_data", "gen1 has data alone")
    for key in editor.keys("data"):
        if key not in flat:
            editor.drop(("data", key), "CREDIT's gen2 does not read it")
        elif not same(editor.get(("data", key)), flat[key]):
            editor.compute(("data", key), flat[key], "gen1's word for the sources")
    editor.put("data", flat)


def _groups(editor: ConfigEditor) -> dict[str, Any]:
    """Returns gen1's lists and paths, if the sources have gen1's order of channels."""
    written: dict[str, Any] = {}
    order: list[str] = []
    outputs: list[str] = []
    for name in editor.keys("data.source"):
        source = editor.get(("data", "source", name))
        if not _plain(editor, name, source):
            continue
        cyclic = source.get("temporal_mode") == "cyclic"
        variables = ("data", "source", name, "variables")
        for kind in (*_ORDER, "diagnostic"):
            field = editor.get((*variables, kind), {})
            if not isinstance(field, dict):
                editor.problem((*variables, kind), "must be a section of keys")
                continue
            for dim in ("vars_3D", "vars_2D"):
                if field.get(dim):
                    role = _role(kind, dim, cyclic)
                    seen = outputs if kind == "diagnostic" else order
                    _add(editor, written, seen, role, field, (name, kind, dim))
        _levels(editor, written, name, source)
    if editor.problems:
        return {}
    firsts = [
        list_ is STATIC_FIRST
        for list_ in (STATIC_FIRST, STATIC_LAST)
        if [role for role in list_ if role in order] == order
    ]
    if not firsts:
        editor.problem(
            "data.source",
            f"the channels come in the order {', '.join(order)}; gen1's are "
            f"{', '.join(STATIC_FIRST)}, or static last",
        )
        return {}
    written["static_first"] = firsts[0]
    return written


def _plain(editor: ConfigEditor, name: Any, source: Any) -> bool:
    """Whether gen1 can read a source; records the reasons if not."""
    where = ("data", "source", name)
    if not isinstance(source, dict):
        editor.problem(where, "must be a section of keys")
        return False
    kind = source.get("dataset_type")
    if kind != "local":
        editor.problem(
            (*where, "dataset_type"), f"{kind!r}: gen1 reads files (local) alone"
        )
        return False
    if source.get("temporal_mode", "exact") not in ("exact", "cyclic"):
        mode = source["temporal_mode"]
        editor.problem((*where, "temporal_mode"), f"{mode!r}: gen1 takes exact times")
    if source.get("time_coord", "time") != "time":
        coord = source["time_coord"]
        editor.problem((*where, "time_coord"), f"{coord!r}: gen1 reads 'time' alone")
    specific = [
        key
        for key in ("start_datetime", "end_datetime", "date_ranges", "timestep")
        if source.get(key) not in (None, editor.get(f"data.{key}"))
    ]
    if specific and source.get("temporal_mode") != "cyclic":
        editor.problem(
            where, f"has its own {', '.join(specific)}; gen1 has one for all"
        )
    return True


def _role(kind: str, dim: str, cyclic: bool) -> str | None:
    """gen1's list for variables of gen2, or None."""
    if cyclic:
        return "forcing" if (kind, dim) == ("dynamic_forcing", "vars_2D") else None
    for role, group in GROUPS.items():
        if role != "forcing" and (group.field_type, group.vars_key) == (kind, dim):
            return role
    return None


def _add(
    editor: ConfigEditor,
    written: dict[str, Any],
    seen: list[str],
    role: str | None,
    field: dict[str, Any],
    where: tuple[Any, str, str],
) -> None:
    name, kind, dim = where
    path = ("data", "source", name, "variables", kind)
    if role is None:
        editor.problem((*path, dim), "gen1 has no such variables")
        return
    if role in seen:
        editor.problem(path, f"two sources have {role} variables; gen1 has one list")
        return
    seen.append(role)
    group = GROUPS[role]
    yearly = role not in ("static", "forcing")
    pattern = pattern_of(field.get("path", "")) if yearly else field.get("path")
    if not pattern:
        file_path = field.get("path")
        editor.problem(
            (*path, "path"), f"{file_path!r}: gen1 reads one file a year (%Y)"
        )
        return
    written[group.key] = list(field[dim])
    written[group.path_key] = pattern


def _levels(
    editor: ConfigEditor, written: dict[str, Any], name: Any, source: dict[str, Any]
) -> None:
    where = ("data", "source", name)
    levels = source.get("levels")
    if levels is not None and not isinstance(levels, list):
        editor.problem((*where, "levels"), f"must be a list, got {levels!r}")
    elif levels:
        written["level_ids"] = list(levels)
        editor.note(
            (*where, "levels"),
            "level_ids names levels and chooses none: gen1 takes all levels of the "
            "files, which must hold just these",
        )
    if name == MAIN or source.get("level_coord"):
        coord = source.get("level_coord")
        editor.note((*where, "level_coord"), f"{coord!r}: gen1 has no key for it")


def _normalizer(editor: ConfigEditor) -> dict[str, Any]:
    """Returns `scaler_type` and its files; records other blocks as problems."""
    normalizers: list[dict[str, Any]] = []
    for section in ("preblocks", "postblocks"):
        for phase in editor.keys(section):
            for name in editor.keys((section, phase)):
                block = editor.get((section, phase, name)) or {}
                kind = block.get("type")
                if kind == "era5_normalizer":
                    normalizers += [_args(block)] if section == "preblocks" else []
                elif kind not in ("concat", "to_device", "reconstruct"):
                    editor.problem(
                        (section, phase, name), f"{kind!r} has no counterpart in gen1"
                    )
    if len(normalizers) > 1 or any(
        args.get("levels") is not None for args in normalizers
    ):
        editor.problem(
            "preblocks", "gen1 has one normalizer, of all levels of its files"
        )
    if normalizers:
        editor.note(
            "preblocks",
            "gen1 scales no static_variables: the two files must not hold them; and "
            "they must hold all others",
        )
    editor.moved("preblocks", "data.scaler_type, mean_path and std_path")
    editor.drop("postblocks", "gen1's metrics read the output as it is")
    if not normalizers:
        return {"scaler_type": "std_cached"}
    paths = {key: normalizers[0].get(key) for key in ("mean_path", "std_path")}
    return {**paths, "scaler_type": "std_new"}


def _denormalized(editor: ConfigEditor) -> bool:
    """Whether a postblock inverts the normalizer for the fields fed back."""
    blocks = editor.get("postblocks.per_step", {})
    keys = [
        _args(block).get("key", "y_processed")
        for block in (blocks.values() if isinstance(blocks, dict) else ())
        if isinstance(block, dict) and block.get("type") == "era5_normalizer"
    ]
    return "y_processed" in keys


def _args(block: dict[str, Any]) -> dict[str, Any]:
    args = block.get("args")
    return args if isinstance(args, dict) else {}


def _years(editor: ConfigEditor) -> dict[str, Any]:
    """Returns `train_years` and `valid_years`."""
    years: dict[str, Any] = {}
    for section, name in (("data", "train_years"), ("validation_data", "valid_years")):
        ranges = editor.get(f"{section}.date_ranges")
        if ranges is None:
            ends = [editor.get(f"{section}.{w}_datetime") for w in ("start", "end")]
            ranges = None if None in ends else [ends]
        if ranges is None and section == "validation_data" and "train_years" in years:
            years[name] = years["train_years"]
            continue
        selected = _try_years(ranges)
        if ranges is None or selected is None:
            editor.problem(
                section,
                f"{ranges}: gen1 reads whole years, from January 1 to December 31",
            )
            continue
        years[name] = selected
        last = str(ranges[-1][-1])
        if editor.has(f"{section}.end_datetime"):
            editor.note(
                f"{section}.end_datetime",
                f"{last}: gen1 reads that year to its last time, and pairs no times of "
                "two years",
            )
    return years


def _try_years(ranges: Any) -> list[int] | None:
    try:
        return years_of(ranges)
    except (TypeError, ValueError):
        return None


def _lengths(editor: ConfigEditor) -> dict[str, Any]:
    """Lengths of a sample, counted as in gen1."""
    history = editor.get("data.history_len", 1)
    steps = editor.get("data.forecast_len")
    return {
        "history_len": history,
        "valid_history_len": editor.get("validation_data.history_len", history),
        "forecast_len": steps - 1,
        "valid_forecast_len": editor.get("validation_data.forecast_len", steps) - 1,
    }
