"""Functions of whole fields, on a mesh and on one device."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from credit_jax.named_fields import FieldContext
from credit_jax.parallel.mesh.device_mesh import MeshAxes
from credit_jax.parallel.reductions import FieldReducer
from credit_jax.parallel.rows.layout import block_layout

GARBAGE = 7.0  # value of padding rows


def field_context(lat: int, mesh: Mesh | None = None, **settings: Any) -> FieldContext:
    """Returns the context of fields with `lat` rows; without a mesh, on one device."""
    axes = MeshAxes() if mesh is None else MeshAxes.from_mesh(mesh)
    rows = block_layout(lat, axes.num_domain, axes.domain)
    return FieldContext(FieldReducer(rows, axes), **settings)


def field_spec(mesh: Mesh) -> PartitionSpec:
    """Returns the partition spec of (batch, channel, time, rows, lon)."""
    axes = MeshAxes.from_mesh(mesh)
    return PartitionSpec(axes.data or None, None, None, axes.domain, None)


def pad(x: np.ndarray, mesh: Mesh) -> np.ndarray:
    """Pads rows to equal blocks with values that results must not depend on."""
    missing = -x.shape[-2] % MeshAxes.from_mesh(mesh).num_domain
    widths = [(0, 0)] * (x.ndim - 2) + [(0, missing), (0, 0)]
    return np.pad(x, widths, constant_values=GARBAGE)


def run_on_mesh(
    function: Callable[..., Any], mesh: Mesh, *arrays: np.ndarray, out_specs: Any
) -> Any:
    """Runs `function(*local arrays)` under `shard_map`, jitted."""
    spec = field_spec(mesh)
    step = jax.shard_map(
        function,
        mesh=mesh,
        in_specs=(spec,) * len(arrays),
        out_specs=out_specs,
        check_vma=True,
    )
    return jax.jit(step)(*(jnp.asarray(pad(x, mesh)) for x in arrays))


def of_pair(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a loss or metrics as a function (prediction, target, context)."""
    return lambda prediction, target, context: function(
        {"y_pred": prediction, "y": target}, context
    )


def loss_and_gradient(
    loss: Callable[..., Any],
    prediction: np.ndarray,
    target: np.ndarray,
    mesh: Mesh | None = None,
    **settings: Any,
) -> tuple[Any, np.ndarray]:
    """Returns a loss and its gradient by the prediction, without padding rows."""
    lat = target.shape[-2]
    context = field_context(lat, mesh, **settings)

    def both(prediction: Any, target: Any) -> Any:
        return jax.value_and_grad(of_pair(loss))(prediction, target, context)

    if mesh is None:
        value, gradient = jax.jit(both)(jnp.asarray(prediction), jnp.asarray(target))
    else:
        specs = (PartitionSpec(), field_spec(mesh))
        value, gradient = run_on_mesh(both, mesh, prediction, target, out_specs=specs)
    gradient = np.asarray(gradient)
    assert not gradient[..., lat:, :].any(), "padding has a gradient"
    return value, gradient[..., :lat, :]
