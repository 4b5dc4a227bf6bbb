"""Losses by degree of spherical harmonics. CREDIT has none."""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from pydantic import Field

from credit_jax.config import StrictModel
from credit_jax.losses.base import ChannelFields, Loss, Scalar
from credit_jax.named_fields import FieldContext, FieldTree
from credit_jax.physics.harmonics import legendre_functions, quadrature

POWER_FLOOR = 1e-12

# Real and imaginary part of the coefficients of real, orthonormal harmonics.
Coefficients = Float[Array, "samples channel time part degree order"]
ByDegree = Float[Array, "samples channel time degree"]


class HarmonicParameters(StrictModel):
    """Parameters of `spherical` and `amse`.

    Attributes:
        truncation: largest degree that is included; null is the largest one that the
            grid resolves. The matrix of a shard has (truncation + 1)^2 float32 for each
            of its rows.
        exponent: weight of a degree l is (l + 1)^exponent.
    """

    truncation: int | None = Field(None, ge=1)
    exponent: float = 0.0


def build_spherical(settings: HarmonicParameters) -> Loss:
    """Builds `spherical`: error of spherical harmonics; CREDIT has no such loss.

    It is the sum over degrees of the mean square over the globe of the error of that
    degree, and so for all degrees with the weight 1 the squared error itself.
    """
    return _by_degree(settings, lambda p, t: _power(p - t))


def build_amse(settings: HarmonicParameters) -> Loss:
    """Builds `amse`: errors of amplitude and phase by degree; CREDIT has no such loss.

    With the power P and T of a degree and their coherence r, it is the sum over degrees
    of `(sqrt(P) - sqrt(T))^2 + 2 max(P, T) (1 - r)` (Subich et al. 2025,
    arXiv:2501.19374); `max(P, T)` replaced by `sqrt(P T)` is `spherical`. Powers have
    1e-12 added.
    """

    def values(prediction: Coefficients, target: Coefficients) -> ByDegree:
        ours, theirs = (_power(c) + POWER_FLOOR for c in (prediction, target))
        both = jnp.sqrt(ours * theirs)
        cross = (prediction * target).sum(axis=(3, 5))
        amplitude = ours + theirs - 2.0 * both
        return amplitude + 2.0 * jnp.maximum(ours, theirs) * (1.0 - cross / both)

    return _by_degree(settings, values)


def _by_degree(
    settings: HarmonicParameters,
    values: Callable[[Coefficients, Coefficients], ByDegree],
) -> Loss:
    def loss(tree: FieldTree, context: FieldContext) -> Scalar:
        fields = tree["y_pred"], context.repeat_members(tree["y"])
        matrix = _analysis(settings.truncation, context, fields[0].shape[-1])
        pair = (_coefficients(field, matrix, context) for field in fields)
        by_degree = values(*pair)
        weights = (np.arange(matrix.shape[1]) + 1.0) ** settings.exponent
        weights = jnp.asarray(weights, by_degree.dtype)
        errors = jnp.einsum("bctl,l->bct", by_degree, weights, precision="highest")
        if context.sample_weights is not None:
            errors = errors * context.sample_weights[:, None, None]
        by_channel = context.data_mean(errors).mean(axis=1)
        if context.channel_weights is not None:
            by_channel = by_channel * jnp.asarray(context.channel_weights)
        return by_channel.mean()

    return loss


def _analysis(
    truncation: int | None, context: FieldContext, num_columns: int
) -> Float[np.ndarray, "lat degree order"]:
    """Legendre functions times the weights of the rows."""
    if context.latitude is None:
        raise ValueError(
            "this loss needs the latitudes of the rows: give the FieldContext "
            "`latitude=`, or `build_loss(config, latitude=...)`"
        )
    weights, resolved = quadrature(context.latitude)
    largest = min(resolved, (num_columns - 1) // 2)
    if truncation is not None and truncation > largest:
        raise ValueError(
            f"truncation: {truncation} is more than this grid of {len(weights)} x "
            f"{num_columns} points resolves, which is {largest}"
        )
    count = (largest if truncation is None else truncation) + 1
    functions = legendre_functions(context.latitude, count)
    return np.moveaxis(functions * weights, -1, 0)


def _coefficients(
    field: ChannelFields,
    matrix: Float[np.ndarray, "lat degree order"],
    context: FieldContext,
) -> Coefficients:
    """Coefficients of whole fields, from the rows of all shards."""
    orders = matrix.shape[-1]
    waves = jnp.fft.rfft(field, axis=-1, norm="forward")[..., :orders]
    parts = jnp.stack([waves.real, waves.imag], axis=3)
    local = context.local_rows(matrix.astype(parts.dtype))
    terms = jnp.einsum("bctpym,ylm->bctplm", parts, local, precision="highest")
    return context.row_sum(terms)


def _power(coefficients: Coefficients) -> ByDegree:
    """Mean square over the globe of each degree."""
    return jnp.square(coefficients).sum(axis=(3, 5))
