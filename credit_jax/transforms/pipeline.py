"""The transforms of a config, in the order in which they run.

A config has blocks, each a transform with its place in the config, in four phases:

    tree = pipeline.initial(tree)                   # preblocks.ic_only
    for step in range(num_steps):
        tree = pipeline.before_step(tree)           # preblocks.per_step: makes x
        tree["y_pred"] = model(tree["x"])
        tree = pipeline.after_step(tree)            # postblocks.per_step: named fields
    tree = pipeline.after_rollout(tree)             # postblocks.post_rollout

The blocks of a phase run together, either on the host (numpy arrays, no context) or
traced, inside `shard_map`, with the `FieldContext` of the step. Readers of data run the
first two phases on the host; the step runs the third (`Pipeline.postprocess`) and, for
the input of a later step, the second again (`rollout.Advance`).

Schemas follow the same way: variables of the data become those of x and y
(`schema_after`), each block being asked for what it makes of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from credit_jax.config import StrictModel
from credit_jax.io.errors import errors_of
from credit_jax.named_fields import FieldContext
from credit_jax.named_fields.coordinates import GridCoordinates, as_values
from credit_jax.named_fields.tree import NamedFields, by_key, by_source
from credit_jax.transforms.base import (
    PREBLOCKS,
    Descriptions,
    FieldTree,
    Grid,
    OutputLevels,
    Phase,
    Transform,
    TransformEntry,
    TreeSchema,
    Where,
)
from credit_jax.transforms.level_files import check_numbers

# A traced phase: (tree, context) -> tree.
Postprocess = Callable[[FieldTree, FieldContext], dict[str, Any]]


@dataclass(frozen=True)
class Block:
    """One preblock or postblock of a config.

    Attributes:
        path: dotted path of its section, such as "preblocks.per_step.scaler".
        type: name in the registry.
        phase: phase in which it runs.
        entry: entry of the registry, which says where it can run and what it needs.
        args: its validated arguments.
        transform: the function.
    """

    path: str
    type: str
    phase: Phase
    entry: TransformEntry
    args: StrictModel
    transform: Transform

    @property
    def moves_fields(self) -> bool:
        """Whether it is a preblock that brings fields to the model's grid or levels."""
        return self.phase in PREBLOCKS and self.transform.moves_fields

    @property
    def is_local(self) -> bool:
        """Whether a preblock changes each field by itself, also on a shard of it."""
        transform = self.transform
        return (
            Where.TRACED in self.entry.where
            and transform.by_field
            and not (transform.moves_fields or transform.needs_host)
        )

    def argument(self, name: str) -> Any:
        """Value of an argument; None if its type has no such argument."""
        return dict(self.args).get(name)

    def schema_after(self, schema: TreeSchema) -> TreeSchema:
        """Returns the variables of x and y after the block, in channel order."""
        is_before = self.phase in PREBLOCKS
        return self.transform.schema_after(schema) if is_before else schema


@dataclass(frozen=True)
class Pipeline:
    """All blocks of a config.

    Attributes:
        blocks: the blocks, in execution order.
    """

    blocks: tuple[Block, ...]

    @property
    def preblocks(self) -> tuple[Block, ...]:
        """The blocks before the model, in execution order."""
        return tuple(block for block in self.blocks if block.phase in PREBLOCKS)

    def of(self, phase: Phase) -> tuple[Block, ...]:
        """The blocks of a phase, in execution order."""
        return tuple(block for block in self.blocks if block.phase is phase)

    # Running the blocks.

    def initial(
        self, tree: FieldTree, context: FieldContext | None = None
    ) -> dict[str, Any]:
        """Runs `preblocks.ic_only`, on the initial state.

        Args:
            tree: see `credit_jax.transforms.base`; it is not modified.
            context: context of the step if traced; None on the host.

        Raises:
            ValueError: a block of the phase cannot be traced, or not run on the host.
        """
        return self._run(Phase.INITIAL, tree, context)

    def before_step(
        self, tree: FieldTree, context: FieldContext | None = None
    ) -> dict[str, Any]:
        """Runs `preblocks.per_step`, which make x; see `initial`."""
        return self._run(Phase.BEFORE_STEP, tree, context)

    def after_step(
        self, tree: FieldTree, context: FieldContext | None = None
    ) -> dict[str, Any]:
        """Runs `postblocks.per_step` on the model's output; see `initial`."""
        return self._run(Phase.AFTER_STEP, tree, context)

    def after_rollout(
        self, tree: FieldTree, context: FieldContext | None = None
    ) -> dict[str, Any]:
        """Runs `postblocks.post_rollout` after the last step; see `initial`."""
        return self._run(Phase.AFTER_ROLLOUT, tree, context)

    def _run(
        self, phase: Phase, tree: FieldTree, context: FieldContext | None
    ) -> dict[str, Any]:
        self.require(phase, Where.HOST if context is None else Where.TRACED)
        new = dict(tree)
        for block in self.of(phase):
            with errors_of(block.path):
                new = block.transform(new, context)
        return new

    def require(self, phase: Phase, where: Where) -> None:
        """Checks that a phase can run on the host, or traced.

        Raises:
            ValueError: some blocks cannot; names them.
        """
        misplaced = [b for b in self.of(phase) if where not in b.entry.where]
        if misplaced:
            listed = ", ".join(f"{b.path} (type {b.type})" for b in misplaced)
            here, only = "on the host", "in the traced step"
            if where is Where.TRACED:
                here, only = only, here
            raise ValueError(
                f"{phase.value} runs {here}, but these transforms run {only} only: "
                f"{listed}"
            )

    def postprocess(
        self, input_channels: Mapping[str, slice], target_channels: Mapping[str, slice]
    ) -> Postprocess | None:
        """Returns `after_step` for the training and the evaluation step, traced.

        Args:
            input_channels: channels of each variable in x.
            target_channels: channels of each variable in y and the model's output.

        Returns:
            `({"x": ..., "y": ..., "y_pred": ...}, context) -> tree`, where the tree
            also has the entries that transforms make; None if there are no
            `postblocks.per_step`.

        Raises:
            ValueError: a block runs on the host only.
        """
        if not self.of(Phase.AFTER_STEP):
            return None
        self.require(Phase.AFTER_STEP, Where.TRACED)
        maps = {
            "input_channel_map": dict(input_channels),
            "channel_map": dict(target_channels),
        }
        return lambda tree, context: self.after_step({**tree, **maps}, context)

    def aligned(self, tree: FieldTree, *phases: Phase) -> dict[str, Any]:
        """Runs only the blocks that bring fields to the model's names and places.

        These are renames, regrids, and interpolations of predicted variables to other
        levels, on the host. A forecast of several steps needs them before it combines
        the fields of steps: later steps do not pass through the initial phase, their
        rows are split over devices, and predictions have these names and places.
        """
        new = dict(tree)
        for block in self.blocks:
            if block.phase in phases and (
                block.transform.renames or block.moves_fields
            ):
                with errors_of(block.path):
                    new = block.transform(new, None)
        return new

    def named_as_before(
        self, tree: FieldTree, context: FieldContext | None = None
    ) -> dict[str, Any]:
        """Undoes only the renames of every step, before `before_step` runs them again.

        Blocks before a rename use the old names.
        """
        new = dict(tree)
        for block in reversed(self.of(Phase.BEFORE_STEP)):
            if block.transform.renames:
                new = block.transform.inverse(new, context)
        return new

    def divided(self, num_steps: int) -> tuple[Pipeline, Pipeline]:
        """The preblocks that run on the host, and those that the step runs after them.

        The step takes the last ones, as many as work on the fields of a shard.

        Args:
            num_steps: steps of a sample; blocks of the initial state change the target
                of the first step alone, which the host can tell from later ones.
        """
        start = 0
        for end, block in enumerate(self.preblocks, 1):
            initial = block.phase is Phase.INITIAL and not block.transform.renames
            if not block.is_local or (initial and num_steps > 1):
                start = end
        parts = self.preblocks[:start], self.preblocks[start:]
        return Pipeline(parts[0]), Pipeline(parts[1])

    # What the blocks need.

    def needs(self, *names: str) -> bool:
        """Whether a block needs one of these optional entries of the tree."""
        return any(name in block.entry.needs for block in self.blocks for name in names)

    def state(self, fields: NamedFields) -> dict[str, dict[str, Any]]:
        """Selects the fields of a state that blocks read from "x_physical"."""
        read = {key for block in self.blocks for key in block.transform.state_keys}
        return by_source({k: x for k, x in by_key(fields).items() if k in read})

    @property
    def needs_grid(self) -> bool:
        """Whether a preblock needs all rows of a field, not only some."""
        return any(block.transform.needs_grid for block in self.preblocks)

    # What the blocks make of the data.

    def with_schemas(self, schema: TreeSchema) -> Iterator[tuple[Block, TreeSchema]]:
        """Yields every block with the variables of its input.

        Args:
            schema: variables of "input" and "target" of the data, in the order of a
                sample.
        """
        for block in self.blocks:
            yield block, schema
            schema = block.schema_after(schema)

    def schema_after(self, schema: TreeSchema) -> TreeSchema:
        """Returns the variables of x and y, in channel order; see `with_schemas`."""
        for block in self.blocks:
            schema = block.schema_after(schema)
        return schema

    def at(self, schema: TreeSchema, grid: GridCoordinates) -> Pipeline:
        """Returns the blocks with their files in the order of the data.

        Args:
            schema: variables of "input" and "target" of the data, with their levels.
            grid: latitudes and longitudes of the data.

        Raises:
            ValueError: a file has other coordinates than the data; names both.
        """
        located = []
        for block, before in self.with_schemas(schema):
            with errors_of(block.path):
                transform = block.transform.at(before, grid)
                for file in transform.level_files:
                    check_numbers(file, before)
            if transform is not block.transform:
                block = replace(block, transform=transform)
            # Blocks after a regrid see its grid, the regrid itself that of the data.
            new = transform.new_grid
            if new is not None:
                axes = as_values(new.latitude), as_values(new.longitude)
                grid = GridCoordinates(*axes, where=block.path)
            located.append(block)
        same = all(new is old for new, old in zip(located, self.blocks, strict=True))
        return self if same else Pipeline(tuple(located))

    @property
    def grid(self) -> Grid | None:
        """The grid of x and y; None if it is that of the data."""
        grids = [block.transform.new_grid for block in self.preblocks]
        return next((grid for grid in reversed(grids) if grid is not None), None)

    @cached_property
    def origins(self) -> dict[str, str]:
        """Key of a variable after all preblocks -> key in the data, if another."""
        origins: dict[str, str] = {}
        for block in reversed(self.preblocks):
            origins = block.transform.origins(origins)
        return origins

    @property
    def normalizes(self) -> bool:
        """Whether a preblock is a normalizer or a scaler."""
        return any(block.transform.is_scaling for block in self.preblocks)

    def normalized(self, schema: TreeSchema) -> frozenset[str]:
        """Keys of x and y that a normalizer or a scaler of the preblocks changes.

        Args:
            schema: the variables of the data, before preblocks.
        """
        scaled: set[str] = set()
        for block, before in Pipeline(self.preblocks).with_schemas(schema):
            names = block.transform.renames
            scaled = {names.get(key, key) for key in scaled}
            if block.transform.is_scaling:
                keys = {group.var_key for groups in before.values() for group in groups}
                scaled |= set(filter(block.transform.changes, keys))
        return frozenset(scaled)

    def described(self, known: Descriptions) -> Descriptions:
        """Attributes of all fields, those that blocks make or rename included.

        Args:
            known: attributes of the fields of the data files.
        """
        descriptions = dict(known)
        for block in self.blocks:
            descriptions |= block.transform.describe(descriptions)
        return descriptions

    @property
    def output_levels(self) -> dict[str, OutputLevels]:
        """Key -> level coordinate of the fields on other levels than the data's."""
        coordinates: dict[str, OutputLevels] = {}
        for block in self.blocks:
            coordinates |= block.transform.output_levels
        return coordinates
