"""Edges to the nearest points of a grid."""

import numpy as np
import xarray as xr

from credit_jax.models.graph.edge_file import nearest_edges, read_edges
from tests.models.graph.edges import write_edges

HEIGHT, WIDTH, NEIGHBORS = 6, 8, 5


def test_the_nearest_points_are_those_of_all_distances(tmp_path):
    latitude, longitude = np.linspace(80, -80, HEIGHT), np.arange(WIDTH) * 360 / WIDTH
    actual = nearest_edges(latitude, longitude, NEIGHBORS)
    write_edges(tmp_path / "all.nc", HEIGHT, WIDTH, NEIGHBORS)
    with xr.open_dataset(tmp_path / "all.nc") as expected:
        distances = [x["distances"].values for x in (actual, expected)]
        np.testing.assert_array_equal(actual["latitude"], expected["latitude"])
    # Of points that are as far as others, any may be the last.
    by_point = [np.sort(x.reshape(-1, NEIGHBORS), axis=1) for x in distances]
    np.testing.assert_allclose(*by_point, rtol=1e-6, atol=1e-3)
    ends = actual["edges"].values[:, 1]
    np.testing.assert_array_equal(ends, np.repeat(np.arange(ends[-1] + 1), NEIGHBORS))
    path = tmp_path / "nearest.nc"
    actual.to_netcdf(path)
    edges = read_edges(str(path))
    assert (edges.height, edges.width) == (HEIGHT, WIDTH)
    assert len(edges.edges) >= HEIGHT * WIDTH * NEIGHBORS
    assert np.isfinite(edges.attributes).all()
