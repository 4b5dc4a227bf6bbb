"""Map projections and windows: latitude by longitude, and those of cartopy.

Only the projections of cartopy are used; its coastlines would be downloaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from credit_jax.evaluation.regions import REGIONS

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
        if self.name not in PROJECTIONS:
            raise ValueError(
                f"there is no projection {self.name!r}; choose from "
                f"{', '.join(PROJECTIONS)}"
            )
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
