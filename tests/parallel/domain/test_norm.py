"""Batch normalization over dp and domain at once, and collectives of norms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from credit_jax.ops import RunningStatistics, batch_norm
from credit_jax.ops.custom_vjp import varying_axes
from credit_jax.parallel.domain.norm import batch_norm_field
from credit_jax.parallel.domain.pool import global_mean_pool
from credit_jax.parallel.mesh.device_mesh import DOMAIN, DP_SHARD, MeshAxes
from credit_jax.parallel.placement import shard_batch
from credit_jax.parallel.rows.layout import Field, block_layout
from tests.parallel.domain import cases, field_cases
from tests.parallel.test_collectives import sent
from tests.support import assert_close, make_mesh
from tests.support.gradients import cotangent, draw

ROWS = 7
MESH = {"dp": 2, "domain": 3}


def run(*, synchronized, out):
    """Returns output, running statistics and gradients on dp 2 x domain 3."""
    mesh = make_mesh(**MESH)
    axes = MeshAxes.from_mesh(mesh)
    x, scale, bias = draw((4, ROWS, 5, 3)), draw((3,), 1), draw((3,), 2)
    weight = shard_batch({"x": cotangent(x.shape)}, mesh, spatial_dims_4d=1)["x"]
    layout = block_layout(ROWS, 3, DOMAIN)

    def norm(x, scale, bias):
        field, running = batch_norm_field(
            Field(x, layout),
            scale,
            bias,
            RunningStatistics.fresh(3),
            training=True,
            axes=axes.data if synchronized else (),
        )
        assert running is not None
        differs = set() if synchronized else set(axes.data)
        assert varying_axes(running.mean) == differs, "its type says where it differs"
        return jnp.where(field.mask(), field.data, 0), running

    split = P(axes.data, DOMAIN)
    sharded = jax.shard_map(
        norm, mesh=mesh, in_specs=(split, P(), P()), out_specs=(split, out)
    )

    def loss(x, scale, bias):
        data, running = sharded(x, scale, bias)
        return (data * weight).sum(), (data, running)

    place = shard_batch({"x": x}, mesh, spatial_dims_4d=1)["x"]
    arguments = (place, jnp.asarray(scale), jnp.asarray(bias))
    both = jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True)
    (_, (data, running)), grads = jax.jit(both)(*arguments)
    return x, scale, bias, data, running, grads


def test_over_dp_and_domain_it_is_that_of_one_device():
    x, scale, bias, data, running, grads = run(synchronized=True, out=P())

    def alone(x, scale, bias):
        fresh = RunningStatistics.fresh(3)
        return batch_norm(x, scale, bias, fresh, training=True)

    arrays = jnp.asarray(x), jnp.asarray(scale), jnp.asarray(bias)
    out, pullback, expected = jax.vjp(alone, *arrays, has_aux=True)
    assert_close(data[:, :ROWS], out, 1e-6, "value")
    for name in ("mean", "variance"):
        seen = getattr(running, name), getattr(expected, name)
        assert_close(*seen, 1e-6, f"running {name}")
    assert int(running.count) == 1
    wanted = pullback(jnp.asarray(cotangent(x.shape)))
    assert_close(grads[0][:, :ROWS], wanted[0], 1e-5, "gradient of x")
    assert_close(grads[1], wanted[1], 1e-5, "gradient of scale")
    assert_close(grads[2], wanted[2], 1e-5, "gradient of bias")


def test_without_further_axes_every_dp_rank_has_its_own():
    each = RunningStatistics(P(DP_SHARD), P(DP_SHARD), P())
    x, scale, bias, data, running, _ = run(synchronized=False, out=each)
    scale, bias = jnp.asarray(scale), jnp.asarray(bias)
    for rank in range(2):
        samples = slice(2 * rank, 2 * rank + 2)
        out, own = batch_norm(
            jnp.asarray(x[samples]),
            scale,
            bias,
            RunningStatistics.fresh(3),
            training=True,
        )
        assert own is not None
        assert_close(data[samples, :ROWS], out, 1e-6, f"rank {rank}")
        mine = slice(3 * rank, 3 * rank + 3)
        assert_close(running.mean[mine], own.mean, 1e-6, f"mean of rank {rank}")


def test_the_count_of_one_value_is_that_of_the_whole_mesh():
    field = Field(jnp.ones((1, 1, 1, 3)), block_layout(1))
    with pytest.raises(ValueError, match="got 1 value a channel"):
        batch_norm_field(field, jnp.ones(3), jnp.ones(3), training=True)


SENT = {
    "batch norm": {"all-reduce": 2},
    "batch norm, evaluation": {},
    "global mean": {"all-reduce": 1},
    "mean over lat": {"all-reduce": 1},
    "mean over lon": {},
    "coordinate attention": {"all-reduce": 1, "all-gather": 1},
    "squeeze and excite": {"all-reduce": 2},
    "gathered rows": {"all-gather": 1},
    "halo of 1": {"collective-permute": 2},
    "halo of an array": {"collective-permute": 2},
    "roll columns only": {},
    "nearest up, even": {},
    "short windows, longitude split": {},
    "mean over lon, longitude split": {"all-reduce": 1},
    "roll lat only, longitude split": {},
}


@pytest.mark.parametrize("name", SENT)
def test_what_an_operation_sends(name):
    counts = sent(field_cases.FIELD_OPERATIONS[name])
    print(f"{name}: {counts}")
    assert counts == SENT[name]


@pytest.mark.parametrize("kind", ["short", "long"])
def test_windows_send_the_same_along_both_dims(kind):
    counts = sent(field_cases.windows(48, 4, kind, 4))
    assert counts == sent(cases.windows(48, 4, kind, 4))
    assert counts == ({} if kind == "short" else {"all-to-all": 2})


def test_a_mean_is_the_same_on_all_shards():
    """Its output is replicated, and its type does not vary over the axis."""
    mesh, layout = make_mesh(domain=4), block_layout(7, 4, DOMAIN)
    x = shard_batch({"x": draw((2, 7, 3, 2))}, mesh, spatial_dims_4d=1)["x"]
    sharded = jax.shard_map(
        lambda x: global_mean_pool(Field(x, layout)),
        mesh=mesh,
        in_specs=P(None, DOMAIN),
        out_specs=P(),
    )
    alone = global_mean_pool(Field(jnp.asarray(draw((2, 7, 3, 2))), block_layout(7)))
    assert_close(jax.jit(sharded)(x), np.asarray(alone), 1e-6, "mean")
