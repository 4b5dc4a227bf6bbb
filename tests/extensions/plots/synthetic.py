"""Synthetic scores in the layout of `credit_jax.evaluation.scores`."""

import numpy as np
import xarray as xr

from credit_jax.evaluation.scores import check_scores

SYSTEMS = ("forecast", "members", "persistence", "climatology", "truth")
REGIONS = ("global", "tropics", "northern-hemisphere")


def make_scores(levels=(250.0, 500.0, 850.0), num_days=10, step=12, members=0):
    """Returns errors that grow to climatology's, in different times by channel."""
    names = [(f"{name}{level:g}", name, level) for name in "TU" for level in levels]
    names += [("t2m", "t2m", np.nan), ("SP", "SP", np.nan)]
    hours = np.arange(step, 24 * num_days + 1, step)
    leads = hours.astype("timedelta64[h]").astype("timedelta64[ns]")
    shape = len(SYSTEMS), len(names), len(REGIONS), len(leads)
    size = np.where([own[1] == "SP" for own in names], 800.0, 3.0)[:, None, None]
    region = np.array([1.0, 0.6, 1.2])[:, None]
    grows = 1 + 0.15 * np.arange(len(names))[:, None, None]
    days = hours / 24
    rmse = np.zeros(shape)
    rmse[0] = 1.3 * size * region * (1 - np.exp(-((days / 4) ** 1.3) * grows))
    rmse[1] = 1.1 * rmse[0] if members else np.nan
    rmse[2] = 1.4 * size * region * (1 - np.exp(-days / 1.2))
    rmse[3] = size * region
    rmse[4] = np.nan
    acc = np.exp(-((days / 6) ** 2) * grows) * np.ones(shape)
    acc[2] = np.exp(-days / 1.5)
    acc[[1, 3, 4]] = np.nan
    dims = ("system", "channel", "region", "prediction_timedelta")
    variables = {
        "rmse": (dims, rmse),
        "mae": (dims, 0.8 * rmse),
        "bias": (dims, 0.05 * rmse * np.sign(np.sin(days + 1))),
        "acc": (dims, acc),
        "activity": (dims, 0.9 * size * np.ones(shape)),
        "energy_spectrum": (
            (*dims[:2], "band", "prediction_timedelta", "zonal_wavenumber"),
            _spectra(len(names), days),
        ),
    }
    if members:
        crps = np.full(shape, np.nan)
        crps[0] = 0.5 * rmse[0]
        variables |= {
            "crps": (dims, crps),
            "spread": (dims, 0.7 * np.where(np.isnan(crps), np.nan, rmse)),
            "spread_skill_ratio": (dims, np.where(np.isnan(crps), np.nan, 0.7)),
            "rank_histogram": (
                (*dims, "rank"),
                _first_alone(shape, np.ones(members + 1) / (members + 1)),
            ),
        }
    scores = xr.Dataset(
        variables,
        coords={
            "system": list(SYSTEMS),
            "channel": [own[0] for own in names],
            "variable": ("channel", [own[1] for own in names]),
            "level": ("channel", [own[2] for own in names]),
            "units": ("channel", ["Pa" if n[1] == "SP" else "K" for n in names]),
            "long_name": ("channel", [f"name of {own[1]}" for own in names]),
            "level_units": ("channel", ["hPa" if own[2] > 0 else "" for own in names]),
            "region": list(REGIONS),
            "band": ["global", "tropics"],
            "prediction_timedelta": leads,
        },
        attrs={
            "num_start_dates": 12,
            "num_members": max(1, members),
            "truth": "truth <of> 2001 & more",
            "forecast_credit-jax": "0.1.0",
        },
    )
    check_scores(scores, "synthetic")
    return scores


def _spectra(num_channels, days):
    wave = np.arange(33)
    spectrum = 1e3 / (1 + wave) ** 3
    shape = len(SYSTEMS), num_channels, 2, len(days), len(wave)
    spectra = spectrum * np.ones(shape)
    spectra[0] *= np.exp(-(wave / 40) * days[:, None])
    spectra[3] *= np.exp(-wave / 5)
    return spectra


def _first_alone(shape, values):
    """Returns values of the first system, and NaN for the others."""
    found = np.full((*shape, len(values)), np.nan)
    found[0] = values
    return found
