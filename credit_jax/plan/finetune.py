"""The plan of `trainer.finetune`: the base of a run, and what of the model is frozen.

It reads configs alone. What it finds is found before weights or data are read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

from credit_jax.config.base import ConfigError
from credit_jax.config.finetune import FinetuneConfig
from credit_jax.config.load import CONFIG_NAME, PACKAGE_NAME
from credit_jax.config.messages import counted
from credit_jax.config.yaml_file import read_yaml
from credit_jax.models.conversion import key_map_for
from credit_jax.models.model_def import ModelDef
from credit_jax.models.registry import MODELS, build
from credit_jax.state_dict.problems import compare_shapes

_KEY = "trainer.finetune"
_FROM = f"{_KEY}.from"
_CHECKPOINTS = "checkpoints"
_LISTED = 4

BaseKind = Literal["run", "package", "torch"]


@dataclass(frozen=True)
class Base:
    """The run, package or checkpoint that a run begins with, by its files.

    Attributes:
        path: its path.
        kind: "run", "package", or "torch" for a checkpoint of CREDIT.
        written: content of its model.yml.
    """

    path: Path
    kind: BaseKind
    written: Mapping[str, Any]

    @property
    def section(self) -> Mapping[str, Any]:
        """The `model:` section."""
        return self.written["model"]


def find_base(finetune: FinetuneConfig) -> Base:
    """Returns the base of a run; only its model.yml is read.

    Raises:
        FileNotFoundError: there is no such path, or no model.yml.
        ValueError: model.yml has no `model` section.
    """
    path = Path(finetune.base)
    if not path.exists():
        raise FileNotFoundError(
            f"{_FROM}: {path}: no such file or folder; give the folder of a run, a "
            "model package, or a checkpoint of CREDIT"
        )
    folder = path if path.is_dir() else path.parent
    config = folder / CONFIG_NAME
    if not config.is_file():
        raise FileNotFoundError(
            f"{_FROM}: {folder} has no {CONFIG_NAME}, which says what model its "
            "weights belong to; copy the config of that run there"
        )
    written = read_yaml(config)
    section = written.get("model")
    if not isinstance(section, Mapping) or not isinstance(section.get("type"), str):
        raise ValueError(f"{_FROM}: {config}: has no model section with a type")
    kind: BaseKind = "torch"
    if path.is_dir() and (path / PACKAGE_NAME).is_file():
        kind = "package"
    elif path.is_dir() and (path / _CHECKPOINTS).is_dir():
        kind = "run"
    return Base(path, kind, written)


def check_base(base: Base, model_def: ModelDef) -> None:
    """Checks that the weights of a base are those of a model.

    Raises:
        ConfigError: it has a model of another type, on another grid, or with parameters
            of other shapes; lists the keys of `model` that differ.
    """
    check_type(base, model_def.config.type)
    base_def = build(base.section)
    differ = compare_shapes(_shapes(base_def), _shapes(model_def))
    if not differ:
        return
    keys = [
        f"model.{name}: {value!r}, in the base {before!r}"
        for name, value, before in _differing(model_def.config, base_def.config)
    ]
    raise ConfigError(
        [
            f"{_FROM}: the model of {base.path} has other arrays: "
            f"{_some(differ)}; give the model section of its {CONFIG_NAME}; here: "
            f"{_some(keys) or 'nothing differs'}"
        ]
    )


def check_type(base: Base, model_type: str) -> None:
    """Raises a ConfigError if a base has a model of another type."""
    theirs = base.section["type"]
    types = [MODELS[name].module for name in (theirs, model_type) if name in MODELS]
    if len(types) < 2 or types[0] is not types[1]:
        raise ConfigError(
            [
                f"{_FROM}: {base.path} has a model of type {theirs}, the config has "
                f"{model_type}; give a base of the same type"
            ]
        )


def _shapes(model_def: ModelDef) -> dict[str, tuple[int, ...]]:
    """Shapes of the grid and of all parameters."""
    shapes = {path: spec.shape for path, spec in model_def.param_specs.items()}
    return {"grid": (model_def.image_height, model_def.image_width), **shapes}


def notes_on_base(base: Base, model_def: ModelDef) -> list[str]:
    """Notes on keys of `model` by which the function of equal weights differs."""
    differing = _differing(model_def.config, build(base.section).config)
    return [
        f"{_FROM}: model.{name} is {value!r}, that of the base {before!r}"
        for name, value, before in differing
        if name != "type"
    ]


def _differing(ours: Any, theirs: Any) -> Iterator[tuple[str, Any, Any]]:
    for name in type(ours).model_fields:
        value, before = getattr(ours, name), getattr(theirs, name, None)
        if value != before:
            yield name, value, before


def frozen_parameters(
    model_def: ModelDef, finetune: FinetuneConfig | None
) -> frozenset[str]:
    """Returns the paths of the parameters that a config freezes.

    Args:
        model_def: the model, without such parameters.
        finetune: patterns of paths, or of CREDIT's keys; None freezes nothing.

    Raises:
        ConfigError: a pattern matches nothing, or some blocks of a stage alone; or
            nothing is left to train.
    """
    if finetune is None or not (finetune.freeze or finetune.train):
        return frozenset()
    which = "freeze" if finetune.freeze else "train"
    where = f"{_KEY}.{which}"
    patterns = finetune.freeze or finetune.train
    names = _names(model_def)
    matched = {
        path: [_matches(part, patterns) for part in parts]
        for path, parts in names.items()
    }
    problems = _unmatched(where, patterns, names)
    problems += [
        f"{where}: matches {sum(flags)} of the {len(flags)} blocks of {path!r}, which "
        "are one array; expected all of them, or none"
        for path, flags in matched.items()
        if any(flags) and not all(flags)
    ]
    chosen = {path for path, flags in matched.items() if any(flags)}
    frozen = chosen if which == "freeze" else names.keys() - chosen
    trained = model_def.trainable.keys() - frozen
    if not problems and not trained:
        problems = [f"{where}: all parameters are frozen; nothing is left to train"]
    if problems:
        raise ConfigError(problems)
    return frozenset(frozen)


def note_on_frozen(model_def: ModelDef) -> str:
    """Says how many parameters are trained, and which are frozen by the config."""
    frozen = sorted(model_def.frozen)
    trained = sum(spec.size for spec in model_def.trainable.values())
    return (
        f"{_KEY}: {trained:,} of {model_def.num_parameters:,} parameters "
        f"are trained; {counted(len(frozen), 'array')} frozen: {_some(frozen)}"
    )


def _names(model_def: ModelDef) -> dict[str, list[tuple[str, ...]]]:
    """Path -> the names of each of its blocks: the path, and CREDIT's keys."""
    names = {path: [(path,)] for path in model_def.param_specs}
    if MODELS[model_def.config.type].key_table is None:
        return names
    by_path: dict[str, list[tuple[str, ...]]] = {}
    for entry in key_map_for(model_def).parameters.entries:
        # With spectral norm PyTorch registers "weight" as "weight_orig".
        keys = dict.fromkeys((entry.key, entry.key.removesuffix("_orig")))
        by_path.setdefault(entry.path, []).append((entry.path, *keys))
    return names | by_path


def _matches(names: Iterable[str], patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for name in names for pattern in patterns)


def _unmatched(
    where: str, patterns: Sequence[str], names: Mapping[str, list[tuple[str, ...]]]
) -> list[str]:
    """A line for each pattern that matches no parameter."""
    every = {name for parts in names.values() for part in parts for name in part}
    return [
        f"{where}: {pattern!r} matches no parameter; there are "
        f"{_some(sorted(names))}: docs/parameters.md"
        for pattern in patterns
        if not _matches(every, [pattern])
    ]


def _some(lines: Iterable[str]) -> str:
    """The first lines, and how many there are more."""
    every = list(lines)
    more = len(every) - _LISTED
    return ", ".join(every[:_LISTED]) + (f" and {more} more" if more > 0 else "")
