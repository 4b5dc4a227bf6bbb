"""Maps of forecasts and figures of scores: `python -m credit_jax.plot`.

With --forecast and --variable a map or, if --out ends with .gif, an animation; with
--scores curves, a score card, spectra, rank histograms, or the page of all of these.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import xarray as xr

from credit_jax.cli.commands import OK, Command, option, print_line
from credit_jax.config import not_available
from credit_jax.evaluation.opening import open_forecasts
from credit_jax.evaluation.scores import CLIMATOLOGY, read_scores, seen_in_training
from credit_jax.extensions.plots import canvas, maps
from credit_jax.extensions.plots.page import write_page
from credit_jax.extensions.plots.scene import Scene, choose, find_lead, truth_of
from credit_jax.extensions.plots.score_charts import (
    BASELINES,
    ERRORS,
    GLOBAL,
    NAMES,
    card_panel,
    chosen_channels,
    curve_charts,
    differences,
    rank_charts,
    spectrum_charts,
)
from credit_jax.forecast.archive import record_beside

GIF = ".gif"
TITLE_WIDTH = 60  # characters


class Plot(Command):
    """Plot forecasts on maps, or the scores of forecasts."""

    example = (
        "--forecast forecasts/2001-06-01 --variable T --level 500 --lead 5d "
        "--out map.png"
    )
    one_of = ("forecast", "scores")

    forecast: str | None = option("forecasts: a folder, a store or a file", None, "DIR")
    scores: str | None = option("scores.nc, or its folder", None, "FILE")
    out: str = option(
        "the figure: .png, .svg or .pdf; .gif is an animation, .html a page",
        metavar="FILE",
    )
    region: str | None = option(
        "of a map or of scores: europe, tropics ...; of a map also "
        "west,east,south,north in degrees",
        None,
        "NAME",
    )
    variable: str | None = option("of a map, as the store names it", None, "NAME")
    level: float | None = option("of a variable with levels", None)
    lead: str | None = option(
        "lead time: 5d, 36h (default: the last one; .gif: all up to it)",
        None,
        "DURATION",
    )
    init_time: str | None = option("start date, if there are several", None, "DATE")
    member: str | None = option(
        "of a map: a number, mean (default) or spread, of an ensemble", None
    )
    truth: str | None = option(
        "a YAML file with a data section, a NetCDF file or a Zarr store: truth, "
        "forecast and error side by side",
        None,
        "DATA",
    )
    projection: str = option("of the map", maps.PLAIN, choices=maps.PROJECTIONS)
    fps: float = option("frames a second of .gif", 4.0)
    kind: Literal["curves", "card", "spectra", "ranks", "page"] = option(
        "which figure of scores", "curves"
    )
    metric: str = option("of curves and the card", "rmse", choices=NAMES)
    channel: tuple[str, ...] = option(
        "of scores: T500, t2m; repeatable (default: some of each variable)", (), "NAME"
    )
    baseline: str = option(
        "of the card: persistence, climatology, or scores.nc of another forecast",
        CLIMATOLOGY,
        "NAME",
    )

    def run(self) -> int:
        """Draws and writes the figure."""
        out = Path(self.out)
        if self.forecast:
            self._plot_forecast(out)
        elif self.kind == "page":
            canvas.check_suffix(out, (".html",))
            write_page(read_scores(self.scores or ""), out)
        else:
            canvas.check_suffix(out, canvas.SUFFIXES)
            canvas.save_figure(self._scores_figure(), out)
        print_line(f"written: {out}")
        return OK

    def _plot_forecast(self, out: Path) -> None:
        """Writes a map, or an animation of maps."""
        canvas.check_suffix(out, (*canvas.SUFFIXES, GIF))
        if not self.variable:
            raise ValueError("--variable NAME is needed with --forecast")
        projection = maps.MapProjection(self.projection)
        window = maps.find_window(self.region) if self.region else None
        files = open_forecasts(self.forecast or "")
        choice = choose(
            files,
            self.variable,
            level=self.level,
            init_time=self.init_time,
            member=self.member,
            training=record_beside(files.where).training_dates,
        )
        leads = choice.files.leads
        last = len(leads) - 1 if self.lead is None else find_lead(leads, self.lead)
        steps = [*range(last + 1)] if out.suffix == GIF else [last]
        truth = truth_of(choice, self.truth, steps) if self.truth else None
        scene = Scene(choice, truth, window, projection)
        if out.suffix == GIF:
            scene.write_animation(out, steps, frames_per_second=self.fps)
        else:
            canvas.save_figure(scene.figure(last).figure, out)

    def _scores_figure(self) -> Any:
        scores, region = read_scores(self.scores or ""), self.region or GLOBAL
        metric = self.metric
        _check_choice("--region", [region], scores["region"].values)
        channels = self.channel or chosen_channels(scores)
        _check_choice("--channel", channels, scores["channel"].values)
        if self.kind == "card":
            return _card(scores, self.baseline, metric, region)
        if self.kind == "curves":
            charts = curve_charts(scores, channels, metric=metric, region=region)
        elif self.kind == "spectra":
            charts = spectrum_charts(scores, channels, band=self.region)
        else:
            charts = rank_charts(scores, channels, region=region)
        panels = [chart.panel for chart in charts.values()]
        if not panels:
            name = metric if self.kind == "curves" else self.kind
            available = ", ".join(str(name) for name in scores.data_vars)
            raise ValueError(
                f"--kind {self.kind}: {self.scores} has no {name} of these channels; "
                f"there are: {available}"
            )
        area = canvas.region_text(region)
        titles = {
            "curves": f"{NAMES[metric]}, {area}",
            "spectra": f"Zonal energy spectra, {area}",
            "ranks": f"Rank of the truth among members, {area}",
        }
        title = _with_training(titles[self.kind], scores)
        return canvas.panels_figure(panels, title=title, legend=self.kind == "curves")


main = Plot.main


def _card(scores: xr.Dataset, baseline: str, metric: str, region: str) -> Any:
    if metric not in ERRORS or metric not in scores:
        errors = [name for name in ERRORS if name in scores]
        raise ValueError(
            f"--metric: a card compares errors, one of {', '.join(errors)}, got "
            f"{metric}"
        )
    if baseline not in BASELINES and not Path(baseline).exists():
        raise ValueError(
            f"--baseline: {baseline!r} is neither {' nor '.join(BASELINES)} nor a file "
            "or folder of scores"
        )
    other = baseline if baseline in BASELINES else read_scores(baseline)
    try:
        changes = differences(scores, other, metric=metric, region=region)
    except (KeyError, ValueError) as error:
        raise ValueError(f"--baseline {baseline}: {error}") from error
    area = canvas.region_text(region)
    title = f"{NAMES[metric]} of the forecast beside {baseline}, {area}, %"
    title = _with_training(title, scores)
    names = [
        canvas.channel_text(scores, str(channel))
        for channel in changes["channel"].values
    ]
    return canvas.panels_figure(
        [card_panel(changes, title, names)], title=title, legend=False
    )


def _with_training(title: str, scores: xr.Dataset) -> str:
    """A title that says how many dates are in the training period."""
    seen = seen_in_training(scores)
    return f"{title}\n{textwrap.fill(seen, TITLE_WIDTH)}" if seen else title


def _check_choice(option: str, chosen: Sequence[str], available: np.ndarray) -> None:
    names = [str(name) for name in available]
    for name in chosen:
        if name not in names:
            raise not_available(option, name, names)
