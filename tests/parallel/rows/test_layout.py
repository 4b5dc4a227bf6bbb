"""Row layouts: their rows, and values by row."""

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec

from credit_jax.parallel.mesh.device_mesh import DOMAIN
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


def compared_with_numpy(layout, per_row):
    """Compares local values and their gradient with numpy; returns the program."""
    num_shards = layout.num_shards
    local = np.maximum(np.asarray(layout.rows).reshape(-1), 0) // layout.strips
    weight = 1.0 + local[:, None] + np.arange(2.0)

    def body(x, weight):
        values = layout.local(x, fill=-7.0)
        return values, jax.grad(lambda x: (layout.local(x) * weight).sum())(x)

    mesh = jax.make_mesh(
        (num_shards,),
        (DOMAIN,),
        axis_types=(AxisType.Auto,),
        devices=jax.devices()[:num_shards],
    )
    spec = PartitionSpec(DOMAIN)
    run = jax.jit(
        jax.shard_map(
            body,
            mesh=mesh,
            in_specs=(PartitionSpec(), spec),
            out_specs=(spec, PartitionSpec()),
        )
    )
    expected = np.where(
        np.asarray(layout.rows).reshape(-1, 1) >= 0, per_row[local], -7.0
    )
    real = np.asarray(layout.rows).reshape(-1) >= 0
    gradient = np.zeros_like(per_row)
    np.add.at(gradient, local[real], weight[real])
    values, slope = run(per_row, weight)
    np.testing.assert_array_equal(values, expected)
    np.testing.assert_array_equal(slope, gradient)
    return run.lower(per_row, weight).as_text()


@pytest.mark.parametrize(("size", "num_shards"), [(6, 1), (6, 3), (5, 3), (2, 4)])
def test_values_of_blocks_are_slices(size, num_shards):
    per_row = np.arange(2.0 * size, dtype=np.float32).reshape(size, 2)
    program = compared_with_numpy(blocks(size, num_shards), per_row)
    assert "scatter" not in program
    assert "stablehlo.gather" not in program


ROWS = {
    "overlapping": [[0, 1, 2], [2, 3, 4]],
    "padded at the start": [[-1, 0, 1], [2, 3, 4]],
    "with a gap": [[0, 1, 2], [3, 0]],
    "all rows": [range(5), range(5)],
    "no rows": [range(5), []],
}


@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS)
def test_values_of_any_local_rows(rows):
    per_row = np.arange(10.0, 20.0, dtype=np.float32).reshape(5, 2)
    compared_with_numpy(blocks(5, 2).with_rows(rows, 5), per_row)


def test_values_of_local_strips():
    per_row = np.arange(10.0, dtype=np.float32).reshape(5, 2)
    compared_with_numpy(blocks(5, 3).in_strips(2), per_row)
