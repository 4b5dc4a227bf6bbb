"""A field of a forecast, its truth, and maps and animations of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float

from credit_jax.config.data import DateRange, in_training
from credit_jax.config.dates import date_label, duration
from credit_jax.config.messages import hint, typeset_units
from credit_jax.data.opened_data import NamedData
from credit_jax.evaluation.comparison import compare
from credit_jax.evaluation.forecast_files import ForecastFiles, valid_time
from credit_jax.evaluation.references import open_truth
from credit_jax.extensions.plots.canvas import field_text, lead_text, number_text, style
from credit_jax.extensions.plots.maps import (
    Colors,
    Map,
    MapFigure,
    MapGrid,
    MapProjection,
    MapWindow,
    colors_of,
    error_colors_of,
)
from credit_jax.io.atomic import new_file
from credit_jax.io.open_files import OpenFiles
from credit_jax.named_fields.variables import Variable

MEAN, SPREAD = "mean", "spread"


@dataclass(frozen=True, eq=False)
class FieldChoice:
    """A variable at one level of forecasts from one start date."""

    files: ForecastFiles
    variable: str
    start: int  # position
    level: int | None = None  # position
    member: int | str | None = None  # number, MEAN or SPREAD
    training: Sequence[DateRange] = ()  # of the weights

    def field(self, lead: int) -> Float[np.ndarray, "lat lon"]:
        """The field at a lead time, in memory."""
        levels = None if self.level is None else (self.level,)
        members = self.files.read(self.start, lead, {self.variable: levels})[:, 0]
        if self.member == SPREAD:
            return members.std(axis=0, ddof=1)
        if self.member == MEAN:
            return members.mean(axis=0)
        return members[self.member or 0]

    @property
    def about(self) -> Variable:
        """Levels and units of the variable."""
        return self.files.grid.variables[self.variable]

    @property
    def label(self) -> str:
        """Variable and level."""
        levels, level = self.about.levels, None
        if self.level is not None and levels is not None:
            level = float(levels[self.level])
        return field_text(self.variable, level, self.about.level_units)

    def title(self, lead: int) -> str:
        """Title of a map: field, lead time, start date and valid time."""
        times = (
            self.files.starts[self.start],
            valid_time(self.files, self.start, lead),
        )
        start, valid = map(date_text, times)
        seen = ", of the training period" if in_training(times, self.training) else ""
        whose = {None: "", MEAN: "ensemble mean of ", SPREAD: "spread of "}.get(
            self.member, f"member {self.member} of "
        )
        length = lead_text(self.files.leads[lead])
        return f"{whose}{self.label}, {length} from {start}, valid {valid}{seen}"


def choose(
    files: ForecastFiles,
    variable: str,
    *,
    level: float | None = None,
    init_time: str | None = None,
    member: str | None = None,
    training: Sequence[DateRange] = (),
) -> FieldChoice:
    """Finds the field of a variable, level, start date and member."""
    names = sorted(files.grid.variables)
    if variable not in names:
        meant = hint(variable, names)
        for name in names:
            remainder = variable.removeprefix(name)
            if remainder.isdecimal() and files.grid.variables[name].levels is not None:
                meant = f" (nearest: --variable {name} --level {remainder})"
        raise ValueError(
            f"--variable: no {variable!r} in the forecasts; there are: "
            f"{', '.join(names)}{meant}"
        )
    if not len(files.leads):
        raise ValueError(f"{files.where}: no forecast has a lead time above 0")
    start, count = _start(files.starts, init_time), files.num_members
    index = _level(variable, files.grid.variables[variable].levels, level)
    chosen: int | str | None = member
    if count == 1:
        if member is not None:
            raise ValueError(f"--member: the forecasts have no members, got {member}")
    elif member is None:
        chosen = MEAN
    elif member.isdigit() and int(member) < count:
        chosen = int(member)
    elif member not in (MEAN, SPREAD):
        raise ValueError(
            f"--member: no member {member!r}; there are 0 to {count - 1}, {MEAN} and "
            f"{SPREAD}"
        )
    return FieldChoice(files, variable, start, index, chosen, training)


def _level(name: str, levels: np.ndarray | None, level: float | None) -> int | None:
    if levels is None:
        if level is not None:
            raise ValueError(f"--level: {name} has no levels, got {level:g}")
        return None
    listed = ", ".join(f"{value:g}" for value in levels)
    if level is None:
        if len(levels) > 1:
            raise ValueError(f"--level: {name} needs one of {listed}")
        return 0
    index = int(np.argmin(np.abs(levels - level)))
    if not np.isclose(levels[index], level, rtol=1e-4):
        raise ValueError(
            f"--level: {name} has no level {level:g}; there are: {listed}; the "
            f"nearest is {levels[index]:g}"
        )
    return index


def find_lead(leads: np.ndarray, text: str) -> int:
    """Returns the position of a lead time such as "5d" or "36h"."""
    try:
        requested = np.timedelta64(duration(text).value, "ns")
    except ValueError:
        raise ValueError(f"--lead: {text!r} is no duration such as 5d or 36h") from None
    index = int(np.argmin(np.abs(leads - requested)))
    if leads[index] != requested:
        raise ValueError(
            f"--lead: no lead time {text}; there are {len(leads)} from "
            f"{lead_text(leads[0])} to {lead_text(leads[-1])}; the nearest is "
            f"{lead_text(leads[index])}"
        )
    return index


def _start(starts: np.ndarray, init_time: str | None) -> int:
    if not len(starts):
        raise ValueError("the store holds no forecasts: it has no start date")
    first, last = date_text(starts[0]), date_text(starts[-1])
    if init_time is None:
        if len(starts) == 1:
            return 0
        raise ValueError(
            f"--init-time: needed, since there are {len(starts)} start dates from "
            f"{first} to {last}"
        )
    try:
        requested: Any = date_label(init_time)
    except ValueError as error:
        raise ValueError(
            f"--init-time: {init_time!r} is no date such as 2001-06-01T00: {error}"
        ) from None
    texts = [date_text(label) for label in starts]
    if (text := date_text(requested)) in texts:
        return texts.index(text)
    near = min(texts, key=lambda label: abs(pd.Timestamp(label) - requested))
    raise ValueError(
        f"--init-time: no forecast from {text}; there are {len(starts)} from {first} "
        f"to {last}; the nearest is {near}"
    )


def date_text(date: Any) -> str:
    """The label of a date, to the minute."""
    stamp: Any = pd.Timestamp(date)
    return stamp.strftime("%Y-%m-%d %H:%M")


@dataclass(frozen=True)
class Truth:
    """The true field at a lead time, by its number, on the grid of the forecasts."""

    at: Callable[[int], np.ndarray]
    units: str = ""


def truth_of(
    choice: FieldChoice,
    truth: str | NamedData,
    leads: Sequence[int],
    open_files: OpenFiles | None = None,
) -> Truth:
    """Opens the true field at some lead times, given by their numbers."""
    times = {lead: valid_time(choice.files, choice.start, lead) for lead in leads}
    valid_times = np.array([*times.values()])
    opened = open_truth(truth, valid_times, open_files)
    name = choice.variable
    comparison = compare(choice.files.grid.table, opened, [name])
    indices = comparison.to_truth
    if problems := opened.problems(valid_times, [name]):
        raise ValueError("--truth: " + "; ".join(problems))
    levels = None
    if choice.level is not None:
        current, other = indices.levels[name] or (), indices.other_levels[name] or ()
        if choice.level not in current:
            raise ValueError(f"--truth: {opened.table.where} has no {choice.label}")
        levels = (other[current.index(choice.level)],)

    def at(lead: int) -> np.ndarray:
        return indices(opened.read(times[lead], {name: levels}))[0]

    return Truth(at, comparison.channels[0].units)


GIF_DPI = 80  # pixels per inch
# Names and long names of what is not negative, and has units of a velocity in places.
_PRECIPITATION = re.compile(
    r"precip|rain|snowfall|^(tp|cp|lsp|pr|prec[tcl]|apcp)\b", re.IGNORECASE
)


@dataclass(frozen=True, eq=False)
class Scene:
    """The field to show on maps, and how."""

    choice: FieldChoice
    truth: Truth | None = None  # None: the forecast alone
    window: MapWindow | None = None  # None: all of the grid
    projection: MapProjection | None = None

    def figure(self, lead: int) -> MapFigure:
        """The maps of the lead time of a number."""
        return self._figure(lead, *self._colors([lead]))

    def write_animation(
        self, path: str | Path, leads: Sequence[int], *, frames_per_second: float = 4.0
    ) -> Path:
        """Writes a GIF of lead times that have values, all with the same colors."""
        if not frames_per_second > 0:
            raise ValueError(f"--fps must be above 0, got {frames_per_second:g}")
        drawn = [lead for lead in leads if np.isfinite(self.choice.field(lead)).any()]
        from matplotlib.animation import PillowWriter

        colors = self._colors(drawn)
        figure = self._figure(drawn[0], *colors)
        writer = PillowWriter(fps=frames_per_second)  # type: ignore[arg-type]
        with (
            style(),
            new_file(path) as partial,
            writer.saving(figure.figure, str(partial), GIF_DPI),
        ):
            for lead in drawn:
                figure.update(self._maps(lead, *colors), self.choice.title(lead))
                writer.grab_frame()
        return Path(path)

    def _figure(self, lead: int, colors: Colors, error_colors: Colors) -> MapFigure:
        grid = self.choice.files.grid
        return MapFigure(
            self._maps(lead, colors, error_colors),
            MapGrid(grid.latitude, grid.longitude),
            title=self.choice.title(lead),
            units=self._units,
            window=self.window,
            projection=self.projection,
        )

    @cached_property
    def _units(self) -> str:
        units = self.choice.about.units or (self.truth.units if self.truth else "")
        return typeset_units(units)

    @cached_property
    def _latitude_and_mask(self) -> tuple[np.ndarray, np.ndarray]:
        """The latitude of every point, and whether it is in the window."""
        grid = self.choice.files.grid
        latitude, longitude = grid.latitude, grid.longitude
        if latitude.ndim == 1:
            latitude, longitude = np.meshgrid(latitude, longitude, indexing="ij")
        window = self.window
        mask = None if window is None else window.mask(latitude, longitude)
        return latitude, np.ones(latitude.shape, bool) if mask is None else mask

    def _maps(self, lead: int, colors: Colors, error_colors: Colors) -> list[Map]:
        forecast, truth = self.choice.field(lead), self.truth and self.truth.at(lead)
        maps = [Map("forecast", forecast, colors)]
        if truth is None:
            return maps
        # Area-weighted, over the window.
        error, (latitude, mask) = forecast - truth, self._latitude_and_mask
        weights, finite = np.cos(np.deg2rad(latitude)) * mask, np.isfinite(error)
        squares = np.square(np.where(finite, error, 0.0))
        mean = np.sum(weights * squares) / np.sum(weights * finite)
        rmse = f"{number_text(float(np.sqrt(mean)))} {self._units}".rstrip()
        of_error = Map(f"error, RMSE {rmse}", error, error_colors)
        return [Map("truth", truth, colors), *maps, of_error]

    def _colors(self, leads: Sequence[int]) -> tuple[Colors, Colors]:
        """Colors of the field and of the error at these lead times, in the window."""
        fields, errors, (_, mask) = [], [], self._latitude_and_mask
        for lead in leads:
            forecast = np.where(mask, self.choice.field(lead), np.nan)
            fields.append(forecast)
            truth = self.truth and self.truth.at(lead)
            if truth is not None:
                fields.append(np.where(mask, truth, np.nan))
                errors.append(forecast - truth)
        if not any(np.isfinite(field).any() for field in fields):
            raise ValueError(
                f"{self.choice.label}: no values at that lead time"
                + (" in that region" if self.window else "")
            )
        name, about = self.choice.variable, self.choice.about
        is_signed = not any(map(_PRECIPITATION.search, (name, about.long_name)))
        colors = colors_of(fields, self._units, is_signed=is_signed)
        return colors, error_colors_of(errors)
