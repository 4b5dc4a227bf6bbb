"""credit_jax on one mesh: one forward and backward pass, by CREDIT's names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from credit_jax.models.parallel_model import ParallelModel
from credit_jax.parallel.fsdp import spread
from credit_jax.parallel.layouts import Field
from credit_jax.parallel.packing import pack, unpack
from credit_jax.parallel.placement import batch_spec, place_batch
from credit_jax.parallel.rows import fetch
from credit_torch_bridge.credit_side import Pass
from credit_torch_bridge.keys import State, Vectors
from credit_torch_bridge.state_dict import to_state_dict


def make_pass(
    model: ParallelModel, params: State, vectors: Vectors, blocks: Sequence[str]
) -> Callable[[np.ndarray], Pass]:
    """The forward pass in evaluation mode with its gradient, compiled once.

    Args:
        model: on its mesh.
        params, vectors: host arrays by path.
        blocks: CREDIT's names of our blocks, in order.

    Returns:
        A function of x (batch, channel, time, lat, lon).
    """
    architecture, mesh, axes = model.architecture, model.execution.mesh, model.axes
    layouts: list[int] = []

    def loss(params: Any, vectors: Any, x: Any) -> Any:
        watch: list[Field] = []
        weights = spread(params, axes.batch, model.execution.precision)
        y = model.local_forward(weights, vectors, x, watch=watch)
        layouts[:] = [field.layout.size for field in watch]
        home = [fetch(field, field.layout.home()).data for field in watch]
        return model.reducer.mean(jnp.square(y)), (y, home)

    def body(params: Any, vectors: Any, x: Any) -> Any:
        (_, (y, seen)), grads = jax.value_and_grad(loss, has_aux=True)(
            params, vectors, x
        )
        return y, seen, grads

    rows = batch_spec(axes)
    fields = PartitionSpec(rows[0], axes.domain)
    step = model.compile(
        body, batch_specs=rows, out_specs=(rows, fields, model.packed_specs)
    )
    packed = pack(jax.tree.map(jnp.asarray, params), architecture.declarations)
    placed = _place(packed, model.packed_specs, mesh)
    placed_vectors = _place(vectors, model.vector_specs, mesh)

    def run(x: np.ndarray) -> Pass:
        batch = place_batch({"x": x}, mesh)["x"]
        y, seen, grads = jax.device_get(step(placed, placed_vectors, batch))
        arrays = jax.tree.map(jnp.asarray, grads)
        whole = jax.device_get(unpack(arrays, architecture.declarations))
        named = to_state_dict(architecture, whole, vectors)
        return Pass(
            y[..., : architecture.image_height, :],
            {
                name: np.moveaxis(field[:, :size], -1, 1)
                for name, field, size in zip(blocks, seen, layouts, strict=True)
            },
            named,
        )

    return run


def _place(tree: Any, specs: Any, mesh: Any) -> Any:
    return jax.tree.map(
        lambda leaf, spec: jax.device_put(leaf, NamedSharding(mesh, spec)), tree, specs
    )
