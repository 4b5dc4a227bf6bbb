"""The part of the globe that a map shows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from credit_jax.evaluation.regions import REGIONS, Region


@dataclass(frozen=True)
class MapWindow:
    """The part of the globe on a map.

    Attributes:
        west, east: degrees east, `east` from `west` to `west + 360`.
        south, north: degrees north.
    """

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
    """Returns the window of a region of scores, such as "europe", or `parse_window`.

    Raises:
        ValueError: there is no such region, or `parse_window` fails.
    """
    regions = {region.name: region for region in REGIONS}
    if text in regions:
        return _around(regions[text])
    if "," not in text:
        raise ValueError(
            f"--region: no region {text!r}; there are: {', '.join(regions)}; or give "
            "west,east,south,north in degrees"
        )
    return parse_window(text)


def _around(region: Region) -> MapWindow:
    """The smallest window that contains a region."""
    south = min(low for low, _ in region.latitudes)
    north = max(high for _, high in region.latitudes)
    if region.longitudes is None:
        return MapWindow(south=south, north=north)
    # Several ranges are ordered eastward.
    west, east = region.longitudes[0][0], region.longitudes[-1][1]
    return parse_window(f"{west},{east},{south},{north}")


def parse_window(text: str) -> MapWindow:
    """Parses "west,east,south,north" in degrees.

    >>> parse_window("350,40,30,70")
    Window(west=-10.0, east=40.0, south=30.0, north=70.0)

    Raises:
        ValueError: these are not four numbers, or latitudes are out of order or range.
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
    """Returns the globe, or the part of it that a regional grid covers.

    Args:
        latitude: latitude of all points, degrees north.
        longitude: longitude of all points, degrees east.
    """
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
