"""Maps of fields: forecast, truth and error side by side, with coastlines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from credit_jax.visualization.canvas import INK, new_figure, style
from credit_jax.visualization.coastline import coastline
from credit_jax.visualization.projections import Projection
from credit_jax.visualization.windows import Window, window_of

SEQUENTIAL, DIVERGING = "viridis", "RdBu_r"
# Fraction of the values at either end that may be outside of the color range.
CLIPPED = 0.001


@dataclass(frozen=True, eq=False)
class Grid:
    """Coordinates of the points of a field.

    Attributes:
        latitude, longitude: (lat,) and (lon,) degrees north and east, or both (y, x) on
            a curvilinear grid.
    """

    latitude: np.ndarray
    longitude: np.ndarray

    def __post_init__(self) -> None:
        if self.latitude.ndim != self.longitude.ndim:
            raise ValueError(
                "latitude and longitude must both have one or both two dims, got "
                f"{self.latitude.ndim} and {self.longitude.ndim}"
            )


@dataclass(frozen=True, eq=False)
class Map:
    """A field and how it is shown.

    Attributes:
        title: above it.
        field: values on the grid; NaN is left blank.
        low, high: the range of the colors.
        colors: matplotlib's name of the color map.
    """

    title: str
    field: Float[np.ndarray, "lat lon"]
    low: float
    high: float
    colors: str = SEQUENTIAL


def comparison(
    forecast: Float[np.ndarray, "lat lon"],
    truth: Float[np.ndarray, "lat lon"] | None,
    *,
    units: str = "",
    limits: tuple[float, float] | None = None,
    error_limit: float | None = None,
) -> list[Map]:
    """Returns the map of a forecast; with a truth, those of truth, forecast and error.

    Truth and forecast have the same color range; that of the error is symmetric.

    Args:
        forecast: field.
        truth: field at the same time, or None.
        units: of both.
        limits: color range; None is that of the values.
        error_limit: largest error of the color range; None is that of the values.
    """
    given = [forecast] if truth is None else [truth, forecast]
    low, high = limits or limits_of(given)
    if truth is None:
        return [Map("forecast", forecast, low, high)]
    error = forecast - truth
    largest = error_limit or largest_of([error])
    text = f"error ({units})" if units else "error"
    return [
        Map("truth", truth, low, high),
        Map("forecast", forecast, low, high),
        Map(text, error, -largest, largest, DIVERGING),
    ]


def limits_of(fields: Sequence[np.ndarray]) -> tuple[float, float]:
    """Returns the common color range of fields: their quantiles at CLIPPED."""
    values = np.concatenate([field[np.isfinite(field)] for field in fields])
    if not values.size:
        return 0.0, 1.0
    low, high = np.quantile(values, [CLIPPED, 1 - CLIPPED])
    return (float(low), float(high)) if high > low else (float(low), float(low) + 1)


def largest_of(errors: Sequence[np.ndarray]) -> float:
    """Returns the largest error of the color range, a quantile of absolute errors."""
    values = np.concatenate([np.abs(own[np.isfinite(own)]) for own in errors])
    return float(np.quantile(values, 1 - 2 * CLIPPED)) or 1.0 if values.size else 1.0


class MapFigure:
    """A figure of maps in a row, whose fields can be replaced.

    Args:
        maps: of one grid.
        grid: of the fields.
        title: of the whole.
        units: of the fields.
        window: the part that is shown.
        projection: of the maps.
    """

    def __init__(
        self,
        maps: Sequence[Map],
        grid: Grid,
        *,
        title: str,
        units: str = "",
        window: Window | None = None,
        projection: Projection | None = None,
    ) -> None:
        self._grid = grid
        self._window = window or window_of(grid.latitude, grid.longitude)
        projection = projection or Projection()
        shape = self._window.north - self._window.south
        aspect = 0.5 if not projection.is_plain else shape / self._width()
        width = 4.8 if len(maps) > 1 else 7.0
        height = min(max(width * aspect, 1.6), 1.3 * width) + 1.0
        with style():
            self.figure = new_figure(width * len(maps), height)
            self._images = [
                self._draw(own, place, len(maps), units, projection)
                for place, own in enumerate(maps)
            ]
            self.figure.suptitle(title)

    def update(self, maps: Sequence[Map], title: str) -> None:
        """Shows other fields and another title."""
        for image, own in zip(self._images, maps, strict=True):
            image.set_array(np.ma.masked_invalid(self._arranged(own.field)[2]))
            image.axes.set_title(own.title)
        with style():
            self.figure.suptitle(title)

    def _width(self) -> float:
        return self._window.east - self._window.west

    def _draw(
        self, own: Map, place: int, count: int, units: str, projection: Projection
    ) -> Any:
        from matplotlib.collections import LineCollection
        from matplotlib.patheffects import withStroke

        window = self._window
        middle = (window.west + window.east) / 2, (window.south + window.north) / 2
        axis, transform = projection.axes(self.figure, (1, count, place + 1), middle)
        longitude, latitude, field = self._arranged(own.field)
        image = axis.pcolormesh(
            longitude,
            latitude,
            np.ma.masked_invalid(field),
            cmap=own.colors,
            vmin=own.low,
            vmax=own.high,
            shading="nearest",
            rasterized=True,
            **transform,
        )
        coast = coastline(window.west)
        lines = LineCollection(coast, colors=INK, linewidths=0.6, **transform)
        # Dark lines are seen on dark colors, too.
        lines.set_path_effects(
            [withStroke(linewidth=1.4, foreground="white", alpha=0.5)]
        )
        axis.add_collection(lines, autolim=False)
        projection.frame(axis, window)
        bar = self.figure.colorbar(
            image, ax=axis, orientation="horizontal", shrink=0.8, pad=0.03, aspect=35
        )
        bar.ax.xaxis.get_major_locator().set_params(nbins=6)
        bar.formatter.set_powerlimits((-3, 4))
        if units:
            bar.set_label(units)
        axis.set_title(own.title)
        return image

    def _arranged(self, field: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Longitude, latitude and field, columns from the west edge of the window."""
        longitude, latitude = self._grid.longitude, self._grid.latitude
        east = np.mod(longitude - self._window.west, 360.0) + self._window.west
        if longitude.ndim == 2:
            return east, latitude, field
        order = np.argsort(east)
        east, field = east[order], field[:, order]
        step = np.median(np.diff(east))
        if 360.0 - (east[-1] - east[0]) < 1.5 * step:
            # A global grid gets one more column at either end.
            east = np.concatenate([[east[-1] - 360.0], east, [east[0] + 360.0]])
            field = np.concatenate([field[:, -1:], field, field[:, :1]], axis=1)
        return east, latitude, field
