"""Row layouts: their rows, and values by row."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, PartitionSpec

from credit_jax.parallel.mesh.axes import DOMAIN
from credit_jax.parallel.rows.layout import Layout
from tests.parallel.rows.plans import blocks


def test_layouts():
    uneven = blocks(45, 8)
    assert uneven.length == 6
    assert uneven.rows[7] == (42, 43, 44, -1, -1, -1)
    assert uneven.is_block
    assert uneven.has_padding
    few = blocks(4, 8)
    assert few.rows[3:5] == ((3,), (-1,))
    assert blocks(48, 8) == blocks(48, 8)
    assert hash(blocks(48, 8)) == hash(blocks(48, 8))
    assert blocks(48, 8) != blocks(45, 8)
    assert not blocks(6, 2).with_rows([[0, 2], [1]], 6).is_block
    assert blocks(6, 2).with_rows([[0, 2], [1]], 6).rows == ((0, 2), (1, -1))
    assert uneven.to_blocks(16).rows[0] == (0, 1)
    assert isinstance(uneven, Layout)


def test_values_of_local_rows():
    layout = blocks(5, 3)
    values = np.arange(10.0, 15.0)

    def body(x):
        local = layout.local(values, fill=-7.0)
        return local + 0 * x, layout.global_rows() + 0 * x.astype(int)

    mesh = jax.make_mesh(
        (3,), (DOMAIN,), axis_types=(AxisType.Auto,), devices=jax.devices()[:3]
    )
    spec = PartitionSpec(DOMAIN)
    run = jax.shard_map(body, mesh=mesh, in_specs=spec, out_specs=spec)
    local, rows = run(jnp.zeros(6))
    assert local.tolist() == [10, 11, 12, 13, 14, -7]
    assert rows.tolist() == [0, 1, 2, 3, 4, -1]
