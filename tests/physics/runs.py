"""Runs blocks on a tree; gives outputs and gradients by `y_processed`."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tests.support.gradients import cotangent
from tests.support.whole_fields import field_context, field_spec, run_on_mesh
from tests.transforms.cases import build as build
from tests.transforms.cases import tensors


def changed(tree, after):
    """Returns the fields of `y_processed` that a block replaced or added."""
    before = tree["y_processed"]["S"]
    return {
        key: field
        for key, field in after["y_processed"]["S"].items()
        if key not in before or field is not before[key]
    }


def run_blocks(specs, tree, mesh=None):
    """Returns {name: ({key: output}, {key: gradient})}, all blocks in one program.

    The gradients are of sum(output * cotangent) by the fields of `y_processed`.
    """
    made = {name: build(*spec) for name, spec in specs.items()}
    fields = tree["y_processed"]["S"]
    lat = next(iter(fields.values())).shape[-2]
    dtype = next(iter(fields.values())).dtype
    context = field_context(lat, mesh)
    constants = {part: tree[part]["S"] for part in ("x_physical", "ic_raw")}
    leaves, structure = jax.tree.flatten((dict(fields), constants))
    shapes = {
        name: {
            key: field.shape for key, field in changed(tree, block(tree, None)).items()
        }
        for name, block in made.items()
    }
    weights = jax.tree.map(
        lambda shape: cotangent(shape, dtype),
        shapes,
        is_leaf=lambda x: isinstance(x, tuple),
    )
    weight_leaves, weight_structure = jax.tree.flatten(weights)

    def run(*arrays):
        own, constants = jax.tree.unflatten(structure, arrays[: len(leaves)])
        weights = jax.tree.unflatten(weight_structure, arrays[len(leaves) :])
        return {
            name: _value_and_gradient(block, own, constants, weights[name], context)
            for name, block in made.items()
        }

    arrays = [*leaves, *weight_leaves]
    if mesh is None:
        found = jax.jit(run)(*map(jnp.asarray, arrays))
    else:
        found = run_on_mesh(run, mesh, *arrays, out_specs=field_spec(mesh))
    return jax.tree.map(lambda x: np.asarray(x)[..., :lat, :], found)


def _value_and_gradient(block, fields, constants, weights, context):
    real = context.reducer.rows.real_rows().reshape(1, 1, 1, -1, 1)

    def function(fields):
        parts = {part: {"S": own} for part, own in constants.items()}
        tree = {"y_processed": {"S": fields}, **parts}
        return changed(tree, block(tree, context))

    out, pullback = jax.vjp(function, fields)
    cotangents = {
        key: jnp.where(real, weights[key], 0).astype(out[key].dtype) for key in out
    }
    gradients = pullback(cotangents)[0]
    # Gradients by padding rows are 0, as no output depends on them.
    return out, {key: _checked(g, real) for key, g in gradients.items()}


def _checked(gradient, real):
    """Returns the gradient, or NaN everywhere if that of a padding row is not 0."""
    stray = jnp.any(jnp.where(real, 0, gradient) != 0)
    return jnp.where(stray, jnp.nan, gradient)


def run_credit(block, tree):
    """Returns ({key: output}, {key: gradient}) of a block of CREDIT."""
    import torch

    batch = {part: {"S": tensors(own["S"])} for part, own in tree.items()}
    leaves = batch["y_processed"]["S"]
    batch["y_processed"] = {"S": dict(leaves)}
    done = block(batch)["y_processed"]["S"]
    out = {key: x for key, x in done.items() if x is not leaves.get(key)}
    total: Any = sum(
        (x * torch.from_numpy(cotangent(x.shape, x.detach().numpy().dtype))).sum()
        for x in out.values()
    )
    total.backward()
    gradients = {
        key: np.zeros(x.shape, np.float32) if x.grad is None else x.grad.numpy()
        for key, x in leaves.items()
    }
    return {key: x.detach().numpy() for key, x in out.items()}, gradients
