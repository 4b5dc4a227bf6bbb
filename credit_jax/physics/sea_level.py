"""Pressure at mean sea level (Trenberth, Berry and Buja, 1993)."""

from __future__ import annotations

from typing import Any

from jaxtyping import Float

from credit_jax.physics.arrays import clip, namespace
from credit_jax.physics.constants import DRY_GAS_CONSTANT, GRAVITY, LAPSE_RATE

_WARM, _COLD = 290.5, 255.0  # K
_ALPHA = LAPSE_RATE * DRY_GAS_CONSTANT / GRAVITY

Surface = Float[Any, "batch 1 time lat lon"]


def mean_sea_level_pressure(
    surface_pressure: Surface,
    temperature: Surface,
    surface_geopotential: Float[Any, "batch 1 1 lat lon"],
) -> Surface:
    """Computes pressure at mean sea level, Pa.

    It is `ps exp(x (1 - alpha x / 2 + (alpha x)^2 / 3))` with x = Phi / (R T), and ps
    where the ground is at sea level. The lapse rate alpha and T are limited where it is
    warm (290.5 K) or cold (255 K).

    Args:
        surface_pressure: Pa.
        temperature: near the surface, K.
        surface_geopotential: m^2 / s^2.
    """
    xp, t = namespace(temperature), temperature
    height = surface_geopotential / GRAVITY
    warm = t > _WARM
    warm_below = ~warm & (t + LAPSE_RATE * height > _WARM)
    cold = (t < _COLD) & ~warm_below & ~warm
    limited = DRY_GAS_CONSTANT * (_WARM - t) / clip(surface_geopotential, 1e-6)
    alpha = xp.where(warm_below, limited, xp.asarray(_ALPHA, t.dtype))
    alpha = xp.where(warm, xp.zeros_like(alpha), alpha)
    t = xp.where(warm, 0.5 * (_WARM + t), xp.where(cold, 0.5 * (_COLD + t), t))
    x = surface_geopotential / (DRY_GAS_CONSTANT * clip(t, 1.0))
    factor = xp.exp(x * (1.0 - 0.5 * alpha * x + (alpha * x) ** 2 / 3.0))
    flat = xp.abs(height) < 1e-4
    return xp.where(flat, surface_pressure, surface_pressure * factor)
