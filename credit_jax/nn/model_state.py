"""The state of a model besides its parameters, in named collections.

A collection maps the path of a parameter or layer to its arrays:

    {"spectral_norm": {path of a matrix: {"u", "v"}},
     "batch_stats": {path of a batch norm: {"mean", "variance", "count"},
                     path of an expert layer: {"load", "probability", "router_z"}}}

Both collections are always present; one that a model does not use is empty.
"""

from __future__ import annotations

from typing import Any

import jax
from jaxtyping import Array

SPECTRAL_NORM = "spectral_norm"
BATCH_STATS = "batch_stats"
COLLECTIONS = (SPECTRAL_NORM, BATCH_STATS)

Collection = dict[str, dict[str, Array]]
ModelState = dict[str, Collection]


def wide_statistics(model_state: Any) -> Any:
    """Returns the batch-norm statistics in float32, the initial value of their average.

    Counts of batches are averaged like the other statistics, as in CREDIT; nothing
    reads them.
    """
    return jax.tree.map(
        lambda x: (
            x.update(dtype="float32")
            if isinstance(x, jax.ShapeDtypeStruct)
            else x.astype("float32")
        ),
        model_state[BATCH_STATS],
    )


def with_averaged_statistics(model_state: Any, averaged: Any) -> Any:
    """Returns the model state with averaged batch-norm statistics, if given."""
    if averaged is None:
        return model_state
    batch_stats = model_state[BATCH_STATS]
    taken = jax.tree.map(lambda x, mean: mean.astype(x.dtype), batch_stats, averaged)
    return {**model_state, BATCH_STATS: taken}
