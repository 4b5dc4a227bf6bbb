"""The sharding of an optimizer's state, and checks that it can be sharded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, PyTree

from credit_jax.ops.vma import varying_axes
from credit_jax.parallel.params.packing import Packing


class UniformTransformation(optax.GradientTransformationExtraArgs):
    """A transformation that treats all parameters and elements alike.

    A training step gives it the small parameters as one vector
    (`parallel.params.packing`), which takes a launch for each operation in place of
    hundreds. Any other transformation is given every parameter under its own path.
    """

    __slots__ = ()


def update_by_path(
    optimizer: optax.GradientTransformation, packing: Packing
) -> Callable[..., tuple[dict[str, Array], Any]]:
    """Returns the checked `update` of an optimizer, for packed parameters.

    Args:
        optimizer: a `UniformTransformation`, or one that is given every parameter under
            its own path.
        packing: packing of the parameters.

    Returns:
        Function (packed gradient, state, packed parameters, **extra arguments) ->
        (packed updates, state). It raises ValueError as `check_updates`.
    """
    update = optax.with_extra_args_support(optimizer).update
    uniform = isinstance(optimizer, UniformTransformation)

    def by_path(packed: Mapping[str, Array]) -> dict[str, Array]:
        return dict(packed) if uniform else packing.unpack(packed)

    def updates(
        grads: Mapping[str, Array],
        state: Any,
        params: Mapping[str, Array],
        **extra: Any,
    ) -> tuple[dict[str, Array], Any]:
        named = by_path(params)
        changes, state = update(by_path(grads), state, named, **extra)
        check_updates(changes, named)
        return changes if uniform else packing.pack(changes), state  # pyright: ignore

    return updates


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
        shapes: shapes of the whole parameters, by path.
        specs: PartitionSpec of each parameter.
        mesh: mesh of `specs`.

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
        updates: updates of an optimizer, inside `shard_map`, by path.
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
