"""Sums over edges, and values of their points, against numpy."""

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec

from credit_jax.parallel.domain.edges import Incidence
from credit_jax.parallel.mesh.device_mesh import DOMAIN
from tests.parallel.rows.plans import blocks

POINTS = 7
# Of each shard the point of each edge: degrees from 0 to 9, in any order.
GRAPHS = {
    "one": [[3, 0, 3, 5, 5, 5, 5, 5, 0]],
    "uneven": [[2, 2, 2, 2, 2, 2, 2, 2, 2, 6, 0], [1, 4], []],
    "one edge": [[], [6]],
}


def numpy_sum(points, values):
    sums = np.zeros((POINTS, *values.shape[1:]))
    np.add.at(sums, points, values[: len(points)])
    return sums


def numpy_max(points, values):
    largest = np.full((POINTS, *values.shape[1:]), -np.inf)
    np.maximum.at(largest, points, values[: len(points)])
    return largest


def per_shard(function, points):
    """A function of every shard; arrays have the shards first."""
    mesh = jax.make_mesh(
        (len(points),),
        (DOMAIN,),
        axis_types=(AxisType.Auto,),
        devices=jax.devices()[: len(points)],
    )
    spec = PartitionSpec(DOMAIN)
    return jax.jit(jax.shard_map(function, mesh=mesh, in_specs=spec, out_specs=spec))


@pytest.mark.parametrize("points", GRAPHS.values(), ids=GRAPHS)
def test_sums_values_and_gradients(points):
    points = [np.array(shard, int) for shard in points]
    edges, rng = max(map(len, points)), np.random.default_rng(0)
    incidence = Incidence.of(blocks(len(points), len(points)), points, POINTS)
    by_edge = rng.normal(size=(len(points), edges, 3)).astype(np.float32)
    by_point = rng.normal(size=(len(points), POINTS, 3)).astype(np.float32)

    def body(by_edge, by_point):
        sums, to_edges = jax.vjp(incidence.sum, by_edge)
        spread, to_points = jax.vjp(incidence.spread, by_point)
        (edge_gradient,), (point_gradient,) = to_edges(by_point), to_points(by_edge)
        largest = incidence.max(by_edge)
        return sums, spread, edge_gradient, point_gradient, largest

    run = per_shard(body, points)
    program = run.lower(by_edge, by_point).as_text()
    assert "scatter" not in program
    sums, spread, edge_gradient, point_gradient, largest = map(
        np.asarray, run(by_edge, by_point)
    )
    for shard, point in enumerate(points):
        expected = numpy_sum(point, by_edge[shard])
        np.testing.assert_allclose(sums[shard], expected, rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(
            point_gradient[shard], expected, rtol=1e-6, atol=1e-6
        )
        np.testing.assert_array_equal(largest[shard], numpy_max(point, by_edge[shard]))
        for result in (spread, edge_gradient):
            values = np.zeros((edges, 3), np.float32)
            values[: len(point)] = by_point[shard, point]
            np.testing.assert_array_equal(result[shard], values)


def test_tangents_and_second_derivatives():
    points = np.array(GRAPHS["uneven"][0])
    incidence = Incidence.of(blocks(1, 1), [points], POINTS)
    rng = np.random.default_rng(0)
    x, v = rng.normal(size=(2, 1, POINTS, 1)).astype(np.float32)

    def cubes(x):
        """The sum over points of the sum over their edges of their values, cubed."""
        return (incidence.sum(incidence.spread(x) ** 2) * x).sum()

    def body(x, v):
        _, tangent = jax.jvp(cubes, (x,), (v,))
        return *jax.jvp(jax.grad(cubes), (x,), (v,)), tangent[None]

    gradient, product, tangent = per_shard(body, [points])(x, v)
    degrees = np.bincount(points, minlength=POINTS)[None, :, None]
    np.testing.assert_allclose(gradient, 3 * degrees * x**2, rtol=1e-5)
    np.testing.assert_allclose(product, 6 * degrees * x * v, rtol=1e-5)
    np.testing.assert_allclose(tangent, (3 * degrees * x**2 * v).sum(), rtol=1e-5)


def test_tables_have_at_most_twice_the_places_of_edges():
    points = np.repeat(np.arange(40), np.arange(40))
    incidence = Incidence.of(blocks(1, 1), [points], 40)
    places = sum(table.size for table in incidence.edges)
    assert len(points) <= places <= 2 * len(points)
    assert [table.shape[2] for table in incidence.edges] == [1, 2, 4, 8, 16, 32, 39]
