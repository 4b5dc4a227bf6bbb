"""Unpacks the parameters of a training state for checkpoints, and packs them again.

In a training state the small parameters, their moments and their averages are one
vector each (`parallel.params.packing`). A checkpoint has every parameter under its own
path.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from credit_jax.parallel.params.packing import PACKED, Packing


def unpack_on_host(tree: PyTree, packing: Packing) -> PyTree:
    """The tree with the parts of each packed vector under their paths.

    Args:
        tree: arrays, or `ShapeDtypeStruct`s. Parts of a vector become numpy arrays.
        packing: packing of the model's parameters.
    """

    def on_host(vector: Any) -> Any:
        return vector if isinstance(vector, jax.ShapeDtypeStruct) else np.array(vector)

    return packing.map_packed(_with_vector(on_host, packing), tree)


def unpacked_targets(like: PyTree, packing: Packing) -> PyTree:
    """Targets of `CheckpointStore.restore` for a tree like `like`.

    Args:
        like: `ShapeDtypeStruct`s with shardings. Parts of a packed vector are restored
            to the host, as numpy arrays.
        packing: packing of the model's parameters.
    """

    def zeros(vector: Any) -> np.ndarray:
        return np.zeros(vector.shape, vector.dtype)

    return packing.map_packed(_with_vector(zeros, packing), like)


def pack_tree(tree: PyTree, like: PyTree, packing: Packing) -> PyTree:
    """The inverse of `unpack_on_host`, its vectors with the shardings of `like`.

    Args:
        tree: what `unpack_on_host` gives for a tree like `like`.
        like: arrays or `ShapeDtypeStruct`s with shardings.
        packing: packing of the model's parameters.
    """
    paths = [path for path, _ in packing.shapes]

    def pack(node: Mapping[str, Any], parts: Mapping[str, Any]) -> dict[str, Any]:
        vector = np.concatenate([np.asarray(parts[path]).reshape(-1) for path in paths])
        others = {path: parts[path] for path in node if path != PACKED}
        return others | {PACKED: jax.device_put(vector, node[PACKED].sharding)}

    return packing.map_packed(pack, like, tree)


def _with_vector(
    change: Callable[[Any], Any], packing: Packing
) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """Returns a function that changes the vector of packed parameters and unpacks."""
    return lambda node: packing.unpack({**node, PACKED: change(node[PACKED])})
