"""Incident solar radiation at the top of the atmosphere, integrated over time.

The formulas are those of ECMWF's IFS, as in GraphCast's `solar_radiation.py` and
CREDIT's `tisr` source. All is computed in float32, to agree with CREDIT: the number of
days since 2000 in float32 has a resolution of 42 s (84 s from 2022 on).
"""

import dataclasses
import functools
from importlib import resources
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float

_J2000 = 2451545.0
_DAYS_PER_YEAR = np.float32(365.25)
_SECONDS_PER_DAY = 86400
# Obliquity of the ecliptic, radians.
_OBLIQUITY = np.float32(0.409093)
_DEGREE = np.float32(np.pi / 180)


@dataclasses.dataclass(frozen=True)
class Sun:
    """Irradiance and position of the sun at some times, (time,) float32 each.

    Attributes:
        flux: irradiance of a surface that faces the sun, W m-2.
        phase: hour angle at the prime meridian, as a fraction of a day.
        sin_declination, cos_declination: sine and cosine of the solar declination.
        weight: weight of each time in an integral over time, s.
    """

    flux: Float[np.ndarray, " time"]
    phase: Float[np.ndarray, " time"]
    sin_declination: Float[np.ndarray, " time"]
    cos_declination: Float[np.ndarray, " time"]
    weight: Float[np.ndarray, " time"]


def integrated_radiation(
    time: np.datetime64,
    period: pd.Timedelta,
    num_steps: int,
    latitude: Float[np.ndarray, "lat lon"],
    longitude: Float[np.ndarray, "lat lon"],
) -> Float[np.ndarray, "lat lon"]:
    """Integrates radiation from time - period to time by the trapezoidal rule.

    The integrand is max(0, cos(zenith)) x irradiance, at `num_steps` + 1 times. Times
    that are equal in float32 are computed once.

    Args:
        time: end of the period, UTC.
        period: length of the period.
        num_steps: number of intervals.
        latitude, longitude: degrees, float32.

    Returns:
        (lat, lon) J m-2, float32.

    Raises:
        ValueError: the year is not in the table of the irradiance.
    """
    sun = sun_at(time, period, num_steps)
    out = np.empty(latitude.shape, dtype=np.float32)
    weight = sun.weight * sun.flux
    last, cosine = None, None
    for row in range(latitude.shape[0]):
        if last is None or not np.array_equal(longitude[row], last):
            last = longitude[row]
            degrees = np.float32(360.0) * sun.phase[:, None] + last
            cosine = np.cos(degrees * _DEGREE)
        assert cosine is not None
        out[row] = weight @ _cos_zenith(sun, latitude[row], cosine)
    return out


def _cos_zenith(
    sun: Sun,
    latitude: Float[np.ndarray, " lon"],
    cosine: Float[np.ndarray, "time lon"],
) -> Float[np.ndarray, "time lon"]:
    """max(0, cos(lat) cos(declination) cos(hour angle) + sin(lat) sin(declination))"""
    lat = latitude * _DEGREE
    if (latitude == latitude[0]).all():
        lat = lat[:1]
    zenith = (np.cos(lat) * sun.cos_declination[:, None]) * cosine
    zenith += np.sin(lat) * sun.sin_declination[:, None]
    return np.maximum(zenith, 0, out=zenith)


def sun_at(time: np.datetime64, period: pd.Timedelta, num_steps: int) -> Sun:
    """Computes the sun at the distinct float32 times of a period, with weights."""
    interval: Any = period / num_steps
    times = pd.date_range(end=time, periods=num_steps + 1, freq=interval)
    days = np.asarray(times.to_julian_date()) - _J2000
    days = days.astype(np.float32)
    # Total solar irradiance at 1 AU, W m-2: linear between yearly means.
    years, values = _table()
    fields: Any = times
    outside = (fields.year < int(years[0])) | (fields.year > int(years[-1]))
    if outside.any():
        raise ValueError(
            f"the solar irradiance is known for {int(years[0])} to {int(years[-1])}, "
            f"not for {times[outside][0]}"
        )
    date = fields.normalize()
    day = fields.day_of_year - 1 + (times - date) / pd.Timedelta(days=1)
    year = np.asarray(fields.year + day / (365 + fields.is_leap_year))
    year = year.astype(np.float32)
    upper = np.clip(np.searchsorted(years, year), 1, len(years) - 1)
    lower = upper - 1
    part = (year - years[lower]) / (years[upper] - years[lower])
    irradiance = values[lower] + part * (values[upper] - values[lower])
    seconds = interval / pd.Timedelta(seconds=1)
    weight = np.full(num_steps + 1, seconds)
    weight[[0, -1]] /= 2
    pairs = np.stack([days, irradiance], axis=-1)
    pairs, inverse = np.unique(pairs, axis=0, return_inverse=True)
    summed = np.bincount(inverse.ravel(), weights=weight).astype(np.float32)
    return _orbit(pairs[:, 0], pairs[:, 1], summed)


def _orbit(
    days: Float[np.ndarray, " time"],
    irradiance: Float[np.ndarray, " time"],
    weight: Float[np.ndarray, " time"],
) -> Sun:
    """Declination, equation of time and distance of the sun, by IFS's expansions."""
    theta = days / _DAYS_PER_YEAR
    f = np.float32
    rel = f(1.7535) + f(6.283076) * theta
    rem = f(6.240041) + f(6.283020) * theta
    rlls = f(4.8951) + f(6.283076) * theta
    one = np.ones_like(theta)
    sin_rel, cos_rel = np.sin(rel), np.cos(rel)
    longitude = _sum(
        (4.8952, one),
        (6.283320, theta),
        (-0.0075, sin_rel),
        (-0.0326, cos_rel),
        (-0.0003, np.sin(f(2) * rel)),
        (0.0002, np.cos(f(2) * rel)),
    )
    sine = np.sin(_OBLIQUITY) * np.sin(longitude)
    equation_of_time = _sum(
        (591.8, np.sin(f(2) * rlls)),
        (-459.4, np.sin(rem)),
        (39.5, np.sin(rem) * np.cos(f(2) * rlls)),
        (-12.7, np.sin(f(4) * rlls)),
        (-4.8, np.sin(f(2) * rem)),
    )
    distance = _sum((1.0001, one), (-0.0163, sin_rel), (0.0037, cos_rel))
    return Sun(
        flux=irradiance * (f(1) / distance**2),
        phase=days % f(1) + equation_of_time / f(_SECONDS_PER_DAY),
        sin_declination=sine,
        cos_declination=np.sqrt(f(1) - sine**2),
        weight=weight,
    )


def _sum(
    *terms: tuple[float, Float[np.ndarray, " time"]],
) -> Float[np.ndarray, " time"]:
    """Sum of factor times series over all terms, in float32 and in order."""
    total = np.zeros_like(terms[0][1])
    for factor, series in terms:
        total = total + np.float32(factor) * series
    return total


@functools.cache
def _table() -> tuple[Float[np.ndarray, " year"], Float[np.ndarray, " year"]]:
    """Middle of each year, and its mean irradiance."""
    file = resources.files("credit_jax.data.sources") / "solar_irradiance.csv"
    with file.open() as lines:
        years, values = np.loadtxt(lines, delimiter=",", dtype=np.float32).T
    return np.ascontiguousarray(years), np.ascontiguousarray(values)
