"""Names, units, axes and weights of fields."""

import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from jax.sharding import PartitionSpec

from credit_jax.named_fields import ChannelLayout, latitude_weights
from credit_jax.named_fields.axes import coordinate, horizontal, level_values
from credit_jax.named_fields.units import EXPECTED, conversion, differ, text_of
from credit_jax.parallel.mesh.device_mesh import MeshAxes
from tests.messages.engine import *  # noqa: F403
from tests.messages.engine import Case, Cases
from tests.support import assert_close, make_mesh
from tests.support.gradients import draw
from tests.support.whole_fields import field_context, run_on_mesh

CASES = Cases("axes")
LAYOUT = ChannelLayout.of({"T": 3, "SP": 1, "U": 2})


def test_means_over_the_channels_of_a_variable():
    assert LAYOUT.num_channels == 6
    slices = {key: (s.start, s.stop) for key, s in LAYOUT.slices.items()}
    assert slices == {"T": (0, 3), "SP": (3, 4), "U": (4, 6)}
    values = jnp.asarray([1.0, 2.0, 6.0, 5.0, 1.0, 3.0])
    means = LAYOUT.per_variable(values)
    assert means.tolist() == [3.0, 5.0, 2.0]
    back = LAYOUT.per_channel(means)
    assert back.shape == (1, 6, 1, 1, 1)
    assert back.ravel().tolist() == [3.0, 3.0, 3.0, 5.0, 2.0, 2.0]


def test_latitude_weights_have_mean_one():
    weights = latitude_weights(np.linspace(90, -90, 721))
    assert weights.dtype == np.float32
    assert abs(weights.mean(dtype=np.float64) - 1) < 1e-6


DIFFERENT = """Pa = hPa; K = degrees_C; kg kg-1 = g/kg; m s**-1 = knots; Pa = K; mm = m
m**2 s**-2 = gpm; m = m/s; m of water equivalent = m2/s2; W m-2 = J m-2; % = 1; mm = K
mm day-1 = kg m-2 s-1; cm s-1 = m s-1; radian = degree; mm = mm day-1; kg m-3 = 1"""
ALIKE = """mbar = hPa; Pa = pascals; degC = degree_Celsius; kg kg**-1 = kg/kg; K = blob
m s^-1 = m/s; m of water equivalent = m; (0 - 1) = 1; m2 s-2 = m**2 s**-2; kelvin = K
millibar = mb; kg m-2 = mm"""


@pytest.mark.parametrize(("pairs", "result"), [(DIFFERENT, True), (ALIKE, False)])
def test_names(pairs, result):
    for pair in pairs.replace("\n", "; ").split("; "):
        one, other = pair.split(" = ")
        assert differ(one, other) is differ(other, one) is result, pair


@pytest.mark.parametrize(
    ("of", "to", "expected"),
    [
        ("cm s-1", "m s**-1", (0.01, 0.0)),
        ("%", "1", (0.01, 0.0)),
        ("mm day-1", "kg m-2 s-1", (1 / 86400, 0.0)),
        ("m of water equivalent", "kg m-2", (1000.0, 0.0)),
        ("degC", "K", (1.0, 273.15)),
        ("radians", "degrees", (180 / np.pi, 0.0)),
        ("W m-2", "J m-2", None),
        ("m", "m2 s-2", None),
        ("blob", "K", None),
    ],
)
def test_conversions(of, to, expected):
    found = conversion(of, to)
    assert found == expected or found == pytest.approx(expected, rel=1e-9)


def test_attributes_as_text():
    texts = [text_of({"units": x}, "units") for x in ("K", ["K"], np.array([b"K"]), 1)]
    assert texts == ["K", "K", "K", "1"]


def test_every_expected_unit_is_known():
    wrong = {"Pa": "hPa", "K": "degC", "kg/kg": "g/kg", "m/s": "knots", "Pa/s": "hPa/s"}
    wrong |= {"m2/s2": "gpm", "m": "mm"}
    for unit in EXPECTED.values():
        assert differ(unit, wrong[unit])


LAT, LON = 13, 5
LAYOUT_CONTEXT = ChannelLayout.of({"T": 2, "SP": 1})
WEIGHTS = latitude_weights(np.linspace(85.0, -70.0, LAT))
FACTORS = np.array([2.0, 0.5, 3.0], np.float32)
MESHES = {
    "one device": {},
    "dp 2": {"dp": 2},
    "3 shards": {"domain": 3},
    "8 shards": {"domain": 8},
    "dp 2 x tp 2 x 2 shards": {"dp": 2, "tp": 2, "domain": 2},
}


@pytest.mark.parametrize("name", MESHES)
def test_means_and_whole_fields(name):
    x = draw((4, 3, 2, LAT, LON)) + 1
    mesh = make_mesh(**MESHES[name])
    context = field_context(
        LAT, mesh, channels=LAYOUT_CONTEXT, row_weights=WEIGHTS, channel_weights=FACTORS
    )

    def run(x):
        rows = context.row_mean(x)
        whole = context.gather_rows(x)
        return (
            context.mean(x),
            context.channel_mean(x),
            context.variable_mean(x),
            context.data_mean(rows),
            context.gathered().mean(whole),
            context.sample_mean(x),
            rows,
            whole,
        )

    same, samples = PartitionSpec(), PartitionSpec(MeshAxes.from_mesh(mesh).data)
    specs = (*(same,) * 5, *(samples,) * 3)
    found = run_on_mesh(run, mesh, x, out_specs=specs)
    weighted = x.astype(np.float64) * WEIGHTS[:, None]
    channels = weighted.mean(axis=(0, 2, 3, 4))
    mean = (channels * FACTORS).mean()
    expected = {
        "mean": mean,
        "channel_mean": channels,
        "variable_mean": [channels[:2].mean(), channels[2]],
        "data_mean": weighted.mean(axis=(0, 3)),
        "mean of gathered rows": mean,
        "sample_mean": weighted.mean(axis=(3, 4)),
        "row_mean": weighted.mean(axis=3),
    }
    for (what, value), ours in zip(expected.items(), found, strict=False):
        assert_close(ours, value, 1e-6, f"{what} on {name}")
    assert np.array_equal(found[-1], x), "all rows in order, without padding"


def test_members_are_beside_their_sample():
    prediction = jnp.arange(6.0).reshape(6, 1, 1, 1, 1)
    context = field_context(1, num_members=3)
    members = context.members(prediction)
    assert members.shape == (2, 3, 1, 1, 1, 1)
    assert members[1].ravel().tolist() == [3.0, 4.0, 5.0]
    repeated = context.repeat_members(prediction[:2])
    assert repeated.ravel().tolist() == [0.0] * 3 + [1.0] * 3


ROWS, COLUMNS = np.linspace(87, -87, 32), np.arange(64) * 5.625


def file(rows=ROWS, columns=COLUMNS, names=("a", "b"), attrs=({}, {})):
    pairs = zip(names, (rows, columns), attrs, strict=True)
    coords = {name: (name, values, about) for name, values, about in pairs}
    return xr.Dataset({"T": (names, np.zeros((len(rows), len(columns))))}, coords)


@pytest.mark.parametrize(
    ("names", "rows", "columns"),
    [
        *[
            (("a", "b"), {"units": f"degree{n}"}, {"units": f"degree{e}"})
            for n, e in (("_north", "_east"), ("s_N", "s_E"), ("N", "E"), ("s_N", "E"))
        ],
        (("a", "b"), {"axis": "Y"}, {"axis": "X", "units": "degrees"}),
        (("a", "b"), {"standard_name": "latitude"}, {"standard_name": "longitude"}),
        (("LAT", "Longitude"), {}, {"units": np.array(["degrees"])}),
    ],
)
def test_rows_and_columns_are_known_by_any_spelling(names, rows, columns):
    latitude, longitude = horizontal(file(names=names, attrs=(rows, columns)), "f.nc")
    assert (latitude.name, longitude.name) == names


def test_what_is_no_latitude():
    rotated = {"standard_name": "grid_latitude", "units": "degrees", "axis": "Y"}
    plane = {"axis": "X", "units": "m"}
    assert horizontal(file(attrs=(rotated, plane)), "f.nc") == (None, None)
    assert horizontal(file(), "f.nc") == (None, None)


def test_the_coordinate_of_most_variables_is_taken():
    north = {"units": "degrees_north"}
    staggered = file(names=("slat", "lon"), attrs=(north, {})).rename(T="V")
    both = xr.merge([staggered, file(names=("x", "lon"), attrs=(north, {}))])
    both["U"] = both["T"]
    assert coordinate(both, "latitude").name == "x"


def test_radians_are_converted():
    attrs = {"units": "radians"}, {"units": "radian"}
    dataset = file(np.deg2rad(ROWS), np.deg2rad(COLUMNS), ("lat", "lon"), attrs)
    for found, expected in zip(horizontal(dataset, ""), (ROWS, COLUMNS), strict=True):
        np.testing.assert_allclose(found.values, expected, atol=1e-12)


def refused(rows, columns, about):
    named = file(
        np.asarray(rows, float), columns, ("latitude", "longitude"), (about, {})
    )
    horizontal(named, "f.nc")


for name, (rows, columns, about) in {
    "colatitudes": (90 - ROWS, COLUMNS, {}),
    "numbers": (np.arange(32), COLUMNS, {"units": "degrees_north"}),
    "numbers from 1": (np.arange(1, 33), np.arange(64), {}),
    "radians": (np.deg2rad(ROWS), np.deg2rad(COLUMNS), {}),
    "rows in radians": (np.deg2rad(ROWS), COLUMNS, {}),
    "columns in radians": (ROWS, np.deg2rad(COLUMNS), {}),
    "shares of a circle": (ROWS, COLUMNS / 360, {}),
    "km": (ROWS, COLUMNS, {"units": "km"}),
    "degrees_south": (ROWS, COLUMNS, {"units": "degrees_south"}),
}.items():
    CASES.add(Case(name, refused, (rows, columns, about)))


@CASES.case
def levels_as_text():
    level_values(xr.DataArray(["500", "850"], dims="level", name="level"), "f.nc")


@pytest.mark.parametrize(
    ("rows", "columns"),
    [
        (np.arange(91.0), np.arange(360.0)),
        (np.arange(41.0), np.arange(100.0, 140.0)),
        (np.linspace(-1.5, 1.5, 13), np.arange(10.0, 12.0, 0.25)),
        (np.linspace(10, 11, 5), np.arange(4) * 0.25),
    ],
)
def test_regions_are_degrees(rows, columns):
    latitude, _ = horizontal(file(rows, columns, ("lat", "lon")), "f.nc")
    np.testing.assert_array_equal(latitude.values, rows)


def test_levels():
    attrs = {"units": ["hPa"], "positive": "Down"}
    found = level_values(xr.DataArray([500, 850], dims="level", attrs=attrs), "f.nc")
    assert (found, found.unit, found.positive) == ((500.0, 850.0), "hPa", "down")
