"""A gen2 config for credit_jax: checked as its training would check it."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from typing import Any

from credit_jax.blocks.registry import POSTBLOCKS, PREBLOCKS
from credit_jax.config.base import ConfigError, StrictModel, not_available, parse
from credit_jax.config.job import Config, job_problems, model_problems
from credit_jax.models.registry import parse_model
from credit_torch_bridge.config_gen1 import active_physics
from credit_torch_bridge.config_gen2 import trainer_of_gen1
from credit_torch_bridge.config_ledger import Ledger

LOCAL = "local"
_UNKNOWN = re.compile(r"^(?P<key>[^:]*): unknown key; (?P<hint>.*)$")
_INSTEAD = {
    "bridgescaler_transform": "; write mean and standard deviation of each variable to "
    "two NetCDF files, and use era5_normalizer in preblocks",
}
_UNSET = re.compile(r"^save_loc: .* environment variable")
# Sections whose unknown keys CREDIT refuses, too, or hands to a constructor.
_STRICT = ("preblocks", "postblocks", "metrics", "demo")
_STRICT_TRAINER = ("parallelism", "scheduler", "fsdp", "fsdp2_mp_policy")


def gen2_to_jax(ledger: Ledger) -> None:
    """Makes a gen2 config one that credit_jax trains; CREDIT's keys stay.

    Keys that neither CREDIT nor credit_jax reads go: CREDIT passes over them, and
    credit_jax refuses what it does not know. What credit_jax does not have is in
    `ledger.problems`.
    """
    trainer_of_gen1(ledger)
    _physics(ledger)
    _blocks(ledger)
    readable = _sources(ledger)
    model = _parsed(ledger, "model", lambda: parse_model(ledger.get("model")))
    config = (
        _parsed(ledger, "", lambda: parse(Config, ledger.config)) if readable else None
    )
    if config is None or model is None:
        return
    found = job_problems(config)
    found += model_problems(
        config,
        frames=model.frames,
        input_channels=model.input_channels,
        output_channels=model.output_channels,
    )
    parallel = config.trainer.parallelism
    found += model.problems(parallel.tensor, parallel.domain)
    ledger.problems += [line for line in found if not _UNSET.match(line)]


def _physics(ledger: Ledger) -> None:
    """gen2's training passes over physics inside the model; so does credit_jax."""
    if active_physics(ledger.get("model.post_conf")):
        ledger.drop(
            "model.post_conf",
            "CREDIT's gen2 drops it in training, with a warning; its forecasts run it",
        )


def _sources(ledger: Ledger) -> bool:
    """Whether credit_jax reads such sources at all; if not, why is written down."""
    before = len(ledger.problems)
    for section in ("data", "validation_data"):
        for name in ledger.keys((section, "source")):
            where = (section, "source", name)
            kind = ledger.get((*where, "dataset_type"))
            if kind is not None and kind != LOCAL:
                ledger.problem(
                    (*where, "dataset_type"),
                    f"{kind!r} is not available; credit_jax reads files ({LOCAL!r}): "
                    "write the data to files first",
                )
            elif ledger.get((*where, "temporal_mode")) == "cyclic":
                ledger.problem(
                    (*where, "temporal_mode"),
                    "'cyclic' (gen1's forcing_variables) is not available: times must "
                    "match exactly; write these variables at all times",
                )
            elif not _predicts(ledger.get((*where, "variables"))):
                ledger.problem(
                    where,
                    "predicts nothing, and credit_jax needs something to predict in "
                    "each source; gen1's static_first: false needs such a source where "
                    "there are no diagnostic_variables",
                )
    return len(ledger.problems) == before


def _predicts(variables: Any) -> bool:
    if not isinstance(variables, dict):
        return True
    return any(variables.get(kind) for kind in ("prognostic", "diagnostic"))


def _parsed(ledger: Ledger, section: str, read: Any) -> Any:
    """What `read()` gives, after the keys that it does not know are gone."""
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        try:
            result = read()
        except ConfigError as error:
            lines = [_UNKNOWN.match(line) for line in error.problems]
            gone = [line for line in lines if line and _passes_over(line["key"])]
            if not gone:
                ledger.problems += _once(error.problems)
                return None
            for line in gone:
                hint = line["hint"]
                near = f"; {hint}" if hint.startswith("the nearest") else ""
                ledger.drop(line["key"], f"CREDIT does not read it{near}")
            return _parsed(ledger, section, read)
    for warning in heard:
        _note_ignored(ledger, section, str(warning.message))
    return result


def _once(problems: Sequence[str]) -> list[str]:
    """Problems without those of `loss.args` where `loss.type` has the same one."""
    typed = any(line.startswith("loss.type:") for line in problems)
    return [p for p in problems if not (typed and p.startswith("loss.args:"))]


def _passes_over(key: str) -> bool:
    """Whether CREDIT reads on where it does not know a key."""
    path = key.split(".")
    if path[0] == "trainer" and path[1] in _STRICT_TRAINER:
        return False
    return path[0] not in _STRICT or len(path) == 1


def _note_ignored(ledger: Ledger, section: str, message: str) -> None:
    _, found, listed = message.partition("ignored here: ")
    if found:
        ledger.note(section or "file", f"kept, and without effect here: {listed}")


def _blocks(ledger: Ledger) -> None:
    """Types and arguments of the blocks; their files are not opened."""
    for section, registry in (("preblocks", PREBLOCKS), ("postblocks", POSTBLOCKS)):
        for phase in ledger.keys(section):
            for name in ledger.keys((section, phase)):
                block = ledger.get((section, phase, name))
                if isinstance(block, dict):
                    _block(ledger, f"{section}.{phase}.{name}", block, registry)


def _block(
    ledger: Ledger, path: str, block: dict[str, Any], registry: dict[str, Any]
) -> None:
    kind = block.get("type")
    if not isinstance(kind, str) or kind not in registry:
        section = path.partition(".")[0][:-1]
        error = not_available(f"{section} type", kind, registry)
        hint = _INSTEAD.get(str(kind), "")
        ledger.problem(f"{path}.type", f"{error}{hint}")
        return
    arguments: type[StrictModel] = registry[kind][0]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            parse(arguments, block.get("args") or {}, f"{path}.args")
    except ConfigError as error:
        ledger.problems += error.problems
