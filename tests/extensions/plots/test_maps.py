"""Maps: coastlines, windows, colors, projections."""

import sys

import numpy as np
import pytest

from credit_jax.extensions.plots.canvas import png_of
from credit_jax.extensions.plots.maps import (
    DIVERGING,
    PROJECTIONS,
    SEQUENTIAL,
    Colors,
    Map,
    MapFigure,
    MapGrid,
    MapProjection,
    MapWindow,
    coastline,
    colors_of,
    error_colors_of,
    find_window,
    parse_window,
    window_of,
)

LATITUDE = np.linspace(78.75, -78.75, 8)
LONGITUDE = np.arange(0.0, 360.0, 22.5)
GRID = MapGrid(LATITUDE, LONGITUDE)
FIELD = LATITUDE[:, None] + LONGITUDE / 10


def test_coastlines_are_where_coasts_are():
    points = np.concatenate(coastline())
    assert -180 <= points[:, 0].min() < -179
    assert 179 < points[:, 0].max() <= 180
    assert -90 <= points[:, 1].min() < -75
    for place in ([18.4, -34.2], [-9.5, 38.7], [-68.0, -54.9], [153.5, -28.6]):
        assert np.abs(points - place).sum(axis=1).min() < 1.5, place
    assert np.abs(points - [-150, 0]).sum(axis=1).min() > 10, "no coast there"


@pytest.mark.parametrize("west", [-180.0, 0.0, 145.0])
def test_coastlines_of_other_windows(west):
    lines = coastline(west)
    points = np.concatenate(lines)
    assert points[:, 0].min() >= west
    assert points[:, 0].max() <= west + 360
    assert max(np.abs(np.diff(line[:, 0])).max() for line in lines) < 180
    assert len(points) > 5000


def test_the_window_of_a_regional_grid():
    assert window_of(LATITUDE, LONGITUDE).is_globe
    y, x = np.mgrid[30:50:5.0, 220:280:10.0]
    assert window_of(y, x) == MapWindow(-140, -90, 30, 45)
    across = np.array([350.0, 355.0, 0.0, 5.0])
    assert window_of(np.array([10.0, 20.0]), across) == MapWindow(-10, 5, 10, 20)
    mask = parse_window("350,20,0,90").mask(LATITUDE[:, None], LONGITUDE)
    assert mask.sum(axis=1).tolist() == [1] * 4 + [0] * 4


def test_truth_and_forecast_have_the_same_colors_and_errors_are_about_zero():
    field = FIELD + 300
    colors, of_error = (
        colors_of([field, field + 3], "K"),
        error_colors_of([FIELD * 0 + 3]),
    )
    assert colors.low == pytest.approx(field.min(), abs=1.0)
    assert colors.high == pytest.approx(field.max() + 3, abs=1.0)
    assert (of_error.name, of_error.extend) == (DIVERGING, "neither")
    assert (of_error.low, of_error.high) == pytest.approx((-3, 3))


def test_colors_of_fields_of_one_value_or_none():
    empty = np.full((2, 2), np.nan)
    assert colors_of([empty]) == Colors(0.0, 1.0)
    assert colors_of([np.ones((2, 2))]) == Colors(1.0, 2.0)
    assert error_colors_of([np.zeros((2, 2))]) == Colors(-1.0, 1.0, DIVERGING)
    assert error_colors_of([empty]) == Colors(-1.0, 1.0, DIVERGING)
    assert error_colors_of([]) == Colors(-1.0, 1.0, DIVERGING)


def test_colors_of_rain_begin_at_zero_whatever_the_forecast_has_below():
    rain = np.linspace(-5.0, 60.0, 100).reshape(10, 10)
    colors = colors_of([rain], "m s**-1", is_signed=False)
    assert (colors.name, colors.low) == (SEQUENTIAL, 0.0)


def test_bars_have_arrows_where_colors_are_clipped():
    field = np.linspace(200.0, 300.0, 10000).reshape(100, 100)
    assert colors_of([field]).extend == "both"
    field[field > 250] = 250
    assert colors_of([field]).extend == "min"
    assert error_colors_of([field - 200]).extend == "neither"
    colors = Colors(0, 1, extend="max")
    figure = MapFigure([Map("m", FIELD, colors)], GRID, title="t")
    assert figure.figure.axes[0].collections[0].colorbar.extend == "max"


def test_titles_are_within_the_figure_and_clear_of_the_maps():
    title = "ensemble mean of specific humidity at 1000 hPa, 10 d from 2000-12-30 00:00"
    title += ", valid 2001-01-09 00:00, of the training period"
    maps = [Map(name, FIELD, Colors(0, 1)) for name in ("truth", "forecast", "error")]
    for own, text in ((maps[:1], title), (maps, "T at 500 hPa")):
        figure = MapFigure(own, GRID, title=text, units="K").figure
        figure.canvas.draw()
        place = figure._suptitle.get_window_extent()
        assert place.x0 > 0
        assert place.x1 < figure.bbox.x1
        assert place.y1 <= figure.bbox.y1
        axes = figure.axes[: len(own)]
        top = max(axis.title.get_window_extent().y1 for axis in axes)
        assert place.y0 - top > (0.5 * place.height if own is maps else 0)


def test_every_point_is_drawn_where_it_is():
    figure = MapFigure([Map("m", FIELD, Colors(0, 1))], GRID, title="t", units="K")
    axis = figure.figure.axes[0]
    assert axis.get_xlim() == (-180, 180)
    assert axis.get_ylim() == (-90, 90)
    mesh = axis.collections[0]
    edges, values = mesh.get_coordinates(), mesh.get_array()
    middle = (edges[:-1, :-1] + edges[1:, 1:]) / 2
    for row, column in [(0, 0), (3, 5), (7, 15), (4, 9)]:
        east = (LONGITUDE[column] + 180) % 360 - 180
        distance = np.abs(middle - [east, LATITUDE[row]]).sum(axis=-1)
        place = np.unravel_index(distance.argmin(), distance.shape)
        assert distance.min() < 1e-9
        assert values[place] == FIELD[row, column]
    figure.update([Map("other", FIELD + 1, Colors(0, 1))], "later")
    assert axis.get_title() == "other"
    assert mesh.get_array().max() == FIELD.max() + 1


def test_missing_values_are_blank_and_grids_may_be_curvilinear():
    field = FIELD.copy()
    field[2, 3] = np.nan
    figure = MapFigure([Map("m", field, Colors(0, 1))], GRID, title="t")
    assert np.ma.count_masked(figure.figure.axes[0].collections[0].get_array()) == 1
    y, x = np.mgrid[30:50:5.0, 220:280:10.0]
    grid = MapGrid(y + x / 50, x)
    figure = MapFigure([Map("m", y, Colors(30, 50))], grid, title="t")
    assert figure.figure.axes[0].get_xlim() == (-140, -90)
    assert png_of(figure.figure)[1:4] == b"PNG"


@pytest.mark.slow(but=["robinson", "north-pole"])
@pytest.mark.parametrize("name", PROJECTIONS[1:])
def test_projections_of_cartopy(name):
    window = find_window("arctic") if "pole" in name else None
    maps = [Map("m", FIELD, Colors(0, 1))]
    figure = MapFigure(
        maps, GRID, title="t", window=window, projection=MapProjection(name)
    )
    assert figure.figure.axes[0].projection is not None
    assert png_of(figure.figure, dpi=40)[1:4] == b"PNG"


def test_without_cartopy_a_projection_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "cartopy.crs", None)
    assert MapProjection().is_plain
    with pytest.raises(ValueError, match=r"pip install 'credit-jax\[maps\]'"):
        MapProjection("robinson")
