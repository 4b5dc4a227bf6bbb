"""The plan of `trainer.finetune`: the base of a run, and what of the model is frozen.

It reads configs alone. What it finds is found before weights or data are read.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

from credit_jax.config import ConfigError
from credit_jax.config.base import check_problems
from credit_jax.config.data import DataConfig
from credit_jax.config.finetune import FinetuneConfig
from credit_jax.config.load import CONFIG_NAME, PACKAGE_NAME, config_of
from credit_jax.config.messages import counted
from credit_jax.config.yaml_file import read_yaml
from credit_jax.data import ChannelGroup, ChannelSchema
from credit_jax.data.schema import SCHEMA_FILE
from credit_jax.io.mirror import local_path
from credit_jax.models.channel_change import other_shapes
from credit_jax.models.common.config import ModelConfig
from credit_jax.models.conversion import key_map_for
from credit_jax.models.model_def import ModelDef
from credit_jax.models.registry import MODELS, build, parse_model
from credit_jax.named_fields.coordinates import Coordinates, CoordinateValues
from credit_jax.nn.low_rank import LowRank, is_matrix
from credit_jax.nn.parameters import COLLECTIONS
from credit_jax.plan.channels import schema_of
from credit_jax.state_dict.key_table import compare_shapes

_KEY = "trainer.finetune"
_FROM = f"{_KEY}.from"
_CHECKPOINTS = "checkpoints"
# Files in the folder of a checkpoint of CREDIT, of which `.metadata` is refused.
_TORCH = ("*.pt", "*.safetensors", ".metadata")
_LISTED = 4
# What keys of `model` mean for position biases, whose parameters are carried.
_OFFSETS = (
    ": the position bias is the same function of the offset in tokens, at offsets that "
    "the base has not seen where windows are larger"
)
_OF_POSITIONS = {
    "local_window_size": _OFFSETS,
    "global_window_size": _OFFSETS,
    "window_size": ": the position bias is a function of the offset relative to the "
    "window, and so another one of the offset in tokens",
}

BaseKind = Literal["run", "package", "torch"]


@dataclass(frozen=True)
class Base:
    """The run, package or checkpoint that a run begins with, by its files."""

    path: Path  # its path
    kind: BaseKind  # "run", "package", or "torch" for a checkpoint of CREDIT
    written: Mapping[str, Any]  # content of its model.yml
    key: str = _FROM  # key or option that names it, for errors

    @property
    def folder(self) -> Path:
        """The folder with its model.yml."""
        return self.path if self.path.is_dir() else self.path.parent

    @property
    def section(self) -> Mapping[str, Any]:
        return self.written["model"]


def find_base(named: str | Path, key: str = _FROM) -> Base:
    """Returns a base; only its model.yml is read."""
    path = Path(local_path(str(named)))
    if not path.exists():
        raise FileNotFoundError(
            f"{key}: {path}: no such file or folder; give the folder of a run, a "
            "model package, or a checkpoint of CREDIT"
        )
    folder = path if path.is_dir() else path.parent
    config = folder / CONFIG_NAME
    if not config.is_file():
        raise FileNotFoundError(
            f"{key}: {folder} has no {CONFIG_NAME}, which says what model its "
            "weights belong to; copy the config of that run there"
        )
    written = read_yaml(config)
    section = written.get("model")
    if not isinstance(section, Mapping) or not isinstance(section.get("type"), str):
        raise ValueError(f"{key}: {config}: has no model section with a type")
    return Base(path, kind_of(path), written, key)


def kind_of(path: str | Path) -> BaseKind:
    """What there is, by the names of files; a run where nothing says so."""
    path = Path(path)
    if (path / PACKAGE_NAME).is_file():
        return "package"
    names = [file for pattern in _TORCH for file in path.glob(pattern)]
    is_torch = path.is_file() or (names and not (path / _CHECKPOINTS).is_dir())
    return "torch" if is_torch else "run"


def check_base(base: Base, model_def: ModelDef, finetune: FinetuneConfig) -> None:
    """Checks that the weights of a base are those of a model."""
    check_type(base, model_def.config.type)
    base_def = build(base.section)
    model_def = replace(model_def, low_rank=None)  # the base has no adapters
    differ = list[str]()
    grids = [(d.image_height, d.image_width) for d in (base_def, model_def)]
    if grids[0] != grids[1] and not finetune.new_grid:
        (rows, columns), (height, width) = grids
        differ.append(
            f"its grid is {rows} x {columns}, expected {height} x {width} "
            f"({_KEY}.new_grid: true takes another one)"
        )
    if finetune.new_channels is None:
        shapes = [
            {path: spec.shape for path, spec in d.param_specs.items()}
            for d in (base_def, model_def)
        ]
        differ += compare_shapes(*shapes)
    else:
        differ += other_shapes(base_def, model_def)
    state, expected = base_def.model_state_shapes, model_def.model_state_shapes
    differ += [
        f"{name}: of {len(state[name])} arrays, expected {len(expected[name])}"
        for name in COLLECTIONS
        if state[name].keys() != expected[name].keys()
    ]
    if not differ:
        return
    keys = [
        f"model.{name}: {value}, in the base {previous}"
        for name, value, previous in _differing(model_def.config, base_def.config)
    ]
    raise ConfigError(
        [
            f"{_FROM}: the model of {base.path} has other arrays: "
            f"{_some(differ)}; give the model section of its {CONFIG_NAME}; here: "
            f"{_some(keys) or 'nothing differs'}"
        ]
    )


def base_channels(
    base: Base, coordinates: Coordinates | None = None
) -> ChannelSchema | None:
    """The channels of a base by its files, with the values of their levels."""
    folder, data = base.folder, config_data(base)
    if (folder / SCHEMA_FILE).is_file():
        schema = ChannelSchema.load(folder / SCHEMA_FILE)
    elif data is not None:
        schema = schema_of(data, parse_model(base.section))
    else:
        return None
    read = {} if coordinates is None else levels_read(coordinates)
    return with_levels(schema, levels_asked(data) | read)


def config_data(base: Base) -> DataConfig | None:
    """The `data:` section of a base; None if it has none that is valid."""
    with suppress(ValueError), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return config_of(base.written, forecasts=True).data
    return None


def levels_read(coordinates: Coordinates) -> dict[str, CoordinateValues]:
    """Source -> levels of its files that are read, where they are known."""
    levels = {name: axes.levels for name, axes in coordinates.sources.items()}
    return {name: values for name, values in levels.items() if values is not None}


def levels_asked(data: DataConfig | None) -> dict[str, CoordinateValues]:
    """Source -> its `levels`, where the config has some."""
    return {
        name: tuple(source.level_values)
        for name, source in ({} if data is None else data.source).items()
        if source.level_values is not None
    }


def with_levels(
    schema: ChannelSchema, levels: Mapping[str, CoordinateValues]
) -> ChannelSchema:
    """A schema whose 3-D variables have the levels of their sources, if as many."""

    def shared(group: ChannelGroup) -> ChannelGroup:
        values = levels.get(group.source, ())
        fits = "/3d/" in group.var_key and len(values) == group.n_levels
        return replace(group, levels=values) if fits else group

    parts = (tuple(map(shared, groups)) for groups in (schema.input, schema.target))
    return ChannelSchema(*parts)


def check_type(base: Base, model_type: str) -> None:
    """Raises a ConfigError if a base has a model of another type."""
    other = base.section["type"]
    types = [MODELS[name].module for name in (other, model_type) if name in MODELS]
    if len(types) < 2 or types[0] is not types[1]:
        raise ConfigError(
            [
                f"{base.key}: {base.path} has a model of type {other}, the config has "
                f"{model_type}; give a base of the same type"
            ]
        )


def notes_on_base(base: Base, model_def: ModelDef) -> list[str]:
    """Notes on keys of `model` by which the function of equal weights differs."""
    differing = _differing(model_def.config, build(base.section).config)
    return [
        f"{_FROM}: model.{name} is {value}, that of the base {previous}"
        + _OF_POSITIONS.get(name, "")
        for name, value, previous in differing
        if name != "type"
    ]


def _differing(
    current: ModelConfig, other: ModelConfig
) -> Iterator[tuple[str, str, str]]:
    """Keys with other values, and both values as a YAML may have them."""
    values, previous = (one.model_dump(mode="json") for one in (current, other))
    for name, value in values.items():
        # A base of another type may lack the key.
        if value != previous.get(name):
            yield name, json.dumps(value), json.dumps(previous.get(name))


def finetuned(model_def: ModelDef, finetune: FinetuneConfig | None) -> ModelDef:
    """Returns a model with the frozen parameters and the adapters of a config."""
    marked = replace(model_def, frozen=frozen_parameters(model_def, finetune))
    return replace(marked, low_rank=low_rank_of(marked, finetune))


def frozen_parameters(
    model_def: ModelDef, finetune: FinetuneConfig | None
) -> frozenset[str]:
    """Returns the paths of the parameters that a config freezes, by its patterns."""
    if finetune is not None and finetune.lora and not finetune.train:
        return frozenset(model_def.param_specs)
    if finetune is None or not (finetune.freeze or finetune.train):
        return frozenset()
    which = "freeze" if finetune.freeze else "train"
    origin = f"{_KEY}.{which}"
    patterns = finetune.freeze or finetune.train
    names = _names(model_def)
    matched = {
        path: [_matches(part, patterns) for part in parts]
        for path, parts in names.items()
    }
    problems = _unmatched(origin, patterns, names)
    problems += [
        f"{origin}: matches {sum(flags)} of the {len(flags)} blocks of {path!r}, which "
        "are one array; expected all of them, or none"
        for path, flags in matched.items()
        if any(flags) and not all(flags)
    ]
    chosen = {path for path, flags in matched.items() if any(flags)}
    frozen = chosen if which == "freeze" else names.keys() - chosen
    trained = model_def.trainable.keys() - frozen
    if not problems and not trained:
        problems = [f"{origin}: all parameters are frozen; nothing is left to train"]
    check_problems(problems)
    return frozenset(frozen)


def low_rank_of(model_def: ModelDef, finetune: FinetuneConfig | None) -> LowRank | None:
    """Returns the matrices that a config gives adapters, which are frozen."""
    lora = None if finetune is None else finetune.lora
    if lora is None:
        return None
    origin, names = f"{_KEY}.lora.targets", _names(model_def)
    problems = _unmatched(origin, lora.targets, names)
    targets = set[str]()
    for pattern in lora.targets:
        paths = [
            path
            for path, parts in names.items()
            if any(_matches(part, [pattern]) for part in parts)
        ]
        matrices = [path for path in paths if is_matrix(model_def.param_specs[path])]
        targets.update(matrices)
        if paths and not matrices:
            problems.append(
                f"{origin}: {pattern!r} matches no matrix of a dense layer or of a 1 x "
                f"1 convolution, but {_some(sorted(paths))}"
            )
    trained = sorted(targets - model_def.frozen)
    if trained and not problems:
        problems.append(
            f"{origin}: {_some(trained)} would be trained and have adapters; leave "
            "them out of train, or out of targets"
        )
    check_problems(problems)
    return LowRank(lora.rank, lora.alpha / lora.rank, frozenset(targets))


def matching(patterns: Sequence[str], model_def: ModelDef) -> list[str]:
    """Returns the patterns that match a parameter of a model."""
    names = [part for parts in _names(model_def).values() for part in parts]
    return [p for p in patterns if any(_matches(part, [p]) for part in names)]


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
    origin: str, patterns: Sequence[str], names: Mapping[str, list[tuple[str, ...]]]
) -> list[str]:
    """A line for each pattern that matches no parameter."""
    every = {name for parts in names.values() for part in parts for name in part}
    return [
        f"{origin}: {pattern!r} matches no parameter; there are "
        f"{_some(sorted(names))}: docs/parameters.md"
        for pattern in patterns
        if not _matches(every, [pattern])
    ]


def _some(lines: Iterable[str]) -> str:
    """The first lines, and how many there are more."""
    every = list(lines)
    more = len(every) - _LISTED
    return ", ".join(every[:_LISTED]) + (f" and {more} more" if more > 0 else "")
