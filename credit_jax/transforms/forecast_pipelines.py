"""The pipelines of forecasts, each made from that of a config.

A config says how a sample of training passes through its blocks. A forecast differs:

    for_forecast      it has no target, and feeds back physical units
    after_aligned     a later step combines fields that are on the model's grid already
    for_forcing       the forcing of a later step is read, and checked, by itself
    with_gradients    sensitivities and `trainer.backprop: full` go through what is fed
                      back
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from credit_jax.io.errors import errors_of
from credit_jax.transforms.base import Phase
from credit_jax.transforms.named import OUTPUT
from credit_jax.transforms.pipeline import Block, Pipeline
from credit_jax.transforms.post.reconstruct import Reconstruct, ReconstructArgs
from credit_jax.transforms.registry import TRANSFORMS


def with_gradients(pipeline: Pipeline) -> Pipeline:
    """Returns a copy in which `reconstruct` does not stop gradients."""
    return Pipeline(
        tuple(
            replace(block, transform=block.transform.attached())
            for block in pipeline.blocks
        )
    )


def with_reconstruct(pipeline: Pipeline) -> Pipeline:
    """Returns a copy that splits predictions to named fields after each step.

    A `reconstruct` of "y_pred" precedes the postblocks unless one is there.
    """
    phase, kind = Phase.AFTER_STEP, "reconstruct"
    if any(_splits(block, "y_pred") for block in pipeline.of(phase)):
        return pipeline
    args, entry = ReconstructArgs(), TRANSFORMS[phase.section][kind]
    path = f"{phase.value}.reconstruct_predictions"
    first = Block(path, kind, phase, entry, args, Reconstruct(args))
    preblocks = pipeline.preblocks
    return Pipeline((*preblocks, first, *pipeline.blocks[len(preblocks) :]))


def for_forecast(pipeline: Pipeline) -> Pipeline:
    """Returns a copy for forecasts, which have no target and need physical units.

    It lacks the postblocks of the target, that is of "y" and the entries made from it.
    It has the inverse of `era5_normalizer` after the `reconstruct` of predictions,
    unless a postblock is that inverse.

    Differs from CREDIT: its rollout fails at a block that needs "y", and feeds back
    fields that are still normalized.
    """
    # What is made of the target has its names from the blocks that make it.
    splits = [block for block in pipeline.blocks if _splits(block, "y")]
    of_target = {"y", *(block.argument("out_key") for block in splits)}
    blocks: list[Block] = []
    for block in pipeline.blocks:
        after_step = block.phase is Phase.AFTER_STEP
        entries = {block.argument(name) for name in ("in_key", "out_key", "key")}
        if after_step and entries & of_target:
            continue
        blocks.append(block)
        # As soon as fields have names: the blocks after it take physical units.
        if after_step and _splits(block, "y_pred") and OUTPUT in entries:
            blocks += _inverses(pipeline)
    return Pipeline(tuple(blocks))


def _splits(block: Block, entry: str) -> bool:
    """Whether a block is the `reconstruct` of an entry."""
    return block.type == "reconstruct" and block.argument("in_key") == entry


def _inverses(pipeline: Pipeline) -> Iterator[Block]:
    """The inverses of the normalizers of every step, unless a postblock is one."""
    types = {block.type for block in pipeline.of(Phase.AFTER_STEP)}
    # The last preblock is undone first; statistics have the names before renames.
    origins: dict[str, str] = {}
    for block in reversed(pipeline.of(Phase.BEFORE_STEP)):
        origins = block.transform.origins(origins)
        undo = block.transform.restoring(origins)
        if undo is not None and block.type not in types:
            yield replace(block, phase=Phase.AFTER_STEP, transform=undo)


def after_aligned(pipeline: Pipeline) -> Pipeline:
    """Returns a copy for fields to which `Pipeline.aligned` has been applied.

    It lacks the blocks of every step that move fields to another grid or to other
    levels.

    Raises:
        ValueError: a block before such a one changes its variables, so that the two
            cannot be exchanged, or one interpolates predicted and other variables.
    """
    steps = pipeline.of(Phase.BEFORE_STEP)
    for index, block in enumerate(steps):
        if block.moves_fields:
            with errors_of(block.path):
                variables = block.transform.variables_read()
            for before in steps[:index]:
                _check_exchange(before, block, variables)
    return Pipeline(
        tuple(
            block
            for block in pipeline.blocks
            if block.phase is not Phase.BEFORE_STEP or not block.moves_fields
        )
    )


def _check_exchange(before: Block, block: Block, variables: Sequence[str]) -> None:
    """Checks that a block does not change some variables, except for their names."""
    altered = [key for key in variables if before.transform.changes(key)]
    if altered and not before.moves_fields:
        raise ValueError(
            f"{block.path} takes {altered[0]} after {before.path} (type "
            f"{before.type}) has changed it; in a forecast of several steps the block "
            f"of type {block.type} must come first"
        )


def for_forcing(pipeline: Pipeline) -> Pipeline:
    """Returns a copy for the dynamic forcing of a later step by itself.

    It has the preblocks that later steps apply to it. Where one may combine forcing
    with other fields, it normalizes nothing.
    """
    steps = [b for b in pipeline.of(Phase.BEFORE_STEP) if not b.moves_fields]
    alone = all(block.transform.by_field for block in steps)

    def applies(block: Block) -> bool:
        if block.moves_fields or block.transform.renames:
            return True
        by_itself = block.transform.by_field
        applies_alone = by_itself and (alone or block.transform.keeps_units)
        return block.phase is Phase.BEFORE_STEP and applies_alone

    return Pipeline(tuple(filter(applies, pipeline.preblocks)))
