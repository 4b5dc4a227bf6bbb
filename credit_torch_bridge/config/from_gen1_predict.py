"""Converts gen1's `predict:` section to gen2's `inference:`."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

import pandas as pd

from credit_jax.config.inference import EncodingConfig
from credit_jax.config.sources.source import variables_of
from credit_jax.transforms.diagnostics import FullLevels
from credit_torch_bridge.config.credit_blocks import without_target
from credit_torch_bridge.config.editor import ConfigEditor, shown

SECTION, TARGET = "predict", "inference"

# Default of gen1's `load_metadata`.
_METADATA = "era5.yaml"
_ENCODINGS = (
    "ua_var_encoding",
    "surface_var_encoding",
    "pressure_var_encoding",
    "height_var_encoding",
)
# Arguments of `full_state_pressure_interpolation` and its defaults.
_PRESSURE: Mapping[str, Any] = {
    "pressure_levels": [500.0, 850.0],
    "interp_fields": ["U", "V", "T", "Q"],
    "pres_ending": "_PRES",
    "temperature_var": "T",
    "q_var": "Q",
    "surface_pressure_var": "SP",
    "geopotential_var": "Z",
    "surface_geopotential_var": "Z_GDS4_SFC",
    "model_level_file": "ERA5_Lev_Info.nc",
    "a_model_name": "a_model",
    "b_model_name": "b_model",
    "a_half_name": "a_half",
    "b_half_name": "b_half",
    "P0": 1.0,
}
# Limit of the days of start dates, some 270 years.
MAX_DATES = 100_000
# Keys of `interp_pressure` that change values, with gen1's defaults; others name
# coordinates of its files.
PRESSURE_KEYS: Mapping[str, Any] = {
    **_PRESSURE,
    "height_levels": None,
    "height_ending": "_HEIGHT",
    "pressure_3d_var": "P",
}
# Channels that gen1's Laplace filter counts on: four variables on 16 levels, and six
# single ones, the first two of which it takes for U and V of one level.
_FILTERED_LEVELS, _FILTERED_VARIABLES, _FILTERED_SINGLE = 16, 4, 6
_CLIMATE = "of CREDIT's climate runs; a long forecast is forecast --steps N"
_DROPPED = {
    "batch_size": "forecast --batch N; it changes no number",
    "climatology": "score --climatology FILE",
    "initial_condition_path": "paths of the data section; docs/data.md makes states",
    "variable_mapping": "a rename block; docs/data.md makes initial states",
    "model_level_file": "hybrid_level_interp; docs/data.md makes initial states",
    "save_format": "CREDIT writes NetCDF alone",
    "start_datetime": "no program of gen1 reads it beside forecasts",
    "ensemble_method": "inference.perturbation, whose noise is in other units",
    "perturbation_std": "inference.perturbation, whose noise is in other units",
    "use_laplace_filter": "no filter is the default",
    "height_var_encoding": "there are no fields on heights",
    "forcing_file": _CLIMATE,
    "climate_timesteps": _CLIMATE,
    "climate_rescale_output": _CLIMATE,
    "run_fast_climate": _CLIMATE,
    "init_cond_fast_climate": _CLIMATE,
    "inds_rmse_fast_climate": _CLIMATE,
    "seasonal_mean_fast_climate": _CLIMATE,
    "timesteps_fast_climate": _CLIMATE,
}


def predict_to_inference(editor: ConfigEditor) -> None:
    """Makes `inference` of `predict`, where the data section is gen2's already."""
    predict = editor.get(SECTION)
    if not isinstance(predict, dict):
        return
    if editor.has(TARGET):
        editor.drop(SECTION, "the section inference says it")
        return
    try:
        _convert(editor, predict)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        subject = f"{type(error).__name__}: {error}"
        editor.problem(
            SECTION, f"is not as gen1 reads it ({subject}); --drop {SECTION}"
        )
        return
    editor.pop(SECTION)


# NaT, which nothing here makes, is no part of their types.
as_date: Any = pd.Timestamp
as_delta: Any = pd.Timedelta


def _convert(editor: ConfigEditor, predict: Mapping[str, Any]) -> None:
    """Moves the keys of `predict` to `inference`, or drops them, one after another."""
    step = as_delta(str(editor.get("data.timestep")))
    # Name -> key of each predicted variable.
    kinds = "prognostic", "diagnostic"
    keys = dict(variables_of(editor.get("data.source", {}), kinds))
    editor.drop("predict.mode", "forecast has --parallelism")
    _dates(editor, predict.get("forecasts"), step)
    _realtime(editor, predict.get("realtime"), step)
    if save_forecast := predict.get("save_forecast"):
        editor.move("predict.save_forecast", "inference.save_forecast", save_forecast)
    size = predict.get("ensemble_size")
    if size == 1:
        editor.drop("predict.ensemble_size", "gen2 forecasts one member")
    elif size is not None:
        editor.move("predict.ensemble_size", "inference.members", size)
        editor.put("inference.perturbation", {"type": "gaussian", "std": 0.0})
        editor.note(
            "predict.ensemble_size",
            "gen1's members start from one state and differ by the noise that a model "
            "draws; inference.perturbation perturbs initial states",
        )
    if predict.get("use_laplace_filter"):
        _laplace(editor, keys)
    keys |= _pressure(editor, predict, keys)
    path = predict.get("metadata") or _METADATA
    editor.put("inference.output.metadata", path)
    editor.moved("predict.metadata", f"inference.output.metadata = {shown(path)}")
    # Converts the NetCDF encodings of groups of variables.
    options = predict.get("interp_pressure") or {}
    deep, flat = (
        [name for name, key in keys.items() if f"prognostic/{dim}d" in key]
        for dim in "32"
    )
    pressures, heights = (
        [each for n in deep if (each := n + options.get(f"{kind}_ending", end)) in keys]
        for kind, end in (("pres", "_PRES"), ("height", "_HEIGHT"))
    )
    encoding = {}
    for key, names in zip(_ENCODINGS, (deep, flat, pressures, heights), strict=True):
        by_variable = predict.get(key)
        if not isinstance(by_variable, dict) or not names:
            continue
        available = {
            k: v for k, v in by_variable.items() if k in EncodingConfig.model_fields
        }
        for name in by_variable.keys() - available.keys():
            why = "the output section has no such key: left out"
            editor.note((SECTION, key, name), why)
        encoding |= dict.fromkeys(names, available)
        editor.moved(f"predict.{key}", "inference.output.encoding")
    if encoding:
        editor.put("inference.output.encoding", copy.deepcopy(encoding))
    # An empty list of `save_vars` is all variables.
    names = predict.get("save_vars")
    if isinstance(names, Sequence) and not isinstance(names, str) and names:
        if missing := [name for name in names if name not in keys]:
            why = f"not predicted, and left out: {', '.join(missing)}"
            editor.note("predict.save_vars", why)
        written = [keys[name] for name in names if name in keys]
        editor.put("inference.output.variables", written)
        editor.moved("predict.save_vars", "inference.output.variables")
    editor.drop("predict.save_vars", "all variables are written by default")
    for key in editor.keys(SECTION):
        why = _DROPPED.get(str(key), "no program of gen2 reads it")
        editor.drop((SECTION, key), why)


def _dates(editor: ConfigEditor, forecasts: Any, step: Any) -> None:
    """Converts `forecasts`, whose last time is that of the last step."""
    if forecasts is None:
        return
    try:
        starts, length = start_dates(forecasts, step)
    except (KeyError, TypeError, ValueError) as error:
        why = f"{error}; give forecast --init-time and --length"
        editor.drop("predict.forecasts", why)
        return
    gaps = {b - a for a, b in itertools.pairwise(starts)}
    if len(gaps) > 1:
        editor.drop(
            "predict.forecasts",
            f"{len(starts)} start dates that are not evenly spaced, and "
            f"batch_forecast says an interval; give each by forecast --init-time, "
            f"with --length {_text(length)}",
        )
        return
    batch = {
        "forecast_length": _text(length),
        "first_init_date": starts[0].isoformat(),
        "last_init_date": starts[-1].isoformat(),
        "init_interval": _text(gaps.pop() if gaps else as_delta("1D")),
    }
    editor.put("inference.run_mode", "batch")
    editor.move("predict.forecasts", "inference.batch_forecast", batch)


def _realtime(editor: ConfigEditor, realtime: Any, step: Any) -> None:
    """Converts `realtime`, whose last time is that of the last step."""
    if realtime is None:
        return
    try:
        first, last = (
            as_date(realtime[f"forecast_{end}_time"]) for end in ("start", "end")
        )
        every = as_delta(realtime.get("forecast_timestep", step))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        editor.drop("predict.realtime", f"no dates: {error}; give forecast --init-time")
        return
    count = int((last - first) / every)
    single = {
        "start_datetime": first.isoformat(),
        "forecast_length": _text(count * step),
    }
    if every != step:
        editor.note(
            "predict.realtime", f"forecast_timestep {every} is not that of the model: "
            f"{count} steps of {step} are made"
        )  # fmt: skip
    if not editor.has("inference.batch_forecast"):
        editor.put("inference.run_mode", "single")
    else:
        why = "forecast --set inference.run_mode=single makes it"
        editor.note("predict.realtime", why)
    editor.move("predict.realtime", "inference.single_forecast", single)


def _pressure(
    editor: ConfigEditor, predict: Mapping[str, Any], keys: Mapping[str, str]
) -> dict[str, str]:
    """Converts `interp_pressure` to a postblock; keys of its fields, by name."""
    options, file = predict.get("interp_pressure"), predict.get("static_fields")
    args = {**_PRESSURE, **(options if isinstance(options, dict) else {})}
    required = [args[f"{name}_var"] for name in ("temperature", "q")]
    required += [args["surface_pressure_var"], *args["interp_fields"]]
    missing = [name for name in required if name not in keys]
    why = ""
    if missing:
        why = f"needs {', '.join(missing)}, which the model does not predict"
    elif not isinstance(file, str):
        why = "needs static_fields, the file with the surface geopotential"
    if not isinstance(options, dict) or why:
        if isinstance(options, dict):
            editor.drop("predict.interp_pressure", why)
        editor.drop("predict.static_fields", "only interp_pressure needs it")
        return {}
    for key in options:
        if key not in PRESSURE_KEYS:
            editor.note((SECTION, "interp_pressure", key), "changes no value: left out")
    temperature = keys[args["temperature_var"]]
    source = temperature.split("/")[0]
    # Key of the surface geopotential, if data reads it from `static_fields`.
    surface, grounds = args["surface_geopotential_var"], []
    for name in editor.keys("data.source"):
        static = editor.get(("data", "source", name, "variables", "static"), {})
        if static.get("path") == file and surface in (static.get("vars_2D") or ()):
            grounds.append(f"{name}/static/2d/{surface}")
    # The file of the levels; gen1 finds others than absolute paths in its package.
    path = PurePath(args["model_level_file"])
    names = {key: args[key] for key in PRESSURE_KEYS if key in args} | {
        "interp_fields": [keys[name] for name in args["interp_fields"]],
        "temperature_var": temperature,
        "q_var": keys[args["q_var"]],
        "surface_pressure_var": keys[args["surface_pressure_var"]],
        "surface_geopotential_var": [*grounds, f"{source}/static/2d/{surface}"][0],
        "model_level_file": str(path) if path.is_absolute() else path.name,
        # gen1 scales CAM's coefficients alone.
        "P0": args["P0"] if args["a_model_name"] == "hyam" else 1.0,
        "levels": editor.get(("data", "source", source, "levels")),
    }
    if not grounds:
        names["surface_geopotential_file"] = file
    block = {"type": "full_state_pressure_interpolation", "args": names}
    _add_block(editor, "pressure_levels", block)
    editor.moved("predict.interp_pressure", "inference.postblocks.per_step")
    editor.moved("predict.static_fields", "inference.postblocks.per_step.*.args")
    block_args = FullLevels.model_validate(names)
    return {key.split("/")[-1]: key for key in block_args.output_keys}


def _laplace(editor: ConfigEditor, keys: Mapping[str, str]) -> None:
    """Converts `use_laplace_filter`, which gen1 applies where it scores."""
    # Its filter names variables by their channels.
    names = [name for name, key in keys.items() if "/prognostic/3d/" in key]
    single = [key for key in keys.values() if "/2d/" in key]
    levels = editor.get("model.levels")
    if (
        levels != _FILTERED_LEVELS
        or len(names) != _FILTERED_VARIABLES
        or len(single) < _FILTERED_SINGLE
    ):
        editor.drop(
            "predict.use_laplace_filter",
            f"gen1's filter counts channels: {_FILTERED_VARIABLES} variables on "
            f"{_FILTERED_LEVELS} levels and {_FILTERED_SINGLE} single ones; the "
            f"model has {len(names)} on {levels} and {len(single)}: name them in a "
            "postblock laplace_filter",
        )
        return
    u, v, t, q = (keys[name] for name in names)
    args = {
        "winds": [{"u": u, "v": v}, {"u": single[3], "v": single[2]}],
        "scalars": [
            {"variables": [t, *single[:2], single[4]]},
            {"variables": [q], "steps": 8, "strength": 0.5e8},
            {"variables": [single[5]], "steps": 4, "strength": 0.5e8},
        ],
    }
    _add_block(editor, "laplace_filter", {"type": "laplace_filter", "args": args})
    editor.note(
        "predict.use_laplace_filter",
        "as gen1's rollout_metrics; its rollout_to_netcdf does not filter what it "
        "writes: --drop predict.use_laplace_filter for the same files",
    )
    editor.moved("predict.use_laplace_filter", "inference.postblocks.per_step")


def _add_block(editor: ConfigEditor, name: str, block: Mapping[str, Any]) -> None:
    """Appends a block to the postblocks of forecasts."""
    if not editor.has("inference.postblocks"):
        blocks = without_target(editor.get("postblocks.per_step", {}))
        editor.put("inference.postblocks.per_step", copy.deepcopy(blocks))
    editor.put(f"inference.postblocks.per_step.{name}", block)


def start_dates(
    forecasts: Any, step: pd.Timedelta
) -> tuple[list[pd.Timestamp], pd.Timedelta]:
    """Start dates and length of gen1's forecasts, as `credit.forecast` makes them."""
    if not isinstance(forecasts, Mapping):
        pairs = [(as_date(a), as_date(b)) for a, b in forecasts]
    else:
        kind = forecasts.get("type", "custom")
        if kind not in ("custom", "10day_year"):
            raise ValueError(f"type {kind!r}; expected custom or 10day_year")
        lengths = {} if kind == "10day_year" else forecasts
        every = lengths.get("ic_interval_days", 1)
        date = (forecasts[f"start_{part}"] for part in ("year", "month", "day"))
        first, after = as_date(*date), as_delta(days=lengths.get("days", 10)) - step
        starts = [
            first + as_delta(days=number * every, hours=hour)
            for number in range(min(lengths.get("duration", 365) // every, MAX_DATES))
            for hour in forecasts.get("start_hours", [0])
        ]
        pairs = [(start, start + after) for start in starts]
    # The first input is at the start, the last step ends at the last time plus a step.
    lengths = {int((last - first) / step) * step + step for first, last in pairs}
    if len(lengths) != 1:
        raise ValueError(f"{len(pairs)} forecasts of {len(lengths)} lengths")
    return sorted({first for first, _ in pairs}), lengths.pop()


def _text(length: pd.Timedelta) -> str:
    """A duration as the config has it: "10d", "6h" or minutes."""
    minutes = int(length.total_seconds() // 60)
    for unit, size in (("d", 1440), ("h", 60)):
        if minutes % size == 0:
            return f"{minutes // size}{unit}"
    return f"{minutes}min"
