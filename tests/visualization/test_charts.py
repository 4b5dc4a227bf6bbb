"""Charts of lines as SVG: every point is where its values are."""

import re

import numpy as np
import pytest

from credit_jax.visualization.charts import Chart, Line

LOOK = {"color": "#123456", "linestyle": "--"}


def points_of(svg):
    """Each path of a line as lists of points, one for each piece."""
    paths = re.findall(r'<path class="line" d="([^"]*)"', svg)
    return [
        [
            [tuple(map(float, point.split())) for point in piece.split("L")]
            for piece in path.split("M")[1:]
        ]
        for path in paths
    ]


def ticks_of(svg, anchor):
    """Position along the axis and text of its ticks."""
    found = re.findall(
        rf'<text x="([\d.]+)" y="([\d.]+)" text-anchor="{anchor}">([^<]*)</text>', svg
    )
    return [(float(x), float(y), text) for x, y, text in found]


def test_points_are_on_the_scale_of_the_ticks():
    x, y = np.array([1.0, 2.0, 5.0]), np.array([10.0, 40.0, 25.0])
    svg = Chart("c", "days", [Line("one", x, y, LOOK)], y_from=0.0).svg
    ((points,),) = points_of(svg)
    across = [(own[0], float(own[2])) for own in ticks_of(svg, "middle")[:-1]]
    up = [(own[1] - 3.5, float(own[2])) for own in ticks_of(svg, "end")]
    for place, ticks, values in ((0, across, x), (1, up, y)):
        slope, start = np.polyfit(*np.transpose(ticks)[::-1], 1)
        expected = start + slope * values
        assert np.allclose([p[place] for p in points], expected, atol=0.15)
    assert [value for _, value in up] == [0, 10, 20, 30, 40]
    assert 'stroke-dasharray="5 3"' in svg


def test_logarithmic_axes():
    x = np.arange(1.0, 101.0)
    lines = [Line("one", x, x**-3.0, LOOK)]
    svg = Chart("c", "wave", lines, x_is_log=True, y_is_log=True).svg
    ((points,),) = points_of(svg)
    places = np.array(points)
    slope = (places[-1] - places[0]) / np.log(100.0)
    expected = places[0] + np.log(x)[:, None] * slope
    assert np.allclose(places, expected, atol=0.15), "a power law is a straight line"
    assert [own[2] for own in ticks_of(svg, "middle")[:-1]] == ["1", "10", "100"]
    assert [own[2] for own in ticks_of(svg, "end")] == ["10⁻⁶", "10⁻⁴", "0.01", "1"]


def test_values_that_are_missing_are_gaps():
    y = np.array([1.0, np.nan, 2.0, 3.0])
    svg = Chart("c", "days", [Line("one", np.arange(4.0), y, LOOK)]).svg
    (pieces,) = points_of(svg)
    assert [len(piece) for piece in pieces] == [1, 2]
    assert "nan" not in svg


@pytest.mark.parametrize(
    ("values", "names"),
    [
        ([0, 1.2e-5], ["0", "0.5e\N{MINUS SIGN}5", "1.0e\N{MINUS SIGN}5"]),
        ([0, 0.4], ["0", "0.1", "0.2", "0.3", "0.4"]),
        ([-0.3, 0.8], ["0", "0.5"]),
        ([5.0, 5.0], None),
        ([np.nan, np.nan], None),
    ],
)
def test_numbers_of_an_axis(values, names):
    lines = [Line("one", np.arange(2.0), np.array(values, float), LOOK)]
    found = [text for _, _, text in ticks_of(Chart("c", "x", lines).svg, "end")]
    assert len(found) == len(set(found)) >= 2
    assert names is None or found == names


@pytest.mark.parametrize(
    ("low", "high", "names"),
    [
        (3e-13, 2e-8, ["10⁻¹²", "10⁻¹¹", "10⁻¹⁰", "10⁻⁹", "10⁻⁸"]),
        (3e-9, 4e-8, ["5e-09", "10⁻⁸", "2e-08"]),
        (1e-6, 1e6, ["10⁻⁶", "10⁻³", "1", "1000", "10⁶"]),
        (1.5, 30, ["2", "5", "10", "20"]),
    ],
)
def test_numbers_of_a_logarithmic_axis(low, high, names):
    y = np.array([low, high])
    svg = Chart("c", "x", [Line("one", y, y, LOOK)], x_is_log=True, y_is_log=True).svg
    assert [text for _, _, text in ticks_of(svg, "middle")[:-1]] == names
