"""Tropical cyclones in fields of sea level pressure, and their tracks.

The criteria are those of TempestExtremes (Ullrich et al. 2021,
https://doi.org/10.5194/gmd-14-5023-2021, section 3.1): closed contours of pressure and
of thickness, joined in time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float
from scipy import ndimage
from scipy.optimize import linear_sum_assignment

POLEWARD = 50.0  # degrees: beyond it are no centers
DEPTH, RADIUS = 200.0, 5.5  # Pa, degrees of a great circle
WARMTH, WARM_RADIUS, OFFSET = 6.0, 6.5, 1.0  # m (58.8 m2 s-2), degrees, degrees
MERGED = 6.0  # degrees: of centers this near the deepest one counts
WIND_RADIUS, MIN_WIND = 2.0, 10.0  # degrees, m/s
SPEED = 8 / 6  # degrees/h
# h; of the paper 54 h, which in a forecast of few days would leave out what ends soon.
MAX_GAP, MIN_DURATION = 24.0, 24.0
COLUMNS = ("latitude", "longitude", "pressure", "wind")


def distance(latitude: Any, longitude: Any, other: Any, other_longitude: Any) -> Any:
    """Great-circle distance of points in degrees, in degrees (haversine)."""
    north, other = np.deg2rad(latitude), np.deg2rad(other)
    east = np.deg2rad(np.subtract(longitude, other_longitude))
    half = np.sin((north - other) / 2) ** 2
    half = half + np.cos(north) * np.cos(other) * np.sin(east / 2) ** 2
    return np.rad2deg(2 * np.arcsin(np.sqrt(np.clip(half, 0, 1))))


def find_centers(
    pressure: Float[np.ndarray, "lat lon"],
    latitude: Float[np.ndarray, " lat"],
    longitude: Float[np.ndarray, " lon"],
    *,
    thickness: Float[np.ndarray, "lat lon"] | None = None,
    speed: Float[np.ndarray, "lat lon"] | None = None,
) -> pd.DataFrame:
    """Returns the centers of tropical cyclones of one time.

    Args:
        pressure: pressure at sea level, in Pa.
        latitude: latitudes of the rows, in degrees, in either order.
        longitude: longitudes of the columns, in degrees, evenly spaced.
        thickness: thickness from 500 to 300 hPa, in m; None ignores the core.
        speed: speed of the wind at 10 m, in m/s.

    Returns:
        latitude, longitude, pressure (hPa) and wind (m/s; NaN without `speed`), the
        deepest first.
    """
    wraps = np.isclose(abs(longitude[1] - longitude[0]) * len(longitude), 360)
    modes: Any = ("nearest", "wrap" if wraps else "nearest")
    lowest = ndimage.minimum_filter(pressure, 3, mode=modes) == pressure
    lowest &= (np.abs(latitude) <= POLEWARD)[:, None]
    rows, columns = np.nonzero(lowest)
    centers = np.empty((0, len(COLUMNS)))
    for k in np.argsort(pressure[rows, columns], kind="stable"):
        row, column = rows[k], columns[k]
        north, east = latitude[row], longitude[column]
        if (distance(centers[:, 0], centers[:, 1], north, east) < MERGED).any():
            continue
        near = np.abs(latitude - north) <= WARM_RADIUS + 2
        # The center in the middle of the columns, far from where they begin and end.
        shift = len(longitude) // 2 - column if wraps else 0
        deep, warm, winds = (
            None if field is None else np.roll(field[near], shift, axis=1)
            for field in (pressure, thickness, speed)
        )
        away = distance(latitude[near, None], np.roll(longitude, shift), north, east)
        if deep is None or not _is_closed(-deep, away, 0.0, DEPTH, RADIUS):
            continue
        if warm is not None and not _is_closed(warm, away, OFFSET, WARMTH, WARM_RADIUS):
            continue
        wind = np.nan if winds is None else np.nanmax(winds[away <= WIND_RADIUS])
        center = (north, east, pressure[row, column] / 100, wind)
        centers = np.append(centers, [center], axis=0)
    return pd.DataFrame(centers, columns=list(COLUMNS))


def _is_closed(
    field: Float[np.ndarray, "lat lon"],
    away: Float[np.ndarray, "lat lon"],
    offset: float,
    drop: float,
    radius: float,
) -> bool:
    """Whether a maximum within `offset` falls by `drop` on all ways to `radius`."""
    inside = np.where(away <= max(offset, away.min()), field, -np.inf)
    top = np.unravel_index(np.argmax(inside), field.shape)
    labeled: Any = ndimage.label(field > field[top] - drop, np.ones((3, 3)))
    labels = labeled[0]
    region = labels == labels[top]
    # Of a part of the globe, a region that its edge cuts may be open.
    edges = region[[0, -1]].any() or region[:, [0, -1]].any()
    return bool(not edges and away[region].max() <= radius)


def join_centers(
    centers: Sequence[pd.DataFrame], hours: Float[np.ndarray, " time"]
) -> pd.DataFrame:
    """Returns the tracks of centers at times that follow each other.

    Args:
        centers: what `find_centers` returns for each time.
        hours: increasing times.

    Returns:
        The centers that belong to a track of 24 hours, or of all of `hours` if they
        are fewer, with winds of 10 m/s for as long where there are winds; with the
        columns track (0, 1, ...) and hours.
    """
    tracks = list[list[dict[str, float]]]()
    for hour, table in zip(hours, centers, strict=True):
        ends = [track for track in tracks if hour - track[-1]["hours"] <= MAX_GAP]
        last = np.array([[t[-1][k] for k in ("hours", *COLUMNS)] for t in ends])
        former_hour, north, east = last.reshape(-1, 5).T[:3, :, None]
        # Of the way that a cyclone can have gone since.
        points = table[["latitude", "longitude"]].to_numpy()
        ways = distance(points[:, 0], points[:, 1], north, east)
        ways = ways / (SPEED * (hour - former_hour))
        # Any other pair is preferred to one too far apart.
        pairs = zip(*linear_sum_assignment(np.where(ways <= 1, ways, 1e3)), strict=True)
        former = {column: ends[row] for row, column in pairs if ways[row, column] <= 1}
        for column, center in enumerate(table.to_dict("records")):
            if column not in former:
                tracks.append(former.setdefault(column, []))
            former[column].append({"hours": hour, **center})
    duration = min(MIN_DURATION, hours[-1] - hours[0])
    step = np.diff(hours).min(initial=MAX_GAP)
    lasting = [
        track
        for track in tracks
        if track[-1]["hours"] - track[0]["hours"] >= duration
        and (sum(not c["wind"] < MIN_WIND for c in track) - 1) * step >= duration
    ]
    rows = [
        {"track": k, **center} for k, track in enumerate(lasting) for center in track
    ]
    return pd.DataFrame(rows, columns=["track", "hours", *COLUMNS])
