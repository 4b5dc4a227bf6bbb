"""Gradients of the demo's model beside those of the equations that it imitates."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import xarray as xr
from jaxtyping import Array
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

import credit_jax
from credit_jax.extensions import adjoint
from credit_jax.extensions.assimilation import BackgroundCovariance, read_background
from credit_jax.extensions.assimilation.background import Harmonics

# The mean temperature of a level in a box, a day later.
LEVEL, STEPS, BOX = 4, 4, (40, 60, 180, 220)
RESOLVED = 21
_COLORS = {"model": "#2f7ed8", "equations": "#d9822b"}
_STYLES = {"model": "-", "equations": "--", "B model": "-.", "B equations": ":"}
_NAMES = ("U", "V", "T", "Q", "SP")


def gradients(
    run: Path, data: Path, start: pd.Timestamp
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """The gradients of the mean by the fields at the start: model's, equations'.

    Args:
        run: folder of the trained model.
        data: folder of the demo data.
        start: date.

    Returns:
        Name -> (level, lat, lon), each.
    """
    state = xr.open_zarr(data / f"demo_{start.year}.zarr").sel(time=[start]).load()
    latitude, longitude = state["latitude"].values, state["longitude"].values
    south, north, west, east = BOX
    box = (latitude > south) & (latitude < north)
    inside = box[:, None] & ((longitude > west) & (longitude < east))[None]
    weights = inside * np.cos(np.deg2rad(latitude))[:, None]
    weights = weights / weights.sum()
    forecaster = credit_jax.open_forecaster(run)
    forecast = adjoint.forecast_map(forecaster, state, steps=[STEPS])
    key = "demo/prognostic/3d/T"
    cotangents = np.zeros(jax.eval_shape(forecast, forecast.state)[key].shape, "f4")
    cotangents[-1, 0, LEVEL] = weights
    _, ours = adjoint.adjoint(forecast, forecast.state, {key: cotangents})
    by_name = {k.split("/")[-1]: np.asarray(x)[0, :, 0] for k, x in ours.items()}
    fields = {name: jnp.asarray(state[name].values[0]) for name in _NAMES}
    # dinosaur needs rank promotion.
    with jax.numpy_rank_promotion("allow"):
        theirs = jax.grad(_equations(start, weights))(fields)
    shapes = {name: x.shape for name, x in by_name.items()}
    return by_name, {n: np.asarray(theirs[n]).reshape(s) for n, s in shapes.items()}


def _equations(
    start: pd.Timestamp, weights: np.ndarray
) -> Callable[[Mapping[str, Array]], Array]:
    """The mean as a function of fields, by the demo's primitive equations."""
    from dinosaur import spherical_harmonic

    from credit_jax.extensions.demo.dynamics import OUTPUT_HOURS, build_climate
    from credit_jax.extensions.demo.forcing import (
        REFERENCE_TEMPERATURE,
        discretize,
    )

    disc, climate = discretize("T21"), build_climate("T21", 0)
    speed, modal = disc.meter / disc.second, disc.grid.to_modal
    day = (start - pd.Timestamp(start.year, 1, 1)) / pd.Timedelta("1D")

    def mean(fields: Mapping[str, Array]) -> Array:
        # (level, lon, lat), south first.
        native = {k: jnp.swapaxes(x[..., ::-1, :], -1, -2) for k, x in fields.items()}
        vorticity, divergence = spherical_harmonic.uv_nodal_to_vor_div_modal(
            disc.grid, native["U"] * speed, native["V"] * speed
        )
        variation = (native["T"] - REFERENCE_TEMPERATURE) * disc.kelvin
        state: Any = dataclasses.replace(
            climate.initial,
            vorticity=vorticity,
            divergence=divergence,
            temperature_variation=modal(variation),
            log_surface_pressure=modal(jnp.log(native["SP"] * disc.pascal)[None]),
            tracers={"q": modal(native["Q"])},
        )
        for step in range(STEPS):
            state, _ = climate.advance(state, day + step * OUTPUT_HOURS / 24)
        return (climate.fields(state)["T"][LEVEL] * weights).sum()

    return mean


def likeness(
    ours: Mapping[str, np.ndarray], theirs: Mapping[str, np.ndarray], background: str
) -> dict[str, list[float]]:
    """How like two gradients are, by what is compared.

    Args:
        ours, theirs: name -> (level, lat, lon).
        background: file of the covariance B.

    Returns:
        The cosine of the angle between them for T, U and V: of the gradients per area,
        of their parts up to the degree that the equations resolve, and of B times
        them, the change of the field that an observation of the mean would make. And
        the share of our power above that degree.
    """
    covariance = read_background(background)
    harmonics = covariance.harmonics
    area = np.cos(np.deg2rad(harmonics.latitude))[:, None]
    changes = [_change(covariance, gradient) for gradient in (ours, theirs)]
    rows: dict[str, list[float]] = {}
    for name in ("T", "U", "V"):
        pair = [np.float64(x[name]) / area for x in (ours, theirs)]
        smooth = [harmonics.fields(harmonics.coefficients(x)) for x in pair]
        power = spectrum(pair[0], harmonics)
        rows[name] = [
            _cosine(*pair, area),
            _cosine(*smooth, area),
            _cosine(*(x[name] for x in changes), area),
            float(power[RESOLVED + 1 :].sum() / power.sum()),
        ]
    return rows


def spectra(
    ours: Mapping[str, np.ndarray], theirs: Mapping[str, np.ndarray], background: str
) -> dict[str, dict[str, list[float]]]:
    """Power of two gradients per area by degree, and of B times them, of sum 1.

    Args:
        ours, theirs, background: see `likeness`.

    Returns:
        T, U and V -> "model", "equations" and, of B times them, "B model" and
        "B equations" -> power of each degree.
    """
    covariance = read_background(background)
    harmonics = covariance.harmonics
    area = np.cos(np.deg2rad(harmonics.latitude))[:, None]
    fields = {"model": ours, "equations": theirs}
    changes = {f"B {k}": _change(covariance, x) for k, x in fields.items()}
    densities = {k: {n: y / area for n, y in x.items()} for k, x in fields.items()}
    powers = {
        name: {
            label: spectrum(np.float64(x[name]), harmonics)
            for label, x in {**densities, **changes}.items()
        }
        for name in ("T", "U", "V")
    }
    return {
        name: {label: (x / x.sum()).tolist() for label, x in by_label.items()}
        for name, by_label in powers.items()
    }


def plot_spectra(
    powers: Mapping[str, Mapping[str, Sequence[float]]], path: Path
) -> None:
    """Draws what `spectra` returns, a panel for each variable."""
    figure = Figure(figsize=(9, 3), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(powers), sharey=True)
    for axes, (name, by_label) in zip(panels, powers.items(), strict=True):
        for label, values in by_label.items():
            color = _COLORS[label.removeprefix("B ")]
            style = _STYLES[label]
            shown = label.replace("B ", "B times that of the ", 1)
            degrees = np.arange(1, len(values))
            axes.semilogy(degrees, values[1:], style, color=color, label=shown)
        axes.axvline(RESOLVED, color="#888888", linewidth=0.8)
        axes.set(xlabel="degree", title=f"gradient by {name}", ylim=(1e-7, 1))
        axes.grid(visible=True, alpha=0.3)
    panels[0].set_ylabel("share of the power")
    panels[0].legend(frameon=False, fontsize="small")
    figure.savefig(path, dpi=100, metadata={"Software": None})


def spectrum(density: np.ndarray, like: Harmonics) -> np.ndarray:
    """(degree,) power of fields (level, lat, lon), up to what the grid resolves."""
    count = len(like.latitude) - 1
    harmonics = Harmonics(like.latitude, like.longitude, count)
    return np.square(harmonics.coefficients(density)).sum((1, 2, 3))


def _change(
    covariance: BackgroundCovariance, gradient: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    whole = np.zeros(
        (len(covariance.channels), *next(iter(gradient.values())).shape[1:])
    )
    places: dict[str, list[int]] = {}
    for place, (name, _) in enumerate(covariance.channels):
        places.setdefault(name, []).append(place)
    for name, rows in places.items():
        whole[rows] = gradient[name]
    change = covariance.fields(covariance.transposed(whole))
    return {name: change[rows] for name, rows in places.items()}


def _cosine(one: np.ndarray, other: np.ndarray, area: np.ndarray) -> float:
    products = [
        (x * y * area).sum() for x, y in ((one, other), (one, one), (other, other))
    ]
    return float(products[0] / np.sqrt(products[1] * products[2]))
