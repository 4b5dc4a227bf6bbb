"""The files that a config names: those that are missing, and digests of the others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from os.path import expandvars
from pathlib import Path
from typing import Any

from credit_jax.config import Config, dump_config
from credit_jax.config.components import files_within
from credit_jax.config.data import DataConfig
from credit_jax.data.sources.files import discover, matches
from credit_jax.losses import needs_latitude
from credit_jax.models.common.config import ModelConfig
from credit_jax.plan.findings import Findings
from credit_jax.transforms import TRANSFORMS, Phase
from credit_jax.transforms.statistics import Fitted


def find_missing(
    config: Config, expected: Sequence[str], model: ModelConfig
) -> Findings:
    """Finds missing files that a run reads, one line each.

    Args:
        config: the config.
        expected: paths of files that are created before the first training; if they do
            not exist yet, they are notes instead of problems.
        model: validated config of the model.
    """
    findings = Findings()
    for key, path in data_patterns(config):
        missing = Findings()
        with missing.collecting():
            discover(path, key)
        if missing.problems and any(matches(path, name) for name in expected):
            findings.notes.append(f"{key}: {path} is made by the first training")
        else:
            findings.add(missing)
    named = weight_files(config)
    tendencies = tendency_files(config)
    named |= _existing({f"model.{k}": path for k, path in model.files.items()})
    written = dump_config(config)
    fitted = [path for _, path in files_of_blocks(written, fitted=True)]
    fitted += tendencies.values()
    for key, path in (*named.items(), *files_of_blocks(written)):
        if Path(path).exists():
            continue
        if path in expected:
            findings.notes.append(f"{key}: {path} is made by the first training")
        else:
            hint = "; `credit-jax preprocess` fits it" if path in fitted else ""
            findings.problems.append(f"{key}: {path} does not exist{hint}")
    return findings


def other_files(config: Config, *, forecasts: bool = False) -> dict[str, str]:
    """Files besides those of the model and of `files_of_blocks`, by dotted key.

    Args:
        config: the config.
        forecasts: whether it is to make forecasts, and not to train.
    """
    objects = config.custom_objects.items()
    files = {f"custom_objects.{name}": value.module_path for name, value in objects}
    if not forecasts:
        return files | static_files(config.data, "data") | weight_files(config)
    section, inference = config.inference_section or {}, config.inference
    files |= {f"inference.{key}": path for key, path in files_of_blocks(section)}
    if inference is None or inference.data is None:
        return files | static_files(config.data, "data")
    return files | static_files(inference.data, "inference.data")


def weight_files(config: Config) -> dict[str, str]:
    """Files of the weights of losses and metrics, and climatologies, by dotted key.

    Those that stages name are listed if the run does not name them.
    """
    named = _weight_files(config)
    for index, stage in enumerate(config.stages):
        for key, path in _weight_files(stage).items():
            if path not in named.values():
                named[f"trainer.curriculum.{index}.{key}"] = path
    return named | tendency_files(config)


def _weight_files(config: Config) -> dict[str, str]:
    """Those of one stage, but for variances of tendencies."""
    metrics = _metrics_args(config)
    named = {"loss.args.scaler_path": config.loss.scaler_file}
    if metrics.get("var_weighting", "inverse_variance") == "inverse_variance":
        named["metrics.args.scaler_path"] = metrics.get("scaler_path")
    key = "climatology_path"
    named[f"metrics.args.{key}"] = metrics.get(key)
    metric_args = metrics.get("metrics")
    for name, args in (metric_args if isinstance(metric_args, Mapping) else {}).items():
        path = args.get(key) if isinstance(args, Mapping) else None
        named[f"metrics.args.metrics.{name}.{key}"] = path
    return latitude_files(config) | _existing(named)


def static_files(data: DataConfig, section: str) -> dict[str, str]:
    """Files that hold static fields alone, by dotted key.

    Left out are those of other fields, too, which are added to as time goes on.

    Args:
        data: the section of the data.
        section: its dotted key.
    """
    templates = {name: source.file_templates for name, source in data.source.items()}
    dated = {
        path
        for by_kind in templates.values()
        for kind, path in by_kind.items()
        if kind != "static"
    }
    return {
        f"{section}.source.{name}.variables.static.path": by_kind["static"]
        for name, by_kind in templates.items()
        if by_kind.get("static", "") not in {"", *dated}
    }


def data_patterns(config: Config) -> Iterator[tuple[str, str]]:
    """Dotted key and path pattern of the files of every field type of every source.

    Paths of validation that are those of training are left out.
    """
    visited: set[tuple[str, str, str]] = set()
    sections = {"data": config.data}
    if config.validation_overrides.source and not config.trainer.skip_validation:
        sections["validation_data"] = config.validation_data
    for section, data in sections.items():
        for name, source in data.source.items():
            for kind, template in source.file_templates.items():
                if (name, kind, template) in visited:
                    continue
                visited.add((name, kind, template))
                yield f"{section}.source.{name}.variables.{kind}.path", template


def latitude_files(config: Config) -> dict[str, str]:
    """Latitude files that a run reads, by their dotted key."""
    metrics = _metrics_args(config)
    named = dict([config.loss.latitude_file] if needs_latitude(config.loss) else [])
    if metrics.get("use_latitude_weights"):
        named["metrics.args.latitude_weights"] = metrics.get("latitude_weights")
    return _existing(named)


def tendency_files(config: Config) -> dict[str, str]:
    """Files of variances of tendencies, of the run and of stages, by dotted key."""
    key = "loss.tendency_weights"
    named = {key: config.loss.tendency_weights}
    for index, stage in enumerate(config.stages):
        if stage.loss.tendency_weights not in named.values():
            named[f"trainer.curriculum.{index}.{key}"] = stage.loss.tendency_weights
    return _existing(named)


def _metrics_args(config: Config) -> Mapping[str, Any]:
    """Arguments of the metrics; empty for a run without validation."""
    if config.metrics is None or config.trainer.skip_validation:
        return {}
    return config.metrics.args


def _existing(named: Mapping[str, Any]) -> dict[str, str]:
    """Keeps the values that are paths; others are reported where they are read."""
    paths = {k: path for k, path in named.items() if path and isinstance(path, str)}
    return {key: expandvars(path) for key, path in paths.items()}


def files_of_blocks(
    config: Mapping[str, Any], *, fitted: bool = False
) -> Iterator[tuple[str, str]]:
    """Dotted key and path of files that transforms read, or only of fitted ones.

    Args:
        config: valid sections `preblocks` and `postblocks` as they are written.
        fitted: whether `credit-jax preprocess` makes the file.
    """
    for phase in Phase:
        section, name = phase.value.split(".")
        for block, settings in ((config.get(section) or {}).get(name) or {}).items():
            kind = TRANSFORMS[section].get(settings["type"])
            if kind is None or (fitted and not issubclass(kind, Fitted)):
                continue
            for keys, path, mark in files_within(kind, settings.get("args") or {}):
                # Of those that need not be there, the ones that are.
                if mark.is_read and (not mark.or_packaged or Path(path).exists()):
                    key = ".".join((phase.value, block, "args", *keys))
                    yield key, expandvars(path)
