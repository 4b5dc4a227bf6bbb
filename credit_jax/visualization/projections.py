"""Map projections: latitude by longitude, and those of cartopy if it is installed.

Only the projections of cartopy are used; its coastlines would be downloaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

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
class MapProjection:
    """A projection of maps.

    Attributes:
        name: one of PROJECTIONS.

    Raises:
        ValueError: there is no such projection, or cartopy is not installed.
    """

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
        self, figure: Any, place: tuple[int, int, int], middle: tuple[float, float]
    ) -> tuple[Any, dict[str, Any]]:
        """Adds the axes of a map to a figure.

        Args:
            figure: figure to which the axes are added.
            place: rows, columns and number, from 1.
            middle: degrees east and north of the middle of the map.

        Returns:
            The axes, and keyword arguments for matplotlib to draw degrees on them.
        """
        if self.is_plain:
            axis = figure.add_subplot(*place)
            axis.set_aspect("equal")
            return axis, {}
        crs = _cartopy(self.name)
        kind, names = _CLASSES[self.name]
        arguments = dict(zip(names, middle, strict=False))
        projection = getattr(crs, kind)(**arguments)
        axis = figure.add_subplot(*place, projection=projection)
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
    """Formats a tick label.

    >>> _degrees(190.0, "EW"), _degrees(-30.0, "NS"), _degrees(0.0, "NS")
    ('170°W', '30°S', '0°')
    """
    if sides == "EW":
        value = (value + 180.0) % 360.0 - 180.0
    if value in (0, -180):
        return f"{abs(value):g}°"
    return f"{abs(value):g}°{sides[int(value < 0)]}"
