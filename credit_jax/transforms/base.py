"""The type of transforms: functions from named fields to named fields.

CREDIT calls transforms preblocks and postblocks. They run in four phases (`Phase`) and
take and return a `FieldTree`, a nested dict with these entries:

    input, target          {source: {key: (batch, level, time, lat, lon)}}, where key is
                           "{source}/{field_type}/{3d|2d}/{variable}"
    input_times,           (batch,) datetime64, on the host only
    target_times
    x, y                   (batch, channel, time, lat, lon): what `concat` makes of
                           input and target
    y_pred                 (batch, channel, time, lat, lon): the model's output
    x_physical             like input: the state before the step, in physical units, one
                           time or more; the batch has the fields that transforms read
    ic_raw                 like input: the static fields before any transform; the batch
                           has it if a transform needs it
    y_processed            like target: what `reconstruct` makes of y_pred
    y_target_processed     the same of y, where the config asks for it
    input_channel_map,     {key: slice} of the channels of x, of y and y_pred
    channel_map
    destination            {"input" or "target": Destination}, on the host only, if x
                           and y are parts of arrays that are there already

A transform runs on the host, on whole numpy arrays, or traced, on local JAX arrays
inside `shard_map` with a `FieldContext` for global integrals, or on both (`Where`). One
that runs on both uses only operations that numpy and JAX arrays share. JAX sorts the
keys of dicts that pass through `jit`: a traced transform takes the order of variables
from a channel map.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
from jaxtyping import Float

from credit_jax.config.base import StrictModel
from credit_jax.fields import FieldContext, FieldTree
from credit_jax.transforms.selection import Selection

# (tree, context) -> a new tree; the context is None on the host.
Transform: TypeAlias = Callable[[FieldTree, FieldContext | None], dict[str, Any]]


class Phase(enum.Enum):
    """When a transform runs; the value is its section of the config."""

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
    """A transform by CREDIT's type name.

    Attributes:
        args: class of the arguments in the config.
        build: from validated arguments to the transform; reads its files.
        phases: when it may run.
        where: where it can run.
        files: names of the arguments that are paths of files that must be there.
        needs: entries of the tree that are there only for transforms that need them,
            "x_physical" or "ic_raw".
        is_fitted: whether `credit-jax preprocess` makes its files.
    """

    args: type[StrictModel]
    build: Callable[[Any], Transform]
    phases: tuple[Phase, ...]
    where: Where
    files: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    is_fitted: bool = False


@dataclass(frozen=True)
class Destination:
    """Where `concat` puts the fields of an entry.

    A transform that maps elements to elements may put its result there at once, which
    saves a pass over memory; it may also do without.

    Attributes:
        array: (batch, channel, time, lat, lon) float32, x or y or a part of them.
        channels: key -> channels of the array.
    """

    array: np.ndarray
    channels: Mapping[str, slice]

    def place(self, key: str, shape: tuple[int, ...]) -> np.ndarray | None:
        """The part of `array` for a field; None if it has none of that shape."""
        if key not in self.channels:
            return None
        part = self.array[:, self.channels[key]]
        return part if part.shape == shape else None


@runtime_checkable
class Group(Protocol):
    """One variable of a channel layout, as `credit_jax.data.channels` has it."""

    @property
    def var_key(self) -> str:
        """Like "{source}/{field_type}/{3d|2d}/{variable}"."""
        ...

    @property
    def n_levels(self) -> int:
        """Its channels."""
        ...


# Entry ("input" or "target") -> its variables, in the order of the entry.
Layout: TypeAlias = Mapping[str, Sequence[Group]]


@runtime_checkable
class ChecksLayout(Protocol):
    """A transform that can check the variables that it gets."""

    def check(self, layout: Layout) -> None:
        """Raise a ValueError if it does not."""
        ...


@runtime_checkable
class ChangesLayout(Protocol):
    """A preblock after which there are other variables, or others in another order."""

    def layout(self, layout: Layout) -> Layout:
        """The variables after it, made with `dataclasses.replace` of those before."""
        ...


@runtime_checkable
class ChangesGrid(Protocol):
    """A preblock after which fields have another grid."""

    @property
    def grid(self) -> Grid:
        """The grid after it."""
        ...


@runtime_checkable
class ReadsState(Protocol):
    """A transform that reads `x_physical`."""

    @property
    def state_keys(self) -> tuple[str, ...]:
        """The keys that it reads there."""
        ...


@runtime_checkable
class Selects(Protocol):
    """A transform of some variables."""

    @property
    def selection(self) -> Selection:
        """Which ones."""
        ...


@runtime_checkable
class Invertible(Protocol):
    """A preblock that can be undone: what it makes has known physical units."""

    def inverse(
        self, tree: FieldTree, context: FieldContext | None = None
    ) -> dict[str, Any]:
        """The tree with names and units as before the block, on the grid after it."""
        ...


@dataclass(frozen=True, eq=False)
class Grid:
    """Where fields are.

    Attributes:
        shape: latitudes and longitudes.
        latitude: (lat,) degrees north; None if rows have no one latitude.
        longitude: (lon,) degrees east.
    """

    shape: tuple[int, int]
    latitude: Float[np.ndarray, " lat"] | None = None
    longitude: Float[np.ndarray, " lon"] | None = None


def variable_of(var_key: str) -> str:
    """Name of the variable of a key: its last part.

    >>> variable_of("ERA5/prognostic/3d/T")
    'T'
    """
    return var_key.split("/")[-1]


def map_fields(
    tree: FieldTree, change: Callable[[str, Any], Any], parts: Sequence[str]
) -> dict[str, Any]:
    """A new tree whose fields in some entries are `change(key, array)`.

    Args:
        tree: not changed.
        change: takes a key and its array.
        parts: entries such as "input"; those that the tree lacks are skipped.
    """
    new = dict(tree)
    for part in parts:
        if part in tree:
            new[part] = {
                source: {key: change(key, array) for key, array in fields.items()}
                for source, fields in tree[part].items()
            }
    return new


def place_of(
    tree: FieldTree, part: str, key: str, shape: tuple[int, ...]
) -> np.ndarray | None:
    """Where a transform may put a field of x or y at once; None if nowhere."""
    destination = tree.get("destination", {}).get(part)
    return None if destination is None else destination.place(key, shape)


def change_entry(
    tree: FieldTree, change: Callable[[str, Any], Any], key: str, name: str
) -> dict[str, Any]:
    """`map_fields` of the entry that a postblock's argument `key` names.

    Args:
        tree: not changed.
        change: takes a variable's key and its array.
        key: the entry.
        name: type of the block, for the error.

    Raises:
        ValueError: the tree has no such entry.
    """
    if not isinstance(tree.get(key), Mapping):
        there = [own for own in tree if isinstance(tree[own], Mapping)]
        raise ValueError(
            f"{name}: key {key!r} names no fields of variables; there are: "
            f"{', '.join(there) or 'none'}; a block of type reconstruct makes them"
        )
    return map_fields(tree, change, (key,))
