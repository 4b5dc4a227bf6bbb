"""`reshard`: moves the rows of a field between the shards of a dim.

An operation states, as a `Layout`, which global rows each shard needs: in any order,
repeated, or as padding (-1, a row of zeros). `reshard` turns the layout of a field into
that one. Its gradient is JAX's own transpose.

The transport is chosen at trace time:
    halo        each shard needs one row range around its own block (`rows.halo`);
    all_to_all  most shards need rows of most others (`rows.exchange`);
    permute     any other rows (`rows.exchange`).
"""

from __future__ import annotations

from functools import lru_cache

import jax
import numpy as np
from jaxtyping import Array

from credit_jax.parallel.rows.exchange import (
    check_rows_exist,
    exchange_rows,
    plan_exchange,
)
from credit_jax.parallel.rows.halo import exchange_halo, plan_halo
from credit_jax.parallel.rows.layout import PADDING, Field, Layout
from credit_jax.parallel.rows.take import keep_rows, take_static

_PLANS_KEPT = 4096

# Scope names in profiles and compiled programs: what rows are moved for.
HALO, WINDOWS, RELAYOUT = "halo", "windows", "relayout"

_plan_halo = lru_cache(_PLANS_KEPT)(plan_halo)
_plan_exchange = lru_cache(_PLANS_KEPT)(plan_exchange)


def reshard(field: Field, need: Layout, *, scope: str = RELAYOUT) -> Field:
    """The same field with shard d holding the global rows `need.rows[d]`.

    Args:
        field: local array and its layout.
        need: rows needed on each shard; -1 (padding) becomes a row of zeros. Its
            `size` may differ from that of the field, whose rows `need.rows` names.
        scope: name of what the rows are for in profiles and compiled programs: HALO
            (the reach of a convolution), WINDOWS (of attention) or RELAYOUT (any
            other).

    Returns:
        Field on layout `need`.

    Raises:
        ValueError: a needed row is on no shard.
    """
    with jax.named_scope(scope):
        return Field(_reshard(field.data, field.layout, need), need)


def in_rows(field: Field) -> Field:
    """The field in whole rows: in equal blocks if it was in strips, else unchanged."""
    in_blocks = field.layout.to_blocks
    return field if field.layout.strips == 1 else reshard(field, in_blocks())


def _reshard(x: Array, have: Layout, need: Layout) -> Array:
    strips = max(have.strips, need.strips)
    if strips > 1:
        return _reshard_strips(x, have, need, strips)
    if need.rows == have.rows:
        # The layout may name as zeros what is padding of any value in the field.
        return keep_rows(x, np.asarray(have.rows) >= 0, have.axis, have.dim)
    if have.num_shards == 1:
        return _reshard_one_shard(x, have, need)
    halo = _plan_halo(have, need)
    if halo is not None:
        return exchange_halo(x, have, need, halo)
    return exchange_rows(x, have, _plan_exchange(have.rows, need.rows))


def _reshard_strips(x: Array, have: Layout, need: Layout, strips: int) -> Array:
    """`_reshard` where one of the layouts, or both, are in strips of the same length.

    A row of the one is so many strips of the other, side by side.
    """
    batch, rows, points, *rest = x.shape
    if have.strips == 1:
        x = x.reshape(batch, rows * strips, points // strips, *rest)
    have, after = have.in_strips(strips), need.in_strips(strips)
    if have.rows != after.rows:
        x = exchange_rows(x, have, _plan_exchange(have.rows, after.rows))
    if need.strips == 1:
        x = x.reshape(batch, need.length, -1, *rest)
    return x


def _reshard_one_shard(x: Array, have: Layout, need: Layout) -> Array:
    where = {row: i for i, row in enumerate(have.rows[0]) if row >= 0}
    check_rows_exist(where, need.rows)
    where[PADDING] = PADDING
    return take_static(x, [where[row] for row in need.rows[0]], have.dim)
