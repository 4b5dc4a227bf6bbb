"""Scores of forecasts at stations: `credit-jax score --truth stations.parquet`.

The observation operators of `assimilate` bring forecasts to the observations, linearly
in latitude, longitude, level and time; sums are those of scores on grids, of
observations instead of areas.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jaxtyping import Float

from credit_jax.config.messages import counted
from credit_jax.evaluation.forecast_files import ForecastFiles, valid_time
from credit_jax.evaluation.grid_file import GridFile
from credit_jax.evaluation.references import open_dataset
from credit_jax.evaluation.regions import Region
from credit_jax.evaluation.sums import ScoredChannel, ScoreDims, ScoreSums
from credit_jax.extensions.assimilation import TrajectoryGrid, read_observations
from credit_jax.extensions.assimilation.observations import (
    find_faults,
    in_units_of,
    notes_on_units,
    usable,
)
from credit_jax.extensions.assimilation.operators import Interpolation
from credit_jax.extensions.plots.canvas import png_of
from credit_jax.extensions.plots.maps import station_figure
from credit_jax.extensions.stations.layouts import observations_of
from credit_jax.io.activity import activity
from credit_jax.io.atomic import new_file
from credit_jax.io.open_files import OpenFiles
from credit_jax.named_fields.units import conversion
from credit_jax.named_fields.variables import Variable, Variables
from credit_jax.ops.space_to_depth import next_power_of_2
from credit_jax.physics.arrays import GRAVITY

ORIGIN = "--truth"
STATIONS_NAME = "stations.csv"
# Faults of single observations, which are counted; units are refused.
_LEFT_OUT = ("time", "place", "level", "variable", "value", "duplicate")
LAPSE_RATE = 6.5e-3  # K/m, of the International Standard Atmosphere
# Words of variables in K that are no temperatures of the air.
_OTHER_KELVINS = ("dew", "d2m", "_2d", "skin", "soil", "sea surface", "sst", " ice")
MAX_MAPS = 12


@dataclass(frozen=True, eq=False)
class StationScores:
    """Sums over observations."""

    sums: list[ScoreSums]  # of each start date, by region, then network
    dims: ScoreDims
    # (station,) station, network, latitude, longitude, elevation.
    stations: pd.DataFrame
    of_stations: Mapping[str, np.ndarray]  # over all start dates, by station
    attributes: Mapping[str, Any]
    notes: Sequence[str]  # what is left out or changed, with counts

    def write(self, folder: Path) -> list[tuple[str, bytes]]:
        """Writes the scores of each station, and returns maps with their captions."""
        lead, channel, station = np.nonzero(self.of_stations["forecast/weight"])
        channels, at = self.dims.channels, (lead, channel, station)
        hours = self.dims.leads / np.timedelta64(1, "h")
        table = self.stations.iloc[station].reset_index(drop=True)
        table["channel"] = np.array([c.label for c in channels])[channel]
        table["units"] = np.array([c.units for c in channels])[channel]
        table["lead_hours"] = hours[lead]
        scores = _means({k: x[at] for k, x in self.of_stations.items()})
        table = table.assign(**scores)
        with new_file(folder / STATIONS_NAME) as partial_file:
            table.to_csv(partial_file, index=False, float_format="%.7g")
        maps = []
        pooled = {k: x.sum(axis=0) for k, x in self.of_stations.items()}
        for number, one in enumerate(channels[:MAX_MAPS]):
            present = pooled["forecast/weight"][number] > 0
            scores = _means({k: x[number, present] for k, x in pooled.items()})
            title = f"{one.label} at {counted(int(present.sum()), 'station')}"
            title += ", all lead times"
            figure = station_figure(
                self.stations["longitude"].to_numpy()[present],
                self.stations["latitude"].to_numpy()[present],
                {"RMSE": scores["rmse"], "bias": scores["bias"]},
                title=title,
                units=one.units,
            )
            maps.append((title, png_of(figure)))
        return maps


def score_stations(
    paths: Sequence[str],
    files: ForecastFiles,
    *,
    regions: Sequence[Region],
    variables: Sequence[str] = (),
    num_members: int | None = None,
    height: str | None = None,
) -> StationScores:
    """Compares forecasts with observations (`read_observations`, GHCN-hourly, NNJA)."""
    fields = files.grid.table
    if fields.latitude.ndim != 1:
        raise ValueError(
            f"{ORIGIN}: {files.where} is on a curvilinear grid, and observations need "
            "one of latitudes and longitudes: interpolate the forecasts to such a grid"
        )
    # Variables with levels first, as in `compare`, whatever the order in the forecast.
    available = fields.select(variables or fields.table).table
    names = sorted(available, key=lambda k: (available[k].levels is None, k))
    chosen = {k: available[k] for k in names if not available[k].constant}
    failed = Counter[str]()
    layout = partial(observations_of, variables=chosen, failed=failed)
    table = read_observations(paths, ORIGIN, layout)
    first, last = (
        min(valid_time(files, k, 0) for k in range(len(files.starts))),
        max(valid_time(files, k, -1) for k in range(len(files.starts))),
    )
    grid = TrajectoryGrid(
        chosen,
        fields.latitude,
        fields.longitude,
        np.array([first, last + np.timedelta64(1, "s")]),
        {k: v.units for k, v in chosen.items()},
        {k: v.level_units for k, v in chosen.items()},
    )
    table = in_units_of(table, grid, ())
    faults = find_faults(table, grid, 1, ())
    table, lines = usable(table, faults, _LEFT_OUT, ORIGIN)
    notes = [
        f"{ORIGIN}: {count} values failed the quality control of {network}: left out"
        for network, count in failed.items()
        if count
    ]
    notes += [f"{ORIGIN}: left out: {line}" for line in lines]
    notes += notes_on_units(table, grid, (), ORIGIN)
    table = table.sort_values("time", kind="stable", ignore_index=True)
    stations, station = _stations_of(table)
    channels, channel = _channels_of(table, chosen)
    correction, text = np.zeros(len(table)), ""
    if height is not None:
        # To the elevation of stations, by a lapse rate of 6.5 K/km.
        correction, text = _correction(table, height, fields, chosen)
        notes.append(text)
        if unknown := int(np.isnan(correction).sum()):
            notes.append(f"{ORIGIN}: {unknown} have no elevation: left out")
    networks = [n for n in np.unique(stations["network"]) if n]
    masks = [
        region.mask(table["latitude"].to_numpy(), table["longitude"].to_numpy())
        for region in regions
    ]
    masks += [table["network"].to_numpy() == name for name in networks]
    names = (*(r.name for r in regions), *(f"network {name}" for name in networks))
    members = num_members or files.num_members
    dims = ScoreDims(tuple(channels), files.leads, names, (), members)
    operators = {name: Interpolation(name, name) for name in chosen}
    programs = {
        name: jax.jit(jax.vmap(operator, in_axes=(None, 0)))
        for name, operator in operators.items()
    }
    sums, of_stations = [], dict[str, np.ndarray]()
    used, missing = np.zeros(len(table), bool), 0
    shape = len(files.leads), len(channels)
    for number, start in enumerate(files.starts):
        with activity(f"scoring start date {number + 1}/{len(files.starts)}"):
            rows, lead, values = _forecast_values(
                files, number, table, grid, programs, members
            )
            used[rows] = True
            errors = values + correction[rows] - table["value"].to_numpy()[rows]
            finite = np.isfinite(errors).all(axis=0)
            missing += int((~np.isfinite(values).all(axis=0)).sum())
            rows, lead, errors = rows[finite], lead[finite], errors[:, finite]
            quantities = _quantities(errors)
            cell = lead * len(channels) + channel[rows]
            group, each = np.nonzero(np.stack(masks)[:, rows])
            grouped = _added(quantities, cell[each], group, each, (*shape, len(masks)))
            grouped["forecast/count"] = grouped["forecast/weight"]
            sums.append(ScoreSums((start,), grouped))
            everyone = np.arange(len(rows))
            by_station = _added(
                quantities, cell, station[rows], everyone, (*shape, len(stations))
            )
            of_stations = {k: of_stations.get(k, 0) + x for k, x in by_station.items()}
    if unused := int((~used).sum()):
        notes.append(
            f"{ORIGIN}: {unused} of {len(table)} are between the forecasts: left out"
        )
    if missing:
        notes.append(f"{ORIGIN}: {missing} pairs lack a value of the forecast")
    count = sum(one.arrays["forecast/weight"][..., 0].sum() for one in sums)
    if not count:
        raise ValueError(
            f"{ORIGIN}: none of {counted(len(table), 'observation')} is at a lead time "
            f"of {files.where}"
        )
    attributes = {"weights": "observations", "pairs": int(count)}
    attributes |= {"height_correction": text or "none"}
    return StationScores(sums, dims, stations, of_stations, attributes, notes)


def _forecast_values(
    files: ForecastFiles,
    number: int,
    table: pd.DataFrame,
    grid: TrajectoryGrid,
    programs: Mapping[str, Any],
    members: int,
) -> tuple[np.ndarray, np.ndarray, Float[np.ndarray, "member obs"]]:
    """Rows of the table in a forecast, the nearest lead time, and the forecast."""
    count = len(files.leads)
    valid = np.array([valid_time(files, number, k) for k in range(count)])
    times = table["time"].to_numpy()
    begin = np.searchsorted(times, valid[0], "left")
    rows = np.arange(begin, max(begin, np.searchsorted(times, valid[-1], "right")))
    times = times[rows]
    step = np.searchsorted(valid, times, "right") - 1
    step = np.clip(step, 0, max(count - 2, 0))
    after = np.minimum(step + 1, count - 1)
    # In the middle of two lead times an observation counts for the later one.
    of_leads, seconds = (
        (x - valid[0]) / np.timedelta64(1, "s") for x in (valid, times)
    )
    lead = np.where(2 * seconds >= of_leads[step] + of_leads[after], after, step)
    values = np.full((members, len(rows)), np.nan)
    names = table["variable"].to_numpy()[rows]
    selection = {
        name: None if v.levels is None else tuple(range(len(v.levels)))
        for name, v in grid.variables.items()
        if (names == name).any()
    }
    sizes = [1 if levels is None else len(levels) for levels in selection.values()]
    read: dict[int, np.ndarray] = {}
    for k in np.unique(step):
        pair = int(k), int(min(k + 1, count - 1))
        read = {p: x for p, x in read.items() if p in pair}
        for p in {*pair} - {*read}:
            read[p] = files.read(number, p, selection)[:members]
        both = np.stack([read[p] for p in pair], axis=1)
        # Of a single lead time there are two equal ones.
        now = valid[[*pair]] + np.array([0, pair[0] == pair[1]], "timedelta64[s]")
        points = TrajectoryGrid(grid.variables, grid.latitude, grid.longitude, now)
        parts = np.split(both, np.cumsum(sizes)[:-1], axis=2)
        for name, part in zip(selection, parts, strict=True):
            (here,) = np.nonzero((step == k) & (names == name))
            if not len(here):
                continue
            padded = np.zeros(next_power_of_2(len(here)), int)
            padded[: len(here)] = here
            arrays = Interpolation(name, name).prepare(table.iloc[rows[padded]], points)
            interpolated = np.asarray(programs[name](arrays, {name: part}))
            values[:, here] = interpolated[:, : len(here)]
    return rows, lead, values


def _quantities(errors: Float[np.ndarray, "member obs"]) -> dict[str, np.ndarray]:
    """Quantity of `evaluation.sums` -> its value for each observation."""
    count, mean = len(errors), errors.mean(axis=0)
    quantities = {
        "forecast/weight": np.ones(errors.shape[1]),
        "forecast/squared": mean**2,
        "forecast/absolute": np.abs(mean),
        "forecast/plain": mean,
    }
    if count > 1:
        # Of sorted values, the sum of all differences is one over ranks.
        ranks = 2 * np.arange(count)[:, None] - count + 1
        spread = (ranks * np.sort(errors, axis=0)).sum(axis=0) / (count * (count - 1))
        quantities |= {
            "forecast/crps": np.abs(errors).mean(axis=0) - spread,
            "forecast/variance": errors.var(axis=0, ddof=1),
        }
    return quantities


def _added(
    quantities: Mapping[str, np.ndarray],
    cell: np.ndarray,
    group: np.ndarray,
    each: np.ndarray,
    shape: tuple[int, int, int],
) -> dict[str, np.ndarray]:
    """Sums (lead, channel, group) of observations `each`, of a cell and a group."""
    flat, size = cell * shape[-1] + group, int(np.prod(shape))
    return {
        name: np.bincount(flat, values[each], size).reshape(shape)
        for name, values in quantities.items()
    }


def _means(sums: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The scores of stations."""
    count = sums["forecast/weight"]
    scores = {
        "count": count.astype(int),
        "rmse": np.sqrt(sums["forecast/squared"] / count),
        "bias": sums["forecast/plain"] / count,
        "mae": sums["forecast/absolute"] / count,
    }
    if "forecast/crps" in sums:
        scores["crps"] = sums["forecast/crps"] / count
    return scores


def _stations_of(table: pd.DataFrame) -> tuple[pd.DataFrame, np.ndarray]:
    """All stations, and that of each observation; without a name it is its position."""
    position = table["latitude"].map("{:.3f}".format) + " "
    position += table["longitude"].map("{:.3f}".format)
    for name, default in (("station", position), ("network", "")):
        texts = table[name] if name in table else pd.Series("", table.index)
        texts = texts.where(texts.notna(), "").astype(str).str.strip(" \0")
        table[name] = texts.where(texts != "", default)
    if "elevation" not in table:
        table["elevation"] = np.nan
    columns = ["station", "network", "latitude", "longitude", "elevation"]
    number = table.groupby(columns[:2], sort=True).ngroup().to_numpy()
    firsts = np.unique(number, return_index=True)[1]
    return table.loc[firsts, columns].reset_index(drop=True), number


def _channels_of(
    table: pd.DataFrame, variables: Mapping[str, Variable]
) -> tuple[list[ScoredChannel], np.ndarray]:
    """The channels, and that of each observation, at the nearest level."""
    names, numbers = table["variable"].to_numpy(), np.zeros(len(table), int)
    channels: list[ScoredChannel] = []
    for name, v in variables.items():
        (rows,) = np.nonzero(names == name)
        levels, nearest = [None], np.zeros(len(rows), int)
        if v.levels is not None:
            distances = np.abs(table["level"].to_numpy()[rows, None] - v.levels)
            present, nearest = np.unique(distances.argmin(axis=1), return_inverse=True)
            levels = [float(v.levels[k]) for k in present]
        if len(rows):
            numbers[rows] = len(channels) + nearest
            units = v.level_units if v.levels is not None else ""
            channels += [
                ScoredChannel(name, level, v.units, v.long_name, units)
                for level in levels
            ]
    return channels, numbers


def _correction(
    table: pd.DataFrame, path: str, fields: Variables, variables: Mapping[str, Variable]
) -> tuple[np.ndarray, str]:
    """What brings temperatures to the elevation of stations, and a line on it."""
    file = GridFile(
        path, open_dataset(path, "--height", OpenFiles()).squeeze(drop=True)
    )
    factors = {
        name: change[0] / scale
        for name, v in file.variables.items()
        for unit, scale in (("m", 1.0), ("m2 s-2", GRAVITY))
        if v.levels is None and (change := conversion(v.units, unit))
    }
    if len(factors) != 1:
        raise ValueError(
            f"--height: {path} has {len(factors)} fields in m or m2 s-2 "
            f"({', '.join(factors) or 'none'}), expected one, the height or the "
            "geopotential of the surface; give a file with it alone"
        )
    ((name, factor),) = factors.items()
    axes = fields.latitude, fields.longitude
    reference = Variables("the forecast", {name: file.variables[name]}, *axes)
    aligned = reference.align(file.table)
    surface = aligned(file.channels({}, {name: None})) * factor
    grid = TrajectoryGrid(reference.table, *axes, np.array([0, 1], "datetime64[ns]"))
    operator, both = Interpolation(name, name), jnp.stack([surface, surface])
    arrays = operator.prepare(table.assign(time=grid.times[0]), grid)
    model = np.asarray(operator(arrays, {name: both}))
    corrected = [
        k
        for k, v in variables.items()
        if v.levels is None
        and v.units
        and conversion(v.units, "K")
        and not any(word in f"{k} {v.long_name}".lower() for word in _OTHER_KELVINS)
    ]
    is_temperature = table["variable"].isin(corrected).to_numpy()
    if not is_temperature.any():
        raise ValueError(
            f"--height: no temperature without levels is observed, of "
            f"{', '.join(corrected) or 'none in the forecast'}; leave it out"
        )
    higher = table["elevation"].to_numpy(float) - model
    change = np.where(is_temperature, -LAPSE_RATE * higher, 0.0)
    size = np.nanmean(np.abs(change[is_temperature])) if is_temperature.any() else 0.0
    return change, (
        f"--height: {', '.join(corrected)} brought to the elevation of the stations by "
        f"6.5 K/km, {size:.2g} K in the mean"
    )
