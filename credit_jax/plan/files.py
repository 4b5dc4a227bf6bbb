"""Finds the files that a config names and that are missing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from os.path import expandvars
from pathlib import Path

from credit_jax.config import Config
from credit_jax.data.sources.files import discover, matches
from credit_jax.plan.findings import Findings
from credit_jax.transforms import TRANSFORMS, Phase


def find_missing(config: Config, expected: Sequence[str] = ()) -> Findings:
    """Missing files that a run reads, one line each.

    Args:
        config: the config.
        expected: paths of files that are made before the first training; those that
            are not there yet are notes instead of problems.
    """
    found = Findings()
    for key, path in data_patterns(config):
        missing = Findings()
        missing.attempt(lambda key=key, path=path: discover(path, key))
        if missing.problems and any(matches(path, name) for name in expected):
            found.notes.append(f"{key}: {path} is made by the first training")
        else:
            found.add(missing)
    for key, path in (*latitude_files(config).items(), *_transform_files(config)):
        if Path(path).exists():
            continue
        if path in expected:
            found.notes.append(f"{key}: {path} is made by the first training")
        else:
            found.problems.append(f"{key}: {path} does not exist")
    return found


def data_patterns(config: Config) -> Iterator[tuple[str, str]]:
    """Dotted key and pattern of the files of every field type of every source."""
    sections = {"data": config.data}
    if config.validation_overrides.source and not config.trainer.skip_validation:
        sections["validation_data"] = config.validation_data
    for section, data in sections.items():
        for name, source in data.source.items():
            for kind, template in source.file_templates.items():
                yield f"{section}.source.{name}.variables.{kind}.path", template


def latitude_files(config: Config) -> dict[str, str]:
    """The files of latitudes that a run reads, by the key that names each."""
    metrics = config.metrics.args if config.metrics else {}
    named = {}
    if config.loss.use_latitude_weights:
        named["loss.latitude_weights"] = config.loss.latitude_weights
    if metrics.get("use_latitude_weights") and not config.trainer.skip_validation:
        named["metrics.args.latitude_weights"] = metrics.get("latitude_weights")
    return {key: path for key, path in named.items() if path}


def _transform_files(config: Config) -> Iterator[tuple[str, str]]:
    """Dotted key and path of the files that transforms read."""
    for phase in Phase:
        section, name = phase.value.split(".")
        blocks = getattr(getattr(config, section), name)
        for block, own in blocks.items():
            entry = TRANSFORMS[section].get(own.type)
            for key in entry.files if entry is not None else ():
                if isinstance(path := own.args.get(key), str):
                    yield f"{section}.{name}.{block}.args.{key}", expandvars(path)
