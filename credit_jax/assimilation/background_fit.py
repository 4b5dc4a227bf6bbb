"""Fits the covariance of background errors to the differences of forecasts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
import pandas as pd
from jaxtyping import Float

from credit_jax.assimilation.background import (
    BackgroundCovariance,
    Channel,
    Harmonics,
    symmetric_root,
)
from credit_jax.config import Config
from credit_jax.config.assimilation import BackgroundConfig
from credit_jax.config.base import not_available
from credit_jax.config.dates import duration
from credit_jax.evaluation.forecast_files import ForecastFiles, valid_time
from credit_jax.evaluation.open_forecasts import open_forecasts
from credit_jax.io.activity import activity
from credit_jax.io.atomic import move_aside, new_file

# Largest default truncation: background errors are smooth, and Legendre functions
# of higher degrees take gigabytes.
_LARGEST = 127


@activity("fitting the background covariance")
def fit_background_file(config: Config, *, overwrite: bool = False) -> list[str]:
    """Fits `assimilation.background` of a config and writes its file.

    Args:
        config: the whole config.
        overwrite: whether to fit an existing file again; the old one is renamed.

    Returns:
        Lines that say what was done; none if there is nothing to fit.

    Raises:
        ValueError: the forecasts lack a variable or a lead time, or are too few.
    """
    section = config.assimilation
    if section is None or section.background.forecasts is None:
        return []
    background = section.background
    path = Path(background.file)
    if path.exists() and not overwrite:
        return [f"note: {path} is there and kept"]
    names = [
        name
        for source in config.data.source.values()
        if (fields := source.variables.prognostic) is not None
        for name in (*fields.vars_3D, *fields.vars_2D)
    ]
    covariance, count = fit_forecasts(background, names)
    with new_file(path) as partial:
        covariance.write(partial)
        lines = [f"{path} is now {move_aside(path)}"] if path.exists() else []
    truncation = covariance.harmonics.truncation
    fitted = f"Fitted to {count} differences, to degree {truncation}: {path}"
    return [*lines, fitted]


def fit_forecasts(
    config: BackgroundConfig, names: Iterable[str]
) -> tuple[BackgroundCovariance, int]:
    """Fits a covariance to forecasts in files, and counts the differences.

    Args:
        config: names forecasts and lead times.
        names: names of the variables.

    Raises:
        ValueError: see `fit_background_file`.
    """
    assert config.forecasts is not None, "the caller has checked"
    files = open_forecasts(config.forecasts)
    where, known = f"assimilation.background.forecasts: {files.where}", files.grid
    variables = {}
    for name in names:
        if name not in known.variables:
            raise not_available(f"{where}: the variable", name, known.variables)
        variables[name] = known.variables[name]
    channels = [
        (name, float(level))
        for name, variable in variables.items()
        for level in ([np.nan] if variable.levels is None else variable.levels)
    ]
    pairs = _pairs(files, config, where)

    def differences() -> Iterator[np.ndarray]:
        for longer, shorter in pairs:
            fields = [
                files.read(*place, dict.fromkeys(variables))[0]
                for place in (longer, shorter)
            ]
            yield np.float64(fields[0]) - fields[1]

    grid = known.latitude, known.longitude
    truncation = config.truncation
    if truncation is None:
        truncation = default_truncation(*grid)
    fitted = fit_background(differences, channels, *grid, truncation)
    return fitted, len(pairs)


def _pairs(
    files: ForecastFiles, config: BackgroundConfig, where: str
) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """(start, lead) of the longer and of the shorter forecast of the same times."""
    places = []
    for text in config.leads:
        (matches,) = np.nonzero(files.leads == duration(text).to_timedelta64())
        if not len(matches):
            leads = ", ".join(str(pd.Timedelta(x)) for x in files.leads)
            raise ValueError(f"{where}: have no lead time {text}; they have {leads}")
        places.append(int(matches[0]))
    starts = range(len(files.starts))
    shorter = {valid_time(files, start, places[0]): start for start in starts}
    pairs = []
    for start in starts:
        time = valid_time(files, start, places[1])
        if time in shorter:
            pairs.append(((start, places[1]), (shorter[time], places[0])))
    if len(pairs) < 2:
        raise ValueError(
            f"{where}: {len(pairs)} pairs of forecasts with lead times "
            f"{' and '.join(config.leads)} are of the same time, expected at least 2; "
            "make forecasts from more start dates, such as one a day"
        )
    return pairs


def default_truncation(latitude: np.ndarray, longitude: np.ndarray) -> int:
    """The largest degree whose products a grid resolves, at most 127.

    >>> default_truncation(np.linspace(-87.2, 87.2, 32), np.arange(64) * 5.625)
    21
    """
    return min((min(2 * len(latitude), longitude.shape[-1]) - 1) // 3, _LARGEST)


def fit_background(
    differences: Callable[[], Iterable[Float[np.ndarray, "channel lat lon"]]],
    channels: Iterable[Channel],
    latitude: np.ndarray,
    longitude: np.ndarray,
    truncation: int,
) -> BackgroundCovariance:
    """Fits a covariance to differences, which stand for background errors.

    Cross covariances of C channels from N differences are shrunk by
    C / (C + N (2 degree + 1)), as large scales have few coefficients to fit them to.
    The variance of degrees above the truncation is given to the others.

    Args:
        differences: gives the differences; called twice.
        channels: name and level of each channel.
        latitude, longitude: (lat,) and (lon,) degrees of a global grid.
        truncation: largest degree of the covariance.

    Raises:
        ValueError: the grid is not global and regular, a value is not finite, or the
            grid does not resolve the truncation.
    """
    channels = tuple(channels)
    check_grid(latitude, longitude)
    resolved = min(len(latitude) - 1, (len(longitude) - 1) // 2)
    if truncation > resolved:
        raise ValueError(
            f"assimilation.background.truncation: {truncation} is above {resolved}, "
            f"the largest degree that {len(latitude)} x {len(longitude)} points resolve"
        )
    squares, count = np.zeros((len(channels), len(latitude))), 0
    for difference in differences():
        finite = np.isfinite(difference).all((1, 2))
        if not finite.all():
            name, level = channels[int(np.argmin(finite))]
            raise ValueError(
                f"assimilation.background.forecasts: {name} (level {level:g}) has "
                "values that are not finite"
            )
        squares += np.square(difference).mean(2)
        count += 1
    deviation = np.sqrt(squares / count)
    scales = np.divide(1, deviation, out=np.zeros_like(deviation), where=deviation > 0)
    harmonics = Harmonics(latitude, longitude, truncation)
    degrees = np.arange(truncation + 1)
    size = 2 * degrees + 1
    covariance = np.zeros((len(degrees), len(channels), len(channels)))
    for difference in differences():
        coefficients = harmonics.coefficients(scales[..., None] * difference)
        flat = coefficients.reshape(*coefficients.shape[:2], -1)
        covariance += flat @ flat.transpose(0, 2, 1)
    covariance /= (count * size)[:, None, None]
    shrunk = len(channels) / (len(channels) + count * size)
    diagonal = np.eye(len(channels)) * covariance
    covariance += shrunk[:, None, None] * (diagonal - covariance)
    variance = np.einsum("n,ncc->c", size, covariance)
    unit = np.sqrt(
        np.divide(1, variance, out=np.zeros_like(variance), where=variance > 0)
    )
    covariance *= unit[:, None] * unit
    return BackgroundCovariance(
        channels, harmonics, deviation, symmetric_root(covariance)
    )


def check_grid(latitude: np.ndarray, longitude: np.ndarray) -> None:
    """Checks that a grid goes around the globe in equal steps of longitude.

    Raises:
        ValueError: it does not.
    """
    if latitude.ndim == 1:
        steps = np.diff(longitude, append=longitude[0] + 360.0) % 360.0
        if np.allclose(steps, 360.0 / len(longitude), rtol=1e-3):
            return
    raise ValueError(
        "assimilation: the covariance of background errors is one on the sphere: the "
        "grid must have rows of equally spaced longitudes from 0 to 360, got "
        f"{latitude.shape} latitudes and longitudes from {longitude.min():g} to "
        f"{longitude.max():g}"
    )
