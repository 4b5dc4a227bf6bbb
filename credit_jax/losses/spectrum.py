"""Losses of zonal spectra: of amplitudes, and of the logarithm of power."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float

from credit_jax.config import StrictModel
from credit_jax.losses.base import Loss, Scalar
from credit_jax.named_fields import FieldContext, FieldTree

POWER_FLOOR = 1e-8


class SpectrumParameters(StrictModel):
    """Parameters of `spectral` and `power`.

    Attributes:
        wavenum_init: smallest zonal wavenumber that is included.
    """

    wavenum_init: int = 20


def build_spectral(settings: SpectrumParameters) -> Loss:
    """Builds `spectral`: squared error of zonal amplitudes averaged over latitudes.

    With `A_k(y)` the modulus of the k-th Fourier coefficient of row y, it is the mean
    of `(mean_y w A_k(p) - mean_y w A_k(t))^2` over samples, channels, times and
    wavenumbers `k >= wavenum_init`.
    """

    def loss(tree: FieldTree, context: FieldContext) -> Scalar:
        prediction, target = (
            context.row_mean(jnp.abs(jnp.fft.rfft(field, axis=-1)))
            for field in _pair(tree, context)
        )
        error = jnp.square(prediction - target)[..., settings.wavenum_init :]
        by_channel = context.data_mean(error).mean(axis=(1, 2))
        if context.channel_weights is not None:
            by_channel = by_channel * jnp.asarray(context.channel_weights)
        return by_channel.mean()

    return loss


def build_power(settings: SpectrumParameters) -> Loss:
    """Builds `power`: squared error of the logarithm of the zonal power of each row.

    It is the weighted mean of `(log(P_k(p) + 1e-8) - log(P_k(t) + 1e-8))^2` over
    samples, channels, times, rows and wavenumbers `k >= wavenum_init`, where
    `P_k = 2 |c_k|^2`, or `|c_0|^2` for k = 0, and `c_k` are the Fourier coefficients of
    a row divided by its number of points.

    Differs from CREDIT: it can be the training loss. CREDIT's fails there, since it is
    always passed a `reduction` that it does not accept; it only works as a term of a
    weighted loss.
    """

    def loss(tree: FieldTree, context: FieldContext) -> Scalar:
        prediction, target = (
            jnp.log(power_spectrum(field) + POWER_FLOOR)[..., settings.wavenum_init :]
            for field in _pair(tree, context)
        )
        return context.mean(jnp.square(prediction - target))

    return loss


def power_spectrum(
    field: Float[Array, "*batch lon"],
) -> Float[Array, "*batch wavenumber"]:
    """Zonal power by wavenumber; for rows of odd length its sum is the mean square."""
    coefficients = jnp.fft.rfft(field, axis=-1, norm="forward")
    power = jnp.square(coefficients.real) + jnp.square(coefficients.imag)
    return jnp.concatenate([power[..., :1], 2.0 * power[..., 1:]], axis=-1)


def _pair(tree: FieldTree, context: FieldContext) -> tuple[Array, Array]:
    return tree["y_pred"], context.repeat_members(tree["y"])
