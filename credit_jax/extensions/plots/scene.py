"""Maps and animations of one field of a forecast, with the truth if it is known."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from credit_jax.config.messages import typeset_units
from credit_jax.extensions.plots.canvas import number_text, style
from credit_jax.extensions.plots.choice import FieldChoice, Truth
from credit_jax.extensions.plots.maps import (
    Colors,
    Map,
    MapFigure,
    MapGrid,
    colors_of,
    error_colors_of,
)
from credit_jax.extensions.plots.projections import MapProjection, MapWindow
from credit_jax.io.atomic import new_file

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
