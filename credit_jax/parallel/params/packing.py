"""Packs small parameters into one vector, within training states.

A WXFormer has hundreds of biases and scales and a few dozen large kernels. As separate
arrays, each needs a kernel launch for every operation of the optimizer, of the moving
average and of the gradient sum. A training step therefore updates the small parameters
as one vector, in the order of their paths, which does not depend on the mesh. Outside
of training states every parameter is by itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import jax
import numpy as np
from jax.core import Tracer
from jax.sharding import NamedSharding, PartitionSpec, Sharding
from jaxtyping import PyTree

from credit_jax.ops import packed
from credit_jax.parallel.params.spec import ParamSpec

# Path of the vector in a dict of packed parameters.
PACKED = "packed"


@dataclass(frozen=True)
class Packing:
    """The layout of the vector of small parameters; hashable."""

    shapes: tuple[tuple[str, tuple[int, ...]], ...]

    @classmethod
    def of(cls, param_specs: Mapping[str, ParamSpec]) -> Packing:
        """Returns the layout for the parameters of a model."""
        small = ((path, d.shape) for path, d in param_specs.items() if d.is_small)
        return cls(tuple(sorted(small)))

    @property
    def size(self) -> int:
        """Number of values of the vector."""
        return sum(math.prod(shape) for _, shape in self.shapes)

    def pack(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Replaces small parameters by one vector under `PACKED`."""
        small = dict(self.shapes)
        out = {path: value for path, value in params.items() if path not in small}
        if small:
            out[PACKED] = packed.pack([params[path] for path in small])
        return out

    def unpack(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Restores small parameters: the inverse of `pack`."""
        # Arrays, shapes of them, or their specs; the transpose is one concatenation.
        out = {path: value for path, value in params.items() if path != PACKED}
        if self.shapes:
            paths = (path for path, _ in self.shapes)
            out |= zip(paths, self._parts(params[PACKED]), strict=True)
        return out

    def param_specs(self, param_specs: Mapping[str, ParamSpec]) -> dict[str, ParamSpec]:
        """Returns the parameter specs of the result of `pack`."""
        out = {path: d for path, d in param_specs.items() if not d.is_small}
        return out | ({PACKED: ParamSpec((self.size,), (None,))} if self.shapes else {})

    def unpack_tree(
        self, tree: PyTree, change: Callable[[Any], Any] = lambda vector: vector
    ) -> PyTree:
        """Applies `unpack` to every dict of packed parameters of a tree."""
        return self.map_packed(
            lambda node: self.unpack({**node, PACKED: change(node[PACKED])}), tree
        )

    def map_packed(
        self, change: Callable[..., Any], tree: PyTree, *remainder: PyTree
    ) -> PyTree:
        """Applies a function to the dicts of packed parameters of a tree."""

        def is_packed(node: Any) -> bool:
            if not isinstance(node, Mapping) or PACKED not in node:
                return False
            return getattr(node[PACKED], "shape", (self.size,)) == (self.size,)

        def visit(node: Any, *others: Any) -> Any:
            # Leaves in no such dict are those of the last tree.
            return change(node, *others) if is_packed(node) else (node, *others)[-1]

        return jax.tree.map(visit, tree, *remainder, is_leaf=is_packed)

    def _parts(self, vector: Any) -> list[Any]:
        """Returns each small parameter, of the type of the vector."""
        shapes = [shape for _, shape in self.shapes]
        if isinstance(vector, Tracer):
            return packed.unpack(vector, shapes)
        if isinstance(vector, jax.Array):
            return _split_on_devices(self, vector.sharding)(vector)
        if isinstance(vector, jax.ShapeDtypeStruct):
            sharding = _whole(vector.sharding)
            return [
                jax.ShapeDtypeStruct(shape, vector.dtype, sharding=sharding)
                for shape in shapes
            ]
        if isinstance(vector, np.ndarray):
            ends = np.cumsum([math.prod(shape) for shape in shapes])[:-1]
            pairs = zip(np.split(vector, ends), shapes, strict=True)
            return [part.reshape(shape) for part, shape in pairs]
        is_spec = isinstance(vector, PartitionSpec)
        return [PartitionSpec() if is_spec else _whole(vector)] * len(shapes)


@cache
def _split_on_devices(
    packing: Packing, sharding: Sharding
) -> Callable[[jax.Array], list[jax.Array]]:
    """Returns one program that splits the vector, instead of one for each part."""
    shapes = [shape for _, shape in packing.shapes]

    def split_small_parameters(vector: jax.Array) -> list[jax.Array]:  # shown in logs
        return packed.unpack(vector, shapes)

    return jax.jit(split_small_parameters, out_shardings=_whole(sharding))


def _whole(sharding: Any) -> Any:
    """Returns the sharding of a part of a vector that all devices hold."""
    if isinstance(sharding, NamedSharding):
        return NamedSharding(sharding.mesh, PartitionSpec())
    return sharding


def unpack_on_host(tree: PyTree, packing: Packing) -> PyTree:
    """The tree with the parts of each packed vector under their paths."""
    return packing.unpack_tree(
        tree, lambda x: x if isinstance(x, jax.ShapeDtypeStruct) else np.array(x)
    )


def pack_tree(tree: PyTree, like: PyTree, packing: Packing) -> PyTree:
    """The inverse of `unpack_on_host`, its vectors with the shardings of `like`."""
    paths = [path for path, _ in packing.shapes]

    def pack(node: Mapping[str, Any], parts: Mapping[str, Any]) -> dict[str, Any]:
        vector = np.concatenate([np.asarray(parts[path]).reshape(-1) for path in paths])
        others = {path: parts[path] for path in node if path != PACKED}
        return others | {PACKED: jax.device_put(vector, node[PACKED].sharding)}

    return packing.map_packed(pack, like, tree)
