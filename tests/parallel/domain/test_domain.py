"""Operations on split fields: beside those of arrays, and what shards send."""

import re
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from credit_jax.kernels import use_implementation
from credit_jax.ops import RunningStatistics
from credit_jax.ops.custom_vjp import varying_axes
from credit_jax.parallel.domain.edges import Incidence
from credit_jax.parallel.domain.halo_exchange import HaloExchange, halo_exchange, trim
from credit_jax.parallel.domain.norm import batch_norm_field
from credit_jax.parallel.domain.strips import EVEN, NEARLY_EVEN, Windows
from credit_jax.parallel.domain.windows import (
    group_layout,
    merge,
    partition,
    window_layout,
)
from credit_jax.parallel.mesh.device_mesh import DOMAIN, DP_SHARD, MeshAxes
from credit_jax.parallel.placement import shard_batch
from credit_jax.parallel.rows.exchange import reshard
from credit_jax.parallel.rows.layout import Field, Layout, block_layout
from tests.ops.cases import batch_norm
from tests.parallel.domain.cases import CASES, OTHERS, SEVERAL
from tests.parallel.test_rows import blocks
from tests.support import assert_close, make_mesh
from tests.support.gradients import assert_same, cotangent, draw, torch_values
from tests.support.sharded import Case, Outcome, build_cases, mesh_of_shards, run_cases

DOUBLE = 1e-12


@lru_cache
def outcomes(num_shards: int) -> dict[str, Outcome]:
    with use_implementation("cpu"):
        return run_cases(CASES, num_shards)


@lru_cache
def plain_outcomes(num_shards: int) -> dict[str, Outcome]:
    """Of operations that have several implementations on shards, of others on one."""
    with use_implementation("xla"):
        return run_cases(OTHERS if num_shards == 1 else SEVERAL, num_shards)


@lru_cache
def double_outcomes(num_shards: int) -> dict[str, Outcome]:
    with jax.enable_x64(True), use_implementation("cpu"):
        return run_cases(CASES, num_shards, np.float64)


def compare(name: str, actual: Outcome, expected: Any, bound: Any) -> None:
    if isinstance(expected, Outcome):
        expected = expected.value, [*expected.fields, *expected.weights]
    pair = actual.value, [*actual.fields, *actual.weights]
    assert_same(pair, expected, name, value=bound[0], gradient=bound[1])


# torch warns for even kernels with "same" that it copies the input.
@pytest.mark.reference
@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.theirs])
def test_values_and_gradients_are_those_of_whole_arrays(credit, name):
    """Those with several implementations on 3 shards, the others on one."""
    case = CASES[name]
    expected = torch_values(case.theirs, *case.arrays())
    outcome = plain_outcomes(3 if name in SEVERAL else 1)[name]
    compare(name, outcome, expected, case.bound)


# All cases with the same number of shards are one test, as they share programs, to
# compile fewer. On 3 shards they run in float64.
@pytest.mark.slow
@pytest.mark.parametrize("num_shards", [2, 4, 8])
def test_sharded_is_single(num_shards, subtests):
    expected = outcomes(1)
    for name, actual in outcomes(num_shards).items():
        with subtests.test(name):
            compare(f"{name} on {num_shards}", actual, expected[name], (1e-6, 1e-5))
    assert outcomes(num_shards).keys() == CASES.keys()


@pytest.mark.slow
@pytest.mark.parametrize("num_shards", [3])
def test_sharded_is_single_in_float64(num_shards, subtests):
    expected = double_outcomes(1)
    for name, actual in double_outcomes(num_shards).items():
        with subtests.test(name):
            assert actual.value.dtype == np.float64
            what = f"{name} on {num_shards}, float64"
            compare(what, actual, expected[name], (DOUBLE, DOUBLE))
    assert jax.numpy.zeros(1).dtype == np.float32, "float64 leaks into other tests"


@pytest.mark.parametrize("kind", ["short", "long"])
@pytest.mark.parametrize(
    ("rows", "columns", "window"),
    [(12, 8, 4), (6, 9, 3), (4, 4, 1), (6, 9, (2, 3))],
    ids=str,
)
def test_windows_are_those_of_credit(kind, rows, columns, window):
    rearrange = pytest.importorskip("einops").rearrange
    x = draw((2, rows, columns, 3))
    sides = (window, window) if isinstance(window, int) else window
    layout = window_layout if kind == "short" else group_layout
    pattern = "b (h s1) (w s2) d -> b (h w) (s1 s2) d"
    if kind == "long":
        pattern = "b (s1 h) (s2 w) d -> b (h w) (s1 s2) d"
    expected = rearrange(x, pattern, s1=sides[0], s2=sides[1])
    for dim in (1, 2):
        whole = layout(
            block_layout(x.shape[dim], dim=dim), x.shape[dim], sides[dim - 1]
        )
        field = Field(jnp.asarray(x), whole)
        tokens = partition(field, kind, window)
        assert np.array_equal(tokens, expected), f"dim {dim}"
        assert np.array_equal(merge(tokens, field, kind, window).data, x), f"dim {dim}"


# What one forward on 4 shards sends, by kind of collectives.
KINDS = (
    *("collective-permute", "all-to-all", "all-gather", "all-reduce"),
    "reduce-scatter",
)


def of_layouts(*layouts: Any, rows: int = 48) -> Case:
    """Moves to one layout after the other, and back to blocks."""

    def op(field: Field) -> Field:
        for layout in layouts:
            field = reshard(field, layout(field.layout, rows, 4))
        return reshard(field, field.layout.to_blocks())

    return Case(op, ((1, rows, 2, 1),))


def compiled(case: Case, num_shards: int = 4) -> str:
    program, arguments, _ = build_cases({"case": case}, num_shards, gradients=False)
    return str(jax.jit(program).lower(*arguments).compile().as_text())


# "both" are poles or sides, whose rows travel in one permutation each.
SENT: dict[str, tuple[str, ...]] = {
    "": (
        *("1x1", "patches", "patches, uneven", "3 dims, other dims only", "up 2"),
        *("average 2", "resize columns only", "nearest up, even", "roll columns only"),
        *("roll lat only, columns", "mean over lon", "batch norm, evaluation"),
        *("short windows", "short windows, columns", "pixel shuffle"),
    ),
    "1 collective-permute": (
        *("row below only", "up 2, kernel 3, output padding", "maximum 3, stride 2"),
        "earth",
    ),
    "2 collective-permute": (
        *("3x3", "3x3, prime", "3x3, dim 2", "stride 2, kernel 4", "3x3x3"),
        *("embed 4 8 16 32, stride 4", "resize twice", "up 2, kernel 4", "periodic"),
        "halo of 1",
    ),
    "1 all-to-all": ("kernel wider than a shard",),
    "2 all-to-all": ("long windows", "long windows, uneven", "long windows, columns"),
    "1 all-gather": ("group norm", "gathered rows"),
    "1 all-reduce": (
        *("global mean", "mean over lat", "mean over lon, columns"),
        "gates with biases",
    ),
    "2 all-reduce": ("batch norm",),
    "1 all-gather, 1 all-reduce": ("coordinate attention",),
}


@pytest.mark.parametrize(
    ("name", "sent"), [(name, sent) for sent, names in SENT.items() for name in names]
)
def test_what_an_operation_sends(name, sent):
    text = compiled(CASES[name])
    counts = {kind: len(re.findall(rf" {kind}(?:-start)?\(", text)) for kind in KINDS}
    assert ", ".join(f"{n} {kind}" for kind, n in sorted(counts.items()) if n) == sent


def test_long_windows_send_a_quarter_to_each_of_four_shards():
    text = compiled(of_layouts(group_layout))
    shapes = re.findall(r"f32\[([\d,]+)\][^\n]* all-to-all\(", text)
    sizes = {int(np.prod([*map(int, shape.split(","))])) for shape in shapes}
    # 12 rows of 2 points in total, or one of four parts of them.
    assert sizes in ({12 * 2}, {3 * 2})
    alike = compiled(of_layouts(window_layout, window_layout))
    assert not any(f" {kind}" in alike for kind in KINDS), "layouts that agree"


# Batch normalization over dp and domain at once.


def normalized(*, synchronized: bool, out: Any) -> Any:
    """Returns output, running statistics and gradients on dp 2 x domain 3."""
    mesh, layout = make_mesh(dp=2, domain=3), block_layout(7, 3, DOMAIN)
    axes = MeshAxes.from_mesh(mesh)
    arrays = draw((4, 7, 5, 3)), draw((3,), 1), draw((3,), 2)
    weight = shard_batch({"x": cotangent((4, 7, 5, 3))}, mesh, spatial_dims_4d=1)["x"]

    def norm(x, scale, bias):
        field, running = batch_norm_field(
            Field(x, layout),
            *(scale, bias, RunningStatistics.fresh(3)),
            training=True,
            axes=axes.data if synchronized else (),
        )
        differs = set() if synchronized else set(axes.data)
        assert varying_axes(running.mean) == differs, "its type says where it differs"
        return jnp.where(field.mask(), field.data, 0), running

    split = P(axes.data, DOMAIN)
    sharded = jax.shard_map(
        norm, mesh=mesh, in_specs=(split, P(), P()), out_specs=(split, out)
    )

    def loss(x, scale, bias):
        data, running = sharded(x, scale, bias)
        return (data * weight).sum(), (data, running)

    x = shard_batch({"x": arrays[0]}, mesh, spatial_dims_4d=1)["x"]
    both = jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True)
    (_, (data, running)), grads = jax.jit(both)(x, *map(jnp.asarray, arrays[1:]))
    return arrays, data[:, :7], running, (grads[0][:, :7], *grads[1:])


def alone(x, scale, bias):
    return batch_norm(x, scale, bias, RunningStatistics.fresh(3), training=True)


def test_batch_norm_over_dp_and_domain_is_that_of_one_device():
    arrays, *actual, grads = normalized(synchronized=True, out=P())
    out, pull, running = jax.vjp(alone, *map(jnp.asarray, arrays), has_aux=True)
    pairs = zip(jax.tree.leaves(actual), [out, *jax.tree.leaves(running)], strict=True)
    for a, e in pairs:
        assert_close(a, e, 1e-6, "value and running statistics")
    expected = pull(jnp.asarray(cotangent(out.shape)))
    for name, a, e in zip(("x", "scale", "bias"), grads, expected, strict=True):
        assert_close(a, e, 1e-5, f"gradient of {name}")


def test_without_further_axes_every_dp_rank_has_its_own():
    each = RunningStatistics(P(DP_SHARD), P(DP_SHARD), P())
    (x, *weights), data, running, _ = normalized(synchronized=False, out=each)
    for rank in range(2):
        samples, mine = slice(2 * rank, 2 * rank + 2), slice(3 * rank, 3 * rank + 3)
        out, own = alone(*map(jnp.asarray, (x[samples], *weights)))
        assert_close(data[samples], out, 1e-6, f"rank {rank}")
        assert_close(running.mean[mine], own.mean, 1e-6, f"mean of rank {rank}")


# Sums over edges, and values of their points, against numpy.


POINTS = 7
# Of each shard the point of each edge: degrees from 0 to 9, in any order.
GRAPHS = {
    "one": [[3, 0, 3, 5, 5, 5, 5, 5, 0]],
    "uneven": [[2, 2, 2, 2, 2, 2, 2, 2, 2, 6, 0], [1, 4], []],
    "one edge": [[], [6]],
}


def per_shard(function, points):
    """A function of every shard; arrays have the shards first."""
    mesh, spec = mesh_of_shards(len(points)), P(DOMAIN)
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
    assert "scatter" not in run.lower(by_edge, by_point).as_text()
    sums, spread, edge_gradient, point_gradient, largest = map(
        np.asarray, run(by_edge, by_point)
    )
    for shard, point in enumerate(points):
        values = by_edge[shard, : len(point)]
        expected, most = np.zeros((POINTS, 3)), np.full((POINTS, 3), -np.inf)
        np.add.at(expected, point, values)
        np.maximum.at(most, point, values)
        for result in (sums, point_gradient):
            np.testing.assert_allclose(result[shard], expected, rtol=1e-6, atol=1e-6)
        np.testing.assert_array_equal(largest[shard], most)
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


# The halo exchange with CREDIT's interface: on local arrays, with `trim`.


def local_blocks(x, function, dim=-2):
    """What a function of local arrays returns on each of 4 shards of `dim`."""
    spec = P(*(None,) * (dim % x.ndim), DOMAIN)
    mesh = make_mesh(domain=4)
    sharded = jax.shard_map(function, mesh=mesh, in_specs=spec, out_specs=spec)
    return np.split(np.asarray(jax.jit(sharded)(x)), 4, dim)


def around(x, width, dim, *, periodic):
    pads = [(width, width) if d == dim % x.ndim else (0, 0) for d in range(x.ndim)]
    return np.pad(x, pads, "wrap" if periodic else "constant")


@pytest.mark.parametrize("periodic", [False, True])
@pytest.mark.parametrize(
    ("width", "dim"), [(0, -2), (1, -1), (3, 2), (5, 1), (20, -2), (25, -1)]
)
def test_neighbors_of_credits_arrays(width, dim, periodic):
    """Every block is a contiguous part of the global array."""
    shape = [2, 1, 3, 3]
    shape[dim] = 12
    x = draw(shape)
    exchange = HaloExchange(halo_width=width, dim=dim, periodic=periodic)
    wide = around(x, width, dim, periodic=periodic)
    for shard, block in enumerate(local_blocks(x, exchange, dim)):
        rows = range(3 * shard, 3 * shard + 3 + 2 * width)
        assert np.array_equal(block, np.take(wide, rows, dim)), f"shard {shard}"


@pytest.mark.parametrize("periodic", [False, True])
def test_what_follows_the_last_row_stands_behind_it(periodic):
    """10 rows in blocks of 3: the last block has one row and two rows of padding."""
    x = np.arange(1.0, 13.0, dtype=np.float32).reshape(12, 1)
    x[10:] = 1e6
    exchange = partial(halo_exchange, halo_width=2, size=10, periodic=periodic)
    last = local_blocks(x, exchange)[-1][:, 0]
    beyond = [1, 2, 3, 4] if periodic else [0, 0, 0, 0]
    assert last.tolist() == [8, 9, 10, *beyond]


@pytest.mark.parametrize("degrees", [{}, {"tp": 2}, None])
def test_one_shard_has_no_neighbors(degrees):
    """The same line as on a mesh with the axis: the identity with padding."""
    x = jnp.asarray(draw((1, 2, 5, 3)))
    exchange = HaloExchange(2)
    if degrees is not None:
        mesh = make_mesh(**degrees)
        exchange = jax.shard_map(exchange, mesh=mesh, in_specs=P(), out_specs=P())
    for ours in (exchange, HaloExchange(2, axis=None)):
        assert np.array_equal(ours(x), around(x, 2, -2, periodic=False))
    turned = HaloExchange(2, axis=None, periodic=True)(x)
    assert np.array_equal(turned, around(x, 2, -2, periodic=True))


@pytest.mark.parametrize(("before", "after", "dim"), [(1, 2, -2), (0, 0, 3), (5, 0, 2)])
def test_trim(before, after, dim):
    x = jnp.asarray(draw((1, 2, 5, 3)))
    rows = np.take(x, range(before, x.shape[dim] - after), dim)
    for function in (trim, HaloExchange.trim):
        assert np.array_equal(function(x, before, after, dim), rows)


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
