"""Named source layouts and needed rows of resharding, shared by tests of `rows`."""

import numpy as np

from credit_jax.parallel.mesh.device_mesh import DOMAIN
from credit_jax.parallel.rows.layout import block_layout

ZERO = -1


def blocks(rows, shards):
    return block_layout(rows, shards, DOMAIN if shards > 1 else None)


def widened(layout, low, high):
    """Own rows with `low` and `high` halo rows; rows beyond the poles are zero."""
    return [
        [g if 0 <= g < layout.size else ZERO for g in range(h[0] - low, h[0] + high)]
        if h[0] >= 0
        else []
        for h in layout.rows
    ]


def shifted(layout, by):
    return [
        [(g + by) % layout.size if g >= 0 else ZERO for g in rows]
        for rows in layout.rows
    ]


# name: global rows, shards, rows needed on each shard.
PLANS = {
    "halo": (48, 4, lambda a: widened(a, 2, a.length + 1)),
    "halo, uneven": (45, 8, lambda a: widened(a, 1, a.length + 1)),
    "halo over several shards": (16, 8, lambda a: widened(a, 3, a.length + 3)),
    "halo wider than the field": (6, 3, lambda a: widened(a, 9, a.length + 9)),
    "rows below only": (45, 4, lambda a: widened(a, 0, a.length + 3)),
    "part of the own rows": (48, 4, lambda a: [h[1:5] for h in a.rows]),
    "inner zeros": (
        12,
        3,
        lambda a: [[h[0], ZERO, h[2], ZERO] for h in a.rows],
    ),
    "reversed": (45, 3, lambda a: [range(44 - h[0], 29 - h[0], -1) for h in a.rows]),
    "cyclic shift": (48, 4, lambda a: shifted(a, 5)),
    "cyclic shift, uneven": (45, 8, lambda a: shifted(a, -7)),
    "repeated rows": (10, 2, lambda a: [[0, 0, 9, 9, 0], [5, 5, 5, ZERO, 4]]),
    "groups": (48, 4, lambda a: [range(d, 48, 4) for d in range(4)]),
    "group major": (
        48,
        4,
        lambda a: np.arange(48).reshape(4, 4, 3).transpose(1, 2, 0).reshape(4, 12),
    ),
    "pairs of far rows": (16, 8, lambda a: [[d, d + 8] for d in range(8)]),
    "everything to everyone": (13, 8, lambda a: [range(13)] * 8),
    "all to one shard": (13, 4, lambda a: [range(13), [], [], []]),
    "one row to all": (13, 8, lambda a: [[12]] * 8),
    "nothing but zeros": (13, 4, lambda a: [[ZERO] * 3] * 4),
    "4 rows on 8 shards": (4, 8, lambda a: widened(a, 1, 2)),
    "4 rows on 8 shards, reversed": (4, 8, lambda a: [[3], [2], [1], [0], *[[]] * 4]),
    "4 rows from busy to idle": (4, 8, lambda a: [*[[]] * 4, [0], [1], [2], [3]]),
    "padding becomes zeros": (5, 3, lambda a: [[0, 1], [2, 3], [4, ZERO]]),
    "one device": (9, 1, lambda a: [[8, 0, ZERO, 3, 3]]),
    "one device, reversed": (9, 1, lambda a: [range(8, -1, -1)]),
    "721 rows": (721, 8, lambda a: widened(a, 14, a.length + 17)),
}  # fmt: skip


def plan(name):
    rows, shards, wanted = PLANS[name]
    have = blocks(rows, shards)
    need = [[int(row) for row in rows] for rows in wanted(have)]
    return have, have.with_rows(need, rows)
