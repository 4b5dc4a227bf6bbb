"""Tropical cyclones of forecasts: `credit-jax cyclones --forecast DIR --out REPORT`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from rich.box import HORIZONTALS
from rich.table import Table

from credit_jax.cli.commands import OK, Command, option, print_line
from credit_jax.cli.score import finished_forecasts
from credit_jax.config.messages import counted
from credit_jax.evaluation.forecast_files import ForecastFiles, valid_time
from credit_jax.evaluation.scores import evenly_spaced
from credit_jax.extensions.cyclones.tracks import (
    POLEWARD,
    distance,
    find_centers,
    join_centers,
)
from credit_jax.extensions.stations.layouts import NAMES
from credit_jax.io.activity import activity
from credit_jax.io.atomic import new_file
from credit_jax.io.errors import writable_folder
from credit_jax.named_fields.units import conversion
from credit_jax.named_fields.variables import Variables
from credit_jax.physics.arrays import EARTH_RADIUS, GRAVITY
from credit_jax.training.display import print_table

MAX_SPACING = 2.5  # degrees
KNOT = 1852 / 3600  # m/s
MATCHED = 300.0  # km, at the first time that a track and a storm have in common
MIN_STORM = 17.0  # m/s: storms that never have such winds are left out
# Column -> names in IBTrACS; of each row the first that has a value counts.
BEST_TRACKS = {
    "storm": "SID",
    "time": "ISO_TIME",
    "latitude": "LAT",
    "longitude": "LON",
    "pressure": "USA_PRES WMO_PRES",
    "wind": "USA_WIND WMO_WIND",
}
FORECAST = ["init_time", "member"]


class FindCyclones(Command):
    """Find tropical cyclones in forecasts, and compare them with best tracks."""

    example = "--forecast forecasts/2018-09 --truth ibtracs.ALL.csv --out cyclones"

    forecast: str = option(
        "folder of `credit-jax forecast` or of CREDIT, or a Zarr store", metavar="DIR"
    )
    truth: str | None = option(
        "best tracks: CSV of IBTrACS, or with the columns storm, time, latitude, "
        "longitude, pressure (hPa) and wind (m/s)",
        None,
        "FILE",
    )
    out: str = option("folder of the tables", metavar="DIR")

    def run(self) -> int:
        """Writes tracks.csv, and with best tracks errors.csv."""
        files, _ = finished_forecasts("--forecast", self.forecast)
        storms = None if self.truth is None else read_best_tracks(self.truth)
        with writable_folder(self.out, "--out") as out:
            tracks = forecast_tracks(files)
            tables = {"tracks": tracks}
            if storms is not None:
                tracks, errors = track_errors(tracks, storms, files)
                tables = {"tracks": tracks, "errors": errors}
            for name, table in tables.items():
                with new_file(out / f"{name}.csv") as path:
                    table.to_csv(path, index=False, float_format="%.6g")
            count = tracks.groupby([*FORECAST, "track"]).ngroups
            total = len(files.starts) * files.num_members
            text = f"{counted(count, 'track')} in {counted(total, 'forecast')}"
            print_line(f"{text}: {out / 'tracks.csv'}")
        if storms is not None:
            print_table(_table_of(tables["errors"]))
        return OK


def forecast_tracks(files: ForecastFiles) -> pd.DataFrame:
    """Returns the tracks of all forecasts; prints which criteria they cannot judge.

    Raises:
        ValueError: if the forecasts have no sea level pressure, or their grid is
            curvilinear or too coarse.
    """
    table = files.grid.table
    axes = table.latitude, table.longitude
    if table.latitude.ndim != 1:
        raise ValueError(
            f"--forecast: {files.where} is on a curvilinear grid, and cyclones are "
            "searched on latitudes and longitudes: interpolate it to such a grid"
        )
    spacing = max(np.ptp(x) / (len(x) - 1) for x in axes)
    if spacing > MAX_SPACING:
        raise ValueError(
            f"--forecast: {files.where} has a grid spacing of {spacing:.2g} degrees, "
            f"expected at most {MAX_SPACING}: coarser grids have no cyclones"
        )
    pressure = _on_surface(table, "sea level pressure", "Pa")
    if pressure is None:
        raise ValueError(
            f"--forecast: {files.where} has no sea level pressure, expected one of "
            f"{NAMES['sea level pressure']}; it has {', '.join(table.table)}. The "
            "postblock mslp_diagnostic adds it to forecasts"
        )
    east, north = (_on_surface(table, f"10 m {k}", "m/s") for k in "uv")
    heights = _heights(table)
    for missing, text in (
        (
            heights is None,
            "no geopotential at 300 and 500 hPa: warm cores do not count",
        ),
        (east is None or north is None, "no wind at 10 m: it does not count"),
    ):
        if missing:
            print_line(f"note: --forecast: {files.where}: {text}", "yellow")
    hours = files.leads / np.timedelta64(1, "h")
    parts = []
    for start, init_time in enumerate(files.starts):
        centers = [list[pd.DataFrame]() for _ in range(files.num_members)]
        for lead in range(len(hours)):
            with activity(
                f"start date {start + 1}/{len(files.starts)}, step {lead + 1}"
            ):

                def read(named: Any, start=start, lead=lead) -> Any:
                    """A field (member, lat, lon), in units of SI."""
                    name, levels, factor = named
                    values = files.read(start, lead, {name: levels})
                    return values * np.float32(factor)

                deep = read(pressure)[:, 0]
                warm = speed = [None] * len(deep)
                if heights is not None:
                    low, high = read(heights).swapaxes(0, 1)
                    warm = high - low
                if east is not None and north is not None:
                    speed = np.hypot(read(east)[:, 0], read(north)[:, 0])
                for k, tables in enumerate(centers):
                    fields = {"thickness": warm[k], "speed": speed[k]}
                    tables.append(find_centers(deep[k], *axes, **fields))
        times: Any = {h: valid_time(files, start, k) for k, h in enumerate(hours)}
        for member, tables in enumerate(centers):
            tracks = join_centers(tables, hours)
            tracks.insert(2, "time", tracks["hours"].map(times))
            parts.append(tracks.assign(init_time=init_time, member=member))
    return pd.concat(parts, ignore_index=True)


def _on_surface(table: Variables, subject: str, units: str) -> tuple | None:
    """The name, levels and factor of a variable without levels."""
    for key, v in table.table.items():
        if v.levels is None and v.name.lower() in NAMES[subject].split():
            change = conversion(v.units or units, units)
            if change is None:
                raise ValueError(
                    f"--forecast: {key} is in {v.units!r}, expected {units}; correct "
                    "its attribute units"
                )
            return key, None, change[0]
    return None


def _heights(table: Variables) -> tuple | None:
    """The name, levels of 500 and 300 hPa, and factor of geopotential heights."""
    for key, v in table.table.items():
        to_hpa = conversion(v.level_units, "hPa")
        for units, scale in (("m2 s-2", GRAVITY), ("m", 1.0)):
            change = conversion(v.units, units)
            if v.levels is not None and to_hpa and change:
                levels = v.levels * to_hpa[0]
                at = [np.flatnonzero(np.isclose(levels, p)) for p in (500, 300)]
                if all(map(len, at)):
                    return key, tuple(int(k[0]) for k in at), change[0] / scale
    return None


def read_best_tracks(path: str) -> pd.DataFrame:
    """Reads best tracks of storms: storm, time, latitude, longitude, hPa, m/s.

    Raises:
        ValueError: if the file is neither IBTrACS's CSV nor has these columns, or no
            storm is left.
    """
    raw = pd.read_csv(path, dtype=str, keep_default_na=False)
    is_ibtracs = {"SID", "ISO_TIME"} <= {*raw}
    names = {k: v.split() if is_ibtracs else [k] for k, v in BEST_TRACKS.items()}
    if missing := [k for k in [*names][:4] if names[k][0] not in raw]:
        raise ValueError(
            f"--truth: {path} has no {', '.join(missing)}; expected IBTrACS's CSV, or "
            f"the columns {', '.join(names)}; it has {', '.join(raw)}"
        )
    table: Any = raw[[names["storm"][0]]].set_axis(["storm"], axis=1)
    # The second line of IBTrACS has units.
    table["time"] = pd.to_datetime(
        raw[names["time"][0]], errors="coerce", format="ISO8601"
    )
    for key, columns in [*names.items()][2:]:
        numbers: Any = raw.reindex(columns=columns)
        numbers = numbers.apply(pd.to_numeric, errors="coerce")
        table[key] = numbers.bfill(axis=1).iloc[:, 0].astype(float)
    if is_ibtracs:
        table["wind"] *= KNOT
        if "TRACK_TYPE" in raw:  # spurs are other opinions of the same storm
            table = table[~raw["TRACK_TYPE"].str.startswith("spur")]
    table = table.dropna(subset=["time", "latitude", "longitude"])
    table = table[~(table.groupby("storm")["wind"].transform("max") < MIN_STORM)]
    if table.empty:
        raise ValueError(
            f"--truth: {path} has no storm with times, positions and winds of "
            f"{MIN_STORM:g} m/s"
        )
    return table.drop_duplicates(["storm", "time"])


def track_errors(
    tracks: pd.DataFrame, storms: pd.DataFrame, files: ForecastFiles
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Returns the tracks with their storms and errors, and the errors by lead time.

    A track is that of a storm if at the first time that they have in common they are
    within 300 km; of several the nearest. Storms poleward of 50 degrees, or outside
    of the grid, are left out.
    """
    grid = files.grid.table
    east, columns = storms["longitude"] - grid.longitude[0], grid.longitude
    inside = (storms["latitude"].abs() <= POLEWARD) & storms["latitude"].between(
        grid.latitude.min(), grid.latitude.max()
    )
    inside &= east % 360 <= np.ptp(columns) * len(columns) / (len(columns) - 1)
    storms = storms.loc[inside]
    pairs: Any = tracks.merge(storms, on="time", suffixes=("", "_truth"))
    points = (
        pairs[f"{k}{end}"] for end in ("", "_truth") for k in ("latitude", "longitude")
    )
    pairs["position_error"] = EARTH_RADIUS / 1000 * np.deg2rad(distance(*points))
    for name in ("pressure", "wind"):
        pairs[f"{name}_error"] = pairs[name] - pairs[f"{name}_truth"]
    track, storm = [*FORECAST, "track"], [*FORECAST, "storm"]
    first = pairs.sort_values("time").drop_duplicates([*track, "storm"])
    first = first[first["position_error"] <= MATCHED].sort_values("position_error")
    first = first.drop_duplicates(track).drop_duplicates(storm)
    tracks = tracks.merge(first[[*track, "storm"]], "left", on=track)
    errors = [f"{name}_error" for name in ("position", "pressure", "wind")]
    pairs = pairs[[*track, "storm", "time", *errors]]
    tracks = tracks.merge(pairs, "left", on=[*track, "storm", "time"])
    rows = []
    for lead, hours in enumerate(files.leads / np.timedelta64(1, "h")):
        times = [valid_time(files, k, lead) for k in range(len(files.starts))]
        observed = sum(int((storms["time"] == time).sum()) for time in times)
        here: Any = tracks[tracks["hours"] == hours]
        row = {
            "lead_hours": hours,
            "observed": observed * files.num_members,
            "found": here["position_error"].notna().sum(),
            "false": here["storm"].isna().sum(),
            "position_error": here["position_error"].mean(),  # km
        }
        for name in errors[1:]:
            row[name.replace("error", "bias")] = here[name].mean()
            row[name] = here[name].abs().mean()
        rows.append(row)
    table = pd.DataFrame(rows)
    if not sum(row["observed"] for row in rows):
        raise ValueError(
            f"--truth: no storm has a time of {files.where}; they are from "
            f"{storms['time'].min()} to {storms['time'].max()}"
        )
    return tracks, table


def _table_of(errors: pd.DataFrame) -> Table:
    """Some lead times of the errors."""
    table = Table(
        title="Tropical cyclones: km, hPa, m/s", title_justify="left", box=HORIZONTALS
    )
    for name in errors:
        table.add_column(str(name).replace("_", " "), justify="right")
    for k in evenly_spaced(len(errors), 10):
        cells = errors.iloc[k].to_numpy(float)
        table.add_row(*(f"{x:.4g}" if np.isfinite(x) else "-" for x in cells))
    return table
