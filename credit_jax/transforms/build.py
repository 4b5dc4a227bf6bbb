"""Builds the transforms of a config: their types, arguments, files and places.

Each type registers itself when its module is imported, which this one does for all.
"""

from __future__ import annotations

from collections.abc import Collection

from credit_jax.config import ConfigError
from credit_jax.config.transforms import PostblocksConfig, PreblocksConfig
from credit_jax.io.errors import errors_of
from credit_jax.transforms import (
    channels,
    conservation,
    diagnostics,
    filters,
    levels,
    normalize,
    pointwise,
    regrid,
    scaling,
)
from credit_jax.transforms.base import PREBLOCKS, TRANSFORMS, Phase, Where
from credit_jax.transforms.pipeline import Block, Pipeline, names_after

_MODULES = (channels, normalize, pointwise, regrid, scaling, levels)
_MODULES = (*_MODULES, conservation, diagnostics, filters)


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
    pipeline = parse_pipeline(preblocks, postblocks)
    types = [block.type for block in pipeline.preblocks]
    after = types[types.index("concat") + 1 :] if "concat" in types else types
    if types.count("concat") != 1 or set(after) - {"to_device"}:
        paths = ", ".join(block.path for block in pipeline.preblocks)
        raise ValueError(
            "preblocks must end with one block of type concat, which makes x and y "
            f"(only to_device may follow); got: {paths or 'no blocks'}"
        )
    for block in pipeline.blocks:
        with errors_of(block.path):
            block.transform.open()
    for phase in Phase:
        blocks = pipeline.of(phase)
        host, traced = (
            [block.path for block in blocks if block.transform.where is part]
            for part in (Where.HOST, Where.TRACED)
        )
        if host and traced:
            raise ValueError(
                f"{phase.value} cannot run in one place: on the host only "
                f"{', '.join(host)}; in the traced step only {', '.join(traced)}"
            )
    return pipeline


def parse_pipeline(
    preblocks: PreblocksConfig,
    postblocks: PostblocksConfig | None = None,
    *,
    types: Collection[str] | None = None,
) -> Pipeline:
    """Validates the transforms of a config, without reading their files.

    Args:
        preblocks: the preblocks section.
        postblocks: the postblocks section; None is an empty one.
        types: types of the blocks to return; None is all.
    """
    blocks, problems = [], []
    for phase in Phase:
        section = preblocks if phase in PREBLOCKS else postblocks or PostblocksConfig()
        for name, config in getattr(section, phase.value.split(".")[1]).items():
            path = f"{phase.value}.{name}"
            if types is not None and config.type not in types:
                continue
            try:
                registry = TRANSFORMS[phase.section]
                transform = registry.parse(config.type, config.args, path)
                if phase not in transform.phases:
                    expected = " or ".join(each.value for each in transform.phases)
                    problem = f"{path}.type: {config.type} belongs into {expected}"
                    raise ConfigError([problem])
                blocks.append(Block(path, config.type, phase, transform))
            except ConfigError as error:
                problems += error.problems
    if problems:
        raise ConfigError(problems)
    return Pipeline(tuple(blocks))


def predicted_names(
    preblocks: PreblocksConfig,
) -> tuple[dict[str, str], frozenset[str]]:
    """The keys that predicted variables have in the model's output, if other ones.

    It builds only the blocks of type rename and hybrid_level_interp.

    Returns:
        Key in the data -> key after all preblocks; and the keys in the data of those
        that are brought to other levels.
    """
    blocks = parse_pipeline(preblocks, types=("rename", "hybrid_level_interp")).blocks
    moved: set[str] = set()
    for index, block in enumerate(blocks):
        if block.type == "rename":
            with errors_of(block.path):
                block.transform.open()
            continue
        origins = {new: old for old, new in names_after(blocks[:index]).items()}
        keys = filter(levels.is_predicted, block.argument("variables"))
        moved |= {origins.get(key, key) for key in keys}
    return names_after(blocks), frozenset(moved)
