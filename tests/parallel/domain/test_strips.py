"""Strips: whole windows on every shard, every point once, balanced."""

import numpy as np
import pytest

from credit_jax.parallel.domain.strips import EVEN, NEARLY_EVEN, Windows
from credit_jax.parallel.mesh.device_mesh import DOMAIN
from credit_jax.parallel.rows.layout import Layout, block_layout

# The stages of configs/wxformer_025deg.yaml.
STAGES = (
    Windows(400, 720, 10, 10),
    Windows(200, 360, 10, 5),
    Windows(100, 180, 10, 2),
    Windows(50, 90, 10, 1),
)


def random_windows(count: int) -> list[Windows]:
    rng = np.random.default_rng(3)
    found = []
    for _ in range(count):
        short, long = rng.choice([2, 3, 4, 5, 6, 10]), rng.choice([1, 2, 3, 4, 5])
        both = np.lcm(short, long)
        rows, columns = both * rng.integers(1, 7), both * rng.integers(1, 7)
        found.append(Windows(int(rows), int(columns), int(short), int(long)))
    return found


def points_of(layout: Layout, windows: Windows) -> list[np.ndarray]:
    """Returns row and column of every point of each shard, (2, points)."""
    found = []
    width = windows.columns // layout.strips
    for own in layout.rows:
        numbers = np.asarray([n for n in own if n >= 0], int)
        rows, strips = np.divmod(numbers, layout.strips)
        columns = strips[:, None] * width + np.arange(width)
        rows = np.broadcast_to(rows[:, None], columns.shape)
        found.append(np.stack([rows.reshape(-1), columns.reshape(-1)]))
    return found


def check_whole(layout: Layout, windows: Windows, kind: str) -> None:
    parts = points_of(layout, windows)
    every = np.concatenate(parts, 1)
    number = every[0] * windows.columns + every[1]
    assert np.array_equal(np.sort(number), np.arange(windows.rows * windows.columns))
    owner = np.repeat(np.arange(len(parts)), [part.shape[1] for part in parts])
    if kind == "short":
        row, column = every // windows.short
    else:
        apart = windows.rows // windows.long, windows.columns // windows.long
        row, column = every % np.asarray(apart)[:, None]
    window = row * windows.columns + column
    owners = np.full(window.max() + 1, -1)
    owners[window] = owner
    assert np.array_equal(owners[window], owner), f"a {kind} window is on two shards"


@pytest.mark.parametrize("num_shards", [2, 3, 4, 5, 8, 16])
def test_windows_are_whole_and_points_are_there_once(num_shards):
    blocks = block_layout(1, num_shards, DOMAIN)
    in_strips = 0
    for windows in random_windows(40):
        short, long = windows.layouts(blocks)
        check_whole(short, windows, "short")
        check_whole(long, windows, "long" if windows.long > 1 else "short")
        in_strips += short.strips > 1
    assert in_strips > 5


@pytest.mark.parametrize("num_shards", [2, 4, 8, 16])
def test_the_busiest_shard_has_nearly_an_even_share(num_shards):
    blocks = block_layout(1, num_shards, DOMAIN)
    for stage, windows in enumerate(STAGES):
        even = windows.rows / num_shards
        shares = [each.length / each.strips / even for each in windows.layouts(blocks)]
        print(f"stage {stage} on {num_shards}: {shares[0]:.3f}, {shares[1]:.3f}")
        assert max(shares) <= NEARLY_EVEN


def test_rows_stay_whole_where_they_are_even_and_where_strips_are_points():
    blocks = block_layout(1, 8, DOMAIN)
    for windows in (STAGES[0], Windows(100, 180, 1, 2), Windows(90, 45, 5, 15)):
        assert all(layout.strips == 1 for layout in windows.layouts(blocks))
    short, long = STAGES[1].layouts(blocks)
    assert (short.strips, long.strips) == (36, 1), "25 rows of groups are even"
    assert long.length <= EVEN * 200 / 8


def test_two_rows_of_windows_move_between_two_shards():
    """A window of stage 2 is paired with one half the globe away."""
    short, long = STAGES[2].layouts(block_layout(1, 8, DOMAIN))
    owner = {strip: d for d, own in enumerate(short.rows) for strip in own}
    for shard, own in enumerate(long.rows):
        sources = {owner[strip] for strip in own if strip >= 0}
        assert sources == {shard, (shard + 4) % 8}
