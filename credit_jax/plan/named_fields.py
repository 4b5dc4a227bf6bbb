"""Checks which named fields the postblocks of a config make for losses and metrics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from credit_jax.config import Config

PREDICTION, TARGET = "y_processed", "y_target_processed"
TWIN = (
    "{type: reconstruct, args: {in_key: y, out_key: y_target_processed}} and, after "
    "it, what undoes the scaling with key: y_target_processed"
)


def base_problems(config: Config) -> list[str]:
    """Finds why `loss.type: base` cannot train with the postblocks, one line each."""
    if not config.loss.is_base:
        return []
    entries, problems = _reconstructed(config), []
    if PREDICTION not in entries:
        problems.append(
            "loss.type: base scores y_processed, which no postblock makes: add {type: "
            "reconstruct, args: {detach: false}} to postblocks.per_step"
        )
    elif entries[PREDICTION].get("detach", True):
        problems.append(
            "loss.type: base learns through y_processed, which has no gradient: set "
            "detach: false on the reconstruct block in postblocks.per_step"
        )
    if TARGET not in entries:
        problems.append(
            "loss.type: base scores y_target_processed, which no postblock makes: add "
            f"{TWIN} to postblocks.per_step"
        )
    return problems


def metrics_notes(config: Config) -> list[str]:
    """Returns a note if the metrics section scores normalized fields."""
    entries = _reconstructed(config)
    if config.metrics is None or config.trainer.skip_validation:
        return []
    if PREDICTION in entries and TARGET in entries:
        return []
    return [
        "metrics: no postblock makes y_target_processed, so they score the model's "
        f"output in its own units; for physical units add {TWIN} to postblocks.per_step"
    ]


def base_notes(config: Config) -> list[str]:
    """Returns a note if `loss.type: base` has weights of units that it does not see."""
    if not config.loss.is_base or config.loss.args.get("var_weighting") == "none":
        return []
    if base_problems(config) or scores_are_physical(config):
        return []
    return [
        "loss.type: base scores normalized fields, as no postblock undoes the scaling "
        "of y_processed and y_target_processed, while loss.args.var_weighting is for "
        "physical units; add blocks that undo it, with these keys, to "
        "postblocks.per_step"
    ]


def scores_are_physical(config: Config) -> bool:
    """Whether postblocks undo the scaling of the fields that metrics score."""
    entries = _reconstructed(config)
    if PREDICTION not in entries or TARGET not in entries:
        return False
    return any(args.get("key") == TARGET for _, args in _blocks(config))


def _reconstructed(config: Config) -> dict[str, Mapping[str, Any]]:
    """Tree entries that `reconstruct` blocks make, with the arguments of each block."""
    blocks = (args for name, args in _blocks(config) if name == "reconstruct")
    keyed = ((args.get("out_key", PREDICTION), args) for args in blocks)
    return {key: args for key, args in keyed if isinstance(key, str)}


def _blocks(config: Config) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for block in config.postblocks.per_step.values():
        yield block.type, block.args
