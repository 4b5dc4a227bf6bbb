"""Maps and animations of one field of a forecast, with the truth if it is known."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from credit_jax.config.messages import typeset_units
from credit_jax.io.atomic import new_file
from credit_jax.visualization.canvas import style
from credit_jax.visualization.choice import FieldChoice, Truth
from credit_jax.visualization.labels import number_text
from credit_jax.visualization.maps import (
    Colors,
    Map,
    MapFigure,
    MapGrid,
    colors_of,
    comparison,
    error_colors_of,
)
from credit_jax.visualization.projections import MapProjection
from credit_jax.visualization.windows import MapWindow

GIF_DPI = 80  # pixels per inch
# Names and long names of what is not negative, and has units of a velocity in places.
_PRECIPITATION = re.compile(
    r"precip|rain|snowfall|^(tp|cp|lsp|pr|prec[tcl]|apcp)\b", re.IGNORECASE
)


@dataclass(frozen=True, eq=False)
class Scene:
    """The field to show on maps, and how.

    Attributes:
        choice: the field.
        truth: the true field; None shows only the forecast.
        window: the part of the globe; None is all of the grid.
        projection: projection of the maps; None is latitude by longitude.
    """

    choice: FieldChoice
    truth: Truth | None = None
    window: MapWindow | None = None
    projection: MapProjection | None = None

    def figure(self, lead: int) -> MapFigure:
        """The maps of one lead time.

        Args:
            lead: its number.

        Raises:
            ValueError: the field has no finite values.
        """
        return self._figure(lead, *self._colors([lead]))

    def write_animation(
        self, path: str | Path, leads: Sequence[int], *, frames_per_second: float = 4.0
    ) -> Path:
        """Writes a GIF of several lead times, all with the same color range.

        Args:
            path: path of the file, which ends with .gif.
            leads: their numbers; those without any values are left out.
            frames_per_second: frame rate.

        Raises:
            ValueError: the frame rate is not positive.
        """
        if not frames_per_second > 0:
            raise ValueError(f"--fps must be above 0, got {frames_per_second:g}")
        shown = [lead for lead in leads if np.isfinite(self._forecast(lead)).any()]
        colors = self._colors(shown)
        return write_animation(
            self._figure(shown[0], *colors),
            ((self.choice.title(frame), self._maps(frame, *colors)) for frame in shown),
            path,
            frames_per_second=frames_per_second,
        )

    @property
    def grid(self) -> MapGrid:
        """The coordinates of the field."""
        grid = self.choice.files.grid
        return MapGrid(grid.latitude, grid.longitude)

    def _figure(self, lead: int, colors: Colors, error_colors: Colors) -> MapFigure:
        return MapFigure(
            self._maps(lead, colors, error_colors),
            self.grid,
            title=self.choice.title(lead),
            units=self._units,
            window=self.window,
            projection=self.projection,
        )

    @property
    def _units(self) -> str:
        units = self.choice.about.units or (self.truth.units if self.truth else "")
        return typeset_units(units)

    def _maps(self, lead: int, colors: Colors, error_colors: Colors) -> list[Map]:
        forecast, truth = self._forecast(lead), self._truth(lead)
        maps = comparison(forecast, truth, colors=colors, error_colors=error_colors)
        if truth is None:
            return maps
        rmse = f"{number_text(self._rmse(forecast - truth))} {self._units}".rstrip()
        return [*maps[:-1], replace(maps[-1], title=f"error, RMSE {rmse}")]

    def _colors(self, leads: Sequence[int]) -> tuple[Colors, Colors]:
        """Colors of the field and of the error at these lead times."""
        fields, errors = [], []
        for lead in leads:
            forecast, truth = self._inside(self._forecast(lead)), self._truth(lead)
            fields.append(forecast)
            if truth is not None:
                fields.append(self._inside(truth))
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

    def _forecast(self, lead: int) -> np.ndarray:
        return self.choice.field(lead)

    def _truth(self, lead: int) -> np.ndarray | None:
        return None if self.truth is None else self.truth.at(lead)

    def _inside(self, field: np.ndarray) -> np.ndarray:
        """A field with NaN outside of the window."""
        if self.window is None:
            return field
        return np.where(self._mask, field, np.nan)

    @property
    def _mask(self) -> np.ndarray:
        latitude, longitude = self._points
        if self.window is None:
            return np.ones(latitude.shape, bool)
        return self.window.mask(latitude, longitude)

    @property
    def _points(self) -> tuple[np.ndarray, np.ndarray]:
        """Latitude and longitude of every point."""
        grid = self.grid
        if grid.latitude.ndim == 2:
            return grid.latitude, grid.longitude
        latitude, longitude = np.meshgrid(grid.latitude, grid.longitude, indexing="ij")
        return latitude, longitude

    def _rmse(self, error: np.ndarray) -> float:
        """Area-weighted RMSE over the window."""
        weights = np.cos(np.deg2rad(self._points[0])) * self._mask
        known = np.isfinite(error)
        total = np.sum(weights * known)
        squares = np.square(np.where(known, error, 0.0))
        return float(np.sqrt(np.sum(weights * squares) / total))


def write_animation(
    figure: MapFigure,
    frames: Iterable[tuple[str, Sequence[Map]]],
    path: str | Path,
    *,
    frames_per_second: float = 4.0,
) -> Path:
    """Writes a GIF.

    Args:
        figure: figure of the first frame; its fields are replaced.
        frames: title and maps of each frame, consumed one after the other.
        path: path of the file, which ends with .gif.
        frames_per_second: frame rate.
    """
    from matplotlib.animation import PillowWriter

    with style(), new_file(path) as partial:
        writer = PillowWriter(fps=frames_per_second)  # type: ignore[arg-type]
        with writer.saving(figure.figure, str(partial), GIF_DPI):
            for title, maps in frames:
                figure.update(maps, title)
                writer.grab_frame()
    return Path(path)
