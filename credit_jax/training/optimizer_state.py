"""The sharding of an optimizer's state, and checks that it can be sharded."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, PyTree

from credit_jax.ops.vma import varying_axes


def optimizer_state_specs(
    optimizer: optax.GradientTransformation,
    shapes: Mapping[str, jax.ShapeDtypeStruct],
    specs: Mapping[str, PartitionSpec],
    mesh: Mesh,
) -> PyTree[PartitionSpec]:
    """PartitionSpec of every leaf of an optimizer's state.

    A leaf with the path and the shape of a parameter is sharded like it. Any other leaf
    is replicated; its shape must not depend on the sharding of the parameters.

    Args:
        optimizer: any transformation with elementwise state.
        shapes: of the whole parameters, by path.
        specs: PartitionSpec of each parameter.
        mesh: that of `specs`.

    Raises:
        ValueError: a leaf fits neither case, such as Adafactor's sums over rows.
    """
    local = {
        path: jax.ShapeDtypeStruct(
            NamedSharding(mesh, specs[path]).shard_shape(leaf.shape), leaf.dtype
        )
        for path, leaf in shapes.items()
    }
    whole = jax.eval_shape(optimizer.init, dict(shapes))
    shards = jax.eval_shape(optimizer.init, local)
    return jax.tree_util.tree_map_with_path(
        partial(_spec_of, shapes, specs), whole, shards
    )


def _spec_of(
    shapes: Mapping[str, jax.ShapeDtypeStruct],
    specs: Mapping[str, PartitionSpec],
    path: tuple[Any, ...],
    whole: jax.ShapeDtypeStruct,
    shard: jax.ShapeDtypeStruct,
) -> PartitionSpec:
    """The spec of one leaf, from its shape for whole parameters and for shards."""
    keys = [entry.key for entry in path if isinstance(entry, jax.tree_util.DictKey)]
    named = [key for key in keys if key in shapes]
    if named and whole.shape == shapes[named[-1]].shape:
        return specs[named[-1]]
    if whole.shape == shard.shape:
        return PartitionSpec()
    name = jax.tree_util.keystr(path, simple=True, separator=".")
    raise ValueError(
        f"the optimizer's state {name} has the shape {whole.shape} for whole "
        f"parameters and {shard.shape} for the shards of a device; expected that of "
        "its parameter (elementwise state, as Adam's moments) or one that does not "
        "depend on the mesh (a count). Take an optimizer with elementwise state, or a "
        "mesh that splits no parameter"
    )


def check_updates(updates: Any, params: Mapping[str, Array]) -> None:
    """Checks that each update is the same on all devices that hold the same shard.

    Args:
        updates: of an optimizer, inside `shard_map`, by path.
        params: the parameters that they are added to.

    Raises:
        ValueError: an update was computed from shards of other parameters.
    """
    for path, update in updates.items():
        axes = varying_axes(update) - varying_axes(params[path])
        if axes:
            raise ValueError(
                f"the optimizer's update of {path!r} differs over the mesh axes "
                f"{sorted(axes)}, over which the parameter is replicated: it was "
                "computed from local shards of other parameters, as "
                "optax.clip_by_global_norm does. Take credit_jax.training.optimizer."
                "clip_by_global_norm, or transformations that are elementwise"
            )
