"""Reads, writes and converts configs of CREDIT: gen1 to gen2, to us and back."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from typing import Any

import yaml

from credit_jax.config import Config, ConfigError, custom_objects, parse
from credit_jax.config.base import UNREAD
from credit_jax.config.config import section_conflicts
from credit_jax.config.load import for_forecasts, frames_of_data
from credit_jax.config.messages import got
from credit_jax.config.sources.registry import source_config, source_types
from credit_jax.config.yaml_file import CompactDumper
from credit_jax.models.registry import MODELS, parse_model
from credit_jax.parallel.mesh.device_mesh import TP
from credit_jax.parallel.mesh.model_fit import model_problems
from credit_jax.plan.channels import fit_problems
from credit_jax.state_dict.key_table import raise_problems
from credit_jax.transforms import TRANSFORMS
from credit_torch_bridge.config import from_gen1, to_gen2
from credit_torch_bridge.config.editor import ConfigEditor, ConfigReport, settle

_UNKNOWN = re.compile(r"^(?P<key>[^:]*): unknown key; (?P<hint>.*)$")
_UNSET = re.compile(r"^save_loc: .* environment variable")
# Keys of sections whose unknown keys CREDIT also refuses, or passes to a constructor.
_STRICT = re.compile(
    r"(preblocks|postblocks|metrics|demo|optimize_ic|assimilation)\."
    r"|trainer\.(parallelism|scheduler|fsdp|fsdp2_mp_policy)(\.|$)"
)


def gen2_to_jax(editor: ConfigEditor) -> None:
    """Edits a gen2 config so that credit_jax can train it; CREDIT's keys are kept."""
    # Keys that neither reads go: CREDIT ignores unknown ones, credit_jax refuses them.
    to_gen2.trainer_of_gen1(editor)
    # Drops physics inside the model, which gen2's training does not run.
    if from_gen1.active_physics(editor.get("model.post_conf")):
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
    # A config without a trainer is of forecasts alone.
    training = editor.has("trainer")

    def parsed() -> Config:
        mapping = editor.config if training else for_forecasts(editor.config)
        config = parse(Config, mapping)
        _ = config.inference
        return config

    config = _parsed(editor, "", parsed) if readable else None
    if config is None or model is None:
        return
    problems = section_conflicts(config, training=training)
    problems += fit_problems(config, model)
    parallel = config.trainer.parallelism
    problems += model_problems(model, {TP: parallel.tensor})
    editor.problems += [line for line in problems if not _UNSET.match(line)]


def _parsed(editor: ConfigEditor, section: str, read: Any) -> Any:
    """The result of `read()` after dropping its unknown keys."""
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        try:
            result = read()
        except ConfigError as error:
            lines = [_UNKNOWN.match(line) for line in error.problems]
            # CREDIT ignores unknown keys outside of `_STRICT`.
            gone = [line for line in lines if line and not _STRICT.match(line["key"])]
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


def leave_objects(editor: ConfigEditor) -> None:
    """Drops entries of credit_jax from a config for CREDIT, whose classes are kept."""
    for name in editor.keys(custom_objects.SECTION):
        kind = editor.get((custom_objects.SECTION, name, "object_type"))
        if not custom_objects.is_registered(str(kind), str(name)):
            continue
        if kind == "model":
            why = "credit_jax's; custom_models names files of PyTorch classes"
            editor.drop((custom_objects.SECTION, name), why)
        else:
            text = f"a {kind} of credit_jax, which CREDIT does not have"
            editor.problem((custom_objects.SECTION, name), text)
    for kind, name in custom_objects.offered_objects(editor.config):
        if kind == "model":
            editor.note("model.type", "custom_models names files of PyTorch classes")
        else:
            text = f"a {kind} of an installed package for credit_jax: CREDIT has none"
            editor.problem(name, text)
    if editor.has(custom_objects.SECTION) and not editor.keys(custom_objects.SECTION):
        editor.drop(custom_objects.SECTION, "nothing is left in it")


GEN1, GEN2, JAX = "gen1", "gen2", "jax"
TARGETS = (GEN2, JAX)
LEVEL_COORD = "level"
_FLAT = ("variables", "surface_variables", "train_years", "save_loc")


def convert_config(
    mapping: Mapping[str, Any],
    *,
    to: str,
    level_coord: str = LEVEL_COORD,
    drop: tuple[str, ...] = (),
) -> tuple[dict[str, Any], ConfigReport]:
    """Converts a config and reports what was done with every key.

    The conversion is idempotent.

    Args:
        mapping: the YAML as a mapping, not modified.
        to: "gen2" for CREDIT's trainer, "jax" for gen2 as credit_jax reads it.
        level_coord: name of the files' level coordinate, for gen1, which has no key
            for it.
        drop: dotted keys to remove first.

    Returns:
        The new mapping, and the report.

    Raises:
        ValueError: it is not a config, or has something that the other kind cannot
            express; the error lists all reasons.
    """
    if to not in TARGETS:
        raise ValueError(f"to: expected one of {', '.join(TARGETS)}, got {got(to)}")
    kind = kind_of(mapping)
    editor = ConfigEditor(dict(mapping))
    for key in drop:
        if not editor.has(key):
            editor.problem(key, "cannot be left out: the config has no such key")
        editor.drop(key, "as asked for")
    to_gen2.check_sections(editor)
    try:
        custom_objects.register_objects(editor.config)
    except ConfigError as error:
        editor.problems += error.problems if to == JAX else []
    if to != JAX:
        leave_objects(editor)
    if not editor.problems:
        name = editor.get("model.type")
        if not isinstance(name, str) or name not in MODELS:
            models = ", ".join(sorted(MODELS))
            editor.problem(
                "model.type", f"{got(name)} is not supported; there are: {models}"
            )
        elif to != JAX and MODELS[name].key_table is None:
            editor.problem("model.type", f"CREDIT has no model {name}")
    if not editor.problems:
        if kind == GEN1:
            from_gen1.gen1_to_gen2(editor, level_coord)
        to_gen2.blocks_are_named(editor)
    if not editor.problems:
        if to == JAX:
            gen2_to_jax(editor)
        else:
            editor.drop("assimilation", "CREDIT does not assimilate observations")
            to_gen2.gen2_to_credit(editor)
            if names := [
                name for name in editor.keys(from_gen1.OURS) if name != "data"
            ]:
                key = from_gen1.POST_CONF if kind == GEN1 else from_gen1.OURS
                editor.problem(
                    key,
                    f"{', '.join(names)} active: gen1 corrects inside the model, "
                    "before the loss, and gen2's training does not; "
                    f"--drop {key} leaves it out",
                )
            why = "gen2 has no trainer that fits initial states"
            editor.drop("optimize_ic", why)
            to_gen2.gen2_blocks(editor)
    problems = list(dict.fromkeys(editor.problems))
    target = to if to == JAX else f"CREDIT's {to}"
    raise_problems(problems, f"this {kind} config cannot become {target}")
    unchanged, unaccounted = settle(mapping, editor)
    assert not unaccounted, f"nobody accounts for {unaccounted}"
    return editor.config, ConfigReport(kind, to, tuple(editor.changes), unchanged)


def kind_of(mapping: Mapping[str, Any]) -> str:
    """Returns the kind of a config, "gen1" or "gen2", judged by its data section."""
    if not isinstance(mapping, Mapping):
        raise ValueError(f"a config is a mapping of sections, got {got(mapping)}")
    if unnamed := [key for key in mapping if not isinstance(key, str)]:
        raise ValueError(f"a section must have a name, got the key {got(unnamed[0])}")
    data = mapping.get("data")
    if not isinstance(data, Mapping):
        raise ValueError(f"data: must be a section of keys, got {got(data)}")
    if "source" in data:
        return GEN2
    if "datasets" in data:
        raise ValueError(
            "data.datasets: a downscaling config, which gen2's trainer does not have; "
            "configs/downscaling_conus404.yaml and unet_downscaling_conus404.yaml have "
            "such data as a gen2 source"
        )
    if any(key in data for key in _FLAT):
        return GEN1
    raise ValueError(
        "data: has neither source, as generation 2, nor variables, as generation 1; "
        f"it has: {', '.join(map(str, data)) or 'no keys'}"
    )


class _Dumper(CompactDumper):
    split = (list, dict)


def dump(config: dict[str, Any]) -> str:
    """Returns a config as YAML text; the order of keys is kept."""
    return yaml.dump(
        config, Dumper=_Dumper, sort_keys=False, width=88, allow_unicode=True
    )
