"""Builds the transforms of a config: their types, arguments, files and places."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from credit_jax.config import ConfigError, not_available, parse
from credit_jax.config.transforms import (
    PostblocksConfig,
    PreblocksConfig,
    TransformConfig,
)
from credit_jax.io.errors import errors_of
from credit_jax.transforms.base import (
    PREBLOCKS,
    Phase,
    Where,
    as_transform,
)
from credit_jax.transforms.levels import LevelInterpPreArgs, is_predicted
from credit_jax.transforms.pipeline import Block, Pipeline
from credit_jax.transforms.registry import TRANSFORMS, transform_types


def build_pipeline(
    preblocks: PreblocksConfig, postblocks: PostblocksConfig | None = None
) -> Pipeline:
    """Builds the transforms of a config, and reads their files.

    Args:
        preblocks: the preblocks section.
        postblocks: the postblocks section; None is an empty one.

    Raises:
        ConfigError: types or arguments are unknown or invalid; all are listed.
        ValueError: the preblocks do not end with concat, a phase has transforms that
            run on the host only and others that run traced only, or a file has invalid
            content.
        OSError: a file cannot be read.
    """
    sections = [*_sections(preblocks, postblocks or PostblocksConfig())]
    args, problems = {}, []
    for phase, path, config in sections:
        try:
            args[path] = _parsed(phase, path, config)
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(problems)
    _check_concat([(p, c.type) for phase, p, c in sections if phase in PREBLOCKS])
    blocks = tuple(_build(*each, args[each[1]]) for each in sections)
    _check_places(blocks)
    return Pipeline(blocks)


def parse_preblocks(
    preblocks: PreblocksConfig,
) -> list[tuple[str, TransformConfig, Any, Callable[[], Block]]]:
    """Validates the preblocks of a config, without reading their files.

    Returns:
        Path, section and validated arguments of each, in execution order, and a
        function that builds it, see `build_pipeline`.

    Raises:
        ConfigError: a type or an argument is unknown or invalid.
    """
    parsed = []
    for phase, path, config in _sections(preblocks, PostblocksConfig()):
        args = _parsed(phase, path, config)
        parsed.append((path, config, args, partial(_build, phase, path, config, args)))
    return parsed


def predicted_names(
    preblocks: PreblocksConfig,
) -> tuple[dict[str, str], frozenset[str]]:
    """The keys that predicted variables have in the model's output, if other ones.

    It builds only the blocks of type rename.

    Args:
        preblocks: the preblocks section.

    Returns:
        Key in the data -> key after all preblocks; and the keys in the data of those
        that are brought to other levels.

    Raises:
        ConfigError: an argument of a rename or of an interpolation is unknown or
            invalid.
        ValueError, OSError: the file of a rename is invalid, or cannot be read.
    """
    names: dict[str, str] = {}
    moved: set[str] = set()
    for phase, path, config in _sections(preblocks, PostblocksConfig()):
        if config.type == "hybrid_level_interp":
            args = _parsed(phase, path, config)
            assert isinstance(args, LevelInterpPreArgs)
            origins = {new: old for old, new in names.items()}
            moved |= {origins.get(k, k) for k in filter(is_predicted, args.variables)}
        if config.type == "rename":
            args = _parsed(phase, path, config)
            rename = _build(phase, path, config, args).transform
            names = rename.predicted_names(names)
    return names, frozenset(moved)


def _build(phase: Phase, path: str, config: TransformConfig, args: Any) -> Block:
    entry = TRANSFORMS[phase.section][config.type]
    with errors_of(path):
        transform = as_transform(entry.build(args))
    return Block(path, config.type, phase, entry, args, transform)


def _sections(
    preblocks: PreblocksConfig, postblocks: PostblocksConfig
) -> Iterator[tuple[Phase, str, TransformConfig]]:
    """Phase, path and config of every transform, in execution order."""
    for phase in Phase:
        section = preblocks if phase in PREBLOCKS else postblocks
        for name, config in getattr(section, phase.value.split(".")[1]).items():
            yield phase, f"{phase.value}.{name}", config


def _parsed(phase: Phase, path: str, config: TransformConfig) -> Any:
    """Validates the arguments of one transform."""
    known = transform_types(phase.section)
    if config.type not in known:
        error = not_available(f"{phase.section[:-1]} type", config.type, known)
        raise ConfigError([f"{path}.type: {error}"])
    entry = TRANSFORMS[phase.section][config.type]
    if phase not in entry.phases:
        expected = " or ".join(allowed.value for allowed in entry.phases)
        raise ConfigError([f"{path}.type: {config.type} belongs into {expected}"])
    return parse(entry.args, config.args, f"{path}.args")


def _check_concat(preblocks: Sequence[tuple[str, str]]) -> None:
    """Checks that the preblocks, (path, type), end with one concat (and to_device)."""
    types = [name for _, name in preblocks]
    after = types[types.index("concat") + 1 :] if "concat" in types else types
    if types.count("concat") != 1 or set(after) - {"to_device"}:
        paths = ", ".join(path for path, _ in preblocks)
        raise ValueError(
            "preblocks must end with one block of type concat, which makes x and y "
            f"(only to_device may follow); got: {paths or 'no blocks'}"
        )


def _check_places(blocks: Sequence[Block]) -> None:
    """Checks that each phase can run on the host, or traced."""
    for phase in Phase:
        of_phase = [block for block in blocks if block.phase is phase]
        only = {w: [b.path for b in of_phase if b.entry.where is w] for w in Where}
        if only[Where.HOST] and only[Where.TRACED]:
            raise ValueError(
                f"{phase.value} cannot run in one place: on the host only "
                f"{', '.join(only[Where.HOST])}; in the traced step only "
                f"{', '.join(only[Where.TRACED])}"
            )
