"""`reshard`: moves the rows of a field between the shards of a dim.

An operation gives the global rows that each shard needs as a `Layout`: in any order,
with repeats, or as padding (-1, a row of zeros). `reshard` converts a field to that
layout. Its gradient is the transpose derived by JAX.

The transport is chosen at trace time:
    halo        each shard needs one row range around its own block (`rows.halo`);
    all_to_all  most shards need rows of most others (`rows.exchange`);
    permute     all other cases (`rows.exchange`).
"""

from __future__ import annotations

from functools import lru_cache

import jax
import numpy as np
from jaxtyping import Array

from credit_jax.parallel.rows.exchange import (
    check_rows_exist,
    exchange_pattern,
    exchange_rows,
)
from credit_jax.parallel.rows.halo import exchange_halo, halo_pattern
from credit_jax.parallel.rows.layout import PADDING, Field, Layout
from credit_jax.parallel.rows.take import keep_rows, take_static

_MAX_PATTERNS = 4096

# Names of scopes in profiles and compiled programs, by the purpose of the exchange.
HALO, WINDOWS, RELAYOUT = "halo", "windows", "relayout"

_halo_pattern = lru_cache(_MAX_PATTERNS)(halo_pattern)
_exchange_pattern = lru_cache(_MAX_PATTERNS)(exchange_pattern)


def reshard(field: Field, need: Layout, *, scope: str = RELAYOUT) -> Field:
    """Returns the field with the global rows `need.rows[d]` on shard d.

    Args:
        field: local array and its layout.
        need: rows that each shard needs, as indices of rows of `field`; -1 (padding)
            gives a row of zeros. `need.size` may differ from the size of `field`.
        scope: named scope in profiles and compiled programs: HALO (neighborhoods of
            convolutions), WINDOWS (of attention) or RELAYOUT (all others).

    Returns:
        Field on layout `need`.

    Raises:
        ValueError: no shard has a needed row.
    """
    with jax.named_scope(scope):
        return Field(_reshard(field.data, field.layout, need), need)


def in_rows(field: Field) -> Field:
    """Returns the field in rows: in equal blocks if it is in strips, else unchanged."""
    in_blocks = field.layout.to_blocks
    return field if field.layout.strips == 1 else reshard(field, in_blocks())


def _reshard(x: Array, have: Layout, need: Layout) -> Array:
    strips = max(have.strips, need.strips)
    if strips > 1:
        # A layout in rows is converted to one of consecutive strips.
        batch, rows, points, *remainder = x.shape
        if have.strips == 1:
            x = x.reshape(batch, rows * strips, points // strips, *remainder)
        have, after = have.in_strips(strips), need.in_strips(strips)
        if have.rows != after.rows:
            x = exchange_rows(x, have, _exchange_pattern(have.rows, after.rows))
        if need.strips == 1:
            x = x.reshape(batch, need.length, -1, *remainder)
        return x
    if need.rows == have.rows:
        # Padding rows have any value in the field, but must be zeros in the result.
        return keep_rows(x, np.asarray(have.rows) >= 0, have.axis, have.dim)
    if have.num_shards == 1:
        local = {row: i for i, row in enumerate(have.rows[0]) if row >= 0}
        check_rows_exist(local, need.rows)
        local[PADDING] = PADDING
        return take_static(x, [local[row] for row in need.rows[0]], have.dim)
    halo = _halo_pattern(have, need)
    if halo is not None:
        return exchange_halo(x, have, need, halo)
    return exchange_rows(x, have, _exchange_pattern(have.rows, need.rows))
