"""The `inference:` section with which CREDIT's rollout forecasts from a run."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from credit_jax.config.sources.source import variables_of
from credit_jax.named_fields.bridgescaler import write_scalers
from credit_jax.transforms import Normalizer
from credit_torch_bridge.config.credit_blocks import without_target

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
