"""Losses of errors at points: elementwise ones, and one weighted by covariance."""

from __future__ import annotations

import abc

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from credit_jax.losses.base import (
    LOSSES,
    ChannelFields,
    ConfiguredLoss,
    PointwiseLoss,
    Scalar,
    absolute,
)
from credit_jax.named_fields import FieldContext, FieldTree
from credit_jax.parallel.collectives import sum_parts

VariableFields = Float[Array, "batch variable rows lon"]
Matrix = Float[Array, "variable variable"]


class _Elementwise(PointwiseLoss):
    """A loss of the prediction p and the target t of a point."""

    @abc.abstractmethod
    def _value(self, p: Array, t: Array) -> Array: ...

    def values(
        self, prediction: ChannelFields, target: ChannelFields, context: FieldContext
    ) -> ChannelFields:
        return self._value(prediction, target)


@LOSSES.register("mse")
class Mse(_Elementwise):
    """Squared error, `(p - t)^2`."""

    def _value(self, p: Array, t: Array) -> Array:
        return jnp.square(p - t)


@LOSSES.register("mae")
class Mae(_Elementwise):
    """Absolute error, `|p - t|`."""

    def _value(self, p: Array, t: Array) -> Array:
        return absolute(p - t)


@LOSSES.register("huber")
class Huber(_Elementwise):
    """`e^2 / 2` where `|e| <= delta`, else `delta * (|e| - delta / 2)`.

    Attributes:
        delta: error at which the loss becomes linear.
    """

    delta: float = 1.0

    def _value(self, p: Array, t: Array) -> Array:
        size = absolute(p - t)
        quadratic = jnp.minimum(size, self.delta)
        return quadratic * (size - 0.5 * quadratic)


@LOSSES.register("msle")
class Msle(_Elementwise):
    """Squared error of `log(1 + |x|)`."""

    def _value(self, p: Array, t: Array) -> Array:
        return jnp.square(jnp.log1p(absolute(p)) - jnp.log1p(absolute(t)))


@LOSSES.register("logcosh")
class LogCosh(_Elementwise):
    """`log(cosh(e))`.

    Differs from CREDIT: finite for `|e| > 89` too, where float32 `cosh` overflows.
    """

    def _value(self, p: Array, t: Array) -> Array:
        error = t - p
        return jnp.logaddexp(error, -error) - jnp.log(2.0)


@LOSSES.register("xtanh")
class XTanh(_Elementwise):
    """`e * tanh(e)`."""

    def _value(self, p: Array, t: Array) -> Array:
        error = t - p
        return error * jnp.tanh(error)


@LOSSES.register("xsigmoid")
class XSigmoid(_Elementwise):
    """`2 e / (1 + exp(-e)) - e`, evaluated as `e * tanh(e / 2)`."""

    def _value(self, p: Array, t: Array) -> Array:
        error = t - p
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

    batch_normalize: bool = False
    off_diagonal_scale: float = 1.0

    def __call__(self, tree: FieldTree, context: FieldContext) -> Scalar:
        """Computes the loss."""
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
