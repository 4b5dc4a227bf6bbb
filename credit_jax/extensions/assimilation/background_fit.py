"""Fits the covariance of background errors to the differences of forecasts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
from jaxtyping import Float

from credit_jax.config import Config, not_available
from credit_jax.config.assimilation import BackgroundConfig
from credit_jax.config.dates import duration
from credit_jax.config.messages import got
from credit_jax.evaluation.forecast_files import ForecastFiles, valid_time
from credit_jax.evaluation.opening import open_forecasts
from credit_jax.extensions.assimilation.background import (
    BackgroundCovariance,
    Harmonics,
    VariableLevel,
    symmetric_root,
)
from credit_jax.io.activity import activity
from credit_jax.io.atomic import move_aside, new_file
from credit_jax.io.mirror import local_path
from credit_jax.named_fields.variables import Variable

# Largest default truncation: background errors are smooth, and Legendre functions
# of higher degrees take gigabytes.
_LARGEST = 127
# Fields whose variance at each latitude is that of the covariance, nearly.
_NUM_DRAWS = 64


@activity("fitting the background covariance")
def fit_background_file(config: Config, *, overwrite: bool = False) -> list[str]:
    """Fits `assimilation.background`, writes its file, and says what was done."""
    section = config.assimilation
    if section is None or section.background.forecasts is None:
        return []
    background = section.background
    path = Path(local_path(background.file))
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
    """Fits a covariance to forecasts in files, and counts the differences."""
    assert config.forecasts is not None, "the caller has checked"
    try:
        files = open_forecasts(local_path(config.forecasts))
    except (OSError, ValueError) as error:
        raise ValueError(
            "assimilation.background.forecasts: "
            f"{str(error).removeprefix('--forecast: ')}; credit-jax forecast makes them"
        ) from error
    origin, recognized = f"assimilation.background.forecasts: {files.where}", files.grid
    variables = {}
    for name in names:
        if name not in recognized.variables:
            raise not_available(f"{origin}: the variable", name, recognized.variables)
        variables[name] = recognized.variables[name]
    channels = [
        (name, float(level))
        for name, variable in variables.items()
        for level in ([np.nan] if variable.levels is None else variable.levels)
    ]
    pairs = _pairs(files, config, origin)

    def differences() -> Iterator[np.ndarray]:
        for longer, shorter in pairs:
            fields = [
                files.read(*location, dict.fromkeys(variables))[0]
                for location in (longer, shorter)
            ]
            yield np.float64(fields[0]) - fields[1]

    grid = recognized.latitude, recognized.longitude
    truncation = config.truncation
    if truncation is None:
        truncation = default_truncation(*grid)
    winds = _winds(config, variables, origin)
    fitted = fit_background(differences, channels, *grid, truncation, winds)
    return fitted, len(pairs)


def _winds(
    config: BackgroundConfig, variables: Mapping[str, Variable], origin: str
) -> tuple[str, ...]:
    """Names of the eastward and the northward wind, or ()."""
    if config.winds is None:
        return ()
    levels = []
    for name in config.winds:
        if name not in variables:
            raise not_available(f"{origin}: the wind", name, variables)
        values = variables[name].levels
        levels.append(None if values is None else values.tolist())
    if levels[0] != levels[1]:
        raise ValueError(
            f"assimilation.background.winds: {' and '.join(config.winds)} are on "
            f"different levels, {got(levels[0])} and {got(levels[1])}"
        )
    return config.winds


def _pairs(
    files: ForecastFiles, config: BackgroundConfig, origin: str
) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """(start, lead) of the longer and of the shorter forecast of the same times."""
    indices = []
    for text in config.leads:
        (matches,) = np.nonzero(files.leads == duration(text).to_timedelta64())
        if not len(matches):
            leads = ", ".join(str(pd.Timedelta(x)) for x in files.leads)
            raise ValueError(f"{origin}: have no lead time {text}; they have {leads}")
        indices.append(int(matches[0]))
    starts = range(len(files.starts))
    shorter = {valid_time(files, start, indices[0]): start for start in starts}
    pairs = []
    for start in starts:
        time = valid_time(files, start, indices[1])
        if time in shorter:
            pairs.append(((start, indices[1]), (shorter[time], indices[0])))
    if len(pairs) < 2:
        raise ValueError(
            f"{origin}: {len(pairs)} pairs of forecasts with lead times "
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
    channels: Iterable[VariableLevel],
    latitude: np.ndarray,
    longitude: np.ndarray,
    truncation: int,
    winds: Sequence[str] = (),  # eastward, northward
) -> BackgroundCovariance:
    """Fits a covariance to differences, which stand for background errors."""
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
    indices = [k for name in winds for k, c in enumerate(channels) if c[0] == name]
    if winds:
        # Of both components the same, so that potentials of the scaled winds are those
        # of winds, up to the change of the deviation with latitude.
        u, v = np.split(np.square(deviation[indices]), 2)
        deviation[indices] = np.tile(np.sqrt((u + v) / 2), (2, 1))
    scales = np.divide(1, deviation, out=np.zeros_like(deviation), where=deviation > 0)
    harmonics = Harmonics(latitude, longitude, truncation)
    size = 2 * np.arange(truncation + 1) + 1
    # Second moments of all channels, and of the stream functions times the sine.
    total, psi = len(channels), indices[: len(indices) // 2]
    moments = np.zeros((truncation + 1, total + len(psi), total + len(psi)))
    for difference in differences():
        scaled = scales[..., None] * difference
        coefficients = harmonics.coefficients(scaled)
        if winds:
            coefficients[:, indices] = harmonics.potentials(scaled[indices])
            sine = harmonics.times_sine(coefficients[:, psi])
            coefficients = np.concatenate([coefficients, sine], 1)
        flat = coefficients.reshape(*coefficients.shape[:2], -1)
        moments += flat @ flat.transpose(0, 2, 1)
    moments /= (count * size)[:, None, None]
    variance = np.einsum("n,ncc->c", size, moments)
    if winds:
        u, v = np.split(variance[indices], 2)
        variance[indices] = np.tile((u + v) / 2, 2)
        variance[total:] = variance[psi]
    unit = np.sqrt(
        np.divide(1, variance, out=np.zeros_like(variance), where=variance > 0)
    )
    moments *= unit[:, None] * unit
    covariance, balance = moments[:, :total, :total], None
    if winds:
        covariance, balance = _unbalanced(moments, indices, count * size)
    # Large scales have few coefficients to fit cross covariances to.
    shrunk = total / (total + count * size)
    diagonal = np.eye(total) * covariance
    covariance = covariance + shrunk[:, None, None] * (diagonal - covariance)
    root = symmetric_root(covariance)
    fitted = BackgroundCovariance(
        channels, harmonics, deviation, root, tuple(indices), balance
    )
    if not winds:
        return fitted
    # Deviations that balance makes depend on latitude, from draws.
    rng = np.random.default_rng(0)
    unit = replace(fitted, deviation=np.ones_like(deviation))
    draws = (unit.fields(rng.standard_normal(unit.shape)) for _ in range(_NUM_DRAWS))
    variance = sum(np.square(fields).mean(2) for fields in draws) / _NUM_DRAWS
    profile = np.sqrt(np.where(variance > 0, variance, 1.0))
    profile[indices] = 1.0
    return replace(fitted, deviation=deviation / profile)


def _unbalanced(
    moments: np.ndarray, indices: Sequence[int], samples: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The covariance less what is in balance with the wind, and the balance."""
    # moments: (degree, channel + wind, channel + wind), second moments of all channels,
    # and of the stream functions times the sine of latitude.
    # samples: (degree,) numbers of coefficients.
    pairs = len(indices) // 2
    total = moments.shape[1] - pairs
    ridge = (pairs / samples)[:, None, None] * np.eye(pairs)
    predictors = moments[:, total:, total:]
    # Degrees without predictors have none of their variance, either.
    regularized = predictors * (1 + ridge) + 1e-12 * np.eye(pairs)
    weights = moments[:, :total, total:] @ np.linalg.inv(regularized)
    weights[:, indices] = 0
    balance = np.zeros((len(moments), total, total))
    balance[:, :, indices[:pairs]] = weights
    crossed = weights @ moments[:, total:, :total]
    covariance = moments[:, :total, :total] - crossed - crossed.transpose(0, 2, 1)
    covariance = covariance + weights @ predictors @ weights.transpose(0, 2, 1)
    return covariance, balance


def check_grid(latitude: np.ndarray, longitude: np.ndarray) -> None:
    """Checks that a grid goes around the globe in equal steps of longitude."""
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
