"""Layouts that the halo transport supports, and the number of rows it moves."""

from credit_jax.parallel.rows.exchange import halo_pattern
from tests.parallel.rows.plans import plan


def test_one_row_range_a_shard_is_a_halo():
    found = halo_pattern(*plan("halo"))
    assert found is not None
    assert (found.low, found.high) == (2, 1)
    assert halo_pattern(*plan("721 rows")) is not None
    for name in ("reversed", "groups", "everything to everyone"):
        assert halo_pattern(*plan(name)) is None, name
