"""`all_to_all` and permutations send no more messages than the rows need."""

import jax.numpy as jnp
import numpy as np
import pytest

from credit_jax.parallel.rows.exchange import _rounds, exchange_pattern, exchange_rows
from credit_jax.parallel.rows.layout import block_layout
from tests.parallel.rows.plans import plan


def test_transports_are_the_cheapest():
    have, need = plan("groups")
    (pairs, index), *others = exchange_pattern(have.rows, need.rows).pieces
    assert pairs is None, "groups should travel by one all_to_all"
    assert not others
    assert index.shape == (4, 4 * 3), "each shard sends a quarter of its rows to each"
    have, need = plan("4 rows from busy to idle")
    (pairs, _), *others = exchange_pattern(have.rows, need.rows).pieces
    assert {d - s for s, d in pairs} == {4}
    assert not others, "one offset, one permute"
    have, need = plan("pairs of far rows")
    (stays, _), *moves = exchange_pattern(have.rows, need.rows).pieces
    assert stays == (), "row 0 is there already"
    assert len(moves) == 2, "every shard has two partners, at nine offsets in all"
    assert sum(len(pairs) for pairs, _ in moves) == 14, "none sends without need"
    assert {index.shape for _, index in moves} == {(8, 1)}, "one row each"


@pytest.mark.parametrize("seed", range(20))
def test_permutations_are_as_few_as_partners(seed):
    """Random patterns: every pair once, and no shard twice in one permutation."""
    rng = np.random.default_rng(seed)
    num = int(rng.integers(2, 9))
    asks = rng.random((num, num)) < rng.uniform(0.1, 0.9)
    wanted = {(s, d): [0] * int(asks[s, d]) for s in range(num) for d in range(num)}
    rounds = _rounds(wanted, num)
    pairs = [pair for pairs in rounds for pair in pairs]
    assert sorted(pairs) == sorted(pair for pair, rows in wanted.items() if rows)
    for one in rounds:
        assert len({s for s, _ in one}) == len({d for _, d in one}) == len(one)
    moves = asks & ~np.eye(num, dtype=bool)
    partners = max(moves.sum(0).max(), moves.sum(1).max())
    stays = bool(np.diag(asks).any())
    print(f"{num} shards, {moves.sum()} pairs, {partners} permutations")
    assert len(rounds) == partners + stays


def test_where_nothing_is_needed_nothing_moves():
    """Only zeros are needed; a random test found this case."""
    have = block_layout(3)
    need = have.with_rows([[-1, -1]], 3)
    nothing = exchange_pattern(have.rows, need.rows)
    assert nothing.pieces == ()
    rows = exchange_rows(jnp.ones((1, 3, 2)), have, nothing)
    assert jnp.array_equal(rows, jnp.zeros((1, 2, 2)))
