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

A transform runs on the host, on whole numpy arrays, or traced, on local JAX arrays
inside `shard_map` with a `FieldContext` for global integrals, or both (`Where`). For
both, it uses only operations that numpy and JAX arrays share. JAX sorts the keys of
dicts that pass through `jit`, so a traced transform takes the order of variables from a
channel map.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeAlias, runtime_checkable

import numpy as np
from jaxtyping import Float

from credit_jax.config import StrictModel
from credit_jax.named_fields import FieldContext, FieldTree
from credit_jax.named_fields.coordinates import CoordinateValues, GridCoordinates
from credit_jax.transforms.selection import Selection

# Key -> its CF attributes: standard_name, long_name, units, those that are known.
Descriptions: TypeAlias = Mapping[str, Mapping[str, str]]

# Name and values of a level coordinate.
OutputLevels: TypeAlias = tuple[str, Sequence[float]]
# Names of such coordinates: pressure in hPa, height above the ground in m.
PRESSURE, HEIGHT = "pressure", "height_agl"

# (tree, context) -> a new tree; the context is None on the host.
TransformFunction: TypeAlias = Callable[
    [FieldTree, FieldContext | None], dict[str, Any]
]


class Phase(enum.Enum):
    """The phase in which a transform runs; the value is its config section."""

    INITIAL = "preblocks.ic_only"
    BEFORE_STEP = "preblocks.per_step"
    AFTER_STEP = "postblocks.per_step"
    AFTER_ROLLOUT = "postblocks.post_rollout"

    @property
    def section(self) -> str:
        """Top-level key of the config: "preblocks" or "postblocks"."""
        return self.value.split(".")[0]


PREBLOCKS = (Phase.INITIAL, Phase.BEFORE_STEP)
POSTBLOCKS = (Phase.AFTER_STEP, Phase.AFTER_ROLLOUT)


class Where(enum.Flag):
    """Where a transform can run."""

    HOST = enum.auto()
    TRACED = enum.auto()
    BOTH = HOST | TRACED


@dataclass(frozen=True)
class TransformEntry:
    """An entry of the registry of transforms.

    Attributes:
        args: class that validates the arguments in the config.
        build: builds the transform from its validated arguments, and reads its files.
        phases: phases in which it may run.
        where: places where it can run.
        files: names of the arguments that are paths of required files.
        needs: optional entries of the tree that it needs, "x_physical" or "ic_raw".
        is_fitted: whether `credit-jax preprocess` makes its files.
        undone_by: type of the postblock that undoes what a preblock makes of the values
            of predicted variables; None if there is nothing to undo.
    """

    args: type[StrictModel]
    build: Callable[[Any], Transform | TransformFunction]
    phases: tuple[Phase, ...]
    where: Where
    files: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    is_fitted: bool = False
    undone_by: str | None = None


@runtime_checkable
class Group(Protocol):
    """One variable of a schema, such as `data.schema.ChannelGroup`."""

    @property
    def var_key(self) -> str:
        """Key "{source}/{field_type}/{3d|2d}/{variable}"."""
        ...

    @property
    def n_levels(self) -> int:
        """Number of its channels."""
        ...

    @property
    def levels(self) -> tuple[float, ...] | None:
        """Values of its levels; None if unknown."""
        ...


# Entry ("input" or "target") -> its variables, in the order of the entry.
TreeSchema: TypeAlias = Mapping[str, Sequence[Group]]


@dataclass(frozen=True)
class LevelFile:
    """Values of a file for each level of some variables.

    Attributes:
        where: the file, and what it holds, for errors.
        selects: whether it has values for the levels of a variable, by its key.
        numbers: number of each level in the file, in the order in which the levels of
            the variables are expected; None if the file has none.
    """

    where: str
    selects: Callable[[str], bool]
    numbers: CoordinateValues | None = None


@dataclass(frozen=True, eq=False)
class Grid:
    """The grid of fields.

    Attributes:
        shape: number of latitudes and longitudes.
        latitude: (lat,) degrees north; None if it varies along rows or is unknown.
        longitude: (lon,) degrees east; None if it varies along columns or is unknown.
    """

    shape: tuple[int, int]
    latitude: Float[np.ndarray, " lat"] | None = None
    longitude: Float[np.ndarray, " lon"] | None = None


class Transform:
    """Base class of transforms: what a pipeline asks of each, with what most answer.

    A transform is a function `(tree, context) -> tree`, which leaves its input as it
    is. A plain function will do where all answers are these (`as_transform`).

    Attributes:
        by_field: whether it changes each field by itself, whatever others there are.
        keeps_units: whether the units of fields are the same after it.
        is_scaling: whether it is a normalizer or a scaler.
    """

    by_field: ClassVar[bool] = False
    keeps_units: ClassVar[bool] = False
    is_scaling: ClassVar[bool] = False

    def __call__(
        self, tree: FieldTree, context: FieldContext | None = None
    ) -> dict[str, Any]:
        """Returns the tree after the transform.

        Args:
            tree: see the top of this module; it is not modified.
            context: context of the step if traced; None on the host.
        """
        raise NotImplementedError

    def inverse(
        self, tree: FieldTree, context: FieldContext | None = None
    ) -> dict[str, Any]:
        """Restores the names and units before a preblock, but not the grid.

        Raises:
            ValueError: it has no inverse.
        """
        raise ValueError(
            "it has no inverse, so that values after it have no known physical units"
        )

    def check(self, schema: TreeSchema) -> None:
        """Checks the variables before the transform.

        Raises:
            ValueError: it cannot be applied to them.
        """

    def at(self, schema: TreeSchema, grid: GridCoordinates) -> Transform:
        """Returns the transform with the values of its files in the order of the data.

        Args:
            schema: the variables before the transform, with their levels.
            grid: latitudes and longitudes of the fields.

        Raises:
            ValueError: the files have other coordinates; names both.
        """
        return self

    def schema_after(self, schema: TreeSchema) -> TreeSchema:
        """Returns the variables after a preblock, in their order."""
        return schema

    def describe(self, known: Descriptions) -> Descriptions:
        """Returns the attributes of the fields that it makes, or gives another name.

        Args:
            known: attributes of the fields before it.
        """
        return {}

    def changes(self, key: str) -> bool:
        """Whether it may change the values of a variable."""
        return True

    def unmatched(self, keys: Sequence[str]) -> list[str]:
        """Returns a line for each variable of its arguments that is none of `keys`."""
        return []

    def unit_of(self, key: str) -> tuple[str, str] | None:
        """Unit that a variable must have, and the file that says so; None if any."""
        return None

    def attached(self) -> Transform:
        """Returns the transform without any stop of gradients."""
        return self

    @property
    def renames(self) -> Mapping[str, str]:
        """Old key -> new key of the variables that it gives another name."""
        return {}

    def predicted_names(self, names: Mapping[str, str]) -> dict[str, str]:
        """The keys that predicted variables have after the preblock.

        Args:
            names: key in the data -> key before the preblock, if another.

        Returns:
            Key in the data -> key after the preblock, if another.
        """
        return dict(names)

    def origins(self, names: Mapping[str, str]) -> dict[str, str]:
        """The keys that predicted variables have before the preblock.

        Args:
            names: key at the end of the preblocks -> key after this one, if another.

        Returns:
            Key at the end of the preblocks -> key before this one, if another.
        """
        return dict(names)

    @property
    def new_grid(self) -> Grid | None:
        """The grid after a preblock; None if it is the one before."""
        return None

    @property
    def needs_grid(self) -> bool:
        """Whether a preblock needs all rows of a field on the host, not only some."""
        return False

    @property
    def needs_host(self) -> bool:
        """Whether a preblock that can be traced is exact on the host alone.

        Others that change each field by itself run within the step (`Preparation`).
        """
        return False

    @property
    def by_channel(self) -> bool:
        """Whether it changes all points of a channel by one function."""
        return not self.needs_grid

    @property
    def moves_fields(self) -> bool:
        """Whether a preblock brings fields that a model predicts to its grid or levels.

        A step predicts its variables there. An interpolation of forcing alone is part
        of every step, which predicts the pressure that it needs.
        """
        return False

    def variables_read(self) -> tuple[str, ...]:
        """Returns the keys of the variables that such a preblock reads.

        Raises:
            ValueError: it moves variables that are read anew in every step, too.
        """
        return ()

    @property
    def level_files(self) -> Sequence[LevelFile]:
        """Its values for levels that have numbers at most, no coordinate."""
        return ()

    @property
    def output_levels(self) -> Mapping[str, OutputLevels]:
        """Key -> level coordinate of the fields that it makes on other levels."""
        return {}

    @property
    def state_keys(self) -> tuple[str, ...]:
        """Keys of the fields that it reads from `x_physical`."""
        return ()


class OfVariables(Transform):
    """Base class of transforms whose arguments have `variables`.

    Attributes:
        args: the arguments, of a class of its own in each of them.
    """

    by_field: ClassVar = True
    args: Any

    @property
    def selection(self) -> Selection:
        """The selected variables."""
        return Selection(self.args.variables)

    def changes(self, key: str) -> bool:
        """Whether the variable is selected."""
        return self.selection(key)

    def unmatched(self, keys: Sequence[str]) -> list[str]:
        """See `Selection.unmatched`."""
        return self.selection.unmatched(keys)


class FunctionTransform(Transform):
    """A plain function as a transform.

    Attributes:
        function: (tree, context) -> a new tree.
    """

    def __init__(self, function: Callable[..., Any]):
        self.function = function

    def __call__(
        self, tree: FieldTree, context: FieldContext | None = None
    ) -> dict[str, Any]:
        """Calls the function."""
        return self.function(tree, context)


def as_transform(function: Any) -> Transform:
    """Returns a transform of what the `build` of an entry has returned.

    Raises:
        ValueError: it is no function, or an object that answers questions of a pipeline
            which only a `Transform` is asked.
    """
    if isinstance(function, Transform):
        return function
    if not callable(function):
        raise ValueError(
            "build must return a function (tree, context) -> tree; got "
            f"{type(function).__name__}"
        )
    answers = [
        name
        for name in vars(Transform)
        if not name.startswith("_") and hasattr(function, name)
    ]
    if answers:
        raise ValueError(
            f"{type(function).__name__} has {', '.join(answers)}, which only a "
            "credit_jax.transforms.Transform is asked for; make that its base class"
        )
    return FunctionTransform(function)


def variable_of(var_key: str) -> str:
    """Name of the variable of a key: its last part.

    >>> variable_of("ERA5/prognostic/3d/T")
    'T'
    """
    return var_key.split("/")[-1]


def map_fields(
    tree: FieldTree, change: Callable[[str, Any], Any], parts: Sequence[str]
) -> dict[str, Any]:
    """Returns a new tree with `change(key, array)` for every field of some entries.

    Args:
        tree: the tree; it is not modified.
        change: returns the new array for a key and its array.
        parts: entries such as "input"; missing ones are skipped.
    """
    new = dict(tree)
    for part in parts:
        if part in tree:
            new[part] = {
                source: {key: change(key, array) for key, array in fields.items()}
                for source, fields in tree[part].items()
            }
    return new


def change_entry(
    tree: FieldTree, change: Callable[[str, Any], Any], key: str, name: str
) -> dict[str, Any]:
    """Applies `map_fields` to one entry, which must exist.

    Args:
        tree: the tree; it is not modified.
        change: returns the new array for a variable's key and its array.
        key: the entry, argument `key` of a postblock.
        name: type of the block, for the error.

    Raises:
        ValueError: the tree has no such entry of named fields.
    """
    if not isinstance(tree.get(key), Mapping):
        entries = [entry for entry in tree if isinstance(tree[entry], Mapping)]
        raise ValueError(
            f"{name}: key {key!r} names no fields of variables; there are: "
            f"{', '.join(entries) or 'none'}; a block of type reconstruct makes them"
        )
    return map_fields(tree, change, (key,))
