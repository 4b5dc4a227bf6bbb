"""Unpacks the parameters of a training state for checkpoints, and packs them again.

In a training state the small parameters, their moments and their averages are one
vector each (`parallel.params.packing`). A checkpoint has every parameter under its own
path.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from credit_jax.parallel.params.packing import PACKED, packed_paths
from credit_jax.parallel.params.spec import ParamSpec

ParamSpecs = Mapping[str, ParamSpec]


def unpack_tree(tree: PyTree, param_specs: ParamSpecs) -> PyTree:
    """The tree with the parts of each packed vector under their paths.

    Args:
        tree: arrays, or `ShapeDtypeStruct`s. Parts of a vector become numpy arrays.
        param_specs: of the model's parameters.
    """
    return _map_packed(lambda node: _unpack(node, param_specs), param_specs, tree)


def unpacked_targets(like: PyTree, param_specs: ParamSpecs) -> PyTree:
    """Targets of `CheckpointStore.restore` for a tree like `like`.

    Args:
        like: `ShapeDtypeStruct`s with shardings. Parts of a packed vector are restored
            to the host, as numpy arrays.
        param_specs: of the model's parameters.
    """

    def on_host(node: Mapping[str, Any]) -> dict[str, Any]:
        vector = node[PACKED]
        zeros = np.zeros(vector.shape, vector.dtype)
        return _unpack({**node, PACKED: zeros}, param_specs)

    return _map_packed(on_host, param_specs, like)


def pack_tree(tree: PyTree, like: PyTree, param_specs: ParamSpecs) -> PyTree:
    """The inverse of `unpack_tree`, its vectors with the shardings of `like`.

    Args:
        tree: what `unpack_tree` gives for a tree like `like`.
        like: arrays or `ShapeDtypeStruct`s with shardings.
        param_specs: of the model's parameters.
    """
    paths = packed_paths(param_specs)

    def pack(node: Mapping[str, Any], parts: Mapping[str, Any]) -> dict[str, Any]:
        vector = np.concatenate([np.asarray(parts[path]).reshape(-1) for path in paths])
        packed = {path: parts[path] for path in node if path != PACKED}
        packed[PACKED] = jax.device_put(vector, node[PACKED].sharding)
        return packed

    return _map_packed(pack, param_specs, like, tree)


def _unpack(node: Mapping[str, Any], param_specs: ParamSpecs) -> dict[str, Any]:
    paths = packed_paths(param_specs)
    shapes = [param_specs[path].shape for path in paths]
    vector = node[PACKED]
    if isinstance(vector, jax.ShapeDtypeStruct):
        parts = [jax.ShapeDtypeStruct(shape, vector.dtype) for shape in shapes]
    else:
        ends = np.cumsum([math.prod(shape) for shape in shapes])[:-1]
        pairs = zip(np.split(np.array(vector), ends), shapes, strict=True)
        parts = [part.reshape(shape) for part, shape in pairs]
    others = {path: value for path, value in node.items() if path != PACKED}
    return others | dict(zip(paths, parts, strict=True))


def _map_packed(
    change: Callable[..., Any], param_specs: ParamSpecs, tree: PyTree, *rest: PyTree
) -> PyTree:
    """Applies `change` to mappings with a packed vector; the last tree has the rest."""
    size = sum(param_specs[path].size for path in packed_paths(param_specs))

    def is_packed(node: Any) -> bool:
        if not isinstance(node, Mapping) or PACKED not in node:
            return False
        return getattr(node[PACKED], "shape", None) == (size,)

    def visit(node: Any, *others: Any) -> Any:
        return change(node, *others) if is_packed(node) else (node, *others)[-1]

    return jax.tree.map(visit, tree, *rest, is_leaf=is_packed)
