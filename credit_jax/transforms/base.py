"""The type of transforms: functions from named fields to named fields.

CREDIT calls transforms preblocks and postblocks. They run in four phases (`Phase`), and
their input and output is a `FieldTree`, a nested dict with these entries:

    input, target          {source: {key: (batch, level, time, lat, lon)}}, where key is
                           "{source}/{field_type}/{3d|2d}/{variable}"
    input_times,           (batch,) datetime64, on the host only
    target_times
    x, y                   (batch, channel, time, lat, lon): input and target, joined by
                           `concat`
    y_pred                 (batch, channel, time, lat, lon): the model's output
    x_physical             like input: the state before the step, in physical units, at
                           one or more times; only fields that transforms read
    ic_raw                 like input: the static fields before any transform; only if a
                           transform needs it
    y_processed            like target: y_pred, split by `reconstruct`
    y_target_processed     like target: y, split by `reconstruct`, if configured
    input_channel_map,     {key: slice}: channels of x; channels of y and y_pred
    channel_map

A transform is one class in one file: its fields are its arguments in the YAML, those of
type `FilePath` or `PackagedFile` its files, private attributes hold what `open` reads
of them, and `@preblock("name")` or `@postblock("name")` puts it into its registry.

It runs on the host, on whole numpy arrays, or traced, on local JAX arrays inside
`shard_map` with a `FieldContext` for global integrals, or both (`Where`). For both, it
uses only operations that numpy and JAX arrays share. JAX sorts the keys of dicts that
pass through `jit`, so a traced transform takes the order of variables from a channel
map.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias, TypeVar

import numpy as np
from jaxtyping import Float

from credit_jax.config import StrictModel
from credit_jax.config.components import Registry
from credit_jax.config.messages import hint
from credit_jax.named_fields import FieldContext, FieldTree, coordinates
from credit_jax.named_fields.tree import ChannelGroup

Model = TypeVar("Model", bound=StrictModel)
# Key -> its CF attributes: standard_name, long_name, units, those that are known.
Descriptions: TypeAlias = Mapping[str, Mapping[str, str]]

# Name and values of a level coordinate.
OutputLevels: TypeAlias = tuple[str, Sequence[float]]
# Names of such coordinates: pressure in hPa, height above the ground in m.
PRESSURE, HEIGHT = "pressure", "height_agl"

# The context of a traced step; None on the host.
StepContext: TypeAlias = FieldContext | None
# (tree, context) -> a new tree
TransformFunction: TypeAlias = Callable[[FieldTree, StepContext], dict[str, Any]]

OUTPUT = "y_processed"  # the entry of the predicted fields
# Entries that preblocks change, and the argument `variables`, see `OfVariables`.
DataType: TypeAlias = Literal["input", "target"]
Variables: TypeAlias = tuple[str, ...] | str | None


class Phase(enum.Enum):
    """The phase in which a transform runs; the value is its config section."""

    INITIAL = "preblocks.ic_only"
    BEFORE_STEP = "preblocks.per_step"
    AFTER_STEP = "postblocks.per_step"
    AFTER_ROLLOUT = "postblocks.post_rollout"


PREBLOCKS = (Phase.INITIAL, Phase.BEFORE_STEP)


class Where(enum.Flag):
    """Where a transform can run."""

    HOST = enum.auto()
    TRACED = enum.auto()
    BOTH = HOST | TRACED


class Reach(enum.Enum):
    """What a value after a transform depends on."""

    CHANNEL = "the value before it, by one function for all points of a channel"
    POINT = "the value before it, by another function at each point"
    COLUMN = "fields at the same point"
    GRID = "fields at other points"


# Entry ("input" or "target") -> its variables, in the order of the entry.
TreeSchema: TypeAlias = Mapping[str, Sequence[ChannelGroup]]


class LevelFile(NamedTuple):
    """Values of a file for each level of some variables, without a coordinate."""

    origin: str  # the file, and what it holds, for errors
    # Whether it has values for the levels of a variable, by its key.
    selects: Callable[[str], bool]
    # Number of each level in the file, in the order in which the levels of the
    # variables are expected; None if the file has none.
    numbers: coordinates.CoordinateValues | None = None

    def groups(self, schema: TreeSchema) -> Iterator[tuple[ChannelGroup, bool]]:
        """Yields its variables, and whether they number levels as the file does."""
        for groups in schema.values():
            for group in groups:
                if group.n_levels > 1 and self.selects(group.var_key):
                    yield (
                        group,
                        coordinates.are_numbered_alike(group.levels, self.numbers),
                    )

    def check(self, schema: TreeSchema) -> None:
        """Checks that levels with the numbers of the file are in its order."""
        for group, numbered in self.groups(schema):
            data, file = ([*map(float, x or ())] for x in (group.levels, self.numbers))
            if numbered and data != file:
                raise ValueError(
                    f"{self.origin} is of the levels {file[:20]}, but the data "
                    f"({group.var_key}) have them in the order {data[:20]}; name them "
                    "in that order in the arguments of the block, or in "
                    "data.source.*.levels"
                )


@dataclass(frozen=True, eq=False)
class Grid:
    """The grid of fields."""

    shape: tuple[int, int]  # number of latitudes and longitudes
    # (lat,) degrees north; None if it varies along rows or is unknown.
    latitude: Float[np.ndarray, " lat"] | None = None
    # (lon,) degrees east; None if it varies along columns or is unknown.
    longitude: Float[np.ndarray, " lon"] | None = None


@dataclass(frozen=True)
class Effects:
    """What a transform does besides changing values."""

    # Old key -> new key of the variables that it gives another name.
    renames: Mapping[str, str] = field(default_factory=dict)
    # Keys that a preblock reads to bring predicted fields to its grid or levels. A step
    # predicts its variables there. An interpolation of forcing alone is part of every
    # step, which predicts the pressure that it needs, and has none.
    moves: tuple[str, ...] = ()
    grid: Grid | None = None  # the grid after a preblock; None if it is the one before
    # Key -> level coordinate of the fields that a postblock makes on other levels.
    levels: Mapping[str, OutputLevels] = field(default_factory=dict)
    state: tuple[str, ...] = ()  # keys of the fields that it reads from `x_physical`


class Transform(StrictModel):
    """Base class of preblocks and postblocks: functions `(tree, context) -> tree`.

    A pipeline asks of each what the methods below say; most keep the answers here.
    Attributes of the class say

    - `phases`: phases in which it may run, of those of its section;
    - `where`: places where it can run;
    - `needs`: optional entries of the tree that it needs, "x_physical" or "ic_raw";
    - `reach`: see `Reach`;
    - `keeps_units`: whether the units of fields are the same after it;
    - `is_scaling`: whether it is a normalizer or a scaler;
    - `may_repeat`: whether running it twice is running it once;
    - `needs_host`: whether a preblock that can be traced is exact on the host alone;
    - `undone_by`: type of the postblock that undoes what a preblock makes of the values
      of predicted variables; None if there is nothing to undo;
    - `reads`: arguments with keys of fields that it reads of the state, if any.
    """

    phases: ClassVar[tuple[Phase, ...]] = tuple(Phase)
    where: ClassVar[Where] = Where.BOTH
    needs: ClassVar[tuple[str, ...]] = ()
    reach: ClassVar[Reach] = Reach.COLUMN
    keeps_units: ClassVar[bool] = False
    is_scaling: ClassVar[bool] = False
    may_repeat: ClassVar[bool] = False
    needs_host: ClassVar[bool] = False
    undone_by: ClassVar[str | None] = None
    reads: ClassVar[tuple[str, ...]] = ()

    def open(self) -> None:
        """Reads the files into private attributes, once; raises for invalid content."""

    def check(self, schema: TreeSchema) -> None:
        """Checks the variables before the transform; raises where it does not apply."""

    def at(self, schema: TreeSchema, grid: coordinates.GridCoordinates) -> Transform:
        """The transform with the values of its files in the order of the data."""
        # A ValueError names both where files have other coordinates than the grid, or
        # than the levels of the variables before the transform.
        return self

    def __call__(self, tree: FieldTree, context: StepContext = None) -> dict[str, Any]:
        """Returns a tree after the transform; the context is None on the host."""
        raise NotImplementedError

    def inverse(self, tree: FieldTree, context: StepContext = None) -> dict[str, Any]:
        """Restores the names and units before a preblock, but not the grid."""
        raise ValueError(
            "it has no inverse, so that values after it have no known physical units"
        )

    def changes(self, key: str) -> bool:
        """Whether it may change the values of a variable."""
        return True

    def schema_after(self, schema: TreeSchema) -> TreeSchema:
        """Returns the variables after a preblock, in their order."""
        return schema

    def describe(self, units: Descriptions) -> Descriptions:
        """The attributes of the fields that it makes or renames, from those before."""
        return {}

    @property
    def effects(self) -> Effects:
        """What it does to names, grid and levels, and reads of the state."""
        keys = (getattr(self, name) for name in self.reads)
        return Effects(state=tuple(key for key in keys if key is not None))

    def entries(self, tree: FieldTree | None = None) -> tuple[str, ...]:
        """The entries that it changes, its `data_types` if any, of those in a tree."""
        names = getattr(self, "data_types", None) or ("input", "target")
        return names if tree is None else tuple(filter(tree.__contains__, names))

    @property
    def level_files(self) -> Sequence[LevelFile]:
        """Its values for levels that have numbers at most, no coordinate."""
        return ()

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    def with_values(self: Model, **values: Any) -> Model:
        """Returns a copy with other values of private attributes."""
        new = self.model_copy()
        for name, value in values.items():
            setattr(new, name, value)
        return new


# Section -> type -> transform. Some types are different transforms in both sections.
TRANSFORMS: dict[str, Registry[type[Transform]]] = {
    "preblocks": Registry("preblock", Transform),
    "postblocks": Registry("postblock", Transform),
}
preblock = TRANSFORMS["preblocks"].register
postblock = TRANSFORMS["postblocks"].register


def variable_of(var_key: str) -> str:
    """Name of the variable of a key: its last part."""
    return var_key.split("/")[-1]


def source_of(var_key: str) -> str:
    """Name of the source of a key: its first part."""
    return var_key.split("/")[0]


def get_field(tree: FieldTree, part: str, key: str) -> Any:
    """Returns a field of an entry, (batch, level, time, lat, lon), by its key."""
    if part not in tree:
        raise ValueError(
            f"the batch has no {part!r}, which {key} is read from; it has: "
            f"{', '.join(sorted(tree))}. `reconstruct` makes y_processed"
        )
    fields = tree[part].get(source_of(key), {})
    if key not in fields:
        names = [
            name for source_fields in tree[part].values() for name in source_fields
        ]
        raise ValueError(
            f"{part} has no variable {key!r}; it has: {', '.join(sorted(names))}"
        )
    return fields[key]


def with_fields(
    tree: FieldTree, part: str, fields: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns a new tree with some fields of an entry replaced or added."""
    sources = {
        source: dict(source_fields)
        for source, source_fields in tree.get(part, {}).items()
    }
    for key, array in fields.items():
        sources.setdefault(source_of(key), {})[key] = array
    return {**tree, part: sources}


def map_fields(
    tree: FieldTree, change: Callable[[str, Any], Any], parts: Sequence[str]
) -> dict[str, Any]:
    """Returns a tree with `change(key, array)` of each field of the entries `parts`."""
    new = dict(tree)
    for part in parts:
        if part in tree:
            new[part] = {
                source: {key: change(key, array) for key, array in fields.items()}
                for source, fields in tree[part].items()
            }
    return new


def change_entry(
    tree: FieldTree, change: Callable[[str, Any], Any], key: str
) -> dict[str, Any]:
    """Applies `map_fields` to the entry `key`, which must have named fields."""
    if not isinstance(tree.get(key), Mapping):
        entries = [entry for entry in tree if isinstance(tree[entry], Mapping)]
        raise ValueError(
            f"key {key!r} names no fields of variables; there are: "
            f"{', '.join(entries) or 'none'}; a block of type reconstruct makes them"
        )
    return map_fields(tree, change, (key,))


def selects(variables: Variables, key: str) -> bool:
    """Whether the argument `variables` selects the variable of a key."""
    # CREDIT iterates over the letters of a string, and so it is here.
    every = not variables
    # Keys, and parts of them: ERA5/prognostic selects ERA5/prognostic/3d/T.
    return every or any(key == x or key.startswith(f"{x}/") for x in variables or ())


class InputBlock(Transform):
    """Base class of preblocks that change some entries.

    Attributes:
        data_types: entries to change; missing ones are skipped.
    """

    data_types: tuple[DataType, ...] = ("input", "target")


class OutputBlock(Transform):
    """Base class of postblocks that change one entry, which must be there.

    Attributes:
        key: entry to change.
    """

    key: str = "y_processed"

    def entries(self, tree: FieldTree | None = None) -> tuple[str, ...]:
        return (self.key,)


class OfVariables(Transform):
    """Base class of transforms that change selected variables, each by itself.

    Attributes:
        variables: keys that are selected, with those below them: "ERA5/prognostic" is
            every prognostic variable of ERA5. An empty list, or null, selects all; a
            string selects none, as in CREDIT, which iterates over its letters.
    """

    reach: ClassVar = Reach.CHANNEL

    variables: Variables

    def changes(self, key: str) -> bool:
        return selects(self.variables, key)

    def applying(self, change: Callable[[Any], Any]) -> Callable[[str, Any], Any]:
        """Returns a function of a key and its field that changes selected fields."""
        return lambda key, x: change(x) if self.changes(key) else x

    def unmatched(self, keys: Iterable[str]) -> list[str]:
        """Returns a line for each entry of `variables` that matches none of `keys`."""
        keys = list(keys)
        if isinstance(self.variables, str) and self.variables:
            return [
                f"got the string {self.variables!r}, expected a list; CREDIT takes its "
                "letters one by one and changes no variable, and so it is here. "
                f"Trained weights may depend on that; if not, write [{self.variables}]"
            ]
        return [
            f"{each!r} is no variable here and changes nothing{hint(each, keys)}"
            for each in self.variables or ()
            if not any(selects((each,), key) for key in keys)
        ]
