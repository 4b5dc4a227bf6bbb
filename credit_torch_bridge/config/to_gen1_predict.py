"""Converts gen2's `inference:` section to gen1's `predict:`."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from credit_jax.config import ConfigError, parse
from credit_jax.config.dates import duration
from credit_jax.config.inference import (
    BatchForecastConfig,
    InferenceConfig,
    OutputConfig,
)
from credit_jax.transforms.base import variable_of
from credit_jax.transforms.post.full_levels import FullLevelsArgs
from credit_torch_bridge.config.editor import ConfigEditor
from credit_torch_bridge.config.from_gen1_predict import (
    MAX_DATES,
    PRESSURE_KEYS,
    SECTION,
    TARGET,
    as_date,
    as_delta,
    time_text,
)

_PER_STEP = (TARGET, "postblocks", "per_step")
_OUTPUT = (TARGET, "output")
# Arguments of the block that are keys of variables here, and names in gen1.
_VARIABLES = (
    "temperature_var",
    "q_var",
    "surface_pressure_var",
    "surface_geopotential_var",
)


def inference_to_predict(editor: ConfigEditor) -> None:
    """Makes gen1's `predict` of dates, folder, blocks and variables of `inference`.

    A `predict` that is there stays. What gen1 says otherwise goes, with a line.

    Args:
        editor: editor of the config, whose data section is gen1's already.
    """
    inference = editor.get(TARGET)
    if not isinstance(inference, dict) or isinstance(editor.get(SECTION), dict):
        editor.drop(TARGET, "gen1's rollout reads predict")
        return
    try:
        with warnings.catch_warnings():
            # Keys without effect here, such as `mode`, have one in CREDIT.
            warnings.simplefilter("ignore")
            parsed = parse(InferenceConfig, inference, TARGET)
    except ConfigError as error:
        editor.problems += error.problems
        return
    _dates(editor, parsed)
    # Paths are taken as they are written: parsing expands variables of the environment.
    if inference.get("save_forecast"):
        place = inference["save_forecast"]
        editor.move(f"{TARGET}.save_forecast", f"{SECTION}.save_forecast", place)
    endings = _blocks(editor)
    _output(editor, parsed.output, endings)
    for key in [*editor.keys(_OUTPUT)]:
        editor.drop((*_OUTPUT, key), "gen1's predict says it otherwise")
    for key in [*editor.keys(TARGET)]:
        if editor.get((TARGET, key)) not in ({}, {"per_step": {}}):
            editor.drop((TARGET, key), "gen1's predict says it otherwise, or cannot")
    editor.pop(TARGET)


def _dates(editor: ConfigEditor, parsed: InferenceConfig) -> None:
    """Moves the dates of both run modes."""
    hours = editor.get("data.lead_time_periods")
    if parsed.batch_forecast is not None:
        pairs = [*_pairs_of(parsed.batch_forecast, as_delta(f"{hours}h"))]
        editor.move(f"{TARGET}.batch_forecast", f"{SECTION}.forecasts", pairs)
    single = parsed.single_forecast
    if single is not None and single.start_datetime and single.forecast_length:
        start = as_date(single.start_datetime)
        realtime = {
            "forecast_start_time": time_text(start),
            "forecast_end_time": time_text(start + duration(single.forecast_length)),
            "forecast_timestep": f"{hours}h",
        }
        editor.move(f"{TARGET}.single_forecast", f"{SECTION}.realtime", realtime)


def _pairs_of(batch: BatchForecastConfig, step: pd.Timedelta) -> Iterator[list[str]]:
    """Start and last time of each forecast, as gen1 lists them."""
    dates = (as_date(x) for x in (batch.first_init_date, batch.last_init_date))
    first, last = dates
    every, length = duration(batch.init_interval), duration(batch.forecast_length)
    for number in range(min(int((last - first) / every) + 1, MAX_DATES)):
        start = first + number * every
        yield [time_text(start), time_text(start + length - step)]


def _blocks(editor: ConfigEditor) -> tuple[str, str]:
    """Moves the blocks that gen1 has; returns the endings of pressure and heights."""
    endings = "_PRES", "_HEIGHT"
    for name in editor.keys(_PER_STEP):
        path = (*_PER_STEP, name)
        kind = editor.get((*path, "type"))
        if kind == "laplace_filter":
            editor.move(path, f"{SECTION}.use_laplace_filter", True)
            editor.note(
                path, "gen1's filter knows variables by their channels, on 16 levels"
            )
        elif kind == "full_state_pressure_interpolation":
            written = editor.get((*path, "args"))
            args = FullLevelsArgs.model_validate(written)
            endings = args.pres_ending, args.height_ending
            ground = written.get("surface_geopotential_file")
            ground = ground or editor.get("data.save_loc_static")
            editor.put(f"{SECTION}.static_fields", ground)
            section = f"{SECTION}.interp_pressure"
            editor.move(path, section, _interpolation(args, written))
        elif kind in ("reconstruct", "era5_normalizer"):
            editor.drop(path, "gen1 has it in its programs")
    return endings


def _interpolation(args: FullLevelsArgs, written: Mapping[str, Any]) -> dict[str, Any]:
    """gen1's arguments, without those that have its defaults."""
    values = {key: written.get(key, getattr(args, key)) for key in PRESSURE_KEYS}
    values |= {key: variable_of(getattr(args, key)) for key in _VARIABLES}
    values["interp_fields"] = [*map(variable_of, args.interp_fields)]
    return {
        key: [*value] if isinstance(value, tuple) else value
        for key, value in values.items()
        if value is not None and PRESSURE_KEYS[key] != value
    }


def _output(
    editor: ConfigEditor, output: OutputConfig, endings: tuple[str, str]
) -> None:
    """Moves attributes, variables, and the encodings of groups of variables."""
    if output.metadata:
        path = (*_OUTPUT, "metadata")
        editor.move(path, f"{SECTION}.metadata", editor.get(path) or output.metadata)
    if output.variables is not None:
        names = [variable_of(choice.name) for choice in output.variables]
        if any(choice.levels is not None for choice in output.variables):
            editor.note((*_OUTPUT, "variables"), "gen1 writes all levels")
        editor.move((*_OUTPUT, "variables"), f"{SECTION}.save_vars", names)
    deep = editor.get("data.variables") or []
    groups = {
        "ua_var_encoding": deep,
        "surface_var_encoding": editor.get("data.surface_variables") or [],
        "pressure_var_encoding": [name + endings[0] for name in deep],
        "height_var_encoding": [name + endings[1] for name in deep],
    }
    encoding = editor.get((*_OUTPUT, "encoding")) or {}
    for key, names in groups.items():
        encodings = [encoding.get(name) for name in names]
        if (
            encodings
            and isinstance(encodings[0], Mapping)
            and encodings == [encodings[0]] * len(encodings)
        ):
            editor.put(f"{SECTION}.{key}", dict(encodings[0]))
            for name in names:
                path = (*_OUTPUT, "encoding", name)
                editor.moved(path, f"{SECTION}.{key}")
    if editor.get((*_OUTPUT, "encoding")) == {}:
        editor.pop((*_OUTPUT, "encoding"))
