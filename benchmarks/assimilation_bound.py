"""What observations of the demo can say alone: the best linear estimate."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import xarray as xr
from scipy.sparse.linalg import LinearOperator, cg

from credit_jax.extensions.assimilation import BackgroundCovariance, read_background

LEAD, SAMPLES = "48h", 8


def bound(
    forecasts: Path,
    data: Path,
    background: str,
    noise: Mapping[str, np.ndarray],
    share: float,
) -> dict[str, tuple[float, float]]:
    """Errors of forecasts before and after they are corrected by observations.

    Args:
        forecasts: store of forecasts of days that the data have.
        data: the truth.
        background: file of the covariance B of their errors.
        noise: name -> (level,) standard deviations of the noise.
        share: part of the points of every channel that is observed.

    Returns:
        Name -> root mean square over samples, levels and area, before and after.
    """
    covariance = read_background(background)
    lead = np.timedelta64(int(LEAD[:-1]), "h")
    store = xr.open_zarr(forecasts).sel(prediction_timedelta=lead)
    chosen = store.isel(time=slice(None, None, store.sizes["time"] // SAMPLES)).load()
    truth = xr.open_zarr(data).sel(time=chosen["time"].values + lead).load()
    names = list(dict.fromkeys(name for name, _ in covariance.channels))
    shape = len(chosen["time"]), -1, *chosen["SP"].shape[1:]
    errors = np.concatenate(
        [(chosen[n].values - truth[n].values).reshape(shape) for n in names], 1
    )
    sizes = np.concatenate([np.atleast_1d(noise[name]) for name in names])
    rng, left = np.random.default_rng(0), []
    for error in np.float64(errors):
        observed = rng.random(error.shape) < share
        noisy = error + sizes[:, None, None] * rng.standard_normal(error.shape)
        left.append(error - best_estimate(covariance, noisy, observed, sizes))
    area = np.cos(np.deg2rad(covariance.harmonics.latitude))[:, None]
    result = {}
    for name in names:
        rows = [k for k, (other, _) in enumerate(covariance.channels) if other == name]
        result[name] = tuple(
            float(np.sqrt(np.mean(np.square(x[:, rows]) * area) / area.mean()))
            for x in (errors, np.array(left))
        )
    return result


def best_estimate(
    covariance: BackgroundCovariance,
    values: np.ndarray,
    observed: np.ndarray,
    sizes: np.ndarray,
) -> np.ndarray:
    """B H' (H B H' + E)^-1 y, the best linear estimate of a field.

    Args:
        covariance: B.
        values: (channel, lat, lon) observations; others are not read.
        observed: (channel, lat, lon), where there is one.
        sizes: (channel,) standard deviations of their errors, E.
    """
    errors = np.broadcast_to(sizes[:, None, None], values.shape)[observed]

    def spread(weights: np.ndarray) -> np.ndarray:
        whole = np.zeros(values.shape)
        whole[observed] = weights / errors
        return covariance.fields(covariance.transposed(whole))

    def product(weights: np.ndarray) -> np.ndarray:
        return spread(weights.ravel())[observed] / errors + weights.ravel()

    count = len(errors)
    operator = LinearOperator((count, count), matvec=product, dtype=np.float64)  # type: ignore[call-arg]
    weights, _ = cg(operator, values[observed] / errors, rtol=1e-2, maxiter=100)
    return spread(weights)
