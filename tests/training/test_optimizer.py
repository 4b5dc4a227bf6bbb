"""AdamW and clipping against torch, and the norm of a sharded gradient."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from credit_jax.parallel.mesh.axes import DOMAIN, DP_SHARD, TP
from credit_jax.training.optimizer import (
    build_optimizer,
    clip_by_global_norm,
    global_norm,
)
from tests.support import assert_close, assert_trees_close
from tests.training.settings import trainer_config

SHAPES = {"kernel": (8, 6), "bias": (4,), "scale": ()}


def trainer(weight_decay=0.1, grad_max_norm=0.0):
    return trainer_config(weight_decay=weight_decay, grad_max_norm=grad_max_norm)


def draw(rng, size=1.0):
    return {
        name: jnp.asarray(size * rng.normal(size=shape), jnp.float32)
        for name, shape in SHAPES.items()
    }


@pytest.mark.parametrize("max_norm", [0.0, 1.0, "dynamic"])
@pytest.mark.parametrize("weight_decay", [0.0, 0.3])
def test_equals_torch(torch, max_norm, weight_decay, rng):
    params = draw(rng) | {"scale": jnp.float32(1.0)}
    theirs = {k: torch.nn.Parameter(torch.tensor(v)) for k, v in numpy(params).items()}
    adamw = torch.optim.AdamW(
        theirs.values(), lr=1e-2, weight_decay=weight_decay, betas=(0.9, 0.95)
    )
    optimizer = build_optimizer(trainer(weight_decay, max_norm))
    state = optimizer.init(params)
    update = jax.jit(optimizer.update)
    for step in range(8):
        grads, rate = draw(rng, size=0.1 + step), 1e-2 * step
        for name, parameter in theirs.items():
            parameter.grad = torch.tensor(numpy(grads)[name])
        if max_norm:
            # CREDIT's "dynamic" clips to the norm that it has just computed.
            norm = torch.stack([p.grad.norm() for p in theirs.values()]).norm()
            largest = norm if max_norm == "dynamic" else max_norm
            torch.nn.utils.clip_grad_norm_(theirs.values(), largest)
        adamw.param_groups[0]["lr"] = rate
        adamw.step()
        updates, state = update(grads, state, params, learning_rate=jnp.float32(rate))
        params = optax.apply_updates(params, updates)
        expected = {k: v.detach().numpy() for k, v in theirs.items()}
        assert_trees_close(params, expected, 1e-6, f"parameters after step {step}")
    assert int(optax.tree.get(state, "count")) == 8


def numpy(tree):
    return {k: np.array(v) for k, v in tree.items()}


def clip(grads, max_norm):
    return clip_by_global_norm(max_norm).update(grads, optax.EmptyState())[0]


@pytest.mark.parametrize(("dtype", "bound"), [("float32", 1e-6), ("float64", 1e-15)])
def test_norm_of_large_and_small_gradients(rng, dtype, bound):
    """Large ones are summed by themselves, small ones as one vector."""
    shapes = ((2048, 1100), (3,), (17, 5), (40, 80, 100), (3, 600, 500), ())
    with jax.enable_x64(dtype == "float64"):
        grads = [jnp.asarray(rng.normal(size=shape), dtype) for shape in shapes]
        for part in (grads, grads[:1], grads[1:3]):
            squares = sum(np.square(np.asarray(g, np.float64)).sum() for g in part)
            norm = global_norm(part)
            assert_close(norm, np.sqrt(squares), bound, f"{len(part)} arrays")


SPECS = {
    "kernel": [P(), P(DP_SHARD, TP), P(TP, None), P(None, DP_SHARD)],
    "bias": [P(), P(DP_SHARD), P(TP), P()],
    "scale": [P()] * 4,
}


@pytest.mark.parametrize("case", range(4))
def test_norm_of_a_sharded_gradient(case, rng, make_mesh):
    """Every shard counts once; replicated leaves and axes do not count twice."""
    mesh = make_mesh(dp=2, tp=2, domain=2)
    assert DOMAIN in mesh.axis_names
    grads = draw(rng)
    specs = {name: SPECS[name][case] for name in SHAPES}
    placed = {
        k: jax.device_put(v, NamedSharding(mesh, specs[k])) for k, v in grads.items()
    }

    def local(shards):
        norm = global_norm(shards)
        return norm, clip(shards, 0.5)

    step = jax.shard_map(
        local, mesh=mesh, in_specs=(specs,), out_specs=(P(), specs), check_vma=True
    )
    norm, clipped = jax.jit(step)(placed)
    serial = jnp.sqrt(sum(jnp.sum(g**2) for g in grads.values()))
    assert_close(norm, serial, 1e-6, "norm")
    assert_close(global_norm(grads), serial, 1e-6, "norm on one device")
    assert_trees_close(clipped, clip(grads, 0.5), 1e-6, "clipped gradient")


def test_small_gradients_are_not_scaled(rng):
    grads = draw(rng, size=1e-3)
    assert_trees_close(clip(grads, 1.0), grads, 0.0, "gradient")


def test_clipping_to_the_norm_itself_equals_torch(torch, rng):
    """1e-6 is added to the norm, which matters for small gradients."""
    for size in (1e-6, 1e-4, 1.0):
        grads = draw(rng, size)
        theirs = {k: torch.zeros(g.shape) for k, g in grads.items()}
        for name, tensor in theirs.items():
            tensor.grad = torch.tensor(numpy(grads)[name])
        norm = torch.nn.utils.get_total_norm([t.grad for t in theirs.values()])
        torch.nn.utils.clip_grad_norm_(theirs.values(), norm)
        expected = {k: t.grad.numpy() for k, t in theirs.items()}
        assert_trees_close(clip(grads, None), expected, 1e-6, f"gradient of {size}")


def test_given_norm_is_used(rng):
    optimizer = build_optimizer(trainer(grad_max_norm=1.0))
    params, grads = draw(rng), draw(rng)
    state = optimizer.init(params)
    rate = jnp.float32(1e-3)
    norm = global_norm(grads)
    own = optimizer.update(grads, state, params, learning_rate=rate)
    given = optimizer.update(grads, state, params, learning_rate=rate, grad_norm=norm)
    assert_trees_close(given[0], own[0], 0.0, "updates")
