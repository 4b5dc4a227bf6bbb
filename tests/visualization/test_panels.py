"""Contents of curves, score cards, spectra and rank histograms."""

import numpy as np
import pytest

from credit_jax.visualization.canvas import (
    INK,
    new_figure,
    png_of,
    save_figure,
    style,
)
from credit_jax.visualization.card import card_panel, differences, percent_text
from credit_jax.visualization.curves import curve_panels
from credit_jax.visualization.panels import panel_svg, panels_figure
from credit_jax.visualization.spectra import rank_panels, spectrum_panels
from tests.visualization.synthetic import make_scores


@pytest.fixture(scope="module")
def scores():
    return make_scores(levels=(500.0,), num_days=5, members=4)


def axes_of(panel):
    with style():
        axis = new_figure(3, 2).add_subplot()
        panel.draw(axis)
    return axis


def test_curves_are_the_scores(scores):
    panel, *others = curve_panels(scores, ["T500", "t2m"], region="tropics")
    assert panel.title == "RMSE of T500 (K)"
    assert len(others) == 1
    lines = {line.get_label(): line for line in axes_of(panel).get_lines()}
    assert set(lines) == {"forecast", "persistence", "climatology", "spread"}
    own = scores["rmse"].sel(channel="T500", region="tropics", system="persistence")
    assert np.array_equal(lines["persistence"].get_ydata(), own)
    assert np.array_equal(lines["persistence"].get_xdata(), np.arange(0.5, 5.1, 0.5))


def test_metrics_that_are_not_there_have_no_panels(scores):
    assert curve_panels(scores, ["T500"], metric="missing") == []
    assert [own.title for own in curve_panels(scores, ["SP"], metric="acc")] == [
        "ACC of SP"
    ]
    plain = scores[["rmse"]]
    assert spectrum_panels(plain, ["T500"]) == []
    assert rank_panels(plain, ["T500"]) == []


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
    axis = axes_of(card_panel(found, "card"))
    texts = [own.get_text() for own in axis.texts]
    assert texts == [percent_text(value) for value in found.values.ravel()]
    labels = [own.get_text() for own in axis.get_yticklabels()]
    assert labels == [*scores["channel"].values]


def test_numbers_of_a_card_can_be_read(scores):
    """In black or white, whichever differs more from its cell."""
    found = differences(scores, "climatology")[:1, :6].copy()
    found[...] = [[-60, -36, -15, 15, 36, 60]]
    axis = axes_of(card_panel(found, "card"))
    colors = [text.get_color() for text in axis.texts]
    assert colors == ["white", "white", "black", "black", "white", "white"]


def test_spectra_leave_the_mean_out(scores):
    (panel,) = spectrum_panels(scores, ["T500"], band="tropics")
    lines = {line.get_label(): line for line in axes_of(panel).get_lines()}
    assert [*lines] == ["truth", "1 d", "3 d", "5 d"]
    own = scores["energy_spectrum"].sel(channel="T500", band="tropics")
    own = own.sel(system="members", prediction_timedelta=np.timedelta64(72, "h"))
    assert np.array_equal(lines["3 d"].get_ydata(), own[1:])
    assert lines["3 d"].get_xdata()[0] == 1


def test_rank_histograms_are_shares(scores):
    (panel,) = rank_panels(scores, ["SP"], region="tropics")
    bars = [own.get_height() for own in axes_of(panel).patches]
    assert len(bars) == 3 * 5
    assert np.allclose(bars, 1 / 5)


def test_figures_and_their_formats(scores, tmp_path):
    panels = curve_panels(scores, ["T500", "t2m", "SP"])
    figure = panels_figure(panels, title="RMSE, global", columns=2)
    assert len(figure.axes) == 3
    assert save_figure(figure, tmp_path / "a.png").read_bytes()[1:4] == b"PNG"
    assert "<svg" in save_figure(figure, tmp_path / "a.svg").read_text()
    assert png_of(figure)[1:4] == b"PNG"
    with pytest.raises(ValueError, match=r"one of \.png, \.svg, \.pdf, got '\.jpg'"):
        save_figure(figure, tmp_path / "a.jpg")


def test_svg_has_the_color_of_the_page_and_is_reproducible(scores):
    (panel,) = curve_panels(scores, ["T500"])
    text = panel_svg(panel, "p")
    assert "currentColor" in text
    assert INK not in text
    assert "<style" not in text
    assert text == panel_svg(panel, "p")
