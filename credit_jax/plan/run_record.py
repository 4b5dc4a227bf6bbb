"""Files that a run names, and what of them and of its config changes its numbers."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from os.path import expandvars
from pathlib import Path
from typing import Any

from credit_jax.config import Config, ConfigError, dump_config, parse
from credit_jax.config.base import check_problems
from credit_jax.config.components import files_within
from credit_jax.config.data import DataConfig
from credit_jax.config.dates import duration, duration_text
from credit_jax.config.load import for_forecasts
from credit_jax.config.messages import got
from credit_jax.data.sources.files import discover, matches
from credit_jax.io.digests import digests_of
from credit_jax.io.icechunk import is_repository
from credit_jax.losses import needs_latitude
from credit_jax.models.common.config import ModelConfig
from credit_jax.models.registry import parse_model
from credit_jax.transforms import PREBLOCKS, TRANSFORMS, Phase
from credit_jax.transforms.statistics import Fitted


def find_missing(
    config: Config, expected: Sequence[str], model: ModelConfig
) -> list[str]:
    """Looks for the files that a run reads; returns notes on those that it makes."""
    notes, problems = list[str](), list[str]()
    for key, path in data_patterns(config):
        try:
            discover(path, key)
        except (OSError, ValueError) as error:
            if any(matches(path, name) for name in expected):
                notes.append(f"{key}: {path} is made by the first training")
            else:
                problems.append(str(error))
    named = weight_files(config)
    tendencies = [path for key, path in named.items() if key.endswith(TENDENCIES)]
    named |= _existing({f"model.{k}": path for k, path in model.files.items()})
    written = dump_config(config)
    fitted = [path for _, path in files_of_blocks(written, fitted=True)]
    fitted += tendencies
    for key, path in (*named.items(), *files_of_blocks(written)):
        if Path(path).exists():
            continue
        if path in expected:
            notes.append(f"{key}: {path} is made by the first training")
        else:
            hint = "; `credit-jax preprocess` fits it" if path in fitted else ""
            problems.append(f"{key}: {path} does not exist{hint}")
    check_problems(problems)
    return notes


def other_files(config: Config, *, forecasts: bool = False) -> dict[str, str]:
    """Files besides those of the model and of `files_of_blocks`, by dotted key."""
    objects = config.custom_objects.items()
    files = {f"custom_objects.{name}": value.module_path for name, value in objects}
    if not forecasts:
        return files | static_files(config.data, "data") | weight_files(config)
    section, inference = config.inference_section or {}, config.inference
    files |= {f"inference.{key}": path for key, path in files_of_blocks(section)}
    if inference is None or inference.data is None:
        return files | static_files(config.data, "data")
    return files | static_files(inference.data, "inference.data")


# End of the keys of files of the variances of tendencies, which `preprocess` fits.
TENDENCIES = "loss.tendency_weights"


def weight_files(config: Config) -> dict[str, str]:
    """Files of the weights of losses and metrics, and climatologies, by dotted key."""
    named: dict[str, str] = {}
    for index, each in enumerate((config, *config.stages)):
        stage = f"trainer.curriculum.{index - 1}." if index else ""
        metrics = _metrics_args(each)
        files: dict[str, Any] = {"loss.args.scaler_path": each.loss.scaler_file}
        if metrics.get("var_weighting", "inverse_variance") == "inverse_variance":
            files["metrics.args.scaler_path"] = metrics.get("scaler_path")
        files["metrics.args.climatology_path"] = metrics.get("climatology_path")
        files[TENDENCIES] = each.loss.tendency_weights
        by_name = metrics.get("metrics")
        for name, args in (by_name if isinstance(by_name, Mapping) else {}).items():
            path = args.get("climatology_path") if isinstance(args, Mapping) else None
            files[f"metrics.args.metrics.{name}.climatology_path"] = path
        for key, path in (latitude_files(each) | _existing(files)).items():
            if not stage or path not in named.values():
                named[f"{stage}{key}"] = path
    return named


def static_files(data: DataConfig, section: str) -> dict[str, str]:
    """Files that hold static fields alone, by dotted key below that of the section."""
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
        # Those of other fields, too, are added to as time goes on.
        if by_kind.get("static", "") not in {"", *dated}
    }


def data_patterns(config: Config) -> Iterator[tuple[str, str]]:
    """Dotted key and path pattern of the files of every field type of every source."""
    visited = set[tuple[str, str, str]]()
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
    """Dotted key and path of files that transforms read, or only of fitted ones."""
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


_DIGEST = "SHA-256 "
# What forecasts notice, and what training alone does; each may differ.
_OF_FORECASTS, _OF_TRAINING = ("data",), ("validation_data", "loss", "trainer", "seed")
# Of these sections the keys that are compared by themselves, or by what files hold.
_LEFT_OUT = re.compile(r"data\.(timestep|history_len|time_encoding)|.*\.path")
# Keys of models that change training, and no number of a forecast.
_MAY_DIFFER = re.compile(r"model\..*(drop|_loss_weight$|freeze$)")


@dataclass(frozen=True)
class RunRecord:
    """The config of a run, and the contents of the files that it names."""

    config: Mapping[str, Any]  # as it is written, or its section `model` alone
    digests: Mapping[str, str] = field(default_factory=dict)  # SHA-256 by dotted key
    where: str = "here"  # origin

    @classmethod
    def of(
        cls,
        config: Config | Mapping[str, Any],
        origin: str = "here",
        *,
        forecasts: bool = False,
    ) -> RunRecord:
        """The record of a valid config, whose files are read."""
        files: dict[str, str] = {}
        written: Any = config
        if isinstance(config, Config):
            written = json.loads(json.dumps(dump_config(config), default=str))
            files = other_files(config, forecasts=forecasts)
        of_model = _without_warnings(parse_model, written["model"]).files
        files |= {f"model.{key}": path for key, path in of_model.items()}
        files |= dict(files_of_blocks(written))
        if isinstance(config, Config):
            data = data_patterns(config)
            files |= {key: path for key, path in data if is_repository(path)}
        return cls(written, digests_of(files), origin)

    def compare(
        self, here: RunRecord, *, forecasts: bool = False, begins: bool = False
    ) -> list[str]:
        """A line on what differs, and may, from the config that uses the weights."""
        lines, problems = list[str](), list[str]()
        for key, recorded, value in _without_warnings(
            _differences, self, here, forecasts
        ):
            digests = [str(x).startswith(_DIGEST) for x in (recorded, value)]
            if digests[0] != digests[1] and isinstance(recorded and value, str):
                path = value if digests[0] else recorded
                lines.append(f"{key} (not compared, as there is no {path})")
                continue
            free = begins or _MAY_DIFFER.match(key)
            (lines if free else problems).append(line_of(key, recorded, value))
        if problems:
            subject = (
                f"not as {self.where} was trained; take its values, or begin a new "
            )
            raise ConfigError(problems, f"{subject}run with it (trainer.finetune.from)")
        sides = [self.config, here.config]
        if forecasts:
            sides = [for_forecasts(side) for side in sides]
        names = _OF_FORECASTS if forecasts else (*_OF_FORECASTS, *_OF_TRAINING)
        is_whole = not begins and all("data" in side for side in sides)
        for name in names if is_whole else ():
            trained, other = (side.get(name) for side in sides)
            for key, recorded, value in differences(trained, other, name):
                if not _LEFT_OUT.fullmatch(key):
                    lines.append(line_of(key, recorded, value))
        changed = [
            key
            for key, digest in here.digests.items()
            if self.digests.get(key, digest) != digest
            and not key.startswith(("model.", "preblocks.", "postblocks."))
        ]
        if changed:
            lines.append(f"other contents of the files of {', '.join(changed)}")
        return [f"not as {self.where} was trained: {'; '.join(lines)}"][: len(lines)]

    def _model(self) -> dict[str, Any]:
        """The section `model`, with all defaults."""
        config = parse_model(self.config["model"])
        values = config.model_dump(mode="json")
        for key in config.files:
            *parents, last = key.split(".")
            parent = values
            for part in parents:
                parent = parent[part]
            parent[last] = self._content(f"model.{key}", parent[last])
        return values

    def _blocks(self, phase: Phase) -> list[tuple[str, str, dict[str, Any]]]:
        """Path, type and arguments of the blocks of a phase, with all defaults."""
        section, name = phase.value.split(".")
        written, blocks = (self.config.get(section) or {}).get(name) or {}, []
        for label, block in written.items():
            path, args = f"{phase.value}.{label}", block.get("args") or {}
            kind = TRANSFORMS[section].get(block["type"])
            with suppress(ConfigError):
                # Of another version, or of CREDIT, they may be invalid here.
                if kind is not None:
                    args = parse(kind, args, path).model_dump(mode="json")
            args = {k: self._content(f"{path}.args.{k}", x) for k, x in args.items()}
            blocks.append((path, block["type"], args))
        if phase in PREBLOCKS:
            return blocks
        # Forecasts put these in by themselves, as inverses of the preblocks.
        preblocks = chain.from_iterable(map(self._blocks, PREBLOCKS))
        kinds = [TRANSFORMS["preblocks"].get(name) for _, name, _ in preblocks]
        implied = {"reconstruct", *(kind.undone_by for kind in kinds if kind)}
        return [block for block in blocks if block[1] not in implied]

    def _content(self, key: str, value: Any) -> Any:
        """What is compared of an argument: the digest of a file, or the value."""
        digest = self.digests.get(key)
        return value if digest is None else f"{_DIGEST}{digest[:12]}"


def _without_warnings(function: Callable[..., Any], *args: Any) -> Any:
    """Calls a function; keys without effect were noted when the config was read."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return function(*args)


def _data(section: Mapping[str, Any]) -> dict[str, Any]:
    """What a data section says of the times of a sample, with all defaults."""
    step = section.get("timestep")
    return {
        "timestep": step and duration_text(duration(str(step))),
        "history_len": section.get("history_len") or 1,
        "time_encoding": section.get("time_encoding") or {},
    }


def _differences(
    run: RunRecord, here: RunRecord, forecasts: bool
) -> list[tuple[str, Any, Any]]:
    """Returns dotted key and both values of what changes the numbers of the model."""
    has_data = "data" in run.config and "data" in here.config
    differing = [*differences(run._model(), here._model(), "model")]
    if has_data:
        trained = _data(run.config["data"])
        differing += differences(trained, _data(here.config["data"]), "data")
        section = (here.config.get("inference") or {}).get("data")
        if forecasts and section:
            differing += differences(trained, _data(section), "inference.data")
    for phase in Phase if has_data else ():
        blocks = run._blocks(phase), here._blocks(phase)
        kinds = [", ".join(kind for _, kind, _ in each) for each in blocks]
        if kinds[0] != kinds[1]:
            recorded, value = (each or "no blocks" for each in kinds)
            differing.append((phase.value, recorded, value))
            continue
        # In their order, whatever they are called.
        for (_, _, recorded), (path, _, args) in zip(*blocks, strict=True):
            differing += differences(recorded, args, f"{path}.args")
    return differing


def differences(
    recorded: Any, here: Any, name: str = ""
) -> Iterator[tuple[str, Any, Any]]:
    """Yields dotted key and both values of every difference of two mappings.

    >>> [*differences({"data": {"timestep": "6h"}}, {"data": {"timestep": "12h"}})]
    [('data.timestep', '6h', '12h')]
    """
    if isinstance(recorded, Mapping) and isinstance(here, Mapping):
        for key in {**recorded, **here}:
            path = f"{name}.{key}" if name else str(key)
            yield from differences(recorded.get(key), here.get(key), path)
    elif recorded != here:
        yield name, recorded, here


def line_of(key: str, recorded: Any, here: Any) -> str:
    """One of `differences` for a note or an error."""
    return f"{key} ({got(recorded)} there, {got(here)} here)"
