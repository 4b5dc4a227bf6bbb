"""The halo exchange with CREDIT's interface: on local arrays, with `trim`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from credit_jax.parallel.domain.halo_exchange import HaloExchange, halo_exchange, trim
from credit_jax.parallel.mesh.device_mesh import DOMAIN
from credit_jax.parallel.rows.layout import Field, block_layout
from tests.support import make_mesh
from tests.support.gradients import draw

SHARDS = 4


def blocks(x, function, dim=-2):
    """Applies `function` to each local block; concatenates the results along `dim`."""
    spec = P(*(None,) * (dim % x.ndim), DOMAIN)
    mesh = make_mesh(domain=SHARDS)
    sharded = jax.shard_map(function, mesh=mesh, in_specs=spec, out_specs=spec)
    wide = np.asarray(jax.jit(sharded)(x))
    return np.split(wide, SHARDS, dim)


@pytest.mark.parametrize("dim", [-2, -1, 2, 1])
@pytest.mark.parametrize("width", [0, 1, 3, 5, 20])
def test_neighbors_of_credits_arrays(width, dim):
    """Every block is a contiguous part of the global array, padded with zeros."""
    shape = [2, 1, 3, 3]
    shape[dim] = 12
    x = draw(shape)
    pads = [(0, 0)] * 4
    pads[dim] = (width, width)
    padded = np.pad(x, pads)
    for shard, block in enumerate(blocks(x, HaloExchange(width, dim), dim)):
        rows = range(3 * shard, 3 * shard + 3 + 2 * width)
        assert np.array_equal(block, np.take(padded, rows, dim)), f"shard {shard}"


@pytest.mark.parametrize("width", [1, 4, 25])
def test_periodic(width):
    x = draw((2, 3, 12, 2))
    exchange = HaloExchange(width, periodic=True)
    for shard, block in enumerate(blocks(x, exchange)):
        rows = np.arange(3 * shard - width, 3 * shard + 3 + width) % 12
        assert np.array_equal(block, np.take(x, rows, -2)), f"shard {shard}"


@pytest.mark.parametrize("periodic", [False, True])
def test_what_follows_the_last_row_stands_behind_it(periodic):
    """10 rows in blocks of 3: the last block has one row and two rows of padding."""
    x = np.arange(1.0, 13.0, dtype=np.float32).reshape(12, 1)
    x[10:] = 1e6

    def exchange(x):
        return halo_exchange(x, 2, size=10, periodic=periodic)

    last = blocks(x, exchange)[-1][:, 0]
    beyond = [1, 2, 3, 4] if periodic else [0, 0, 0, 0]
    assert last.tolist() == [8, 9, 10, *beyond]


def test_one_device_has_no_neighbors():
    x = jnp.asarray(draw((1, 2, 5, 3)))
    alone = halo_exchange(x, 2, axis=None)
    assert np.array_equal(alone, np.pad(x, [(0, 0), (0, 0), (2, 2), (0, 0)]))
    around = HaloExchange(2, axis=None, periodic=True)(x)
    assert np.array_equal(around, np.pad(x, [(0, 0)] * 2 + [(2, 2), (0, 0)], "wrap"))


@pytest.mark.parametrize("degrees", [{}, {"tp": 2}, None])
def test_a_mesh_without_the_axis_has_no_neighbors(degrees):
    """The same line as on a mesh with the axis: the identity with padding."""
    x = jnp.asarray(draw((1, 2, 5, 3)))
    exchange = HaloExchange(2)
    if degrees is not None:
        mesh = make_mesh(**degrees)
        exchange = jax.shard_map(exchange, mesh=mesh, in_specs=P(), out_specs=P())
    assert np.array_equal(exchange(x), np.pad(x, [(0, 0)] * 2 + [(2, 2), (0, 0)]))


def test_unknown_axes_are_refused():
    with pytest.raises(ValueError, match="axis is 'rows'; expected an axis of the"):
        HaloExchange(2, axis="rows")(jnp.asarray(draw((1, 2, 5, 3))))


@pytest.mark.parametrize(("before", "after", "dim"), [(1, 2, -2), (0, 0, 3), (5, 0, 2)])
def test_trim(before, after, dim):
    x = jnp.asarray(draw((1, 2, 5, 3)))
    rows = range(before, x.shape[dim] - after)
    assert np.array_equal(trim(x, before, after, dim), np.take(x, rows, dim))
    assert np.array_equal(
        HaloExchange.trim(x, before, after, dim), np.take(x, rows, dim)
    )


def test_what_cannot_be():
    x = jnp.zeros((1, 2, 5, 3))
    with pytest.raises(ValueError, match="halo_width is -1"):
        halo_exchange(x, -1, axis=None)
    with pytest.raises(ValueError, match="cannot trim 3 and 3 rows of 5"):
        trim(x, 3, 3)
    with pytest.raises(ValueError, match="cannot trim -1 and 0 rows of 5"):
        trim(x, -1, 0)
    with pytest.raises(ValueError, match=r"4 rows over 1 shards are blocks of 4"):
        halo_exchange(x, 1, axis=None, size=4)
    blocks = block_layout(5)
    turned = Field(jnp.zeros((1, 5, 3, 2)), blocks.with_rows([[4, 3, 2, 1, 0]], 5))
    with pytest.raises(ValueError, match="not in equal blocks"):
        halo_exchange(turned, 1)


def test_the_settings_carry_credits_names():
    exchange = HaloExchange(halo_width=2, dim=3)
    assert (exchange.halo_width, exchange.dim) == (2, 3)
    assert HaloExchange(2).dim == -2
