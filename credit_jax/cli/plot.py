"""Maps of forecasts and figures of scores: `python -m credit_jax.plot`.

With --forecast and --variable a map or, if --out ends with .gif, an animation; with
--scores curves, a score card, spectra, rank histograms, or the page of all of these.
"""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from credit_jax.cli.commands import OK, print_line, run_module
from credit_jax.config import not_available
from credit_jax.evaluation.opening import open_forecasts
from credit_jax.evaluation.scores import CLIMATOLOGY, read_scores, seen_in_training
from credit_jax.forecast.archive import record_beside
from credit_jax.visualization.canvas import (
    SUFFIXES,
    check_suffix,
    panels_figure,
    save_figure,
)
from credit_jax.visualization.card import ERRORS, card_panel, differences
from credit_jax.visualization.choice import choose, find_lead, truth_of
from credit_jax.visualization.labels import channel_text, region_text
from credit_jax.visualization.page import write_page
from credit_jax.visualization.projections import (
    PLAIN,
    PROJECTIONS,
    MapProjection,
    find_window,
)
from credit_jax.visualization.scene import Scene
from credit_jax.visualization.score_charts import (
    NAMES,
    curve_charts,
    rank_charts,
    spectrum_charts,
)
from credit_jax.visualization.summary import BASELINES, GLOBAL, chosen_channels

HELP = "Plot forecasts on maps, or the scores of forecasts."
EXAMPLE = (
    "--forecast forecasts/2001-06-01 --variable T --level 500 --lead 5d --out map.png"
)
KINDS = ("curves", "card", "spectra", "ranks", "page")
GIF = ".gif"
TITLE_WIDTH = 60  # characters


def main(argv: Sequence[str] | None = None) -> int:
    """The command line `python -m credit_jax.plot`; returns the exit code."""
    return run_module(__name__, argv, prog="python -m credit_jax.plot")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `plot`."""
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "--forecast", metavar="DIR", help="forecasts: a folder, a store or a file"
    )
    what.add_argument("--scores", metavar="FILE", help="scores.nc, or its folder")
    add = parser.add_argument
    add(
        "--out",
        required=True,
        metavar="FILE",
        help="the figure: .png, .svg or .pdf; .gif is an animation, .html a page",
    )
    maps = parser.add_argument_group("maps of a forecast")
    add = maps.add_argument
    add("--variable", metavar="NAME", help="as the store names it")
    add("--level", type=float, help="of a variable with levels")
    add(
        "--lead",
        metavar="DURATION",
        help="lead time: 5d, 36h (default: the last one; .gif: all up to it)",
    )
    add("--init-time", metavar="DATE", help="start date, if there are several")
    add("--member", help="a number, mean (default) or spread, of an ensemble")
    add(
        "--truth",
        metavar="FILE",
        help="a YAML file with a data section, a NetCDF file or a Zarr store: truth, "
        "forecast and error side by side",
    )
    add("--projection", default=PLAIN, choices=PROJECTIONS, help="of the map")
    add("--fps", type=float, default=4.0, help="frames a second of .gif (default: 4)")
    scores = parser.add_argument_group("figures of scores")
    add = scores.add_argument
    add("--kind", choices=KINDS, default="curves", help="which (default: curves)")
    add("--metric", default="rmse", choices=[*NAMES], help="of curves and the card")
    add(
        "--channel",
        action="append",
        default=[],
        metavar="NAME",
        help="T500, t2m; repeatable (default: some of each variable)",
    )
    add(
        "--baseline",
        default=CLIMATOLOGY,
        metavar="NAME",
        help="of the card: persistence, climatology, or scores.nc of another forecast",
    )
    parser.add_argument(
        "--region",
        metavar="NAME",
        help="of a map or of scores: europe, tropics ...; of a map also "
        "west,east,south,north in degrees",
    )


def run(args: argparse.Namespace) -> int:
    """Draws and writes the figure.

    Raises:
        ValueError, OSError: a requested field or score does not exist, or the figure
            cannot be written.
    """
    out = Path(args.out)
    if args.forecast:
        check_suffix(out, (*SUFFIXES, GIF))
        plot_forecast(args, out)
    elif args.kind == "page":
        check_suffix(out, (".html",))
        write_page(read_scores(args.scores), out)
    else:
        check_suffix(out, SUFFIXES)
        save_figure(scores_figure(args), out)
    print_line(f"written: {out}")
    return OK


def plot_forecast(args: argparse.Namespace, out: Path) -> None:
    """Writes a map, or an animation of maps.

    Raises:
        ValueError: the field does not exist; the error lists what exists.
    """
    if not args.variable:
        raise ValueError("--variable NAME is needed with --forecast")
    projection = MapProjection(args.projection)
    window = find_window(args.region) if args.region else None
    files = open_forecasts(args.forecast)
    choice = choose(
        files,
        args.variable,
        level=args.level,
        init_time=args.init_time,
        member=args.member,
        training=record_beside(files.where).training_dates,
    )
    leads = choice.files.leads
    last = len(leads) - 1 if args.lead is None else find_lead(leads, args.lead)
    shown = [*range(last + 1)] if out.suffix == GIF else [last]
    truth = truth_of(choice, args.truth, shown) if args.truth else None
    scene = Scene(choice, truth, window, projection)
    if out.suffix == GIF:
        scene.write_animation(out, shown, frames_per_second=args.fps)
    else:
        save_figure(scene.figure(last).figure, out)


def scores_figure(args: argparse.Namespace) -> Any:
    """The figure of scores.

    Raises:
        ValueError: a requested score does not exist; the error lists what exists.
    """
    scores, region = read_scores(args.scores), args.region or GLOBAL
    metric = args.metric
    _check_choice("--region", [region], scores["region"].values)
    channels = args.channel or chosen_channels(scores)
    _check_choice("--channel", channels, scores["channel"].values)
    if args.kind == "card":
        return _card(scores, args.baseline, metric, region)
    if args.kind == "curves":
        charts = curve_charts(scores, channels, metric=metric, region=region)
    elif args.kind == "spectra":
        charts = spectrum_charts(scores, channels, band=args.region)
    else:
        charts = rank_charts(scores, channels, region=region)
    panels = [chart.panel for chart in charts.values()]
    if not panels:
        what = metric if args.kind == "curves" else args.kind
        available = ", ".join(str(name) for name in scores.data_vars)
        raise ValueError(
            f"--kind {args.kind}: {args.scores} has no {what} of these channels; there "
            f"are: {available}"
        )
    where = region_text(region)
    titles = {
        "curves": f"{NAMES[metric]}, {where}",
        "spectra": f"Zonal energy spectra, {where}",
        "ranks": f"Rank of the truth among members, {where}",
    }
    title = _with_training(titles[args.kind], scores)
    return panels_figure(panels, title=title, legend=args.kind == "curves")


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
    where = region_text(region)
    title = f"{NAMES[metric]} of the forecast beside {baseline}, {where}, %"
    title = _with_training(title, scores)
    names = [
        channel_text(scores, str(channel)) for channel in changes["channel"].values
    ]
    return panels_figure([card_panel(changes, title, names)], title=title, legend=False)


def _with_training(title: str, scores: xr.Dataset) -> str:
    """A title that says how many dates are in the training period."""
    seen = seen_in_training(scores)
    return f"{title}\n{textwrap.fill(seen, TITLE_WIDTH)}" if seen else title


def _check_choice(option: str, chosen: Sequence[str], available: np.ndarray) -> None:
    names = [str(name) for name in available]
    for name in chosen:
        if name not in names:
            raise not_available(option, name, names)


if __name__ == "__main__":
    sys.exit(main())
