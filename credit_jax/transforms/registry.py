"""Blocks by CREDIT's type names, built in the order of the config."""

from collections.abc import Mapping, Sequence
from typing import Any

from credit_jax.config.base import ConfigError, not_available, parse
from credit_jax.config.transforms import (
    PostblocksConfig,
    PreblocksConfig,
    TransformConfig,
)
from credit_jax.transforms.base import Batch, Block, Entry, Group
from credit_jax.transforms.post.reconstruct import Reconstruct, ReconstructArgs
from credit_jax.transforms.pre.concat import (
    ConcatArgs,
    ToDeviceArgs,
    build_concat,
    build_to_device,
    concatenate,
)
from credit_jax.transforms.pre.normalize import (
    Normalizer,
    NormalizerArgs,
    build_normalizer,
)

PREBLOCKS: dict[str, Entry] = {
    "concat": (ConcatArgs, build_concat),
    "era5_normalizer": (NormalizerArgs, build_normalizer),
    "to_device": (ToDeviceArgs, build_to_device),
}
POSTBLOCKS: dict[str, Entry] = {"reconstruct": (ReconstructArgs, Reconstruct)}


def build_preblocks(config: PreblocksConfig) -> dict[str, Block]:
    """The chain from samples to x and y: `ic_only` blocks, then `per_step` ones.

    Args:
        config: the preblocks section.

    Returns:
        Path of the block in the config -> block, in the order they run.

    Raises:
        ConfigError: for unknown types and arguments, all at once.
        ValueError: if the chain does not end with concat, or a block's files are bad.
    """
    chain = _build("preblocks", config, ("ic_only", "per_step"), PREBLOCKS)
    joins = [path for path, block in chain.items() if block is concatenate]
    if len(joins) != 1 or list(chain)[-1] != joins[0]:
        raise ValueError(
            "preblocks must end with one block of type concat, which makes x and y; "
            f"got: {', '.join(chain) or 'no blocks'}"
        )
    return chain


def build_postblocks(
    config: PostblocksConfig, phase: str = "per_step"
) -> dict[str, Block]:
    """The blocks of one phase, from the model's output to named fields.

    Args:
        config: the postblocks section.
        phase: "per_step" or "post_rollout".
    """
    return _build("postblocks", config, (phase,), POSTBLOCKS)


def apply_transforms(blocks: Mapping[str, Block], batch: Batch) -> dict[str, Any]:
    """Run blocks one after the other."""
    for block in blocks.values():
        batch = block(batch)
    return dict(batch)


def find_normalizer(blocks: Mapping[str, Block]) -> Normalizer | None:
    """The normalizer of a chain of preblocks, or None.

    Raises:
        ValueError: if there are two.
    """
    found = {path: b for path, b in blocks.items() if isinstance(b, Normalizer)}
    if len(found) > 1:
        raise ValueError(
            f"preblocks normalize twice: {', '.join(found)}; keep one era5_normalizer"
        )
    return next(iter(found.values()), None)


def check_transforms(blocks: Mapping[str, Block], groups: Sequence[Group]) -> None:
    """Check that the files of blocks fit the variables of a channel layout."""
    normalizer = find_normalizer(blocks)
    if normalizer is not None:
        normalizer.check(groups)


def _build(
    section: str,
    config: PreblocksConfig | PostblocksConfig,
    phases: Sequence[str],
    registry: Mapping[str, Entry],
) -> dict[str, Block]:
    wanted: dict[str, TransformConfig] = {
        f"{section}.{phase}.{name}": block
        for phase in phases
        for name, block in getattr(config, phase).items()
    }
    args, problems = {}, []
    for path, block in wanted.items():
        if block.type not in registry:
            error = not_available(f"{section[:-1]} type", block.type, registry)
            problems.append(f"{path}.type: {error}")
            continue
        try:
            args[path] = parse(registry[block.type][0], block.args, f"{path}.args")
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(problems)
    return {path: registry[wanted[path].type][1](args[path]) for path in wanted}
