"""Blocks that CREDIT's trainer and rollout ask for, and those that they do not have."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from credit_jax.named_fields.tree import PREDICTION, TARGET
from credit_torch_bridge.config.editor import ConfigEditor

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
