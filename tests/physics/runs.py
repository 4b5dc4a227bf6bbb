"""Runs blocks on a tree; gives outputs and gradients by `y_processed`."""

import importlib
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from credit_jax.transforms import TRANSFORMS
from tests.support.gradients import cotangent
from tests.support.whole_fields import field_context, field_spec, run_on_mesh

CREDIT = importlib.import_module


def build(kind, args, section="postblocks") -> Any:
    """Builds our block."""
    block = TRANSFORMS[section].parse(kind, args, section)
    block.open()
    return block


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


def run_credit(spec, tree):
    """Returns ({key: output}, {key: gradient}) of CREDIT's block."""
    import torch

    kind, args = spec
    registry = CREDIT("credit.postblock")._POSTBLOCK_REGISTRY
    module, name = registry[kind]
    with warnings.catch_warnings():  # torch warns about arrays read by xarray
        warnings.simplefilter("ignore")
        block = getattr(CREDIT(module), name)(**args)
    batch = {
        part: {"S": {key: torch.from_numpy(x.copy()) for key, x in own["S"].items()}}
        for part, own in tree.items()
    }
    leaves = {key: x.requires_grad_() for key, x in batch["y_processed"]["S"].items()}
    batch["y_processed"] = {"S": dict(leaves)}
    done = block(batch)["y_processed"]["S"]
    out = {
        key: x for key, x in done.items() if key not in leaves or x is not leaves[key]
    }
    total: Any = sum(
        (x * torch.from_numpy(cotangent(x.shape, x.detach().numpy().dtype))).sum()
        for x in out.values()
    )
    total.backward()
    gradients = {key: x.grad for key, x in leaves.items()}
    return (
        {key: x.detach().numpy() for key, x in out.items()},
        {
            key: np.zeros(leaves[key].shape, np.float32) if g is None else g.numpy()
            for key, g in gradients.items()
        },
    )
