"""Losses that configs name: of errors at points, of ensembles, and of spectra.

Continuous ranked probability scores are, with members x_1 ... x_m of a forecast and the
target y,

    crps = sum_i |x_i - y| / m - c sum_ij |x_i - x_j|

where c is 1 / (2 m (m - 1)) for the fair score. Members are on the batch dim
(`FieldContext.num_members`), except for `ring-crps`, whose members are on the
data-parallel ranks. Spectra are zonal ones, and by degree of spherical harmonics.
"""

from __future__ import annotations

import abc
from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float
from pydantic import Field

from credit_jax.losses.base import (
    LOSSES,
    ChannelFields,
    ConfiguredLoss,
    PointwiseLoss,
    Prediction,
    Scalar,
    Target,
    absolute,
)
from credit_jax.named_fields import FieldContext, FieldTree, widened
from credit_jax.parallel.collectives import sum_parts
from credit_jax.physics.harmonics import legendre_functions, quadrature

VariableFields = Float[Array, "batch variable rows lon"]
Matrix = Float[Array, "variable variable"]


@LOSSES.register("mse")
class Mse(PointwiseLoss):
    """Squared error, `(p - t)^2`."""

    def values(self, prediction: Array, target: Array, context: FieldContext) -> Array:
        return jnp.square(prediction - target)


@LOSSES.register("mae")
class Mae(PointwiseLoss):
    """Absolute error, `|p - t|`."""

    def values(self, prediction: Array, target: Array, context: FieldContext) -> Array:
        return absolute(prediction - target)


@LOSSES.register("huber")
class Huber(PointwiseLoss):
    """`e^2 / 2` where `|e| <= delta`, else `delta * (|e| - delta / 2)`.

    Attributes:
        delta: error at which the loss becomes linear.
    """

    delta: float = 1.0

    def values(self, prediction: Array, target: Array, context: FieldContext) -> Array:
        size = absolute(prediction - target)
        quadratic = jnp.minimum(size, self.delta)
        return quadratic * (size - 0.5 * quadratic)


@LOSSES.register("msle")
class Msle(PointwiseLoss):
    """Squared error of `log(1 + |x|)`."""

    def values(self, prediction: Array, target: Array, context: FieldContext) -> Array:
        logs = (jnp.log1p(absolute(x)) for x in (prediction, target))
        return jnp.square(jnp.subtract(*logs))


@LOSSES.register("logcosh")
class LogCosh(PointwiseLoss):
    """`log(cosh(e))`.

    Differs from CREDIT: finite for `|e| > 89` too, where float32 `cosh` overflows.
    """

    def values(self, prediction: Array, target: Array, context: FieldContext) -> Array:
        error = target - prediction
        return jnp.logaddexp(error, -error) - jnp.log(2.0)


@LOSSES.register("xtanh")
class XTanh(PointwiseLoss):
    """`e * tanh(e)`."""

    def values(self, prediction: Array, target: Array, context: FieldContext) -> Array:
        error = target - prediction
        return error * jnp.tanh(error)


@LOSSES.register("xsigmoid")
class XSigmoid(PointwiseLoss):
    """`2 e / (1 + exp(-e)) - e`, evaluated as `e * tanh(e / 2)`."""

    def values(self, prediction: Array, target: Array, context: FieldContext) -> Array:
        error = target - prediction
        return error * jnp.tanh(0.5 * error)


@LOSSES.register("covmse")
class CovarianceMse(ConfiguredLoss):
    """Error weighted by its inverse covariance, mean of `r^T P r`.

    r is the error of all channels and times at a point, and P the inverse of its sample
    covariance over all samples and grid points, through which the gradient flows. The
    mean over points has latitude weights.

    Attributes:
        batch_normalize: whether to divide the error of each variable by the standard
            deviation of the target.
        off_diagonal_scale: factor of the off-diagonal elements of the inverse
            covariance.

    Differs from CREDIT: works in the training step, where CREDIT's expects arrays of
    five dims and gets four; accepts latitude weights.
    """

    mixes_samples: ClassVar = True

    batch_normalize: bool = False
    off_diagonal_scale: float = 1.0

    def __call__(self, tree: FieldTree, context: FieldContext) -> Scalar:
        if context.channel_weights is not None:
            raise ValueError(
                "covmse weighs channels by the covariance of their errors: set "
                "loss.use_variable_weights: false"
            )
        target = context.repeat_members(tree["y"])
        error = _points(target - tree["y_pred"])
        if self.batch_normalize:
            deviation = jnp.sqrt(jnp.diag(_covariance(_points(target), context)))
            error = error / deviation.reshape(1, -1, 1, 1)
        inverse = jnp.linalg.inv(_covariance(error, context))
        scale = np.full(inverse.shape, self.off_diagonal_scale, np.float32)
        np.fill_diagonal(scale, 1.0)
        weighted = jnp.einsum(
            "ij,bjyx->biyx", inverse * scale, error, precision="highest"
        )
        # The mean over points of a sum over variables.
        return context.mean((error * weighted).sum(axis=1)[:, None, None])


def _points(field: Float[Array, "batch channel time rows lon"]) -> VariableFields:
    return field.reshape(field.shape[0], -1, *field.shape[3:])


def _covariance(values: VariableFields, context: FieldContext) -> Matrix:
    """Sample covariance over all samples and grid points of the mesh."""
    reducer = context.reducer
    rows = context.local_rows(np.ones(reducer.rows.size, values.dtype))
    count = values.shape[0] * reducer.axes.num_data * reducer.rows.size
    count *= values.shape[-1]
    total = jnp.einsum("biyx,y->i", values, rows, precision="highest")
    mean = sum_parts(total, reducer.axes.batch) / count
    centered = values - mean.reshape(1, -1, 1, 1)
    products = jnp.einsum(
        "biyx,bjyx,y->ij", centered, centered, rows, precision="highest"
    )
    return sum_parts(products, reducer.axes.batch) / (count - 1)


Members = Float[Array, "batch member channel time rows lon"]
PerSample = Float[Array, "batch channel time rows lon"]


class _Crps(ConfiguredLoss):
    """The mean of `mean_i |x_i - y|` minus `spread` of the members."""

    num_members: ClassVar = 2

    @abc.abstractmethod
    def spread(self, members: Members) -> PerSample:
        """`c sum_ij |x_i - x_j|`."""

    def __call__(self, tree: FieldTree, context: FieldContext) -> Scalar:
        if context.num_members < 2:
            raise ValueError(
                "a CRPS needs an ensemble: set trainer.ensemble_size to 2 or more "
                f"(got {context.num_members} member)"
            )
        members = context.members(tree["y_pred"])
        skill = absolute(members - tree["y"][:, None]).mean(axis=1)
        return context.mean(skill - self.spread(members))


@LOSSES.register("KCRPS")
class KernelCrps(_Crps):
    """CRPS, fair for any number m of members, or with `biased` not.

    c is 1 / (2 m (m - 1)), or 1 / (2 m^2).

    Attributes:
        biased: whether to divide the sum over pairs by 2 m^2 instead of 2 m (m - 1),
            which is fair for any number of members.
    """

    biased: bool = False

    validates_weighted: ClassVar = True

    def spread(self, members: Members) -> PerSample:
        count = members.shape[1]
        pairs = count * count if self.biased else count * (count - 1)
        return 1.0 / pairs * half_pair_sum(members)


@LOSSES.register("almost-fair-crps")
class AlmostFairCrps(_Crps):
    """CRPS, fair by `alpha`.

    c is (1 - (1 - alpha) / m) / (2 m (m - 1)).

    Attributes:
        alpha: the sum over pairs of the fair score is multiplied by
            1 - (1 - alpha) / m; 1 is the fair score.
        no_autocast: has no effect: losses are in float32 or wider.

    Differs from CREDIT: the sum over pairs takes memory for m instead of m^2 fields.
    """

    alpha: float = 1.0
    no_autocast: bool = True

    def spread(self, members: Members) -> PerSample:
        count = members.shape[1]
        factor = (1.0 - (1.0 - self.alpha) / count) / (count * (count - 1))
        each = jnp.split(members, members.shape[1], axis=1)
        signs = lax.stop_gradient(sum(jnp.sign(members - other) for other in each))
        # The signs have sum 0; around their mean the members do not cancel.
        centered = members - lax.stop_gradient(members.mean(axis=1, keepdims=True))
        return factor * (centered * signs).sum(axis=1)


@LOSSES.register("ring-crps")
class RingCrps(PointwiseLoss):
    """Fair CRPS; each of K ranks has one member of a sample.

    All ranks have the same samples. Rank r computes
    `(|x_r - y| - sum_j |x_r - x_j| / (K - 1)) / K`, where no gradient flows through the
    other members x_j: the gradient of the mean over ranks is that of the fair score,
    divided by K. Members are sent around a ring by ppermute, so that a device has two
    at a time. With one rank it is `|x - y|`.
    """

    def values(
        self, prediction: Prediction, target: Target, context: FieldContext
    ) -> ChannelFields:
        skill = absolute(prediction - target)
        axes, count = context.reducer.axes.data, context.reducer.axes.num_data
        if count == 1:
            return skill
        ring = [(rank, (rank + 1) % count) for rank in range(count)]
        other = lax.stop_gradient(prediction)
        pairs = jnp.zeros_like(skill)
        for _ in range(count - 1):
            other = lax.ppermute(other, axes, ring)
            pairs = pairs + absolute(prediction - other)
        return (skill - pairs / (count - 1)) / count


def half_pair_sum(members: Members) -> PerSample:
    """`sum_ij |x_i - x_j| / 2`, as `sum_i (2 i - m - 1) x_(i)` over sorted members."""
    count = members.shape[1]
    rank = 2.0 * jnp.arange(1, count + 1, dtype=members.dtype) - count - 1
    ordered = jnp.sort(members, axis=1)
    return (ordered * rank.reshape(1, -1, 1, 1, 1, 1)).sum(axis=1)


def error_spread(tree: FieldTree, context: FieldContext) -> Scalar:
    """Sample standard deviation of the errors of all members at all points."""
    error = widened(tree["y_pred"]) - context.repeat_members(widened(tree["y"]))
    axes, rows = context.reducer.axes, context.reducer.rows
    points = error.size // error.shape[3] * rows.size * axes.num_data
    variance = context.mean(jnp.square(error - context.mean(error)))
    return jnp.sqrt(variance * (points / (points - 1)))


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
        logs = []
        for field in _pair(tree, context):
            waves = jnp.fft.rfft(field, axis=-1, norm="forward")
            power = jnp.square(waves.real) + jnp.square(waves.imag)
            power = jnp.concatenate([power[..., :1], 2.0 * power[..., 1:]], axis=-1)
            logs.append(jnp.log(power + ZONAL_FLOOR)[..., self.wavenum_init :])
        return context.mean(jnp.square(logs[0] - logs[1]))


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
