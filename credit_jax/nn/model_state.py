"""The state of a model besides its parameters, in named collections.

A collection maps the path of a parameter or layer to its arrays:

    {"spectral_norm": {path of a matrix: {"u", "v"}},
     "batch_stats": {path of a batch norm: {"mean", "variance", "count"},
                     path of an expert layer: {"load", "probability", "router_z"}}}

Both collections are always present; one that a model does not use is empty.
"""

from __future__ import annotations

from jaxtyping import Array

SPECTRAL_NORM = "spectral_norm"
BATCH_STATS = "batch_stats"
COLLECTIONS = (SPECTRAL_NORM, BATCH_STATS)

Collection = dict[str, dict[str, Array]]
ModelState = dict[str, Collection]
