"""Blocks that CREDIT's trainer and rollout ask for or lack, and its `inference:`."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from credit_jax.config.sources.source import variables_of
from credit_jax.named_fields.bridgescaler import write_scalers
from credit_jax.named_fields.tree import PREDICTION, TARGET
from credit_jax.transforms import Normalizer
from credit_torch_bridge.config.editor import ConfigEditor

SCALER_FILE = "forecast_scaler.json"
_NORMALIZER, _SCALER = "era5_normalizer", "bridgescaler_transform"
_LENGTH = "10D"
# CREDIT's rollout has no default.
SEED = 42
_ENTRIES = {
    "input": ("prognostic", "static", "dynamic_forcing"),
    "target": ("prognostic", "diagnostic"),
}


def complete_inference(
    config: dict[str, Any], folder: Path, save_loc: Path
) -> list[str]:
    """Completes the `inference` of a gen2 config in place; returns notes."""
    section = forecast_section({**config, "save_loc": str(save_loc)})
    config["inference"] = section
    config.setdefault("seed", SEED)
    # Blocks that scale like `era5_normalizer`, and back, are taken in place of it.
    blocks = {
        name: copy.deepcopy(section.get(name) or config.get(name) or {})
        for name in ("preblocks", "postblocks")
    }
    previous = blocks["preblocks"].get("per_step") or {}
    # CREDIT's rollout feeds back what postblocks give, and has no inverse of
    # `era5_normalizer`: its second step would normalize normalized fields. Forecasts,
    # and training of several steps, get scalers of the same numbers with an inverse.
    normalizers = [
        name for name, block in previous.items() if block["type"] == _NORMALIZER
    ]
    if not normalizers:
        return []
    name, *others = normalizers
    args = previous[name].get("args") or {}
    try:
        normalizer = Normalizer.model_validate(args)
        normalizer.open()
        if others:
            raise ValueError(f"there are {len(normalizers)} blocks {_NORMALIZER}")
    except (OSError, ValueError) as error:
        return [
            "CREDIT's rollout has no inverse of era5_normalizer, and the scalers that "
            f"have one could not be written ({error}): its forecasts are normalized, "
            "and right in the first step alone"
        ]
    data = section.get("data") or config["data"]
    scalers = _scalers(normalizer, data, config["model"].get("levels", 1))
    write_scalers(folder / SCALER_FILE, scalers)
    path = {"scaler_path": str(save_loc / SCALER_FILE)}
    keys = {
        part: [key for entries in sources.values() for key in entries]
        for part, sources in scalers.items()
    }
    forth = {"variables": keys["input"], "method": "transform"}
    back = {"variables": keys["target"], "method": "inverse_transform"}
    previous[name] = {"type": _SCALER, "args": path | forth}
    steps = blocks["postblocks"].get("per_step") or {}
    inverse = {"type": _SCALER, "args": path | back}
    blocks["postblocks"]["per_step"] = _after_reconstruct(steps, name, inverse)
    has_preblocks = bool(section.get("preblocks"))
    section |= blocks
    lengths = [
        (config.get(name) or {}).get("forecast_len", 1)
        for name in ("data", "validation_data")
    ]
    if max(lengths) > 1 and not has_preblocks:
        config["preblocks"] = copy.deepcopy(config["preblocks"])
        config["preblocks"]["per_step"][name] = previous[name]
        after = copy.deepcopy(config.get("postblocks") or {})
        steps = _after_reconstruct(after.get("per_step") or {}, name, inverse)
        config["postblocks"] = {**after, "per_step": steps}
    return []


def forecast_section(config: Mapping[str, Any]) -> dict[str, Any]:
    """The `inference` section of a gen2 config with all that CREDIT's rollout needs."""
    section = copy.deepcopy(dict(config.get("inference") or {}))
    section.setdefault("mode", "none")
    if not section.get("save_forecast"):
        section["save_forecast"] = str(Path(config.get("save_loc") or ".") / "forecast")
    single = dict(section.get("single_forecast") or {})
    if section.get("run_mode") == "single" or not section.get("batch_forecast"):
        # The first date of a data section; None if it has none, as in a package.
        data = config.get("validation_data") or config["data"]
        ranges = data.get("date_ranges")
        first = ranges[0][0] if ranges else data.get("start_datetime")
        start = None if first is None else str(first)
        if start and not single.get("start_datetime"):
            single["start_datetime"] = start
        if not single.get("forecast_length") and not section.get("batch_forecast"):
            single["forecast_length"] = _LENGTH
        section |= {"run_mode": "single", "single_forecast": single}
    blocks = section.get("postblocks") or config.get("postblocks") or {}
    steps = blocks.get("per_step") or {}
    if without_target(steps) != steps:
        section["postblocks"] = {**blocks, "per_step": without_target(steps)}
    return section


def _scalers(
    normalizer: Normalizer, data: Mapping[str, Any], num_levels: int
) -> dict[str, dict[str, dict[str, dict[str, Any]]]]:
    """Attributes of a scaler for every variable that the normalizer changes."""
    scalers: dict[str, dict[str, dict[str, dict[str, Any]]]] = {}
    for part, kinds in _ENTRIES.items():
        sources = scalers.setdefault(part, {})
        for _, key in variables_of(data["source"], kinds):
            source, _, dim, _ = key.split("/", 3)
            levels = data["source"][source].get("levels")
            count = len(levels) if levels else num_levels
            if normalizer.changes(key):
                mean, std = normalizer.statistics(key, count if dim == "3d" else 1)
                sources.setdefault(source, {})[key] = {
                    "type": "DStandardScalerTensor",
                    "mean_x_": mean.astype(np.float32),
                    "var_x_": np.square(std.astype(np.float64)).astype(np.float32),
                    "x_columns_": list(range(len(mean))),
                    "n_": 1,
                    "channels_last": False,
                    "_fit": True,
                }
    return scalers


def _after_reconstruct(
    steps: Mapping[str, Any], name: str, inverse: Mapping[str, Any]
) -> dict[str, Any]:
    """The steps with the inverse of the scaling where the named fields are made."""
    scaled: dict[str, Any] = {}
    for label, block in steps.items():
        scaled[label] = block
        if block.get("type") != "reconstruct":
            continue
        key = (block.get("args") or {}).get("out_key", "y_processed")
        scaled[name if key == "y_processed" else f"{name}_{key}"] = {
            **inverse,
            "args": {**inverse["args"], "key": key},
        }
    return scaled


_RECONSTRUCT, _TWIN = "reconstruct", {"in_key": "y", "out_key": TARGET}
# Blocks between the units of the model and those of the data. What else changes the
# prediction (fixers, filters, advection) is no part of the truth.
_UNITS = (
    "bridgescaler_transform",
    "exp_transform",
    "square_transform",
    "hybrid_level_interp",
)
_DIAGNOSTICS = (
    "geopotential_diagnostic",
    "mslp_diagnostic",
    "pressure_interp_diagnostic",
)
# CREDIT's metrics where the config has none (`credit.metrics.load_metric`).
_METRICS = {
    "type": "combined",
    "args": {
        "metrics": {"rmse": {}, "r2score": {}, "bias": {}},
        "var_weighting": "none",
    },
}
# Postblocks and arguments that only credit_jax has.
_OURS = (
    "era5_normalizer",
    "full_state_pressure_interpolation",
    "global_energy_fixer_net",
    "laplace_filter",
)
_GROUND = "surface_geopotential_file"


def refuse_blocks(editor: ConfigEditor) -> None:
    """Records the postblocks that CREDIT's gen2 has not."""
    paths = [
        (*top, phase, name)
        for top in (("postblocks",), ("inference", "postblocks"))
        for phase in editor.keys(top)
        for name in editor.keys((*top, phase))
    ]
    for path in paths:
        block, why = editor.get(path), ""
        if block.get("type") in _OURS:
            why = f"CREDIT has no postblock {block['type']}"
        elif (block.get("args") or {}).get(_GROUND) is not None:
            why = (
                f"CREDIT has no key {_GROUND}, and reads the surface geopotential from "
                "a static variable of the data: name one in surface_geopotential_var"
            )
        if not why:
            editor.drop((*path, "args", _GROUND), "CREDIT has no such key")
        # Forecasts without them write something else, of the same model.
        elif path[0] == "inference":
            editor.drop(path, why)
        else:
            editor.problem(path, why)


def add_scored_fields(editor: ConfigEditor) -> None:
    """Adds the postblocks that make the fields that CREDIT's metrics score."""
    # CREDIT computes metrics in every training batch, with the section or without, from
    # named fields. credit_jax scores flat arrays where a config makes none.
    steps = dict(editor.get("postblocks.per_step") or {})
    args = [
        block.get("args") or {}
        for block in steps.values()
        if block.get("type") == _RECONSTRUCT
    ]
    fields = [each.get("out_key", PREDICTION) for each in args]
    why = "CREDIT's metrics fail at the first batch without these fields"
    if PREDICTION not in fields:
        _add(editor, "reconstruct", {"type": _RECONSTRUCT}, why)
    if TARGET in fields:
        return
    _add(editor, "reconstruct_target", {"type": _RECONSTRUCT, "args": _TWIN}, why)
    for name, block in steps.items():
        args = block.get("args") or {}
        if block.get("type") in _UNITS and args.get("key", PREDICTION) == PREDICTION:
            twin = copy.deepcopy(block) | {"args": {**args, "key": TARGET}}
            _add(editor, f"{name}_target", twin, why)
    if any(block.get("type") in _DIAGNOSTICS for block in steps.values()):
        why = "the target has no fields that postblocks compute"
        if not editor.get("metrics"):
            editor.compute("metrics", copy.deepcopy(_METRICS), "CREDIT's default")
        editor.compute("metrics.args.include_computed_diagnostics", False, why)


def _add(editor: ConfigEditor, name: str, block: dict[str, Any], why: str) -> None:
    """Appends a postblock, under a name that is free."""
    while editor.has(("postblocks", "per_step", name)):
        name += "_"
    editor.compute(("postblocks", "per_step", name), copy.deepcopy(block), why)


def without_target(steps: Mapping[str, Any]) -> dict[str, Any]:
    """The postblocks of a step without those of the target, which no forecast has."""
    read = {name: block.get("args") or {} for name, block in steps.items()}
    return {
        name: block
        for name, block in steps.items()
        if TARGET not in (read[name].get("out_key"), read[name].get("key"))
    }
