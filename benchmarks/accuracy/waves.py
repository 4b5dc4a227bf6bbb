"""Adds traveling waves, which can be learned, to a data set of noise."""

from __future__ import annotations

import numpy as np
import xarray as xr

# Fraction of a field's variance in waves; the rest is the original noise.
_WAVE = 0.9
_WAVENUMBERS = (1, 2, 3)
# Radians of longitude per time step.
_SPEED = 0.2
_VARIABLES = ("T", "U", "SP")


def add_waves(fields: xr.Dataset) -> xr.Dataset:
    """Makes prognostic variables travel east, with unchanged mean and deviation.

    Each level of a variable is a sum of waves `cos(k (lon - speed t) + phase)` with an
    envelope over latitude, and a tenth of its variance is the original noise.

    Args:
        fields: fields with T, U (time, level, latitude, longitude) and SP (time,
            latitude, longitude).
    """
    rng = np.random.default_rng(1)
    changed = {}
    for name in _VARIABLES:
        field = fields[name]
        mean, spread = float(field.mean()), float(field.std())
        noise = (field.values - mean) * np.sqrt(1 - _WAVE)
        wave = spread * np.sqrt(_WAVE) * _waves(field.shape, rng)
        changed[name] = (field.dims, (mean + noise + wave).astype(np.float32))
    return fields.assign(changed)


def _waves(shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """(time, ..., lat, lon) of mean 0 and variance 1."""
    num_times, *middle, num_lat, num_lon = shape
    time = np.arange(num_times).reshape(-1, *[1] * (len(middle) + 2))
    lat = np.linspace(-np.pi / 2, np.pi / 2, num_lat)[:, None]
    lon = np.arange(num_lon) * 2 * np.pi / num_lon
    total = np.zeros(shape)
    for k in _WAVENUMBERS:
        phase = rng.uniform(0, 2 * np.pi, (*middle, 1, 1))
        total += np.cos(k * (lon - _SPEED * time) + phase) * np.cos(k * lat + phase)
    return (total - total.mean()) / total.std()
