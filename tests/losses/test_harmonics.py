"""Losses by degree of spherical harmonics against their coefficients in numpy."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from scipy.special import lpmv

from credit_jax.config.loss import LossConfig
from credit_jax.losses import build_loss
from tests.support import assert_close
from tests.support.whole_fields import loss_and_gradient

CHANNELS = {"S/prognostic/3d/T": 2, "S/prognostic/2d/SP": 1}
LON, DEGREES = 12, 5
GRIDS = {
    "Gaussian": np.rad2deg(np.arcsin(np.polynomial.legendre.leggauss(12)[0])),
    "with poles": np.linspace(90.0, -90.0, 13),
    "without poles": 90.0 - (np.arange(12) + 0.5) * 15.0,
}
SECTION = {
    "training_loss_parameters": {"truncation": DEGREES - 1, "exponent": 0.5},
    "use_variable_weights": True,
    "variable_weights": {"T": [1.0, 3.0], "SP": 0.5},
}
WEIGHTS = np.array([1.0, 3.0, 0.5])


def basis(latitude: np.ndarray) -> np.ndarray:
    """Real harmonics whose squares have the mean 1: (degree, harmonic, lat, lon)."""
    sine = np.sin(np.deg2rad(latitude))[:, None]
    angle = 2 * np.pi * np.arange(LON)[None] / LON
    functions = np.zeros((DEGREES, 2 * DEGREES, len(latitude), LON))
    for degree in range(DEGREES):
        for m in range(degree + 1):
            norm = (2 * degree + 1) / np.prod(np.arange(degree - m + 1, degree + m + 1))
            rows = np.sqrt(norm * (2 if m else 1)) * lpmv(m, degree, sine)
            functions[degree, 2 * m] = rows * np.cos(m * angle)
            functions[degree, 2 * m + 1] = rows * np.sin(m * angle)
    return functions


def in_numpy(name: str, ours: np.ndarray, theirs: np.ndarray) -> float:
    """The loss of coefficients, (sample, channel, degree, harmonic)."""
    if name == "spherical":
        errors = np.square(ours - theirs).sum(axis=-1)
    else:
        p, t = (np.square(each).sum(axis=-1) for each in (ours, theirs))
        coherence = (ours * theirs).sum(axis=-1) / np.sqrt(p * t)
        errors = np.square(np.sqrt(p) - np.sqrt(t))
        errors += 2 * np.maximum(p, t) * (1 - coherence)
    total = (errors * np.sqrt(np.arange(DEGREES) + 1)).sum(axis=-1)
    return float((total * WEIGHTS).mean())


def fields(latitude: np.ndarray) -> tuple[Any, ...]:
    """Coefficients, and the fields that they are, of prediction and target."""
    rng, functions = np.random.default_rng(0), basis(latitude)
    is_one = np.abs(functions).max(axis=(2, 3)) > 1e-9
    pair = [rng.normal(size=(4, 3, *is_one.shape)) * is_one for _ in range(2)]
    return pair, [np.einsum("bclh,lhyx->bcyx", c, functions)[:, :, None] for c in pair]


def loss_of(name: str, latitude: np.ndarray) -> Any:
    section = LossConfig(training_loss=name, **SECTION)
    return build_loss(section, CHANNELS, latitude=latitude)


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("name", ["spherical", "amse"])
def test_it_is_the_loss_of_the_coefficients(name: str, grid: str) -> None:
    latitude = GRIDS[grid]
    (ours, theirs), arrays = fields(latitude)
    with jax.enable_x64(True):
        value, gradient = loss_and_gradient(loss_of(name, latitude), *arrays)
    assert_close(value, in_numpy(name, ours, theirs), 1e-9, name)
    # Along some direction, by differences of the coefficients.
    step = 1e-5 * theirs
    rise = in_numpy(name, ours + step, theirs) - in_numpy(name, ours - step, theirs)
    expected = rise / 2e-5
    assert_close((gradient * arrays[1]).sum(), expected, 1e-6, f"{name}, gradient")
    value, _ = loss_and_gradient(
        loss_of(name, latitude), *(x.astype(np.float32) for x in arrays)
    )
    assert_close(value, in_numpy(name, ours, theirs), 1e-5, f"{name} in float32")


def test_a_smooth_prediction_is_no_better() -> None:
    """The squared error rewards a damped prediction of what is not predictable."""
    target, other = fields(GRIDS["Gaussian"])[1]
    losses = {
        (name, factor): loss_and_gradient(
            loss_of(name, GRIDS["Gaussian"]),
            (factor * other).astype(np.float32),
            target.astype(np.float32),
        )[0]
        for name in ("spherical", "amse")
        for factor in (0.5, 1.0)
    }
    halved = {
        name: losses[name, 0.5] / losses[name, 1.0] for name in ("spherical", "amse")
    }
    assert halved["spherical"] < 0.7 < 0.8 < halved["amse"]
