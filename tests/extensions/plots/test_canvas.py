"""Contents of curves, score cards, spectra and rank histograms."""

import numpy as np
import pytest

from credit_jax.extensions.plots.canvas import (
    channel_text,
    new_figure,
    panels_figure,
    png_of,
    save_figure,
    style,
)
from credit_jax.extensions.plots.card import card_panel, differences, percent_text
from credit_jax.extensions.plots.score_charts import (
    curve_charts,
    rank_charts,
    rounding_energy,
    small_scales_text,
    spectrum_charts,
)
from tests.extensions.plots.synthetic import make_scores


@pytest.fixture(scope="module")
def scores():
    return make_scores(levels=(500.0,), num_days=5, members=4)


def axes_of(panel):
    with style():
        axis = new_figure(3, 2).add_subplot()
        panel.draw(axis)
    return axis


def test_curves_are_the_scores(scores):
    charts = curve_charts(scores, ["T500", "t2m"], region="tropics")
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
    charts = [*curve_charts(changed, channels[:2]).values()]
    charts += spectrum_charts(changed, channels[:1]).values()
    found = differences(changed, "climatology")
    card = card_panel(found, "card", [name] * found.sizes["channel"])
    figure = panels_figure([chart.panel for chart in charts] + [card], title=name)
    text = save_figure(figure, tmp_path / "figure.svg").read_text()
    assert text.count(name) == 1 + 2 * len(charts) + found.sizes["channel"]


def test_ticks_of_logarithmic_axes_are_powers(scores):
    (chart,) = spectrum_charts(scores, ["T500"]).values()
    axis = axes_of(chart.panel)
    ticks = axis.yaxis.get_major_formatter().format_ticks([1e-4, 1e-3, 1.0, 1e3])
    assert ticks == ["10⁻⁴", "10⁻³", "1", "1000"]


def test_metrics_that_are_not_there_have_no_panels(scores):
    assert curve_charts(scores, ["T500"], metric="missing") == {}
    assert curve_charts(scores, ["SP"], metric="acc")["SP"].title == "ACC of SP"
    plain = scores[["rmse"]]
    assert spectrum_charts(plain, ["T500"]) == {}
    assert rank_charts(plain, ["T500"]) == {}


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


def test_a_baseline_without_values_is_refused(scores):
    with pytest.raises(ValueError, match="no crps"):
        differences(scores, "climatology", metric="crps")
    other = scores.assign_coords(channel=[f"x{n}" for n in range(4)])
    with pytest.raises(ValueError, match="no channel and lead time in common"):
        differences(scores, other)


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
    chart = spectrum_charts(scores, ["T500"], band="tropics")["T500"]
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
    assert 0 < energy[11:].max() < rounding_energy(energy) < 1e-6 * energy[1:11].min()
    scores = make_scores(levels=(500.0,), num_days=1)
    spectrum = scores["energy_spectrum"]
    spectrum.loc[{"system": ["truth", "forecast"]}] = energy
    chart = spectrum_charts(scores, ["T500"])["T500"]
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
    assert small_scales_text(scores, "global") == [
        "At 1 d, in the shorter half of the waves of the truth, forecasts have too "
        "much energy (too rough) in 2 of 4 channels, at most 4 times that of the truth "
        "(T at 500 hPa), and too little energy (too smooth) in 1 of 4 channels, at "
        "least 0.5 times that of the truth (U at 500 hPa)."
    ]
    spectrum.loc[{"system": ["forecast", "members"], "zonal_wavenumber": 25}] = 1e-3
    assert small_scales_text(scores, "global")[1] == (
        "Beyond wavenumber 20 the truth of 4 channels is zero but for rounding, which "
        "is not drawn, and the forecast is not."
    )


def test_rank_histograms_are_shares(scores):
    (chart,) = rank_charts(scores, ["SP"], region="tropics").values()
    bars = [own.get_height() for own in axes_of(chart.panel).patches]
    assert len(bars) == 3 * 5
    assert np.allclose(bars, 1 / 5)


def test_figures_and_their_formats(scores, tmp_path):
    charts = curve_charts(scores, ["T500", "t2m", "SP"])
    panels = [chart.panel for chart in charts.values()]
    figure = panels_figure(panels, title="RMSE, global", columns=2)
    assert len(figure.axes) == 3
    assert save_figure(figure, tmp_path / "a.png").read_bytes()[1:4] == b"PNG"
    assert "<svg" in save_figure(figure, tmp_path / "a.svg").read_text()
    assert png_of(figure)[1:4] == b"PNG"
    with pytest.raises(ValueError, match=r"one of \.png, \.svg, \.pdf, got '\.jpg'"):
        save_figure(figure, tmp_path / "a.jpg")
