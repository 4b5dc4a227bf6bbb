"""Maps of fields: forecast, truth and error side by side, with coastlines.

Of cartopy only the projections are used; its coastlines would be downloaded.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import as_file, files
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from jaxtyping import Float

from credit_jax.config.messages import typeset_units
from credit_jax.evaluation.regions import REGIONS
from credit_jax.extensions.plots.canvas import INK, new_figure, style

PLAIN = "platecarree"
# Names of the command line -> cartopy's class, and which of its arguments the middle of
# the map sets.
_CLASSES: Mapping[str, tuple[str, tuple[str, ...]]] = MappingProxyType(
    {
        "robinson": ("Robinson", ("central_longitude",)),
        "mollweide": ("Mollweide", ("central_longitude",)),
        "orthographic": ("Orthographic", ("central_longitude", "central_latitude")),
        "lambert": ("LambertConformal", ("central_longitude", "central_latitude")),
        "north-pole": ("NorthPolarStereo", ("central_longitude",)),
        "south-pole": ("SouthPolarStereo", ("central_longitude",)),
    }
)
PROJECTIONS = (PLAIN, *_CLASSES)


@dataclass(frozen=True)
class MapWindow:
    """The part of the globe on a map, degrees; `east` is up to 360 above `west`."""

    west: float = -180.0
    east: float = 180.0
    south: float = -90.0
    north: float = 90.0

    @property
    def is_globe(self) -> bool:
        """Whether the window is the whole globe."""
        return self.east - self.west >= 360 and self.north - self.south >= 180

    def mask(self, latitude: np.ndarray, longitude: np.ndarray) -> np.ndarray:
        """Whether points are in the window; the arguments are broadcast."""
        east = np.mod(longitude - self.west, 360.0) + self.west
        inside = (latitude >= self.south) & (latitude <= self.north)
        return inside & (east <= self.east)


def find_window(text: str) -> MapWindow:
    """Returns the window of a region of scores, such as "europe", or `parse_window`."""
    regions = {region.name: region for region in REGIONS}
    if "," in text:
        return parse_window(text)
    if text not in regions:
        raise ValueError(
            f"--region: no region {text!r}; there are: {', '.join(regions)}; or give "
            "west,east,south,north in degrees"
        )
    latitudes, longitudes = regions[text].latitudes, regions[text].longitudes
    south, north = min(k[0] for k in latitudes), max(k[1] for k in latitudes)
    if longitudes is None:
        return MapWindow(south=south, north=north)
    # Several ranges are ordered eastward.
    return parse_window(f"{longitudes[0][0]},{longitudes[-1][1]},{south},{north}")


def parse_window(text: str) -> MapWindow:
    """Parses "west,east,south,north" in degrees.

    >>> parse_window("350,40,30,70")
    Window(west=-10.0, east=40.0, south=30.0, north=70.0)
    """
    try:
        west, east, south, north = map(float, text.split(","))
    except ValueError:
        raise ValueError(
            f"{text!r} is no region; give west,east,south,north in degrees, such as "
            "350,40,30,70"
        ) from None
    if not -90 <= south < north <= 90:
        raise ValueError(
            f"{text!r}: latitudes go from south to north within -90 and 90, got "
            f"{south:g} and {north:g}"
        )
    west = (west + 180) % 360 - 180
    width = (east - west) % 360 or 360.0
    return MapWindow(west, west + width, south, north)


def window_of(latitude: np.ndarray, longitude: np.ndarray) -> MapWindow:
    """Returns the globe, or the part of it that the points of a regional grid cover."""
    west = np.mod(longitude + 180.0, 360.0) - 180.0
    span = np.sort(np.unique(np.round(west, 3)))
    gaps = np.diff(np.concatenate([span, [span[0] + 360.0]]))
    widest = int(np.argmax(gaps))
    if gaps[widest] < 30.0:
        return MapWindow()
    east = span[widest] if widest < len(span) - 1 else span[-1]
    begin = span[(widest + 1) % len(span)]
    end = begin + (east - begin) % 360.0
    south, north = float(latitude.min()), float(latitude.max())
    return MapWindow(float(begin), float(end), south, north)


@dataclass(frozen=True)
class MapProjection:
    """A projection of maps, one of PROJECTIONS; all but the plain one need cartopy."""

    name: str = PLAIN

    def __post_init__(self) -> None:
        if not self.is_plain:
            _cartopy(self.name)

    @property
    def is_plain(self) -> bool:
        """Whether the map is latitude by longitude, without cartopy."""
        return self.name == PLAIN

    def axes(
        self, figure: Any, index: tuple[int, int, int], middle: tuple[float, float]
    ) -> tuple[Any, dict[str, Any]]:
        """Adds the axes of a map; returns them, and keywords for degrees."""
        if self.is_plain:
            axis = figure.add_subplot(*index)
            axis.set_aspect("equal")
            return axis, {}
        crs = _cartopy(self.name)
        kind, names = _CLASSES[self.name]
        arguments = dict(zip(names, middle, strict=False))
        projection = getattr(crs, kind)(**arguments)
        axis = figure.add_subplot(*index, projection=projection)
        return axis, {"transform": crs.PlateCarree()}

    def frame(self, axis: Any, window: Any) -> None:
        """Sets the extent of the axes to a window; labels degrees if it is plain."""
        if not self.is_plain:
            if window.is_globe or self.name == "orthographic":
                axis.set_global()
            else:
                extent = window.west, window.east, window.south, window.north
                axis.set_extent(extent, _cartopy(self.name).PlateCarree())
            axis.gridlines(color="#80808060", linewidth=0.5)
            return
        axis.set_xlim(window.west, window.east)
        axis.set_ylim(window.south, window.north)
        from matplotlib.ticker import FuncFormatter, MaxNLocator

        steps = [1, 1.5, 3, 4.5, 6, 9, 10]
        axis.xaxis.set_major_locator(MaxNLocator(6, steps=steps))
        axis.yaxis.set_major_locator(MaxNLocator(4, steps=steps))
        axis.xaxis.set_major_formatter(FuncFormatter(lambda x, _: _degrees(x, "EW")))
        axis.yaxis.set_major_formatter(FuncFormatter(lambda y, _: _degrees(y, "NS")))
        axis.tick_params(labelsize=7)


def _cartopy(name: str) -> Any:
    try:
        import cartopy.crs
    except ImportError as error:
        raise ValueError(
            f"the projection {name} needs cartopy, which is not installed; install it "
            "with: pip install 'credit-jax[maps]', or leave --projection out"
        ) from error
    return cartopy.crs


def _degrees(value: float, sides: str) -> str:
    """Formats a tick label."""
    if sides == "EW":
        value = (value + 180.0) % 360.0 - 180.0
    if value in (0, -180):
        return f"{abs(value):g}°"
    return f"{abs(value):g}°{sides[int(value < 0)]}"


# Of fields of one sign, of fields of both, and of errors.
SEQUENTIAL, SIGNED, DIVERGING = "viridis", "PuOr_r", "RdBu_r"
_LETTERS_PER_INCH = 12  # of titles
# Units of velocities, of which fields with both signs have a direction.
_VELOCITIES = ("m s⁻¹", "Pa s⁻¹")
# Smallest ratio of the values of the rarer sign to the others in other signed fields.
_SIGNED_RATIO = 0.2
# Fraction of the values at either end that may be outside of the color range.
CLIPPED = 0.001


@dataclass(frozen=True, eq=False)
class MapGrid:
    """Degrees north and east of a field: (lat,) and (lon,), or both (y, x)."""

    latitude: np.ndarray
    longitude: np.ndarray

    def __post_init__(self) -> None:
        if self.latitude.ndim != self.longitude.ndim:
            raise ValueError(
                "latitude and longitude must both have one or both two dims, got "
                f"{self.latitude.ndim} and {self.longitude.ndim}"
            )


@dataclass(frozen=True)
class Colors:
    """The colors of maps, from `low` to `high`, by matplotlib's name of a map."""

    low: float
    high: float
    name: str = SEQUENTIAL
    # The ends of the range that values are beyond.
    extend: Literal["neither", "min", "max", "both"] = "neither"


@dataclass(frozen=True, eq=False)
class Map:
    """A field and how it is shown; NaN is left blank."""

    title: str
    field: Float[np.ndarray, "lat lon"]
    colors: Colors


def colors_of(
    fields: Sequence[np.ndarray], units: str = "", *, is_signed: bool = True
) -> Colors:
    """Returns the common colors of fields, whose range are quantiles at CLIPPED."""
    values = np.concatenate([np.zeros(0), *(x[np.isfinite(x)] for x in fields)])
    if not values.size:
        return Colors(0.0, 1.0)
    low, high = map(float, np.quantile(values, [CLIPPED, 1 - CLIPPED]))
    if not is_signed:
        low = max(low, 0.0)
    # Velocities of both signs, and fields with large values of both, diverge from zero.
    if low < 0 < high and (
        typeset_units(units) in _VELOCITIES
        or min(-low, high) > _SIGNED_RATIO * max(-low, high)
    ):
        largest = max(-low, high)
        return _extended(values, -largest, largest, SIGNED)
    return _extended(values, low, high if high > low else low + 1, SEQUENTIAL)


def error_colors_of(errors: Sequence[np.ndarray]) -> Colors:
    """Returns colors about zero, up to a quantile of absolute errors."""
    values = np.concatenate([np.zeros(0), *(x[np.isfinite(x)] for x in errors)])
    if not values.size:
        return Colors(-1.0, 1.0, DIVERGING)
    largest = float(np.quantile(np.abs(values), 1 - 2 * CLIPPED)) or 1.0
    return _extended(values, -largest, largest, DIVERGING)


def _extended(values: np.ndarray, low: float, high: float, name: str) -> Colors:
    # Quantiles of equal values differ by rounding.
    slack = 1e-6 * (high - low)
    below, above = values.min() < low - slack, values.max() > high + slack
    if below and above:
        return Colors(low, high, name, "both")
    return Colors(low, high, name, "min" if below else "max" if above else "neither")


class MapFigure:
    """A figure of maps of one grid in a row, whose fields can be replaced."""

    def __init__(
        self,
        maps: Sequence[Map],
        grid: MapGrid,
        *,
        title: str,
        units: str = "",
        window: MapWindow | None = None,
        projection: MapProjection | None = None,
    ) -> None:
        self._grid = grid
        self._window = window or window_of(grid.latitude, grid.longitude)
        projection = projection or MapProjection()
        window = self._window
        shape = (window.north - window.south) / (window.east - window.west)
        aspect = shape if projection.is_plain else 0.5
        width = 4.8 if len(maps) > 1 else 7.0
        height = min(max(width * aspect, 1.6), 1.3 * width) + 1.25
        with style():
            self.figure = new_figure(width * len(maps), height)
            self._images = [
                self._draw(panel, (1, len(maps), number), units, projection)
                for number, panel in enumerate(maps, 1)
            ]
            # Room between the title of the figure and those of the maps.
            self.figure.get_layout_engine().set(h_pad=0.12)
            self._set_title(title)

    def update(self, maps: Sequence[Map], title: str) -> None:
        """Shows other fields and another title."""
        for image, panel in zip(self._images, maps, strict=True):
            image.set_array(np.ma.masked_invalid(self._arranged(panel.field)[2]))
            image.axes.set_title(panel.title)
        with style():
            self._set_title(title)

    def _set_title(self, title: str) -> None:
        """Sets the title in lines that are no longer than the figure is wide."""
        length = int(_LETTERS_PER_INCH * self.figure.get_figwidth())
        self.figure.suptitle(textwrap.fill(title, length))

    def _draw(
        self,
        panel: Map,
        position: tuple[int, int, int],
        units: str,
        projection: MapProjection,
    ) -> Any:
        from matplotlib.collections import LineCollection
        from matplotlib.patheffects import withStroke

        window = self._window
        middle = (window.west + window.east) / 2, (window.south + window.north) / 2
        axis, transform = projection.axes(self.figure, position, middle)
        longitude, latitude, field = self._arranged(panel.field)
        image = axis.pcolormesh(
            longitude,
            latitude,
            np.ma.masked_invalid(field),
            cmap=panel.colors.name,
            vmin=panel.colors.low,
            vmax=panel.colors.high,
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
            image,
            ax=axis,
            orientation="horizontal",
            extend=panel.colors.extend,
            shrink=0.8,
            pad=0.03,
            aspect=35,
        )
        bar.ax.xaxis.get_major_locator().set_params(nbins=6)
        bar.formatter.set_powerlimits((-3, 4))
        if units:
            bar.set_label(typeset_units(units))
        axis.set_title(panel.title)
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


def station_figure(
    longitude: Float[np.ndarray, " station"],
    latitude: Float[np.ndarray, " station"],
    values: Mapping[str, Float[np.ndarray, " station"]],
    *,
    title: str,
    units: str = "",
) -> Any:
    """Returns a figure of maps of stations by title, side by side; see `MapFigure`."""
    from matplotlib.collections import LineCollection

    # From the widest gap between stations on.
    east = np.unique(longitude % 360)
    gaps = np.diff(east, append=east[0] + 360)
    margin = min(gaps.max() / 2, 5.0)
    west = float((east + gaps)[gaps.argmax()] - margin + 180) % 360 - 180
    width = 360 - gaps.max() + 2 * margin
    west, width = (west, width) if width < 300 else (-180.0, 360.0)
    south, north = max(latitude.min() - 5, -90), min(latitude.max() + 5, 90)
    with style():
        figure = new_figure(4.8 * len(values), 4.2)
        for number, (name, each) in enumerate(values.items(), 1):
            axis = figure.add_subplot(1, len(values), number)
            is_signed = each.min() < 0 < each.max()
            colors = error_colors_of([each]) if is_signed else colors_of([each])
            lines = LineCollection(coastline(west), colors=INK, linewidths=0.6)
            axis.add_collection(lines, autolim=False)
            image = axis.scatter(
                (longitude - west) % 360 + west,
                latitude,
                s=14,
                c=each,
                cmap=colors.name,
                vmin=colors.low,
                vmax=colors.high,
                edgecolors=INK,
                linewidths=0.3,
            )
            axis.set(xlim=(west, west + width), ylim=(south, north), title=name)
            bar = figure.colorbar(
                image, ax=axis, orientation="horizontal", extend=colors.extend
            )
            if units:
                bar.set_label(typeset_units(units))
        figure.suptitle(title)
    return figure


@cache
def _lines() -> list[np.ndarray]:
    """Lines (point, 2) of degrees east, from -180 to 180, and north."""
    # Natural Earth's of 1:110 million, which is public domain, in a file made by
    # tools/coastline.py: accurate to about 20 km, enough for maps of continents and of
    # the globe.
    file = files("credit_jax.extensions.plots").joinpath("coastline.npz")
    with as_file(file) as path, np.load(path) as stored:
        points, lengths = stored["points"] / 100.0, stored["lengths"]
    return np.split(points, np.cumsum(lengths)[:-1])


def coastline(west: float = -180.0) -> list[Float[np.ndarray, "point 2"]]:
    """Degrees east and north of coastlines, from `west` on, cut at this meridian."""
    pieces: list[np.ndarray] = []
    for line in _lines():
        east = np.mod(line[:, 0] - west, 360.0) + west
        shifted = np.stack([east, line[:, 1]], axis=1)
        leaves = np.flatnonzero(np.abs(np.diff(east)) > 180.0) + 1
        pieces += [piece for piece in np.split(shifted, leaves) if len(piece) > 1]
    return pieces
