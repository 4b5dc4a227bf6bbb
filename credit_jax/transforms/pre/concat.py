"""`concat`: joins named fields to x and y. `to_device`: has no effect."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np

from credit_jax.config import StrictModel
from credit_jax.named_fields import FieldContext
from credit_jax.named_fields.tree import by_key
from credit_jax.transforms.base import FieldTree, Transform, TreeSchema

# Rank of a field type among the channels of x; CREDIT's FIELD_TYPE_RANK.
FIELD_TYPE_RANK = {"prognostic": 0, "static": 1, "dynamic_forcing": 2, "diagnostic": 3}


class ConcatArgs(StrictModel):
    """Joins named fields to x and y.

    Attributes:
        to_device: no effect; the training loop places batches on devices.
    """

    to_device: bool = True


class ToDeviceArgs(StrictModel):
    """Does nothing; CREDIT moves arrays by it.

    Attributes:
        device: no effect; the training loop places batches on devices.
    """

    device: str = "cpu"


def channel_rank(var_key: str) -> tuple[int, int]:
    """Sort key of a variable in x: field type, then 3-D before 2-D."""
    _, field_type, dims, *_ = [*var_key.split("/"), "", ""]
    rank = FIELD_TYPE_RANK.get(field_type, len(FIELD_TYPE_RANK))
    return rank, 0 if dims == "3d" else 1


def concatenate(tree: FieldTree, context: FieldContext | None = None) -> dict[str, Any]:
    """Joins all fields along channels: x sorted by `channel_rank`, y in its order.

    Args:
        tree: has the entries input or target or both, with fields (batch, level, time,
            lat, lon). The order of variables is that of input_channel_map and
            channel_map if it has them, else that of the dicts.
        context: context of a traced step, which needs these maps, since JAX sorts the
            keys of dicts; None on the host.

    Returns:
        The tree without its fields, and with x of the input and y of the target, if
        they exist, (batch, channel, time, lat, lon) float32 (or wider, if traced).

    Raises:
        ValueError: there are no fields, their grids differ, or a traced step has no
            channel map.
    """
    new = {key: v for key, v in tree.items() if key not in ("input", "target")}
    inputs, targets = (by_key(tree.get(part, {})) for part in ("input", "target"))
    if not (inputs or targets):
        raise ValueError("concat: the batch has no fields")
    traced = context is not None
    if inputs:
        order = _order(tree, "input_channel_map", traced)
        keys = order or _ranked(tree["input"])
        new["x"] = join(inputs, keys)
    if targets:
        order = _order(tree, "channel_map", traced) or list(targets)
        new["y"] = join(targets, order)
    return new


@dataclass(frozen=True)
class Concat(Transform):
    """`concatenate`, as a block.

    Attributes:
        args: see `ConcatArgs`.
    """

    args: ConcatArgs
    by_field: ClassVar = True
    keeps_units: ClassVar = True

    def __call__(
        self, tree: FieldTree, context: FieldContext | None = None
    ) -> dict[str, Any]:
        """See `concatenate`."""
        return concatenate(tree, context)

    def schema_after(self, schema: TreeSchema) -> TreeSchema:
        """Returns the variables of x in channel order; those of y keep their order."""
        inputs = schema.get("input", ())
        sources = dict.fromkeys(group.var_key.split("/")[0] for group in inputs)
        ranked = sorted(inputs, key=lambda group: channel_rank(group.var_key))
        ordered = [
            group
            for source in sources
            for group in ranked
            if group.var_key.split("/")[0] == source
        ]
        return {**schema, "input": ordered}


@dataclass(frozen=True)
class ToDevice(Transform):
    """A transform without effect.

    Attributes:
        args: see `ToDeviceArgs`.
    """

    args: ToDeviceArgs
    by_field: ClassVar = True
    keeps_units: ClassVar = True

    def __call__(
        self, tree: FieldTree, context: FieldContext | None = None
    ) -> dict[str, Any]:
        """Returns a copy of the tree."""
        return dict(tree)

    def inverse(
        self, tree: FieldTree, context: FieldContext | None = None
    ) -> dict[str, Any]:
        """Returns a copy of the tree."""
        return dict(tree)


def _ranked(sources: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The keys of all sources; within each source, sorted by `channel_rank`."""
    return [
        key for fields in sources.values() for key in sorted(fields, key=channel_rank)
    ]


def _order(tree: FieldTree, name: str, traced: bool) -> list[str] | None:
    """The keys of a channel map in channel order; None if there is none."""
    if name not in tree:
        if traced:
            raise ValueError(
                f"concat: a traced batch needs {name!r}, {{key: slice}}, for the order "
                f"of the variables; it has: {', '.join(sorted(tree))}"
            )
        return None
    return sorted(tree[name], key=lambda key: tree[name][key].start)


def join(fields: Mapping[str, Any], keys: Sequence[str]) -> Any:
    """Concatenates fields along channels, in float32 (or wider, if traced).

    Args:
        fields: key -> (batch, level, time, lat, lon), numpy or JAX.
        keys: keys of the fields, in channel order.

    Raises:
        ValueError: the shapes of the fields differ in more than their levels.
    """
    fields = {key: fields[key] for key in keys}
    shapes = {(f.shape[0], *f.shape[2:]) for f in fields.values()}
    if len(shapes) > 1:
        listed = ", ".join(f"{key} {tuple(f.shape)}" for key, f in fields.items())
        raise ValueError(
            "concat: fields (batch, level, time, lat, lon) must agree in all but the "
            f"levels: {listed}"
        )
    arrays = list(fields.values())
    if all(isinstance(array, np.ndarray) for array in arrays):
        return np.concatenate(arrays, axis=1, dtype=np.float32)
    joined = jnp.concatenate(arrays, axis=1)
    return joined.astype(jnp.promote_types(joined.dtype, jnp.float32))
