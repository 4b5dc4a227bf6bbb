"""The named fields of a step: transforms write them, losses and metrics read them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import jax.numpy as jnp
from jaxtyping import Array

from credit_jax.named_fields.context import ChannelLayout
from credit_jax.named_fields.coordinates import CoordinateValues

# Entries by name; `credit_jax.transforms.base` lists them.
FieldTree: TypeAlias = Mapping[str, Any]
# One entry: source -> key -> field (batch, level, time, lat, lon).
NamedFields: TypeAlias = Mapping[str, Mapping[str, Any]]

PREDICTION, TARGET = "y_processed", "y_target_processed"


@dataclass(frozen=True)
class ChannelGroup:
    """The channels of one variable."""

    var_key: str  # "{source}/{field_type}/{3d|2d}/{variable}"
    n_levels: int  # number of its channels
    n_time: int  # number of its times
    levels: CoordinateValues | None = field(default=None, compare=False)

    @property
    def source(self) -> str:
        """Name of its source."""
        return self.var_key.split("/")[0]

    @property
    def field_type(self) -> str:
        """One of "prognostic", "static", "dynamic_forcing" or "diagnostic"."""
        return self.var_key.split("/")[1]

    @property
    def variable(self) -> str:
        """Name of the variable, as in the file."""
        return self.var_key.split("/")[-1]


def by_source(fields: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Source -> key -> field, of key -> field; keys begin with their source."""
    tree: dict[str, dict[str, Any]] = {}
    for key, array in fields.items():
        tree.setdefault(key.split("/")[0], {})[key] = array
    return tree


def by_key(fields: NamedFields) -> dict[str, Any]:
    """Key -> field, of source -> key -> field; the inverse of `by_source`."""
    return {key: x for of_source in fields.values() for key, x in of_source.items()}


@contextmanager
def keys_of_tree(subject: str, tree: FieldTree) -> Iterator[None]:
    """Turns a KeyError of a user's function into a ValueError with all keys."""
    try:
        yield
    except KeyError as error:
        fields = [tree[name] for name in (PREDICTION, TARGET) if name in tree]
        names = [*tree, *dict.fromkeys(key for x in fields for key in by_key(x))]
        raise ValueError(
            f"{subject} reads the key {error}, which is not there; there are: "
            f"{', '.join(names)}"
        ) from error


def named_pair(
    tree: FieldTree, targets: Collection[str], *, include_computed: bool = True
) -> tuple[Array, Array, ChannelLayout]:
    """Concatenates the named fields of prediction and target along channels."""
    pair = []
    for entry in (PREDICTION, TARGET):
        if entry not in tree:
            of_target = ", args: {in_key: y, out_key: y_target_processed}"
            block = "{type: reconstruct" + (of_target if entry == TARGET else "") + "}"
            raise ValueError(
                f"{entry}: the postblocks make no such fields; add {block} and what "
                "undoes the scaling to postblocks.per_step"
            )
        pair.append(by_key(tree[entry]))
    keys = list(targets)
    if include_computed:
        # Other variables of the prediction, which postblocks computed.
        keys += sorted(set(pair[0]) - set(keys))
    for entry, fields in zip((PREDICTION, TARGET), pair, strict=True):
        if missing := [key for key in keys if key not in fields]:
            raise ValueError(
                f"{entry} has no {', '.join(missing)}. If a postblock computes it, let "
                "the same postblock run on the target (key: y_target_processed), or "
                "set include_computed_diagnostics: false"
            )
    prediction, target = (
        jnp.concatenate([widened(fields[key]) for key in keys], axis=1)
        for fields in pair
    )
    counts = {key: pair[0][key].shape[1] for key in keys}
    return prediction, target, ChannelLayout.of(counts)


def widened(field: Array) -> Array:
    """Casts a field to float32, unless its dtype is wider."""
    return field.astype(jnp.promote_types(field.dtype, jnp.float32))
