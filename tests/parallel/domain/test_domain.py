"""Operations on split fields: edges, halos and what they send."""

import re
from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec
from jax.sharding import PartitionSpec as P

from credit_jax.kernels import use_implementation
from credit_jax.parallel.domain.edges import Incidence
from credit_jax.parallel.domain.halo_exchange import HaloExchange, halo_exchange, trim
from credit_jax.parallel.domain.strips import EVEN, NEARLY_EVEN, Windows
from credit_jax.parallel.mesh.device_mesh import DOMAIN
from credit_jax.parallel.rows.layout import Field, Layout, block_layout
from tests.parallel.domain.cases import CASES, CONVOLUTIONS, EMBEDDINGS
from tests.parallel.domain.convolution_cases import (
    PERIODIC,
    TRANSPOSED,
    averaged,
    convolved,
    largest,
    periodic,
    transposed,
)
from tests.parallel.rows.plans import blocks
from tests.support import assert_close, make_mesh
from tests.support.gradients import draw
from tests.support.sharded import Case, Outcome, build_cases, run_cases

VALUE, GRADIENT = 1e-6, 1e-5
DOUBLE = 1e-12

# Operations that have several implementations.
SEVERAL = CONVOLUTIONS | EMBEDDINGS | TRANSPOSED | PERIODIC
REST = {name: case for name, case in CASES.items() if name not in SEVERAL}


@lru_cache
def outcomes(num_shards: int) -> dict[str, Outcome]:
    with use_implementation("cpu"):
        return run_cases(REST, num_shards) | several_outcomes(num_shards)


@lru_cache
def several_outcomes(num_shards: int) -> dict[str, Outcome]:
    with use_implementation("cpu"):
        return run_cases(SEVERAL, num_shards)


@lru_cache
def plain_outcomes(num_shards: int) -> dict[str, Outcome]:
    with use_implementation("xla"):
        return run_cases(SEVERAL, num_shards)


@lru_cache
def double_outcomes(num_shards: int) -> dict[str, Outcome]:
    with jax.enable_x64(True), use_implementation("cpu"):
        return run_cases(CASES, num_shards, np.float64)


def compare(
    name: str, actual: Outcome, expected: Outcome, value: float, gradient: float
) -> None:
    assert_close(actual.value, expected.value, value, f"{name}, value")
    for kind in ("fields", "weights"):
        pairs = zip(getattr(actual, kind), getattr(expected, kind), strict=True)
        for number, (a, e) in enumerate(pairs):
            assert_close(a, e, gradient, f"{name}, gradient of {kind} {number}")


# All cases with the same number of shards are one test, as they share programs, to
# compile fewer. On 3 shards they run in float64.
@pytest.mark.slow
@pytest.mark.parametrize("num_shards", [2, 4, 8])
def test_sharded_is_single(num_shards, subtests):
    expected = outcomes(1)
    for name, actual in outcomes(num_shards).items():
        with subtests.test(name):
            what = f"{name} on {num_shards}"
            compare(what, actual, expected[name], VALUE, GRADIENT)
    assert outcomes(num_shards).keys() == CASES.keys()


@pytest.mark.parametrize("name", SEVERAL)
def test_plain_definitions_on_3_shards_are_those_of_one_device(name):
    actual, expected = plain_outcomes(3)[name], plain_outcomes(1)[name]
    compare(f"{name} on 3, plain", actual, expected, VALUE, GRADIENT)
    compare(f"{name}, CPU's own", several_outcomes(1)[name], expected, VALUE, GRADIENT)


@pytest.mark.slow
@pytest.mark.parametrize("num_shards", [3])
def test_sharded_is_single_in_float64(num_shards, subtests):
    expected = double_outcomes(1)
    for name, actual in double_outcomes(num_shards).items():
        with subtests.test(name):
            assert actual.value.dtype == np.float64
            what = f"{name} on {num_shards}, float64"
            compare(what, actual, expected[name], DOUBLE, DOUBLE)
    assert jax.numpy.zeros(1).dtype == np.float32, "float64 leaks into other tests"


# Sums over edges, and values of their points, against numpy.


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


# Collectives of convolutions and pooling: none if each shard has its input rows.


NONE = (0, 0)
KINDS = (
    "collective-permute",
    "all-to-all",
    "all-gather",
    "all-reduce",
    "reduce-scatter",
)


def sent(case: Case, num_shards: int = 4) -> dict[str, int]:
    """Returns the collectives of one compiled forward, by kind."""
    program, arguments, _ = build_cases({"case": case}, num_shards, gradients=False)
    text = str(jax.jit(program).lower(*arguments).compile().as_text())
    counts = {kind: len(re.findall(rf" {kind}(?:-start)?\(", text)) for kind in KINDS}
    return {kind: count for kind, count in counts.items() if count}


CASES_CONVOLUTION_COLLECTIVES = {
    "3 dims, 3x3x3": (
        convolved(
            16, (3, 3, 3), others=(3, 3), dim=2, padding=((1, 1), (1, 1), (1, 1))
        ),
        {"collective-permute": 2},
    ),
    "3 dims, other dims only": (
        convolved(16, (3, 1, 3), others=(3, 3), dim=2, padding="same"),
        {},
    ),
    "up 2": (transposed(16, (2, 2), stride=(2, 2)), {}),
    "up 2, kernel 4": (
        transposed(16, (4, 4), stride=(2, 2), padding=((1, 1), (1, 1))),
        {"collective-permute": 2},
    ),
    "up 2, kernel 3": (
        transposed(
            16,
            (3, 3),
            stride=(2, 2),
            padding=((1, 1), (1, 1)),
            output_padding=(1, 1),
        ),
        {"collective-permute": 1},
    ),
    "periodic": (periodic(16, (3, 3), 1), {"collective-permute": 2}),
    "average 2": (averaged(16, (2, 2)), {}),
    "maximum 3, stride 2": (
        largest(16, (3, 3), stride=(2, 2), padding=((1, 1), (1, 1))),
        {"collective-permute": 1},
    ),
}


@pytest.mark.parametrize("name", CASES_CONVOLUTION_COLLECTIVES)
def test_messages(name):
    case, expected = CASES_CONVOLUTION_COLLECTIVES[name]
    assert sent(case) == expected


# The halo exchange with CREDIT's interface: on local arrays, with `trim`.


SHARDS = 4


def blocks_of_halo_exchange(x, function, dim=-2):
    """Applies `function` to each local block; concatenates the results along `dim`."""
    spec = P(*(None,) * (dim % x.ndim), DOMAIN)
    mesh = make_mesh(domain=SHARDS)
    sharded = jax.shard_map(function, mesh=mesh, in_specs=spec, out_specs=spec)
    wide = np.asarray(jax.jit(sharded)(x))
    return np.split(wide, SHARDS, dim)


@pytest.mark.parametrize("dim", [-2, -1, 2, 1])
@pytest.mark.parametrize("width", [0, 1, 3, 5, 20])
def test_neighbors_of_credits_arrays(width, dim):
    """Every block is a contiguous part of the global array, padded with zeros."""
    shape = [2, 1, 3, 3]
    shape[dim] = 12
    x = draw(shape)
    pads = [(0, 0)] * 4
    pads[dim] = (width, width)
    padded = np.pad(x, pads)
    for shard, block in enumerate(
        blocks_of_halo_exchange(x, HaloExchange(width, dim), dim)
    ):
        rows = range(3 * shard, 3 * shard + 3 + 2 * width)
        assert np.array_equal(block, np.take(padded, rows, dim)), f"shard {shard}"


@pytest.mark.parametrize("width", [1, 4, 25])
def test_periodic(width):
    x = draw((2, 3, 12, 2))
    exchange = HaloExchange(width, periodic=True)
    for shard, block in enumerate(blocks_of_halo_exchange(x, exchange)):
        rows = np.arange(3 * shard - width, 3 * shard + 3 + width) % 12
        assert np.array_equal(block, np.take(x, rows, -2)), f"shard {shard}"


@pytest.mark.parametrize("periodic", [False, True])
def test_what_follows_the_last_row_stands_behind_it(periodic):
    """10 rows in blocks of 3: the last block has one row and two rows of padding."""
    x = np.arange(1.0, 13.0, dtype=np.float32).reshape(12, 1)
    x[10:] = 1e6

    def exchange(x):
        return halo_exchange(x, 2, size=10, periodic=periodic)

    last = blocks_of_halo_exchange(x, exchange)[-1][:, 0]
    beyond = [1, 2, 3, 4] if periodic else [0, 0, 0, 0]
    assert last.tolist() == [8, 9, 10, *beyond]


def test_one_device_has_no_neighbors():
    x = jnp.asarray(draw((1, 2, 5, 3)))
    alone = halo_exchange(x, 2, axis=None)
    assert np.array_equal(alone, np.pad(x, [(0, 0), (0, 0), (2, 2), (0, 0)]))
    around = HaloExchange(2, axis=None, periodic=True)(x)
    assert np.array_equal(around, np.pad(x, [(0, 0)] * 2 + [(2, 2), (0, 0)], "wrap"))


@pytest.mark.parametrize("degrees", [{}, {"tp": 2}, None])
def test_a_mesh_without_the_axis_has_no_neighbors(degrees):
    """The same line as on a mesh with the axis: the identity with padding."""
    x = jnp.asarray(draw((1, 2, 5, 3)))
    exchange = HaloExchange(2)
    if degrees is not None:
        mesh = make_mesh(**degrees)
        exchange = jax.shard_map(exchange, mesh=mesh, in_specs=P(), out_specs=P())
    assert np.array_equal(exchange(x), np.pad(x, [(0, 0)] * 2 + [(2, 2), (0, 0)]))


def test_unknown_axes_are_refused():
    with pytest.raises(ValueError, match="axis is 'rows'; expected an axis of the"):
        HaloExchange(2, axis="rows")(jnp.asarray(draw((1, 2, 5, 3))))


@pytest.mark.parametrize(("before", "after", "dim"), [(1, 2, -2), (0, 0, 3), (5, 0, 2)])
def test_trim(before, after, dim):
    x = jnp.asarray(draw((1, 2, 5, 3)))
    rows = range(before, x.shape[dim] - after)
    assert np.array_equal(trim(x, before, after, dim), np.take(x, rows, dim))
    assert np.array_equal(
        HaloExchange.trim(x, before, after, dim), np.take(x, rows, dim)
    )


def test_what_cannot_be():
    x = jnp.zeros((1, 2, 5, 3))
    with pytest.raises(ValueError, match="halo_width is -1"):
        halo_exchange(x, -1, axis=None)
    with pytest.raises(ValueError, match="cannot trim 3 and 3 rows of 5"):
        trim(x, 3, 3)
    with pytest.raises(ValueError, match="cannot trim -1 and 0 rows of 5"):
        trim(x, -1, 0)
    with pytest.raises(ValueError, match=r"4 rows over 1 shards are blocks of 4"):
        halo_exchange(x, 1, axis=None, size=4)
    blocks_of_halo_exchange = block_layout(5)
    turned = Field(
        jnp.zeros((1, 5, 3, 2)), blocks_of_halo_exchange.with_rows([[4, 3, 2, 1, 0]], 5)
    )
    with pytest.raises(ValueError, match="not in equal blocks"):
        halo_exchange(turned, 1)


def test_the_settings_carry_credits_names():
    exchange = HaloExchange(halo_width=2, dim=3)
    assert (exchange.halo_width, exchange.dim) == (2, 3)
    assert HaloExchange(2).dim == -2


# Strips: whole windows on every shard, every point once, balanced.


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
