"""Losses of zonal spectra: amplitudes, and the logarithm of the power."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float

from credit_jax.config.base import StrictModel
from credit_jax.fields import FieldContext, FieldTree
from credit_jax.losses.base import Loss, Scalar

POWER_FLOOR = 1e-8


class SpectrumParameters(StrictModel):
    """Parameters of `spectral` and `power`.

    Attributes:
        wavenum_init: first zonal wavenumber that counts.
    """

    wavenum_init: int = 20


def build_spectral(settings: SpectrumParameters) -> Loss:
    """`spectral`: squared error of zonal amplitudes, averaged over latitudes first.

    With `A_k(y)` the modulus of the k-th coefficient of row y, the mean over samples,
    channels and wavenumbers `k >= wavenum_init` of
    `(mean_y w A_k(p) - mean_y w A_k(t))^2`.
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
    """`power`: squared error of the logarithm of the zonal power spectrum of each row.

    The weighted mean over samples, channels, rows and wavenumbers `k >= wavenum_init`
    of `(log(P_k(p) + 1e-8) - log(P_k(t) + 1e-8))^2`, with `P_k = 2 |c_k|^2` (once for
    k = 0) and `c_k` the coefficients of a row over its number of points.

    Differs from CREDIT: can be a training loss; CREDIT's takes no `reduction`, which
    is always given to it, and runs as a term of a weighted loss alone.
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
    """Zonal power by wavenumber; its sum is the mean square of a row of odd length."""
    coefficients = jnp.fft.rfft(field, axis=-1, norm="forward")
    power = jnp.square(coefficients.real) + jnp.square(coefficients.imag)
    return jnp.concatenate([power[..., :1], 2.0 * power[..., 1:]], axis=-1)


def _pair(tree: FieldTree, context: FieldContext) -> tuple[Array, Array]:
    return tree["y_pred"], context.repeat_members(tree["y"])
