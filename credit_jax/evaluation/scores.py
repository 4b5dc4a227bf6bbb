"""The data set of scores, written by `credit-jax score` and read by pages and plots.

An `xarray.Dataset`, one data variable a metric:

    rmse, mae, bias, activity, crps, spread    in the units of the channel
    acc, spread_skill_ratio, missing           ratios
    count                                      observations, where these are the truth
    rmse_difference, mae_, crps_               in the units of the channel: less that of
                                               the forecast `against`, and
    rmse_interval, mae_, crps_                 half of the width of its 95 % interval
    rank_histogram                             ratio, with the dim `rank`
    energy_spectrum                            units squared, with the dim
                                               `zonal_wavenumber`, and `band` instead of
                                               `region`

The dims are `system`, `channel`, `region`, `prediction_timedelta`, in this order.

Coordinates:

    system               "forecast" (of an ensemble its mean), "members" (each member
                         scored separately, then averaged), "persistence",
                         "climatology", "truth" (only activity and energy_spectrum)
    channel              labels, "T500" or "t2m"; with it `variable` (name), `level`
                         (NaN at the surface), `units` and `long_name` ("" if unknown),
                         `level_units` ("hPa", "sigma"; "" if levels are numbers)
    region               names of `evaluation.regions`, "global" first; then "network
                         NAME" of observations
    prediction_timedelta lead times, increasing, without 0
    rank                 0 (the truth is below all members) to the number of members
    band                 regions that span all longitudes
    zonal_wavenumber     0, 1, ... of the whole circle of latitude

Metrics that were not computed (no members, no climatology) are not there; values that
do not exist are NaN: `spread` of persistence, `acc` of climatology. `missing` is the
share of area and start dates that had no value, and is left out of the others.
Attributes: `num_start_dates`, `first_start_date`, `last_start_date`, `num_members`,
`forecast`, `truth`, `climatology`, `weights`, and versions of packages.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from rich.box import HORIZONTALS
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from credit_jax.config.messages import counted, printable, typeset_units
from credit_jax.io.atomic import new_file
from credit_jax.io.netcdf import write_netcdf
from credit_jax.io.open_files import opened

NETCDF_NAME, CSV_NAME, PAGE_NAME = "scores.nc", "scores.csv", "scores.html"
SYSTEMS = ("forecast", "members", "persistence", "climatology", "truth")
FORECAST, MEMBERS, PERSISTENCE, CLIMATOLOGY, TRUTH = SYSTEMS
SYSTEM, CHANNEL, REGION, LEAD = "system", "channel", "region", "prediction_timedelta"
RANK, BAND, WAVENUMBER = "rank", "band", "zonal_wavenumber"
DIMS = (SYSTEM, CHANNEL, REGION, LEAD)
# Attribute that says how many dates are in the training period, and two of its values.
TRAINING_DATES = "training_dates"
NONE_TRAINED, UNKNOWN = "none", "unknown"
# Attributes that say what scores are of.
_IDENTITY = ("forecast", "truth", "climatology", "against")


@dataclass(frozen=True)
class Metric:
    """A metric of the data set, and the dims of its array."""

    long_name: str
    dims: tuple[str, ...] = DIMS
    power: int = 1  # exponent of the channel's unit in that of values
    best: float | None = 0.0  # of a perfect forecast


# Metrics of which two forecasts are compared, start date by start date.
PAIRED = ("rmse", "mae", "crps")
METRICS: Mapping[str, Metric] = {
    "rmse": Metric("root mean squared error"),
    "mae": Metric("mean absolute error"),
    "bias": Metric("mean error"),
    "acc": Metric("anomaly correlation", power=0, best=1.0),
    "activity": Metric("root mean squared anomaly", best=None),
    "crps": Metric("fair continuous ranked probability score"),
    "spread": Metric("standard deviation of the members", best=None),
    "spread_skill_ratio": Metric("spread over error", power=0, best=1.0),
    "rank_histogram": Metric(
        "share of each rank of the truth", (*DIMS, RANK), power=0, best=None
    ),
    "energy_spectrum": Metric(
        "zonal energy spectrum",
        (SYSTEM, CHANNEL, BAND, LEAD, WAVENUMBER),
        power=2,
        best=None,
    ),
    "missing": Metric("share without values", power=0, best=0.0),
    "count": Metric("number of observations", power=0, best=None),
    **{
        f"{name}_{kind}": Metric(f"{title} of {name} to that of another forecast")
        for name in PAIRED
        for kind, title in (
            ("difference", "difference"),
            ("interval", "half of the 95 % interval of the difference"),
        )
    },
}


def write_scores(scores: xr.Dataset, folder: str | Path) -> tuple[Path, Path]:
    """Writes scores.nc and scores.csv."""
    paths = Path(folder) / NETCDF_NAME, Path(folder) / CSV_NAME
    check_scores(scores, os.fspath(folder))
    packed = {"zlib": True, "complevel": 1}
    encoding = dict.fromkeys(scores.data_vars, packed)
    with new_file(paths[0]) as partial:
        write_netcdf(scores, partial, encoding)
    with new_file(paths[1]) as partial:
        table = to_table(scores).map(_as_text)
        table.to_csv(partial, index=False, float_format="%.7g")
    return paths


def other_scores(folder: Path, attributes: Mapping[str, Any]) -> str:
    """Says which scores of other forecasts than `attributes` has are in a folder."""
    path = folder / NETCDF_NAME
    if not path.is_file():
        csv = folder / CSV_NAME
        return f"{csv}, without {NETCDF_NAME}" if csv.exists() else ""

    def source_of(name: str, attributes: Mapping[str, Any]) -> Path:
        """What an attribute names: a folder of forecasts, or a file."""
        source = Path(str(attributes.get(name)))
        return (source.parent if source.name == "forecast.zarr" else source).resolve()

    with opened(path) as scores:
        stored = scores.attrs
    return ", ".join(
        f"{name}: {stored.get(name)}"
        for name in _IDENTITY
        if source_of(name, stored) != source_of(name, attributes)
    )


def seen_in_training(scores: xr.Dataset) -> str:
    """Says how many dates of scores are in the training period; "" if none is known."""
    seen = str(scores.attrs.get(TRAINING_DATES, UNKNOWN))
    return "" if seen in (NONE_TRAINED, UNKNOWN) else seen


def read_scores(path: str | Path) -> xr.Dataset:
    """Reads the scores of a file, or of the folder that contains it, into memory."""
    path = Path(path)
    path = path / NETCDF_NAME if path.is_dir() else path
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist; `credit-jax score` makes it")
    with opened(path, decode_timedelta=True) as dataset:
        scores = dataset.load()
    check_scores(scores, os.fspath(path))
    return scores


def check_scores(scores: xr.Dataset, origin: str) -> None:
    """Checks that a data set has the dims and coordinates described in this module."""
    metrics = [str(name) for name in scores.data_vars]
    missing = [name for name in DIMS if name not in scores.coords]
    unknown = [name for name in metrics if name not in METRICS]
    if missing or unknown or not metrics:
        raise ValueError(
            f"{origin}: is no data set of scores; missing coordinates: "
            f"{', '.join(missing) or 'none'}; unknown metrics: "
            f"{', '.join(unknown) or 'none'}"
        )
    for name in metrics:
        if scores[name].dims != METRICS[name].dims:
            raise ValueError(
                f"{origin}: {name} has the dims {scores[name].dims}, expected "
                f"{METRICS[name].dims}"
            )


def _as_text(cell: Any) -> Any:
    """A cell that no spreadsheet takes for a formula; names come from files."""
    if not isinstance(cell, str):
        return cell
    text = printable(cell)
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t")) else text


def to_table(scores: xr.Dataset) -> pd.DataFrame:
    """Table of the metrics without ranks and wavenumbers, one row per finite value."""
    if "level_units" not in scores.coords:
        unknown = [""] * scores.sizes[CHANNEL]
        scores = scores.assign_coords(level_units=(CHANNEL, unknown))
    parts = []
    for name, metric in METRICS.items():
        if name not in scores or metric.dims != DIMS:
            continue
        part = scores[name].to_dataframe(name="value").reset_index()
        part.insert(0, "metric", name)
        if metric.power == 0:
            part["units"] = "1"
        parts.append(part)
    table = pd.concat(parts, ignore_index=True)
    table["lead_hours"] = table[LEAD] / np.timedelta64(1, "h")
    columns = ["metric", SYSTEM, CHANNEL, "variable", "level", "level_units", "units"]
    columns += [REGION, "lead_hours", "value", TRAINING_DATES]
    seen = str(scores.attrs.get(TRAINING_DATES, UNKNOWN))
    # "20 of 40 dates", "none" or "unknown".
    table[TRAINING_DATES] = seen.partition(" are in ")[0]
    return table.loc[table["value"].notna(), columns]


_SHOWN = (FORECAST, PERSISTENCE, CLIMATOLOGY)
MAX_LEADS = 5


def evenly_spaced(count: int, most: int) -> list[int]:
    """Positions of up to `most` of `count` rows, the first and the last among them."""
    spaced = np.linspace(0, count - 1, min(count, most))
    return np.unique(spaced.round().astype(int)).tolist()


def _lead_text(lead: np.timedelta64) -> str:
    hours = lead / np.timedelta64(1, "h")
    return f"{hours / 24:g} d" if hours % 24 == 0 else f"{hours:g} h"


def score_table(scores: xr.Dataset) -> Table:
    """Global RMSE of each variable; of levels the root mean square over them."""
    rmse = scores["rmse"].sel(region="global")
    squares = (rmse**2).groupby("variable").mean()
    chosen = evenly_spaced(scores.sizes[LEAD], MAX_LEADS)
    systems = [system for system in _SHOWN if system in scores[SYSTEM].values]
    members = int(scores.attrs.get("num_members", 1))
    mean = f", mean of {members} members" if members > 1 else ""
    dates = counted(int(scores.attrs["num_start_dates"]), "start date")
    counts = scores["variable"].to_series().value_counts()
    levels = "" if counts.max() == 1 else "; root mean square over the levels"
    seen = escape(printable(seen_in_training(scores)))
    title = f"RMSE, global, {dates}{mean}{levels}{f'; {seen}' if seen else ''}"
    table = Table(title=title, title_justify="left", box=HORIZONTALS)
    table.add_column("variable", no_wrap=True)
    table.add_column("system", min_width=max(map(len, systems)))
    for lead in scores[LEAD].values[chosen]:
        table.add_column(_lead_text(lead), justify="right")
    for name in dict.fromkeys(scores["variable"].values.tolist()):
        errors = squares.sel(variable=name).isel({LEAD: chosen})
        values = np.sqrt(np.stack([errors.sel({SYSTEM: k}).values for k in systems]))
        is_variable = scores["variable"].values == name
        units = ""
        if "units" in scores.coords:
            units = typeset_units(str(scores["units"].values[is_variable][0]))
        count = f"{is_variable.sum()} levels" if is_variable.sum() > 1 else ""
        parts = [name, *(part for part in (units, count) if part not in ("", "1"))]
        rows = [*parts[: len(systems) - 1], ", ".join(parts[len(systems) - 1 :])]
        heads = rows + [""] * (len(systems) - len(rows))
        for row, system in enumerate(systems):
            cells = [f"{float(f'{value:.3g}'):g}" for value in values[row]]  # 1040
            if row == 0 and len(systems) > 1:
                best = values[0] < values[1:].min(axis=0)
                cells = [
                    f"[green]{c}[/]" if b else c
                    for c, b in zip(cells, best, strict=True)
                ]
            last = system == systems[-1]
            head = Text(printable(heads[row]))  # names of files, no markup
            table.add_row(head, system, *cells, end_section=last)
    return table


def difference_table(scores: xr.Dataset) -> Table:
    """Differences of the global RMSE to that of another forecast, with intervals."""
    place = {SYSTEM: FORECAST, REGION: "global"}
    differences, intervals = (
        scores[f"rmse_{kind}"].sel(place) for kind in ("difference", "interval")
    )
    leads = evenly_spaced(scores.sizes[LEAD], MAX_LEADS)
    table = Table(
        title=f"RMSE less that of {escape(printable(str(scores.attrs['against'])))}, "
        "global, with 95 % intervals",
        title_justify="left",
        box=HORIZONTALS,
    )
    table.add_column("channel", no_wrap=True)
    for lead in leads:
        table.add_column(_lead_text(scores[LEAD].values[lead]), justify="right")
    for channel in scores[CHANNEL].values:
        cells = []
        for lead in leads:
            one, half = (
                float(x.sel({CHANNEL: channel})[lead]) for x in (differences, intervals)
            )
            text = f"{one:+.3g} ± {half:.2g}"
            # Where the interval excludes 0.
            look = "green" if one + half < 0 else "red" if one - half > 0 else ""
            cells.append(f"[{look}]{text}[/]" if look else text)
        table.add_row(Text(printable(str(channel))), *cells)
    return table
