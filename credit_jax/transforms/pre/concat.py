"""`concat`: a nested batch becomes x and y; `to_device`: nothing to do here."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from credit_jax.config.base import StrictModel
from credit_jax.transforms.base import Batch, Block

# Rank of a field type among the channels of x; CREDIT's FIELD_TYPE_RANK.
FIELD_TYPE_RANK = {"prognostic": 0, "static": 1, "dynamic_forcing": 2, "diagnostic": 3}


class ConcatArgs(StrictModel):
    """Arguments of `concat`.

    Attributes:
        to_device: accepted; batches are placed on devices by the training step.
    """

    to_device: bool = True


class ToDeviceArgs(StrictModel):
    """Arguments of `to_device`.

    Attributes:
        device: accepted; batches are placed on devices by the training step.
    """

    device: str = "cpu"


def channel_rank(var_key: str) -> tuple[int, int]:
    """Sort key of a variable in x: field type, then 3-D before 2-D."""
    _, field_type, dims, _ = var_key.split("/", 3)
    return FIELD_TYPE_RANK[field_type], 0 if dims == "3d" else 1


def concatenate(batch: Batch) -> dict[str, Any]:
    """Join all fields along channels: x sorted by `channel_rank`, y as it comes.

    The order of the dicts counts. Arguments of a jitted function lose it (JAX sorts
    dicts): there, use `join` with the keys of a channel schema.

    Args:
        batch: nested, fields (batch, level, time, lat, lon).

    Returns:
        The batch without its fields and with x (batch, channel, time, lat, lon) and,
        if there is a target, y, both float32.

    Raises:
        ValueError: if there is no input, or fields differ in their grids.
    """
    new = {key: v for key, v in batch.items() if key not in ("input", "target")}
    inputs = _in_order(batch.get("input", {}), sort=True)
    if not inputs:
        raise ValueError("concat: the batch has no input fields")
    new["x"] = join(inputs, list(inputs))
    targets = _in_order(batch.get("target", {}), sort=False)
    if targets:
        new["y"] = join(targets, list(targets))
    return new


def build_concat(args: ConcatArgs) -> Block:
    """The block; its argument has no effect here."""
    del args
    return concatenate


def build_to_device(args: ToDeviceArgs) -> Block:
    """A block that hands the batch on."""
    del args
    return dict


def _in_order(sources: Mapping[str, Mapping[str, Any]], sort: bool) -> dict[str, Any]:
    ordered = {}
    for fields in sources.values():
        keys = sorted(fields, key=channel_rank) if sort else list(fields)
        ordered |= {key: fields[key] for key in keys}
    return ordered


def join(fields: Mapping[str, Any], keys: Sequence[str]) -> Any:
    """Fields along channels, in the order of keys, float32.

    Args:
        fields: key -> (batch, level, time, lat, lon), numpy or JAX.
        keys: of the fields, in channel order.

    Raises:
        ValueError: if the fields differ in more than their levels.
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
    xp = arrays[0].__array_namespace__()
    return xp.concatenate(arrays, axis=1).astype(np.float32)
