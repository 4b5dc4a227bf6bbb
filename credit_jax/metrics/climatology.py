"""The mean fields of `acc` and `activity`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from credit_jax.named_fields import FieldContext

# (path of a file, or None for the training period) -> mean fields, (lat, lon) or
# (level, lat, lon), by key or name of a variable.
Climatologies: TypeAlias = Callable[[str | None], Mapping[str, np.ndarray]]


def local_climatology(
    fields: Mapping[str, np.ndarray],
    target: Float[Array, "batch channel time rows lon"],
    context: FieldContext,
) -> Float[Array, "1 channel time rows lon"]:
    """This shard's rows of the mean field of every channel.

    Args:
        fields: (lat, lon) or (level, lat, lon) by key ("ERA5/prognostic/3d/T") or name
            ("T") of a variable. For missing variables, the mean of `target` over all
            samples of the batch is used.
        target: the local target.
        context: has the channels of `target`.

    Raises:
        ValueError: a field has other levels, rows or longitudes than its variable.
    """
    parts = []
    for key, place in context.layout.slices.items():
        values = target[:, place]
        stored = fields.get(key, fields.get(key.rsplit("/", 1)[-1]))
        if stored is None:
            part = context.data_mean(values)[None]
        else:
            part = _local(key, np.asarray(stored), values, context)
        parts.append(jnp.broadcast_to(part, (1, *values.shape[1:])))
    return jnp.concatenate(parts, axis=1)


def _local(key: str, field: np.ndarray, values: Array, context: FieldContext) -> Array:
    levels, lon, lat = values.shape[1], values.shape[-1], context.reducer.rows.size
    field = field[None] if field.ndim == 2 else field
    if field.shape not in ((levels, lat, lon), (1, lat, lon)):
        raise ValueError(
            f"climatology of {key}: got shape {field.shape}, expected "
            f"{(levels, lat, lon)} (level, lat, lon)"
        )
    by_row = jnp.asarray(np.moveaxis(field, 1, 0), values.dtype)
    return jnp.moveaxis(context.local_rows(by_row), 0, 1)[None, :, None]
