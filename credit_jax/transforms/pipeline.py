"""The transforms of a config, by phase.

A forecast of several steps runs as

    tree = pipeline.initial(tree)
    for step in range(num_steps):
        tree = pipeline.before_step(tree)       # makes x
        tree["y_pred"] = model(tree["x"])
        tree = pipeline.after_step(tree)        # makes named fields of y_pred
    tree = pipeline.after_rollout(tree)

All transforms of a phase run either on the host (numpy arrays, no context) or traced,
inside `shard_map`, with the `FieldContext` of the step. In training the loader runs the
first two phases on the host, and the step runs the third, traced
(`Pipeline.postprocess`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from credit_jax.config.base import StrictModel
from credit_jax.io.errors import errors_of
from credit_jax.named_fields import FieldContext
from credit_jax.named_fields.coordinates import Axes, as_values
from credit_jax.transforms.base import (
    PREBLOCKS,
    Descriptions,
    FieldTree,
    Grid,
    OutputLevels,
    Phase,
    Transform,
    TreeSchema,
    Where,
)
from credit_jax.transforms.level_files import check_numbers, matched_by_count
from credit_jax.transforms.post.reconstruct import Reconstruct, ReconstructArgs
from credit_jax.transforms.registry import TRANSFORMS

# A traced phase: (tree, context) -> tree.
Postprocess = Callable[[FieldTree, FieldContext], dict[str, Any]]


@dataclass(frozen=True)
class Placed:
    """One transform of a config.

    Attributes:
        path: dotted path of its section, such as "preblocks.per_step.scaler".
        type: name in the registry.
        phase: phase in which it runs.
        where: places where it can run.
        args: its validated arguments.
        transform: the function.
        digests: SHA-256 of the files that it has read, by their argument.
    """

    path: str
    type: str
    phase: Phase
    where: Where
    args: StrictModel
    transform: Transform
    digests: Mapping[str, str] = field(default_factory=dict)

    @property
    def section(self) -> str:
        """Top-level config key of the transform: "preblocks" or "postblocks"."""
        return self.path.split(".")[0]

    @property
    def moves_fields(self) -> bool:
        """Whether it is a preblock that brings fields to the model's grid or levels."""
        return self.phase in PREBLOCKS and self.transform.moves_fields

    def argument(self, name: str) -> Any:
        """Value of an argument; None if its type has no such argument."""
        return dict(self.args).get(name)

    def schema_after(self, schema: TreeSchema) -> TreeSchema:
        """Returns the variables of x and y after the transform, in channel order."""
        is_before = self.phase in PREBLOCKS
        return self.transform.schema_after(schema) if is_before else schema


@dataclass(frozen=True)
class Pipeline:
    """All transforms of a config.

    Attributes:
        transforms: the transforms, in execution order.
    """

    transforms: tuple[Placed, ...]

    def initial(
        self, tree: FieldTree, context: FieldContext | None = None
    ) -> dict[str, Any]:
        """Runs `preblocks.ic_only`, on the initial state.

        Args:
            tree: see `credit_jax.transforms.base`; it is not modified.
            context: context of the step if traced; None on the host.

        Raises:
            ValueError: a transform of the phase cannot be traced, or not run on the
                host.
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

    def described(self, known: Descriptions) -> Descriptions:
        """Attributes of all fields, those that transforms make or rename included.

        Args:
            known: attributes of the fields of the data files.
        """
        descriptions = dict(known)
        for phase in Phase:
            for each in self._of(phase):
                descriptions |= each.transform.describe(descriptions)
        return descriptions

    @property
    def output_levels(self) -> dict[str, OutputLevels]:
        """Key -> level coordinate of the fields on other levels than the data's."""
        coordinates: dict[str, OutputLevels] = {}
        for each in self.transforms:
            coordinates |= each.transform.output_levels
        return coordinates

    def with_gradients(self) -> Pipeline:
        """Returns a copy in which `reconstruct` does not stop gradients."""
        return Pipeline(
            tuple(
                replace(each, transform=each.transform.attached())
                for each in self.transforms
            )
        )

    def with_reconstruct(self) -> Pipeline:
        """Returns a copy that splits predictions to named fields after each step.

        A `reconstruct` of "y_pred" precedes the postblocks unless one is there.
        """
        phase, kind = Phase.AFTER_STEP, "reconstruct"
        splits = [e for e in self._of(phase) if e.type == kind]
        if any(each.argument("in_key") == "y_pred" for each in splits):
            return self
        args = ReconstructArgs()
        path = f"{phase.value}.reconstruct_predictions"
        where = TRANSFORMS[phase.section][kind].where
        first = Placed(path, kind, phase, where, args, Reconstruct(args))
        before = [each for each in self.transforms if each.phase in PREBLOCKS]
        return Pipeline((*before, first, *self.transforms[len(before) :]))

    def for_forecast(self) -> Pipeline:
        """Returns a copy for forecasts, which have no target and need physical units.

        It lacks the postblocks of the target, that is of "y" and the entries made from
        it. It has the inverse of `era5_normalizer` after the `reconstruct` of
        predictions, unless a postblock is that inverse.

        Differs from CREDIT: its rollout fails at a block that needs "y", and feeds back
        fields that are still normalized.
        """
        # What is made of the target has its names from the blocks that make it.
        outputs = {
            each.argument("out_key")
            for each in self.transforms
            if each.type == "reconstruct" and each.argument("in_key") == "y"
        }
        blocks: list[Placed] = []
        for each in self.transforms:
            keys = {each.argument(name) for name in ("in_key", "out_key", "key")}
            if each.phase is Phase.AFTER_STEP and keys & {"y", *outputs}:
                continue
            blocks.append(each)
            # As soon as fields have names: the blocks after it take physical units.
            if each.phase is Phase.AFTER_STEP and keys >= {"y_pred", "y_processed"}:
                blocks += self._inverses()
        return Pipeline(tuple(blocks))

    def _inverses(self) -> Iterator[Placed]:
        """The inverses of the normalizers of every step, unless a postblock is one."""
        types = {each.type for each in self._of(Phase.AFTER_STEP)}
        # The last preblock is undone first; statistics have the names before renames.
        origins: dict[str, str] = {}
        for each in reversed(self._of(Phase.BEFORE_STEP)):
            origins = each.transform.origins(origins)
            undo = each.transform.restoring(origins)
            if undo is not None and each.type not in types:
                yield replace(each, phase=Phase.AFTER_STEP, transform=undo)

    def aligned(self, tree: FieldTree, *phases: Phase) -> dict[str, Any]:
        """Runs only the blocks that bring fields to the model's names and places.

        These are renames, regrids, and interpolations of predicted variables to other
        levels, on the host. A forecast of several steps needs them before it combines
        the fields of steps: later steps do not pass through the initial phase, their
        rows are split over devices, and predictions have these names and places.
        """
        new = dict(tree)
        for each in self.transforms:
            if each.phase in phases and (each.transform.renames or each.moves_fields):
                with errors_of(each.path):
                    new = each.transform(new, None)
        return new

    def after_aligned(self) -> Pipeline:
        """Returns a copy for fields to which `aligned` has been applied.

        It lacks the blocks of every step that move fields to another grid or to other
        levels.

        Raises:
            ValueError: a block before such a one changes its variables, so that the two
                cannot be exchanged, or one interpolates predicted and other variables.
        """
        steps = self._of(Phase.BEFORE_STEP)
        for index, each in enumerate(steps):
            if not each.moves_fields:
                continue
            with errors_of(each.path):
                variables = each.transform.variables_read()
            for before in steps[:index]:
                _check_exchange(before, each, variables)
        return Pipeline(
            tuple(
                each
                for each in self.transforms
                if each.phase is not Phase.BEFORE_STEP or not each.moves_fields
            )
        )

    def for_forcing(self) -> Pipeline:
        """Returns a copy for the dynamic forcing of a later step by itself.

        It has the preblocks that later steps apply to it. Where one may combine forcing
        with other fields, it normalizes nothing.
        """
        steps = [e for e in self._of(Phase.BEFORE_STEP) if not e.moves_fields]
        alone = all(each.transform.by_field for each in steps)

        def applies(each: Placed) -> bool:
            if each.moves_fields or each.transform.renames:
                return True
            by_itself = each.transform.by_field
            applies_alone = by_itself and (alone or each.transform.keeps_units)
            return each.phase is Phase.BEFORE_STEP and applies_alone

        return Pipeline(tuple(filter(applies, self.preblocks)))

    def named_as_before(
        self, tree: FieldTree, context: FieldContext | None = None
    ) -> dict[str, Any]:
        """Undoes only the renames of every step, before `before_step` runs them again.

        Blocks before a rename use the old names.
        """
        new = dict(tree)
        for each in reversed(self._of(Phase.BEFORE_STEP)):
            if each.transform.renames:
                new = each.transform.inverse(new, context)
        return new

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
            ValueError: a transform runs on the host only.
        """
        if not self._of(Phase.AFTER_STEP):
            return None
        self.require(Phase.AFTER_STEP, Where.TRACED)
        maps = {
            "input_channel_map": dict(input_channels),
            "channel_map": dict(target_channels),
        }
        return lambda tree, context: self.after_step({**tree, **maps}, context)

    def needs(self, *names: str) -> bool:
        """Whether a transform needs one of these optional entries of the tree."""
        return any(
            name in TRANSFORMS[each.section][each.type].needs
            for each in self.transforms
            for name in names
        )

    def state(self, fields: FieldTree) -> FieldTree:
        """Selects the fields of a state that transforms read from "x_physical"."""
        read = {key for each in self.transforms for key in each.transform.state_keys}
        chosen = {
            source: {key: field for key, field in source_fields.items() if key in read}
            for source, source_fields in fields.items()
        }
        return {
            source: source_fields
            for source, source_fields in chosen.items()
            if source_fields
        }

    def require(self, phase: Phase, where: Where) -> None:
        """Checks that a phase can run on the host, or traced.

        Raises:
            ValueError: some transforms cannot; names them.
        """
        misplaced = [each for each in self._of(phase) if where not in each.where]
        if misplaced:
            listed = ", ".join(f"{each.path} (type {each.type})" for each in misplaced)
            here, only = "on the host", "in the traced step"
            if where is Where.TRACED:
                here, only = only, here
            raise ValueError(
                f"{phase.value} runs {here}, but these transforms run {only} only: "
                f"{listed}"
            )

    def schema_after(self, schema: TreeSchema) -> TreeSchema:
        """Returns the variables of x and y, in channel order.

        Args:
            schema: variables of "input" and "target" of the data, in the order of a
                sample.
        """
        for each in self.transforms:
            schema = each.schema_after(schema)
        return schema

    def at(self, schema: TreeSchema, grid: Axes) -> Pipeline:
        """Returns the transforms with their files in the order of the data.

        Args:
            schema: variables of "input" and "target" of the data, with their levels.
            grid: latitudes and longitudes of the data.

        Raises:
            ValueError: a file has other coordinates than the data; names both.
        """
        placed = []
        for each, before in self.with_schemas(schema):
            with errors_of(each.path):
                transform = each.transform.at(before, grid)
                for file in transform.level_files:
                    check_numbers(file, before)
            if transform is not each.transform:
                each = replace(each, transform=transform)
            # Blocks after a regrid see its grid, the regrid itself that of the data.
            new = transform.new_grid
            if new is not None:
                axes = as_values(new.latitude), as_values(new.longitude)
                grid = Axes(*axes, where=each.path)
            placed.append(each)
        same = all(x is y for x, y in zip(placed, self.transforms, strict=True))
        return self if same else Pipeline(tuple(placed))

    def notes_on_order(self, schema: TreeSchema) -> list[str]:
        """One note on the files whose values are matched with levels by count.

        Args:
            schema: variables of "input" and "target" of the data, with their levels.
        """
        notes = [
            f"{each.path}: {text}"
            for each, before in self.with_schemas(schema)
            for file in each.transform.level_files
            if (text := matched_by_count(file, before))
        ]
        if not notes:
            return []
        return [
            f"{'; '.join(notes)}: without values of levels, taken in the order of the "
            "levels of the data, whose number alone is compared"
        ]

    def with_schemas(self, schema: TreeSchema) -> Iterator[tuple[Placed, TreeSchema]]:
        """Yields every transform with the variables of its input."""
        for each in self.transforms:
            yield each, schema
            schema = each.schema_after(schema)

    @property
    def grid(self) -> Grid | None:
        """The grid of x and y; None if it is that of the data."""
        grids = [each.transform.new_grid for each in self.preblocks]
        return next((grid for grid in reversed(grids) if grid is not None), None)

    @property
    def digests(self) -> dict[str, str]:
        """SHA-256 of the files that the transforms have read, by their dotted key."""
        return {
            f"{each.path}.args.{name}": digest
            for each in self.transforms
            for name, digest in each.digests.items()
        }

    @property
    def normalizes(self) -> bool:
        """Whether a preblock is a normalizer or a scaler."""
        return any(each.transform.is_scaling for each in self.preblocks)

    def normalized(self, schema: TreeSchema) -> frozenset[str]:
        """Keys of x and y that a normalizer or a scaler of the preblocks changes.

        Args:
            schema: the variables of the data, before preblocks.
        """
        scaled: set[str] = set()
        for each, before in Pipeline(self.preblocks).with_schemas(schema):
            names = each.transform.renames
            scaled = {names.get(key, key) for key in scaled}
            if each.transform.is_scaling:
                keys = {group.var_key for groups in before.values() for group in groups}
                scaled |= set(filter(each.transform.changes, keys))
        return frozenset(scaled)

    @cached_property
    def origins(self) -> dict[str, str]:
        """Key of a variable after all preblocks -> key in the data, if another."""
        origins: dict[str, str] = {}
        for each in reversed(self.preblocks):
            origins = each.transform.origins(origins)
        return origins

    @property
    def needs_grid(self) -> bool:
        """Whether a preblock needs all rows of a field, not only some."""
        return any(each.transform.needs_grid for each in self.preblocks)

    @property
    def preblocks(self) -> tuple[Placed, ...]:
        """The transforms before the model, in execution order."""
        return tuple(each for each in self.transforms if each.phase in PREBLOCKS)

    def _of(self, phase: Phase) -> list[Placed]:
        return [each for each in self.transforms if each.phase is phase]

    def _run(
        self, phase: Phase, tree: FieldTree, context: FieldContext | None
    ) -> dict[str, Any]:
        self.require(phase, Where.HOST if context is None else Where.TRACED)
        new = dict(tree)
        for each in self._of(phase):
            with errors_of(each.path):
                new = each.transform(new, context)
        return new


def _check_exchange(before: Placed, block: Placed, variables: Sequence[str]) -> None:
    """Checks that a block does not change some variables, except for their names."""
    altered = [key for key in variables if before.transform.changes(key)]
    if altered and not before.moves_fields:
        raise ValueError(
            f"{block.path} takes {altered[0]} after {before.path} (type "
            f"{before.type}) has changed it; in a forecast of several steps the block "
            f"of type {block.type} must come first"
        )
