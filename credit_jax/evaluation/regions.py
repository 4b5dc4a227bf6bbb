"""WeatherBench's regions, and the area weights of their points.

Bounds are those of google-research/weatherbench2, scripts/evaluate.py; ranges include
both ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

from credit_jax.config.messages import hint

# Tolerance of bounds in degrees, as coordinates are often float32.
_TOLERANCE = 1e-4
_EVERYWHERE = ((-90.0, 90.0),)


@dataclass(frozen=True)
class Region:
    """A region: ranges (south, north), and (west, east) from 0 to 360, None for all."""

    name: str
    latitudes: tuple[tuple[float, float], ...] = _EVERYWHERE
    longitudes: tuple[tuple[float, float], ...] | None = None

    def mask(
        self, latitude: Float[np.ndarray, ...], longitude: Float[np.ndarray, ...]
    ) -> Bool[np.ndarray, ...]:
        """Whether points are in the region; the arguments are broadcast."""
        inside = _within(latitude, self.latitudes)
        if self.longitudes is None:
            return inside & np.ones(np.shape(longitude), bool)
        return inside & _within(np.mod(longitude, 360.0), self.longitudes)


REGIONS: tuple[Region, ...] = (
    Region("global"),
    Region("tropics", ((-20, 20),)),
    Region("extra-tropics", ((-90, -20), (20, 90))),
    Region("northern-hemisphere", ((20, 90),)),
    Region("southern-hemisphere", ((-90, -20),)),
    Region("europe", ((35, 75),), ((347.5, 360), (0, 42.5))),
    Region("north-america", ((25, 60),), ((240, 285),)),
    Region("north-atlantic", ((25, 65),), ((290, 350),)),
    Region("north-pacific", ((25, 60),), ((145, 230),)),
    Region("east-asia", ((25, 60),), ((102.5, 150),)),
    Region("ausnz", ((-45, -12.5),), ((120, 175),)),
    Region("arctic", ((60, 90),)),
    Region("antarctic", ((-90, -60),)),
)
# Regions of the energy spectra; all span whole circles of latitude.
BANDS: tuple[Region, ...] = REGIONS[:5]


def choose_regions(names: Sequence[str] = ()) -> tuple[Region, ...]:
    """Regions by name, all by default; "global" always comes first."""
    regions = {region.name: region for region in REGIONS}
    unknown = [name for name in names if name not in regions]
    if unknown:
        raise ValueError(
            f"--regions: {', '.join(unknown)}: not known; there are: "
            f"{', '.join(regions)}{hint(unknown[0], regions)}"
        )
    chosen = ["global", *names] if names else [*regions]
    return tuple(regions[name] for name in dict.fromkeys(chosen))


def region_weights(
    regions: Sequence[Region], latitude: np.ndarray, longitude: np.ndarray
) -> Float[np.ndarray, "region lat lon"]:
    """cos(latitude) in each region, 0 elsewhere, of sum 1; 0 for an empty region."""
    if latitude.ndim == 1:
        latitude, longitude = np.meshgrid(latitude, longitude, indexing="ij")
    area = np.cos(np.deg2rad(latitude.astype(np.float64)))
    weights = [area * region.mask(latitude, longitude) for region in regions]
    return np.stack([_scaled(weight) for weight in weights]).astype(np.float32)


def band_weights(
    bands: Sequence[Region], latitude: Float[np.ndarray, " lat"]
) -> Float[np.ndarray, "band lat"]:
    """cos(latitude) of the rows of each band, of sum 1; 0 for an empty band."""
    area = np.cos(np.deg2rad(latitude.astype(np.float64)))
    weights = [_scaled(area * band.mask(latitude, np.zeros(1))) for band in bands]
    return np.stack(weights).astype(np.float32)


def _within(
    values: np.ndarray, ranges: Sequence[tuple[float, float]]
) -> Bool[np.ndarray, ...]:
    inside = [
        (values >= low - _TOLERANCE) & (values <= high + _TOLERANCE)
        for low, high in ranges
    ]
    return np.any(inside, axis=0)


def _scaled(weights: np.ndarray) -> np.ndarray:
    total = weights.sum()
    return weights / total if total > 0 else np.zeros_like(weights)
