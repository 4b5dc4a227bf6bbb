"""Converts gen1's `predict:` section to gen2's `inference:`."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any

import pandas as pd

from credit_jax.config.inference import EncodingConfig
from credit_jax.transforms.diagnostics import FullLevels
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
    """Makes `inference` of `predict`, whose every key is accounted for.

    Args:
        editor: editor of the config, whose data section is gen2's already.
    """
    section = editor.get(SECTION)
    if not isinstance(section, dict):
        return
    if editor.has(TARGET):
        editor.drop(SECTION, "the section inference says it")
        return
    try:
        inference = _Conversion(editor, section).inference()
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        subject = f"{type(error).__name__}: {error}"
        editor.problem(
            SECTION, f"is not as gen1 reads it ({subject}); --drop {SECTION}"
        )
        return
    editor.pop(SECTION)
    editor.put(TARGET, inference)


def as_date(*value: Any) -> Any:
    """A date; NaT, which nothing here makes, is no part of its type."""
    return pd.Timestamp(*value)


def as_delta(*value: Any, **parts: Any) -> Any:
    """A duration, as `_date`."""
    return pd.Timedelta(*value, **parts)


class _Conversion:
    """One conversion; keys of `predict` move or go, one after another."""

    def __init__(self, editor: ConfigEditor, predict: Mapping[str, Any]) -> None:
        self.editor = editor
        self.predict = predict
        self.step = as_delta(str(editor.get("data.timestep")))
        self.keys = dict(_predicted(editor))
        self.section: dict[str, Any] = {}

    def inference(self) -> dict[str, Any]:
        """The section."""
        self._drop("mode", "forecast has --parallelism")
        self._dates()
        self._realtime()
        if self.predict.get("save_forecast"):
            self._moved("save_forecast", "save_forecast", self.predict["save_forecast"])
        self._members()
        self._laplace()
        self._pressure()
        path = self.predict.get("metadata") or _METADATA
        self._output("metadata", path)
        self._gone("metadata", f"{TARGET}.output.metadata = {shown(path)}")
        # Converts the NetCDF encodings of groups of variables.
        options = self.predict.get("interp_pressure") or {}
        deep = [n for n in self.keys if "prognostic/3d" in self.keys[n]]

        def derived(key: str, default: str) -> list[str]:
            ending = options.get(key, default)
            return [n + ending for n in deep if n + ending in self.keys]

        lists = (
            deep,
            [n for n in self.keys if "prognostic/2d" in self.keys[n]],
            derived("pres_ending", "_PRES"),
            derived("height_ending", "_HEIGHT"),
        )
        names = dict(zip(_ENCODINGS, lists, strict=True))
        encoding = {}
        for key in _ENCODINGS:
            by_variable = self.predict.get(key)
            if not isinstance(by_variable, dict) or not names[key]:
                continue
            available = {
                k: v for k, v in by_variable.items() if k in EncodingConfig.model_fields
            }
            for name in by_variable.keys() - available.keys():
                self._note((key, name), "the output section has no such key: left out")
            encoding |= dict.fromkeys(names[key], available)
            self._gone(key, f"{TARGET}.output.encoding")
        if encoding:
            self._output("encoding", copy.deepcopy(encoding))
        self._variables()
        self._rest()
        return self.section

    def _dates(self) -> None:
        """Converts `forecasts`, whose last time is that of the last step."""
        forecasts = self.predict.get("forecasts")
        if forecasts is None:
            return
        try:
            starts, length = start_dates(forecasts, self.step)
        except (KeyError, TypeError, ValueError) as error:
            self._drop("forecasts", f"{error}; give forecast --init-time and --length")
            return
        gaps = {b - a for a, b in itertools.pairwise(starts)}
        if len(gaps) > 1:
            self._drop(
                "forecasts",
                f"{len(starts)} start dates that are not evenly spaced, and "
                f"batch_forecast says an interval; give each by forecast --init-time, "
                f"with --length {_text(length)}",
            )
            return
        interval = gaps.pop() if gaps else as_delta("1D")
        batch = {
            "forecast_length": _text(length),
            "first_init_date": starts[0].isoformat(),
            "last_init_date": starts[-1].isoformat(),
            "init_interval": _text(interval),
        }
        self._put("run_mode", "batch")
        self._moved("forecasts", "batch_forecast", batch)

    def _realtime(self) -> None:
        """Converts `realtime`, whose last time is that of the last step."""
        realtime = self.predict.get("realtime")
        if realtime is None:
            return
        try:
            first, last = (
                as_date(realtime[f"forecast_{end}_time"]) for end in ("start", "end")
            )
            every = as_delta(realtime.get("forecast_timestep", self.step))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            self._drop("realtime", f"no dates: {error}; give forecast --init-time")
            return
        count = int((last - first) / every)
        single = {
            "start_datetime": first.isoformat(),
            "forecast_length": _text(count * self.step),
        }
        if every != self.step:
            self._note(
                "realtime", f"forecast_timestep {every} is not that of the model: "
                f"{count} steps of {self.step} are made"
            )  # fmt: skip
        if "batch_forecast" not in self.section:
            self._put("run_mode", "single")
        else:
            self._note("realtime", "forecast --set inference.run_mode=single makes it")
        self._moved("realtime", "single_forecast", single)

    def _members(self) -> None:
        size = self.predict.get("ensemble_size")
        if size is None:
            return
        if size == 1:
            self._drop("ensemble_size", "gen2 forecasts one member")
            return
        self._moved("ensemble_size", "members", size)
        self._put("perturbation", {"type": "gaussian", "std": 0.0})
        self._note(
            "ensemble_size",
            "gen1's members start from one state and differ by the noise that a model "
            "draws; inference.perturbation perturbs initial states",
        )

    def _pressure(self) -> None:
        """Converts `interp_pressure` to postblocks of forecasts."""
        options = self.predict.get("interp_pressure")
        if not isinstance(options, dict):
            self._drop("static_fields", "only interp_pressure needs it")
            return
        args = {**_PRESSURE, **options}
        why = self._no_pressure(args)
        if why:
            self._drop("interp_pressure", why)
            self._drop("static_fields", "only interp_pressure needs it")
            return
        for key in options:
            if key not in PRESSURE_KEYS:
                self._note(("interp_pressure", key), "changes no value: left out")
        self.keys |= self._full_levels(args)
        self._gone("interp_pressure", f"{TARGET}.postblocks.per_step")
        self._gone("static_fields", f"{TARGET}.postblocks.per_step.*.args")

    def _no_pressure(self, args: Mapping[str, Any]) -> str:
        """Why the block cannot do it; "" if it can."""
        required = [args[f"{name}_var"] for name in ("temperature", "q")]
        required += [args["surface_pressure_var"], *args["interp_fields"]]
        missing = [name for name in required if name not in self.keys]
        if missing:
            return f"needs {', '.join(missing)}, which the model does not predict"
        if not isinstance(self.predict.get("static_fields"), str):
            return "needs static_fields, the file with the surface geopotential"
        return ""

    def _ground(self, args: Mapping[str, Any]) -> str | None:
        """Key of the surface geopotential, if data reads it from `static_fields`."""
        name, path = args["surface_geopotential_var"], self.predict.get("static_fields")
        for source in self.editor.keys("data.source"):
            static = ("data", "source", source, "variables", "static")
            if self.editor.get((*static, "path")) == path and name in (
                self.editor.get((*static, "vars_2D")) or ()
            ):
                return f"{source}/static/2d/{name}"
        return None

    def _laplace(self) -> None:
        """Converts `use_laplace_filter`, which gen1 applies where it scores."""
        # Its filter names variables by their channels.
        if not self.predict.get("use_laplace_filter"):
            return
        names = [name for name, key in self.keys.items() if "/prognostic/3d/" in key]
        single = [name for name, key in self.keys.items() if "/2d/" in key]
        levels = self.editor.get("model.levels")
        if (
            levels != _FILTERED_LEVELS
            or len(names) != _FILTERED_VARIABLES
            or len(single) < _FILTERED_SINGLE
        ):
            self._drop(
                "use_laplace_filter",
                f"gen1's filter counts channels: {_FILTERED_VARIABLES} variables on "
                f"{_FILTERED_LEVELS} levels and {_FILTERED_SINGLE} single ones; the "
                f"model has {len(names)} on {levels} and {len(single)}: name them in a "
                "postblock laplace_filter",
            )
            return
        u, v, t, q = (self.keys[name] for name in names)
        surface = [self.keys[name] for name in single[:_FILTERED_SINGLE]]
        args = {
            "winds": [{"u": u, "v": v}, {"u": surface[3], "v": surface[2]}],
            "scalars": [
                {"variables": [t, *surface[:2], surface[4]]},
                {"variables": [q], "steps": 8, "strength": 0.5e8},
                {"variables": [surface[5]], "steps": 4, "strength": 0.5e8},
            ],
        }
        self._add_block("laplace_filter", {"type": "laplace_filter", "args": args})
        self._note(
            "use_laplace_filter",
            "as gen1's rollout_metrics; its rollout_to_netcdf does not filter what it "
            "writes: --drop predict.use_laplace_filter for the same files",
        )
        self._gone("use_laplace_filter", f"{TARGET}.postblocks.per_step")

    def _add_block(self, name: str, block: Mapping[str, Any]) -> None:
        """Appends a block to the postblocks of forecasts."""
        if "postblocks" not in self.section:
            blocks = _without_target(self.editor.get("postblocks.per_step"))
            self._put("postblocks", {"per_step": copy.deepcopy(blocks)})
        self.section["postblocks"]["per_step"][name] = block

    def _full_levels(self, args: Mapping[str, Any]) -> dict[str, str]:
        """Adds gen1's interpolation; returns the keys of its fields by name."""
        temperature = self.keys[args["temperature_var"]]
        source = temperature.split("/")[0]
        names = {key: args[key] for key in PRESSURE_KEYS if key in args}
        fields = [self.keys[name] for name in args["interp_fields"]]
        ground = self._ground(args)
        # The file of the levels; gen1 finds others than absolute paths in its package.
        path = PurePath(args["model_level_file"])
        level_file = str(path) if path.is_absolute() else path.name
        names |= {
            "interp_fields": fields,
            "temperature_var": temperature,
            "q_var": self.keys[args["q_var"]],
            "surface_pressure_var": self.keys[args["surface_pressure_var"]],
            "surface_geopotential_var": ground
            or f"{source}/static/2d/{args['surface_geopotential_var']}",
            "model_level_file": level_file,
            # gen1 scales CAM's coefficients alone.
            "P0": args["P0"] if args["a_model_name"] == "hyam" else 1.0,
            "levels": self.editor.get(("data", "source", source, "levels")),
        }
        if ground is None:
            names["surface_geopotential_file"] = self.predict["static_fields"]
        block = {"type": "full_state_pressure_interpolation", "args": names}
        self._add_block("pressure_levels", block)
        block_args = FullLevels.model_validate(names)
        return {key.split("/")[-1]: key for key in block_args.output_keys}

    def _variables(self) -> None:
        """Converts `save_vars`; an empty list is all variables."""
        names = self.predict.get("save_vars")
        if not isinstance(names, Sequence) or isinstance(names, str) or not names:
            self._drop("save_vars", "all variables are written by default")
            return
        missing = [name for name in names if name not in self.keys]
        if missing:
            self._note(
                "save_vars", f"not predicted, and left out: {', '.join(missing)}"
            )
        self._output("variables", [self.keys[n] for n in names if n in self.keys])
        self._gone("save_vars", f"{TARGET}.output.variables")

    def _rest(self) -> None:
        for key in list(self.editor.keys(SECTION)):
            self._drop(key, _DROPPED.get(str(key), "no program of gen2 reads it"))

    def _output(self, key: str, value: Any) -> None:
        self.section.setdefault("output", {})[key] = value

    def _put(self, key: str, value: Any) -> None:
        self.section[key] = value

    def _moved(self, key: str, to: str, value: Any) -> None:
        self._put(to, value)
        self._gone(key, f"{TARGET}.{to} = {shown(value)}")

    def _gone(self, key: str, words: str) -> None:
        self.editor.moved((SECTION, key), words)

    def _drop(self, key: str, why: str) -> None:
        self.editor.drop((SECTION, key), why)

    def _note(self, key: str | tuple[str, ...], text: str) -> None:
        path = key if isinstance(key, tuple) else (key,)
        self.editor.note((SECTION, *path), text)


def start_dates(
    forecasts: Any, step: pd.Timedelta
) -> tuple[list[pd.Timestamp], pd.Timedelta]:
    """Start dates and length of gen1's forecasts, as `credit.forecast` makes them.

    Args:
        forecasts: `predict.forecasts`: pairs of the start and the last time, or the
            numbers of which CREDIT makes such pairs.
        step: time step of the model.

    Returns:
        Start dates in order, and the common length.

    Raises:
        ValueError: the type is unknown, there are none, or lengths differ.
        KeyError, TypeError: a number is missing.
    """
    if isinstance(forecasts, Mapping):
        pairs = [*_pairs(forecasts, step)]
    else:
        pairs = [(as_date(a), as_date(b)) for a, b in forecasts]
    # The first input is at the start, the last step ends at the last time plus a step.
    lengths = {int((last - first) / step) * step + step for first, last in pairs}
    if len(lengths) != 1:
        raise ValueError(f"{len(pairs)} forecasts of {len(lengths)} lengths")
    return sorted({first for first, _ in pairs}), lengths.pop()


def _pairs(
    forecasts: Mapping[str, Any], step: pd.Timedelta
) -> Iterator[tuple[pd.Timestamp, pd.Timestamp]]:
    kind = forecasts.get("type", "custom")
    if kind not in ("custom", "10day_year"):
        raise ValueError(f"type {kind!r}; expected custom or 10day_year")
    fixed = kind == "10day_year"
    days = 10 if fixed else forecasts.get("days", 10)
    duration = 365 if fixed else forecasts.get("duration", 365)
    every = 1 if fixed else forecasts.get("ic_interval_days", 1)
    first = as_date(*(forecasts[f"start_{part}"] for part in ("year", "month", "day")))
    for number in range(min(duration // every, MAX_DATES)):
        for hour in forecasts.get("start_hours", [0]):
            start = first + as_delta(days=number * every, hours=hour)
            yield start, start + as_delta(days=days) - step


def _text(length: pd.Timedelta) -> str:
    """A duration as the config has it: "10d", "6h" or minutes."""
    minutes = int(length.total_seconds() // 60)
    for unit, size in (("d", 1440), ("h", 60)):
        if minutes % size == 0:
            return f"{minutes // size}{unit}"
    return f"{minutes}min"


def _predicted(editor: ConfigEditor) -> Iterator[tuple[str, str]]:
    """Name and key of each predicted variable."""
    for source in editor.keys("data.source"):
        for kind in ("prognostic", "diagnostic"):
            field = ("data", "source", source, "variables", kind)
            for dim in ("3", "2"):
                for name in editor.get((*field, f"vars_{dim}D")) or ():
                    yield name, f"{source}/{kind}/{dim}d/{name}"


def _without_target(blocks: Any) -> dict[str, Any]:
    """The postblocks that do not work on the target, which forecasts lack."""

    def on_target(block: Mapping[str, Any]) -> bool:
        args = block.get("args") or {}
        return args.get("in_key") == "y" or args.get("key") == "y_target_processed"

    return {k: block for k, block in (blocks or {}).items() if not on_target(block)}
