"""The transforms of a config, in the order in which they run.

A config has blocks, each a transform with its place in the config, in four phases:

    tree = pipeline.run(Phase.INITIAL, tree)
    for step in range(num_steps):
        tree = pipeline.run(Phase.BEFORE_STEP, tree)    # makes x
        tree["y_pred"] = model(tree["x"])
        tree = pipeline.run(Phase.AFTER_STEP, tree)     # named fields
    tree = pipeline.run(Phase.AFTER_ROLLOUT, tree)

The blocks of a phase run together, either on the host (numpy arrays, no context) or
traced, inside `shard_map`, with the `FieldContext` of the step. Readers of data run the
first two phases on the host; the step runs the third (`Pipeline.postprocess`) and, for
the input of a later step, the second again (`rollout.Advance`).

Schemas follow the same way: variables of the data become those of x and y
(`schema_after`), each block being asked for what it makes of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Shaped

from credit_jax.io.errors import errors_of
from credit_jax.named_fields import ChannelLayout, FieldContext
from credit_jax.named_fields.coordinates import GridCoordinates, as_values
from credit_jax.named_fields.tree import ChannelGroup, NamedFields, by_key, by_source
from credit_jax.transforms import base
from credit_jax.transforms.base import FieldTree, Phase, StepContext, TreeSchema
from credit_jax.transforms.scaling import Scaling

ChannelsOut = Shaped[Any, "batch channel_out ..."]

Value = TypeVar("Value")
# A traced phase: (tree, context) -> tree.
Postprocess = Callable[[FieldTree, FieldContext], dict[str, Any]]


@dataclass(frozen=True)
class Block:
    """One preblock or postblock of a config."""

    path: str  # dotted path of its section, such as "preblocks.per_step.scaler"
    type: str  # name in the registry
    phase: Phase  # phase in which it runs
    transform: base.Transform  # the function, with its arguments

    def __call__(self, tree: FieldTree, context: StepContext = None) -> dict[str, Any]:
        """Applies it; errors name its path."""
        with errors_of(self.path):
            return self.transform(tree, context)

    def inverse(self, tree: FieldTree, context: StepContext = None) -> dict[str, Any]:
        """Undoes a preblock; errors name its path."""
        with errors_of(self.path):
            return self.transform.inverse(tree, context)

    @property
    def by_field(self) -> bool:
        """Whether it changes each field by itself, whatever others there are."""
        return self.transform.reach in (base.Reach.CHANNEL, base.Reach.POINT)

    @property
    def is_local(self) -> bool:
        """Whether a preblock changes each field by itself, also on a shard of it."""
        is_traced = base.Where.TRACED in self.transform.where
        elsewhere = self.transform.effects.moves or self.transform.needs_host
        return is_traced and self.by_field and not elsewhere

    def renamed(self, by_key: Mapping[str, Value]) -> dict[str, Value]:
        """What is known of variables, by their keys after it."""
        names = self.transform.effects.renames
        return {names.get(key, key): value for key, value in by_key.items()}

    def units_after(self, units: Mapping[str, Value]) -> dict[str, Value]:
        """The units of variables after it, those that it may change left out."""
        names = self.transform.effects.renames
        left_out = () if self.transform.keeps_units else names.values()
        return {k: u for k, u in self.renamed(units).items() if k not in left_out}

    def argument(self, name: str) -> Any:
        """Value of an argument; None if its type has no such argument."""
        return getattr(self.transform, name, None)


@dataclass(frozen=True)
class Pipeline:
    """All blocks of a config."""

    blocks: tuple[Block, ...]  # the blocks, in execution order

    @property
    def preblocks(self) -> tuple[Block, ...]:
        """The blocks before the model, in execution order."""
        return tuple(block for block in self.blocks if block.phase in base.PREBLOCKS)

    def of(self, phase: Phase) -> tuple[Block, ...]:
        """The blocks of a phase, in execution order."""
        return tuple(block for block in self.blocks if block.phase is phase)

    # Running the blocks.

    def run(
        self, phase: Phase, tree: FieldTree, context: StepContext = None
    ) -> dict[str, Any]:
        """Runs the blocks of a phase on a tree, traced with the context of a step."""
        self.require(phase, base.Where.HOST if context is None else base.Where.TRACED)
        new = dict(tree)
        for block in self.of(phase):
            new = block(new, context)
        return new

    def require(self, phase: Phase, origin: base.Where) -> None:
        """Checks that a phase can run on the host, or traced."""
        misplaced = [b for b in self.of(phase) if origin not in b.transform.where]
        if misplaced:
            listed = ", ".join(f"{b.path} (type {b.type})" for b in misplaced)
            here, only = "on the host", "in the traced step"
            if origin is base.Where.TRACED:
                here, only = only, here
            raise ValueError(
                f"{phase.value} runs {here}, but these transforms run {only} only: "
                f"{listed}"
            )

    def postprocess(
        self, input_channels: Mapping[str, slice], target_channels: Mapping[str, slice]
    ) -> Postprocess | None:
        """Returns the postblocks of every step for training and evaluation, traced."""
        # Returns: `({"x": ..., "y": ..., "y_pred": ...}, context) -> tree`, where the
        # tree also has the entries that transforms make; None if there are no
        # `postblocks.per_step`.
        if not self.of(Phase.AFTER_STEP):
            return None
        self.require(Phase.AFTER_STEP, base.Where.TRACED)
        maps = {
            "input_channel_map": dict(input_channels),
            "channel_map": dict(target_channels),
        }
        return lambda tree, context: self.run(
            Phase.AFTER_STEP, {**tree, **maps}, context
        )

    def aligned(self, tree: FieldTree, *phases: Phase) -> dict[str, Any]:
        """Runs only the blocks that bring fields to the model's names and places."""
        # These are renames, regrids, and interpolations of predicted variables to other
        # levels, on the host. A forecast of several steps needs them before it combines
        # the fields of steps: later steps do not pass through the initial phase, their
        # rows are split over devices, and predictions have these names and places.
        # What is missing is filled first, which a regrid would spread.
        new, blocks = dict(tree), [b for b in self.blocks if b.phase in phases]
        for index, block in enumerate(blocks, 1):
            effects, repeats = block.transform.effects, block.transform.may_repeat
            later = [key for b in blocks[index:] for key in b.transform.effects.moves]
            fills = repeats and any(map(block.transform.changes, later))
            if effects.renames or effects.moves or fills:
                new = block(new)
        return new

    def with_input_names(
        self, tree: FieldTree, context: StepContext = None
    ) -> dict[str, Any]:
        """Undoes only the renames of every step, before they run again."""
        # Blocks before a rename use the old names.
        new = dict(tree)
        for block in reversed(self.of(Phase.BEFORE_STEP)):
            if block.transform.effects.renames:
                new = block.inverse(new, context)
        return new

    def divided(self, num_steps: int) -> tuple[Pipeline, Pipeline]:
        """The preblocks that run on the host, and those that the step then runs."""
        # The step takes the last ones, as many as work on the fields of a shard.
        # num_steps: steps of a sample; blocks of the initial state change the target of
        # the first step alone, which the host can tell from later ones.
        start = 0
        for end, block in enumerate(self.preblocks, 1):
            initial = (
                block.phase is Phase.INITIAL and not block.transform.effects.renames
            )
            if not block.is_local or (initial and num_steps > 1):
                start = end
        parts = self.preblocks[:start], self.preblocks[start:]
        return Pipeline(parts[0]), Pipeline(parts[1])

    # What the blocks need.

    def needs(self, *names: str) -> bool:
        """Whether a block needs one of these optional entries of the tree."""
        return any(name in b.transform.needs for b in self.blocks for name in names)

    def state(self, fields: NamedFields) -> dict[str, dict[str, Any]]:
        """Selects the fields of a state that blocks read from "x_physical"."""
        read = {key for block in self.blocks for key in block.transform.effects.state}
        return by_source({k: x for k, x in by_key(fields).items() if k in read})

    @property
    def needs_grid(self) -> bool:
        """Whether a preblock needs all rows of a field, not only some."""
        reaches = (block.transform.reach for block in self.preblocks)
        return any(reach in (base.Reach.POINT, base.Reach.GRID) for reach in reaches)

    # What the blocks make of the data.

    def with_schemas(self, schema: TreeSchema) -> Iterator[tuple[Block, TreeSchema]]:
        """Yields each block with the variables of its input, from those of the data."""
        for block in self.blocks:
            yield block, schema
            schema = block.transform.schema_after(schema)

    def schema_after(self, schema: TreeSchema) -> TreeSchema:
        """Returns the variables of x and y, in channel order; see `with_schemas`."""
        for block in self.blocks:
            schema = block.transform.schema_after(schema)
        return schema

    def check(self, schema: TreeSchema) -> None:
        """Checks that blocks and their files fit the variables of the data."""
        by_point: dict[tuple[str, str], tuple[str, bool]] = {}
        for block, previous in self.with_schemas(schema):
            keys = {group.var_key for side in previous.values() for group in side}
            if isinstance(block.transform, Scaling):
                for key in filter(block.transform.changes, sorted(keys)):
                    kind = block.path, block.transform.is_spatial(key)
                    path = str(block.transform.scaler_path)
                    first = by_point.setdefault((path, key), kind)
                    if first[1] != kind[1]:
                        raise ValueError(
                            f"{block.path}: spatial_variables "
                            f"{'has' if kind[1] else 'lacks'} {key}, which that of "
                            f"{first[0]}, of the same file {path}, "
                            f"{'lacks' if kind[1] else 'has'}; name it in both or in "
                            "neither"
                        )
            with errors_of(block.path):
                block.transform.check(previous)

    def at(self, schema: TreeSchema, grid: GridCoordinates) -> Pipeline:
        """Returns the blocks with files in the order of the data, once checked."""
        self.check(schema)
        located = []
        for block, previous in self.with_schemas(schema):
            with errors_of(block.path):
                transform = block.transform.at(previous, grid)
                for file in transform.level_files:
                    file.check(previous)
            if transform is not block.transform:
                block = replace(block, transform=transform)
            # Blocks after a regrid see its grid, the regrid itself that of the data.
            new = transform.effects.grid
            if new is not None:
                axes = as_values(new.latitude), as_values(new.longitude)
                grid = GridCoordinates(*axes, where=block.path)
            located.append(block)
        equal = all(new is old for new, old in zip(located, self.blocks, strict=True))
        return self if equal else Pipeline(tuple(located))

    @property
    def grid(self) -> base.Grid | None:
        """The grid of x and y; None if it is that of the data."""
        grids = [block.transform.effects.grid for block in self.preblocks]
        return next((grid for grid in reversed(grids) if grid is not None), None)

    @cached_property
    def origins(self) -> dict[str, str]:
        """Key of a variable after all preblocks -> key in the data, if another."""
        return origins_of(self.preblocks)

    @property
    def normalizes(self) -> bool:
        """Whether a preblock is a normalizer or a scaler."""
        return any(block.transform.is_scaling for block in self.preblocks)

    def normalized(self, schema: TreeSchema) -> frozenset[str]:
        """Keys of x and y that a normalizer or a scaler of the preblocks changes."""
        scaled: set[str] = set()
        for block, previous in Pipeline(self.preblocks).with_schemas(schema):
            scaled = {*block.renamed(dict.fromkeys(scaled))}
            if block.transform.is_scaling:
                keys = {
                    group.var_key for groups in previous.values() for group in groups
                }
                scaled |= set(filter(block.transform.changes, keys))
        return frozenset(scaled)

    def described(self, units: base.Descriptions) -> base.Descriptions:
        """Attributes of all fields, those that blocks make or rename included."""
        descriptions = dict(units)
        for block in self.blocks:
            descriptions |= block.transform.describe(descriptions)
        return descriptions

    @property
    def output_levels(self) -> dict[str, base.OutputLevels]:
        """Key -> level coordinate of the fields on other levels than the data's."""
        coordinates: dict[str, base.OutputLevels] = {}
        for block in self.blocks:
            coordinates |= block.transform.effects.levels
        return coordinates


def names_after(blocks: Iterable[Block]) -> dict[str, str]:
    """Key of a predicted variable -> key after some preblocks, if another."""
    names: dict[str, str] = {}
    for block in blocks:
        if "target" in block.transform.entries():
            step = block.transform.effects.renames
            names = {key: key for key in step} | names
            names = {key: step.get(name, name) for key, name in names.items()}
    return names


def origins_of(blocks: Iterable[Block]) -> dict[str, str]:
    """Key of a predicted variable after some preblocks -> key before, if another."""
    return {new: old for old, new in names_after(blocks).items()}


@dataclass(frozen=True)
class Units:
    """The preblocks of the target as a function of channels, and its inverse."""

    blocks: tuple[Block, ...]  # the preblocks in execution order, without concat
    data: ChannelLayout  # the channel layout of the data
    # The channel layout of y, which may have other names and another order.
    model: ChannelLayout
    origins: dict[str, str]  # key in y -> key in the data

    def normalize(
        self, array: Shaped[Any, "batch channel ..."], context: StepContext = None
    ) -> ChannelsOut:
        """Converts channels of the data in physical units to channels of y."""
        # Arrays may have a time dim, (batch, channel, time, lat, lon), or none.
        return _applied(self.blocks, array, self.data, self.model.keys, context)

    def denormalize(
        self, array: ChannelsOut, context: StepContext = None
    ) -> ChannelsOut:
        """Converts channels of y to physical units on its grid; see `normalize`."""
        steps = [each.inverse for each in reversed(self.blocks)]
        keys = [self.origins.get(key, key) for key in self.model.keys]
        return _applied(steps, array, self.model, keys, context)


def channel_units(pipeline: Pipeline, groups: Sequence[ChannelGroup]) -> Units:
    """Builds the conversion between channels of y and physical units."""
    after = pipeline.schema_after({"target": groups})["target"]
    names = names_after(pipeline.preblocks)
    origins = {names.get(g.var_key, g.var_key): g.var_key for g in groups}
    blocks = [block for block in pipeline.preblocks if block.type != "concat"]
    data, model = (
        ChannelLayout.of({group.var_key: group.n_levels for group in each})
        for each in (groups, after)
    )
    return Units(tuple(blocks), data, model, origins)


def _applied(
    steps: Sequence[base.TransformFunction],
    array: Shaped[Any, "batch channel ..."],
    channels: ChannelLayout,
    keys: Sequence[str],
    context: StepContext,
) -> ChannelsOut:
    """Applies functions of named fields to channels; returns those of `keys`."""
    has_time = array.ndim == 5
    split = array if has_time else array[:, :, None]
    fields = {key: split[:, part] for key, part in channels.slices.items()}
    tree: FieldTree = {"target": by_source(fields)}
    for function in steps:
        tree = function(tree, context)
    parts = [base.get_field(tree, "target", key) for key in keys]
    module = np if all(isinstance(x, np.ndarray) for x in parts) else jnp
    joined = module.concatenate(parts, axis=1)
    return joined if has_time else joined[:, :, 0]
