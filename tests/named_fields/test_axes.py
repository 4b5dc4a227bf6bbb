"""Axes of files by CF's rules."""

import numpy as np
import pytest
import xarray as xr

from credit_jax.named_fields.axes import coordinate, horizontal, level_values

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


@pytest.mark.parametrize(
    ("rows", "columns", "about", "text"),
    [
        (90 - ROWS, COLUMNS, {}, "runs from 3 to 177, and no latitude is beyond 90"),
        (np.arange(32), COLUMNS, {"units": "degrees_north"}, "numbers of rows"),
        (np.arange(1, 33), np.arange(64), {}, "numbers of rows"),
        (np.deg2rad(ROWS), np.deg2rad(COLUMNS), {}, "latitude is .* hold radians"),
        (np.deg2rad(ROWS), COLUMNS, {}, "latitude is read as .* radians"),
        (ROWS, np.deg2rad(COLUMNS), {}, "longitude is read as .* radians"),
        (ROWS, COLUMNS / 360, {}, "longitude is read as .* shares of a circle"),
        (ROWS, COLUMNS, {"units": "km"}, "is its latitude, and in 'km'"),
        (ROWS, COLUMNS, {"units": "degrees_south"}, "in 'degrees_south'"),
    ],
)
def test_numbers_that_are_no_degrees_are_refused(rows, columns, about, text):
    names = "latitude", "longitude"
    dataset = file(np.asarray(rows, float), columns, names, (about, {}))
    with pytest.raises(ValueError, match=rf"f\.nc: .*{text}"):
        horizontal(dataset, "f.nc")


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
    text = xr.DataArray(["500", "850"], dims="level", name="level")
    with pytest.raises(ValueError, match=r"f\.nc: the levels level are of dtype"):
        level_values(text, "f.nc")
