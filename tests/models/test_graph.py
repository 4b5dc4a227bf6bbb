"""What only the graph network does: its edges and their file."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import xarray as xr

from credit_jax.models.graph.graph import nearest_edges, read_edges
from credit_jax.models.registry import parse_model
from credit_jax.parallel.domain.edges import shard_edges
from credit_jax.parallel.rows.layout import block_layout
from tests.models.cases import GRAPH_GRID
from tests.models.conftest import section_of
from tests.models.graph.edges import write_edges
from tests.support import assert_close


def _block(edge_path: str, **changes: Any) -> dict[str, Any]:
    return section_of("graph attributes", edge_path) | changes


@pytest.mark.reference
def test_edges_are_credits(credit: Any, edge_path: str) -> None:
    ours = read_edges(edge_path)
    theirs = credit.build_credit(_block(edge_path), seed=1)
    np.testing.assert_array_equal(theirs.edge_index.numpy().T, ours.edges)
    attributes = theirs.edge_attr.numpy()
    assert_close(ours.attributes, attributes, 1e-6, "attributes of edges")


def test_every_edge_is_on_one_shard(edge_path: str) -> None:
    edges = read_edges(edge_path).edges
    assert not (edges == 20).any()
    plan = shard_edges(block_layout(GRAPH_GRID[0], 3, "domain"), GRAPH_GRID[1], edges)
    numbers = plan.number[plan.number >= 0]
    assert sorted(numbers.tolist()) == list(range(len(edges)))
    fetched = [len({row for row in rows if row >= 0}) for rows in plan.sources.rows]
    assert fetched == [4, 5, 2], "own rows, and one on each side"


def test_the_grid_is_that_of_the_file(edge_path: str) -> None:
    config = parse_model(_block(edge_path))
    assert (config.image_height, config.image_width) == GRAPH_GRID
    config.check_files()


def test_the_nearest_points_are_those_of_all_distances(tmp_path):
    height, width, neighbors = 6, 8, 5
    latitude = np.linspace(80, -80, height)
    actual = nearest_edges(latitude, np.arange(width) * 360 / width, neighbors)
    write_edges(tmp_path / "all.nc", height, width, neighbors)
    with xr.open_dataset(tmp_path / "all.nc") as expected:
        distances = [x["distances"].values for x in (actual, expected)]
        np.testing.assert_array_equal(actual["latitude"], expected["latitude"])
    # Of points that are as far as others, any may be the last.
    by_point = [np.sort(x.reshape(-1, neighbors), axis=1) for x in distances]
    np.testing.assert_allclose(*by_point, rtol=1e-6, atol=1e-3)
    ends = actual["edges"].values[:, 1]
    np.testing.assert_array_equal(ends, np.repeat(np.arange(ends[-1] + 1), neighbors))
    actual.to_netcdf(tmp_path / "nearest.nc")
    edges = read_edges(str(tmp_path / "nearest.nc"))
    assert (edges.height, edges.width) == (height, width)
    assert len(edges.edges) >= height * width * neighbors
    assert np.isfinite(edges.attributes).all()
