"""The loss `covmse`: squared error weighted by the inverse covariance of the error."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from credit_jax.config import StrictModel
from credit_jax.losses.base import Loss, Scalar
from credit_jax.named_fields import FieldContext, FieldTree
from credit_jax.parallel.collectives import sum_parts

VariableFields = Float[Array, "batch variable rows lon"]
Matrix = Float[Array, "variable variable"]


class CovarianceParameters(StrictModel):
    """Parameters of `covmse`.

    Attributes:
        batch_normalize: whether to divide the error of each variable by the standard
            deviation of the target.
        off_diagonal_scale: factor of the off-diagonal elements of the inverse
            covariance.
    """

    batch_normalize: bool = False
    off_diagonal_scale: float = 1.0


def build_covmse(settings: CovarianceParameters) -> Loss:
    """Builds `covmse`: error weighted by its inverse covariance, mean of `r^T P r`.

    r is the error of all channels and times at a point, and P the inverse of its sample
    covariance over all samples and grid points, through which the gradient flows. The
    mean over points has latitude weights.

    Differs from CREDIT: works in the training step, where CREDIT's expects arrays of
    five dims and gets four; accepts latitude weights.
    """

    def loss(tree: FieldTree, context: FieldContext) -> Scalar:
        if context.channel_weights is not None:
            raise ValueError(
                "covmse weighs channels by the covariance of their errors: set "
                "loss.use_variable_weights: false"
            )
        target = context.repeat_members(tree["y"])
        error = _points(target - tree["y_pred"])
        if settings.batch_normalize:
            deviation = jnp.sqrt(jnp.diag(_covariance(_points(target), context)))
            error = error / deviation.reshape(1, -1, 1, 1)
        inverse = jnp.linalg.inv(_covariance(error, context))
        scale = np.full(inverse.shape, settings.off_diagonal_scale, np.float32)
        np.fill_diagonal(scale, 1.0)
        weighted = jnp.einsum(
            "ij,bjyx->biyx", inverse * scale, error, precision="highest"
        )
        # The mean over points of a sum over variables.
        return context.mean((error * weighted).sum(axis=1)[:, None, None])

    return loss


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
