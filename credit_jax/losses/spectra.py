"""Losses of spectra: zonal ones, and by degree of spherical harmonics."""

from __future__ import annotations

import abc
from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from pydantic import Field

from credit_jax.losses.base import LOSSES, ConfiguredLoss, Scalar
from credit_jax.named_fields import FieldContext, FieldTree
from credit_jax.physics.harmonics import legendre_functions, quadrature

ZONAL_FLOOR, DEGREE_FLOOR = 1e-8, 1e-12

# Real and imaginary part of the coefficients of real, orthonormal harmonics.
Coefficients = Float[Array, "samples channel time part degree order"]
ByDegree = Float[Array, "samples channel time degree"]


class _Zonal(ConfiguredLoss):
    """A loss by zonal wavenumber.

    Attributes:
        wavenum_init: smallest zonal wavenumber that is included.
    """

    wavenum_init: int = 20


@LOSSES.register("spectral")
class Spectral(_Zonal):
    """Squared error of zonal amplitudes averaged over latitudes.

    With `A_k(y)` the modulus of the k-th Fourier coefficient of row y, it is the mean
    of `(mean_y w A_k(p) - mean_y w A_k(t))^2` over samples, channels, times and
    wavenumbers `k >= wavenum_init`.
    """

    def __call__(self, tree: FieldTree, context: FieldContext) -> Scalar:
        prediction, target = (
            context.row_mean(jnp.abs(jnp.fft.rfft(field, axis=-1)))
            for field in _pair(tree, context)
        )
        error = jnp.square(prediction - target)[..., self.wavenum_init :]
        return _mean(context.data_mean(error).mean(axis=(1, 2)), context)


@LOSSES.register("power")
class Power(_Zonal):
    """Squared error of the logarithm of the zonal power of each row.

    It is the weighted mean of `(log(P_k(p) + 1e-8) - log(P_k(t) + 1e-8))^2` over
    samples, channels, times, rows and wavenumbers `k >= wavenum_init`, where
    `P_k = 2 |c_k|^2`, or `|c_0|^2` for k = 0, and `c_k` are the Fourier coefficients of
    a row divided by its number of points.

    Differs from CREDIT: it can be the training loss. CREDIT's fails there, since it is
    always passed a `reduction` that it does not accept; it only works as a term of a
    weighted loss.
    """

    def __call__(self, tree: FieldTree, context: FieldContext) -> Scalar:
        prediction, target = (
            jnp.log(power_spectrum(field) + ZONAL_FLOOR)[..., self.wavenum_init :]
            for field in _pair(tree, context)
        )
        return context.mean(jnp.square(prediction - target))


class _ByDegree(ConfiguredLoss):
    """A loss by degree of spherical harmonics; CREDIT has none.

    Attributes:
        truncation: largest degree that is included; null is the largest one that the
            grid resolves. The matrix of a shard has (truncation + 1)^2 float32 for each
            of its rows.
        exponent: weight of a degree l is (l + 1)^exponent.
    """

    truncation: int | None = Field(None, ge=1)
    exponent: float = 0.0

    needs_latitude: ClassVar = True
    in_credit: ClassVar = False

    @abc.abstractmethod
    def errors(self, prediction: Coefficients, target: Coefficients) -> ByDegree:
        """The error of each degree."""

    def __call__(self, tree: FieldTree, context: FieldContext) -> Scalar:
        """Computes the weighted sum over degrees, and its mean over all else."""
        if context.latitude is None:
            raise ValueError(
                "this loss needs the latitudes of the rows: give the FieldContext "
                "`latitude=`, or `build_loss(config, latitude=...)`"
            )
        fields, truncation = _pair(tree, context), self.truncation
        num_columns = fields[0].shape[-1]
        row_weights, resolved = quadrature(context.latitude)
        largest = min(resolved, (num_columns - 1) // 2)
        if truncation is not None and truncation > largest:
            raise ValueError(
                f"truncation: {truncation} is more than this grid of "
                f"{len(row_weights)} x {num_columns} points resolves, which is "
                f"{largest}"
            )
        count = (largest if truncation is None else truncation) + 1
        # Legendre functions (lat, degree, order) times the weights of the rows.
        functions = legendre_functions(context.latitude, count)
        matrix = np.moveaxis(functions * row_weights, -1, 0)
        pair = []
        for field in fields:
            waves = jnp.fft.rfft(field, axis=-1, norm="forward")
            waves = waves[..., : matrix.shape[-1]]
            parts = jnp.stack([waves.real, waves.imag], axis=3)
            local = context.local_rows(matrix.astype(parts.dtype))
            terms = jnp.einsum("bctpym,ylm->bctplm", parts, local, precision="highest")
            # A degree is a sum over the rows of all shards.
            pair.append(context.row_sum(terms))
        by_degree = self.errors(*pair)
        weights = (np.arange(matrix.shape[1]) + 1.0) ** self.exponent
        weights = jnp.asarray(weights, by_degree.dtype)
        errors = jnp.einsum("bctl,l->bct", by_degree, weights, precision="highest")
        if context.sample_weights is not None:
            errors = errors * context.sample_weights[:, None, None]
        return _mean(context.data_mean(errors).mean(axis=1), context)


@LOSSES.register("spherical")
class Spherical(_ByDegree):
    """Error of spherical harmonics; CREDIT has no such loss.

    It is the sum over degrees of the mean square over the globe of the error of that
    degree, and so for all degrees with the weight 1 the squared error itself.
    """

    def errors(self, prediction: Coefficients, target: Coefficients) -> ByDegree:
        return _power(prediction - target)


@LOSSES.register("amse")
class Amse(_ByDegree):
    """Errors of amplitude and phase by degree; CREDIT has no such loss.

    With the power P and T of a degree and their coherence r, it is the sum over degrees
    of `(sqrt(P) - sqrt(T))^2 + 2 max(P, T) (1 - r)` (Subich et al. 2025,
    arXiv:2501.19374); `max(P, T)` replaced by `sqrt(P T)` is `spherical`. Powers have
    1e-12 added.
    """

    def errors(self, prediction: Coefficients, target: Coefficients) -> ByDegree:
        power, reference = (_power(c) + DEGREE_FLOOR for c in (prediction, target))
        both = jnp.sqrt(power * reference)
        cross = (prediction * target).sum(axis=(3, 5))
        amplitude = power + reference - 2.0 * both
        return amplitude + 2.0 * jnp.maximum(power, reference) * (1.0 - cross / both)


def power_spectrum(
    field: Float[Array, "*batch lon"],
) -> Float[Array, "*batch wavenumber"]:
    """Zonal power by wavenumber; for rows of odd length its sum is the mean square."""
    coefficients = jnp.fft.rfft(field, axis=-1, norm="forward")
    power = jnp.square(coefficients.real) + jnp.square(coefficients.imag)
    return jnp.concatenate([power[..., :1], 2.0 * power[..., 1:]], axis=-1)


def _pair(tree: FieldTree, context: FieldContext) -> tuple[Array, Array]:
    return tree["y_pred"], context.repeat_members(tree["y"])


def _mean(by_channel: Float[Array, " channel"], context: FieldContext) -> Scalar:
    """The weighted mean over channels."""
    if context.channel_weights is not None:
        by_channel = by_channel * jnp.asarray(context.channel_weights)
    return by_channel.mean()


def _power(coefficients: Coefficients) -> ByDegree:
    """Mean square over the globe of each degree."""
    return jnp.square(coefficients).sum(axis=(3, 5))
