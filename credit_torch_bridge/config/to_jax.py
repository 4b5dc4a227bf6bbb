"""Makes a gen2 config for credit_jax, and checks it like its training."""

from __future__ import annotations

import re
import warnings
from typing import Any

from credit_jax.config import Config, ConfigError, parse
from credit_jax.config.base import UNREAD
from credit_jax.config.config import section_conflicts
from credit_jax.config.load import for_forecasts, frames_of_data
from credit_jax.config.sources.registry import source_config, source_types
from credit_jax.models.registry import parse_model
from credit_jax.parallel.mesh.device_mesh import TP
from credit_jax.parallel.mesh.model_fit import model_problems
from credit_jax.plan.channels import fit_problems
from credit_jax.transforms import TRANSFORMS
from credit_torch_bridge.config.editor import ConfigEditor
from credit_torch_bridge.config.from_gen1 import active_physics
from credit_torch_bridge.config.to_gen2 import trainer_of_gen1

_UNKNOWN = re.compile(r"^(?P<key>[^:]*): unknown key; (?P<hint>.*)$")
_UNSET = re.compile(r"^save_loc: .* environment variable")
# Sections whose unknown keys CREDIT also refuses, or passes to a constructor.
_STRICT = ("preblocks", "postblocks", "metrics", "demo", "optimize_ic", "assimilation")
_STRICT_TRAINER = ("parallelism", "scheduler", "fsdp", "fsdp2_mp_policy")


def gen2_to_jax(editor: ConfigEditor) -> None:
    """Edits a gen2 config so that credit_jax can train it; CREDIT's keys are kept."""
    # Keys that neither reads go: CREDIT ignores unknown ones, credit_jax refuses them.
    trainer_of_gen1(editor)
    # Drops physics inside the model, which gen2's training does not run.
    if active_physics(editor.get("model.post_conf")):
        editor.drop(
            "model.post_conf",
            "CREDIT's gen2 drops it in training, with a warning; its forecasts run it",
        )
    # Types and arguments of the blocks, without opening their files.
    for section in ("preblocks", "postblocks"):
        for phase in editor.keys(section):
            for name in editor.keys((section, phase)):
                block = editor.get((section, phase, name), {})
                args, path = block.get("args") or {}, f"{section}.{phase}.{name}"
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    try:
                        TRANSFORMS[section].parse(block.get("type"), args, path)
                    except ConfigError as error:
                        editor.problems += error.problems
    frames = frames_of_data(editor.config)
    if frames is not None:
        why = "the frames are those of data.history_len, as in CREDIT"
        editor.compute("model.frames", frames, why)
    # Whether credit_jax can read the sources; records the reasons if not.
    previous = len(editor.problems)
    for section in ("data", "validation_data"):
        for name in editor.keys((section, "source")):
            origin = (section, "source", name)
            kind = editor.get((*origin, "dataset_type"))
            if kind is not None and source_config(kind) is None:
                editor.problem(
                    (*origin, "dataset_type"),
                    f"{kind!r} is not available; there are: "
                    f"{', '.join(source_types())}",
                )
    readable = len(editor.problems) == previous
    model = _parsed(editor, "model", lambda: parse_model(editor.get("model")))
    config = _parsed(editor, "", lambda: _parse_config(editor)) if readable else None
    if config is None or model is None:
        return
    problems = section_conflicts(config, training=editor.has("trainer"))
    problems += fit_problems(config, model)
    parallel = config.trainer.parallelism
    problems += model_problems(model, {TP: parallel.tensor})
    editor.problems += [line for line in problems if not _UNSET.match(line)]


def _parse_config(editor: ConfigEditor) -> Config:
    """The config; one without a trainer is of forecasts alone."""
    training = editor.has("trainer")
    mapping = editor.config if training else for_forecasts(editor.config)
    config = parse(Config, mapping)
    _ = config.inference
    return config


def _parsed(editor: ConfigEditor, section: str, read: Any) -> Any:
    """The result of `read()` after dropping its unknown keys."""
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        try:
            result = read()
        except ConfigError as error:
            lines = [_UNKNOWN.match(line) for line in error.problems]
            gone = [line for line in lines if line and _passes_over(line["key"])]
            if not gone:
                # Problems without that of `loss.args`, if there is one of `loss.type`.
                typed = any(p.startswith("loss.type:") for p in error.problems)
                editor.problems += [
                    line
                    for line in error.problems
                    if not (typed and line.startswith("loss.args:"))
                ]
                return None
            for line in gone:
                hint = line["hint"]
                near = f"; {hint}" if hint.startswith("the nearest") else ""
                editor.drop(line["key"], f"CREDIT does not read it{near}")
            return _parsed(editor, section, read)
    for warning in heard:
        ignored = getattr(warning.message, "ignored", {})
        for key in (key for key, why in ignored.items() if why == UNREAD):
            editor.drop(key, "CREDIT does not read it")
        harmless = [f"{k} ({why})" for k, why in ignored.items() if why != UNREAD]
        if harmless:
            text = f"kept, and without effect here: {'; '.join(harmless)}"
            editor.note(section or "file", text)
    return result


def _passes_over(key: str) -> bool:
    """Whether CREDIT ignores unknown keys in the section of a key."""
    path = key.split(".")
    if path[0] == "trainer" and path[1] in _STRICT_TRAINER:
        return False
    return path[0] not in _STRICT or len(path) == 1
