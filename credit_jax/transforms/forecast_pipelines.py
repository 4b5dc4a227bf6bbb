"""The pipelines of forecasts, each made from that of a config.

A config says how a sample of training passes through its blocks. A forecast differs:

    for_forecast      it has no target, and feeds back physical units
    after_aligned     a later step combines fields that are on the model's grid already
    for_forcing       the forcing of a later step is read, and checked, by itself
    with_gradients    sensitivities and `trainer.backprop: full` go through what is fed
                      back
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from credit_jax.named_fields.coordinates import GridCoordinates
from credit_jax.named_fields.tree import by_key, by_source
from credit_jax.transforms import base
from credit_jax.transforms.base import FieldTree, Phase, StepContext, TreeSchema
from credit_jax.transforms.channels import Reconstruct
from credit_jax.transforms.levels import LevelInterpPreblock, is_predicted
from credit_jax.transforms.pipeline import Block, Pipeline, origins_of


def with_gradients(pipeline: Pipeline) -> Pipeline:
    """Returns a copy in which `reconstruct` does not stop gradients."""
    attached = {"detach": False}
    return Pipeline(
        tuple(
            replace(block, transform=block.transform.model_copy(update=attached))
            if isinstance(block.transform, Reconstruct)
            else block
            for block in pipeline.blocks
        )
    )


def with_reconstruct(pipeline: Pipeline) -> Pipeline:
    """Returns a copy that splits predictions to named fields after each step."""
    # A `reconstruct` of "y_pred" precedes the postblocks unless one is there.
    phase, kind = Phase.AFTER_STEP, "reconstruct"
    if any(_splits(block, "y_pred") for block in pipeline.of(phase)):
        return pipeline
    path = f"{phase.value}.reconstruct_predictions"
    first = Block(path, kind, phase, Reconstruct())
    preblocks = pipeline.preblocks
    return Pipeline((*preblocks, first, *pipeline.blocks[len(preblocks) :]))


def for_forecast(pipeline: Pipeline) -> Pipeline:
    """Returns a copy for forecasts, which have no target and need physical units."""
    # Differs from CREDIT: its rollout fails at a block that needs "y", and feeds back
    # fields that are still normalized, in training and in forecasts.
    # What is made of the target has its names from the blocks that make it.
    splits = [block for block in pipeline.blocks if _splits(block, "y")]
    of_target = {"y", *(block.argument("out_key") for block in splits)}
    blocks = [
        block
        for block in pipeline.blocks
        if not isinstance(block.transform, Inverse)
        and not (
            block.phase is Phase.AFTER_STEP
            and {block.argument(key) for key in ("in_key", "out_key", "key")}
            & of_target
        )
    ]
    # The inverses of what `preblocks.per_step` make of the values of predicted
    # variables, of the last block first, where no postblock undoes it: after the
    # `reconstruct` of predictions, as the blocks that follow take physical units, or
    # after the inverse of a later preblock. Training of several steps feeds back what
    # these blocks make (`rollout.Advance`).
    index = 1 + _index_of_output(blocks)
    # Nothing is undone of a prediction that is not split.
    steps = pipeline.of(Phase.BEFORE_STEP) if index else ()
    for position, block in [*enumerate(steps)][::-1]:
        if block.transform.undone_by is None:
            continue
        undone = [b for b in blocks if _undoes(b, {block.transform.undone_by})]
        inverse = Inverse(
            transform=block.transform,
            input_names=origins_of(steps[position:]),
            undone=tuple(each.transform for each in undone),
        )
        new = replace(block, phase=Phase.AFTER_STEP, transform=inverse)
        blocks.insert(index, new)
        index = 1 + max(index, *map(blocks.index, undone)) if undone else index + 1
    return Pipeline(tuple(blocks))


class Inverse(base.Transform):
    """Undoes a preblock for the predicted variables that no postblock restores.

    Attributes:
        transform: the preblock.
        input_names: key of a predicted variable -> its key before the preblock, if
            another.
        undone: postblocks that undo it for the variables that they select.
    """

    transform: base.Transform
    input_names: Mapping[str, str]
    undone: tuple[base.Transform, ...] = ()

    @property
    def where(self) -> base.Where:  # type: ignore[override]
        return self.transform.where

    @property
    def reach(self) -> base.Reach:  # type: ignore[override]
        return self.transform.reach

    def names(self, keys: Iterable[str]) -> dict[str, str]:
        """Those of some predicted variables that it restores, with their origins."""
        names = {key: self.input_names.get(key, key) for key in keys}
        return {
            key: name
            for key, name in names.items()
            if "target" in self.transform.entries()
            and self.transform.changes(name)
            and not any(post.changes(key) for post in self.undone)
        }

    def __call__(self, tree: FieldTree, context: StepContext = None) -> dict[str, Any]:
        """Restores the fields of "y_processed"."""
        fields = by_key(tree[base.OUTPUT])
        names = self.names(fields)
        if not names:
            return dict(tree)
        previous = by_source({name: fields[key] for key, name in names.items()})
        after = by_key(self.transform.inverse({"target": previous}, context)["target"])
        restored = {key: after[name] for key, name in names.items()}
        return {**tree, base.OUTPUT: by_source({**fields, **restored})}

    @property
    def level_files(self) -> Sequence[base.LevelFile]:
        return self.transform.level_files

    def at(self, schema: TreeSchema, grid: GridCoordinates) -> Inverse:
        """Returns the block with the files of the preblock in the order of the data."""
        names = self.input_names
        previous = {
            part: [replace(g, var_key=names.get(g.var_key, g.var_key)) for g in groups]
            for part, groups in schema.items()
        }
        transform = self.transform.at(previous, grid)
        equal = transform is self.transform
        return self if equal else self.model_copy(update={"transform": transform})


def check_feedback(pipeline: Pipeline, counts: Mapping[str, int]) -> None:
    """Checks that the postblocks undo what the preblocks of every step do."""
    # Two values of each channel go through the postblocks that undo preblocks, through
    # these, and through the postblocks again: they are the first ones where the next
    # step takes what the model was trained to take.
    previous = [
        block
        for block in pipeline.of(Phase.BEFORE_STEP)
        if block.transform.undone_by is not None or block.transform.effects.renames
    ]
    every = (
        *base.TRANSFORMS["preblocks"].values(),
        *(block.transform for block in previous),
    )
    types = {each.undone_by for each in every} - {None}
    after = [
        block
        for block in pipeline.of(Phase.AFTER_STEP)
        if _undoes(block, types) or isinstance(block.transform, Inverse)
    ]
    blocks = (*previous, *after)
    reaches = {block.transform.reach for block in blocks}
    by_channel = reaches <= {base.Reach.CHANNEL, base.Reach.COLUMN}
    if _index_of_output(pipeline.blocks) < 0 or not by_channel:
        return

    def undone(fields: Mapping[str, Any]) -> dict[str, Any]:
        tree: FieldTree = {base.OUTPUT: by_source(fields)}
        for block in after:
            tree = block(tree)
        return by_key(tree[base.OUTPUT])

    values = np.array([0.3, 0.6], np.float32)
    fields = {k: np.broadcast_to(values, (1, n, 1, 1, 2)) for k, n in counts.items()}
    physical = undone(fields)
    tree = pipeline.with_input_names({"target": by_source(physical)})
    for block in previous:
        tree = block(tree)
    again = undone(by_key(tree["target"]))
    for key, first in physical.items():
        error = np.abs(again[key] - first)
        bound = 1e-2 * np.ptp(first, axis=-1, keepdims=True) + 1e-5 * np.abs(first)
        if not (error <= bound).all():
            paths = ", ".join(b.path for b in blocks if b.transform.changes(key))
            raise ValueError(
                f"{key} is another field when it is fed back: {paths or 'a rename'} do "
                "not undo each other; undo every block of preblocks.per_step, with its "
                "own arguments and files, in postblocks.per_step (the last one first), "
                "or give no such block there, as inverses are then put in; what "
                "preblocks.ic_only do is not done again for later steps"
            )


def missing_inverses(pipeline: Pipeline, keys: Iterable[str]) -> list[Block]:
    """The inverses that a pipeline lacks to feed predicted variables back."""
    if any(isinstance(block.transform, Inverse) for block in pipeline.blocks):
        return []
    return [
        block
        for block in for_forecast(pipeline).of(Phase.AFTER_STEP)
        if isinstance(block.transform, Inverse) and block.transform.names(keys)
    ]


def _undoes(block: Block, types: Collection[str | None]) -> bool:
    """Whether a postblock undoes preblocks, those of some types of postblocks."""
    is_after = block.phase is Phase.AFTER_STEP
    return is_after and block.type in types and block.argument("key") == base.OUTPUT


def _index_of_output(blocks: Sequence[Block]) -> int:
    """Index of the block that splits predictions; -1 if there is none."""
    makes_output = [
        block.phase is Phase.AFTER_STEP
        and _splits(block, "y_pred")
        and block.argument("out_key") == base.OUTPUT
        for block in blocks
    ]
    return makes_output.index(True) if any(makes_output) else -1


def _splits(block: Block, entry: str) -> bool:
    """Whether a block is the `reconstruct` of an entry."""
    return block.type == "reconstruct" and block.argument("in_key") == entry


def after_aligned(pipeline: Pipeline) -> Pipeline:
    """Returns a copy for fields to which `Pipeline.aligned` has been applied."""
    # It lacks the blocks of every step that move fields to another grid or to other
    # levels.
    steps = pipeline.of(Phase.BEFORE_STEP)
    for index, block in enumerate(steps):
        moved = block.transform.effects.moves
        if moved and isinstance(block.transform, LevelInterpPreblock):
            # Those read anew in every step need the pressure that is predicted there.
            predicted = [*filter(is_predicted, block.transform.variables)]
            others = [k for k in block.transform.variables if k not in predicted]
            if others:
                raise ValueError(
                    f"{block.path}: it interpolates {predicted[0]}, which a model "
                    f"predicts on the new levels, and {others[0]}, which it does not "
                    "predict; in a forecast of several steps they need blocks of their "
                    "own"
                )
        for previous in steps[:index]:
            altered = [key for key in moved if previous.transform.changes(key)]
            repeats = previous.transform.may_repeat
            if altered and not (previous.transform.effects.moves or repeats):
                raise ValueError(
                    f"{block.path} takes {altered[0]} after {previous.path} (type "
                    f"{previous.type}) has changed it; in a forecast of several steps "
                    f"the block of type {block.type} must come first"
                )
    return Pipeline(
        tuple(
            block
            for block in pipeline.blocks
            if block.phase is not Phase.BEFORE_STEP or not block.transform.effects.moves
        )
    )


def for_forcing(pipeline: Pipeline) -> Pipeline:
    """Returns a copy for the dynamic forcing of a later step by itself."""
    # It has the preblocks that later steps apply to it. Where one may combine forcing
    # with other fields, it normalizes nothing.
    steps = [b for b in pipeline.of(Phase.BEFORE_STEP) if not b.transform.effects.moves]
    alone = all(block.by_field for block in steps)

    def applies(block: Block) -> bool:
        if block.transform.effects.moves or block.transform.effects.renames:
            return True
        applies_alone = alone or block.transform.keeps_units
        return block.phase is Phase.BEFORE_STEP and block.by_field and applies_alone

    return Pipeline(tuple(filter(applies, pipeline.preblocks)))
