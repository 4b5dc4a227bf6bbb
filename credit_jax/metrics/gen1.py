"""The metrics of CREDIT's gen1: a value for every channel.

`w` are area weights of mean 1, `p` is the mean of the members of a forecast, `t` its
target, `'` subtracts the unweighted mean of a field, and means are over samples, times
and grid points:

    acc   sum(w p' t') / (sqrt(sum(w p'^2) sum(w t'^2)) + 1e-7)
    rmse  mean over samples and times of sqrt(mean over the globe of w (p - t)^2)
    mse   mean(w (p - t)^2)            mae  mean(w |p - t|)
    std   as rmse, with the spread instead of p - t; the spread of m members is
          their sample standard deviation times (m + 1) / (m - 1)

They are CREDIT's LatWeightedMetrics, LatWeightedMetricsClimatology and
LatWeightedMetricsEnsemble (`credit/metrics/gen_1/metrics.py`), as functions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import jax.numpy as jnp
from jaxtyping import Array, Float

from credit_jax.named_fields import FieldContext, FieldTree, widened

ACC_FLOOR, CLIMATOLOGY_FLOOR = 1e-7, 1e-8
ChannelValues = Float[Array, " channel"]
ChannelFields = Float[Array, "batch channel time rows lon"]


def lat_weighted_metrics(
    tree: FieldTree,
    context: FieldContext,
    names: Sequence[str],
    *,
    climatology: Float[Array, "1 channel 1 rows lon"] | None = None,
) -> dict[str, Array]:
    """Computes scores of every channel, and their means: CREDIT's LatWeightedMetrics.

    Args:
        tree: has "y_pred" and "y".
        context: has the area weights and the number of members.
        names: names of the channels, such as "T_0".
        climatology: local rows of the fields to subtract from prediction and target.

    Returns:
        "acc_T_0", "rmse_T_0", "mse_T_0", "mae_T_0" and, for an ensemble, "std_T_0" for
        every channel; "acc", "rmse", "mse", "mae" and "std" are their means.
    """
    context = dataclasses.replace(context, channel_weights=None)
    members, target = context.members(widened(tree["y_pred"])), widened(tree["y"])
    if climatology is not None:
        members, target = members - climatology[:, None], target - climatology
    prediction = members.mean(axis=1)
    products = _products(prediction, target, context)
    correlation = products[0] / (jnp.sqrt(products[1] * products[2]) + ACC_FLOOR)
    scores = {
        "acc": correlation,
        **_errors(prediction - target, context),
    }
    if context.num_members > 1:
        scores["std"] = _rms(_spread(members), context)
    return _named(scores, names)


def lat_weighted_metrics_climatology(
    tree: FieldTree,
    context: FieldContext,
    names: Sequence[str],
    *,
    climatology: Float[Array, "1 channel 1 rows lon"] | None = None,
) -> dict[str, Array]:
    """Computes errors of every channel, and the correlation of anomalies.

    CREDIT's LatWeightedMetricsClimatology: as `lat_weighted_metrics` of one member, but
    the climatology is subtracted for "acc" only, which needs one.

    Args:
        tree: has "y_pred" and "y".
        context: has the area weights.
        names: names of the channels.
        climatology: local rows of the mean fields of day and hour; None omits "acc".

    Returns:
        Scores as those of `lat_weighted_metrics`.

    Differs from CREDIT: "mse" is the mean of the mean squared errors; CREDIT's includes
    the root mean squared errors. All channels have an "acc"; CREDIT's has surface and
    diagnostic variables only, and reads their channels at the positions that they have
    in the list of these variables.
    """
    context = dataclasses.replace(context, channel_weights=None)
    prediction, target = widened(tree["y_pred"]), widened(tree["y"])
    scores = _errors(prediction - target, context)
    if climatology is not None:
        fields = prediction - climatology, target - climatology
        products = _products(*fields, context)
        norm = jnp.sqrt(products[1] * products[2])
        scores["acc"] = products[0] / jnp.maximum(norm, CLIMATOLOGY_FLOOR)
    return _named(scores, names)


def ensemble_fields(tree: FieldTree, context: FieldContext) -> dict[str, ChannelFields]:
    """Computes mean, spread and absolute error of an ensemble at every point.

    CREDIT's LatWeightedMetricsEnsemble.

    Args:
        tree: has "y_pred" and "y".
        context: has the number of members, at least 2.

    Returns:
        "ens_mean", "ens_std" and "ens_rmse" (the absolute error of the mean), (batch,
        channel, time, rows, lon) each.
    """
    members = context.members(widened(tree["y_pred"]))
    mean = members.mean(axis=1)
    error = jnp.abs(mean - widened(tree["y"]))
    return {"ens_std": _spread(members), "ens_mean": mean, "ens_rmse": error}


def _errors(error: ChannelFields, context: FieldContext) -> dict[str, ChannelValues]:
    return {
        "rmse": _rms(error, context),
        "mse": context.channel_mean(jnp.square(error)),
        "mae": context.channel_mean(jnp.abs(error)),
    }


def _rms(values: ChannelFields, context: FieldContext) -> ChannelValues:
    """Mean over samples and times of the root mean square over the globe."""
    squares = context.sample_mean(jnp.square(values))
    return context.data_mean(jnp.sqrt(squares)).mean(axis=-1)


def _spread(
    members: Float[Array, "batch member channel time rows lon"],
) -> ChannelFields:
    count = members.shape[1]
    return jnp.std(members, axis=1, ddof=1) * ((count + 1) / (count - 1))


def _products(
    prediction: ChannelFields, target: ChannelFields, context: FieldContext
) -> tuple[ChannelValues, ChannelValues, ChannelValues]:
    """Weighted sums over all points of p' t', p'^2 and t'^2."""
    plain = dataclasses.replace(context, row_weights=None)
    first, second = (
        field - plain.channel_mean(field).reshape(1, -1, 1, 1, 1)
        for field in (prediction, target)
    )
    reducer = context.reducer
    count = target.shape[0] * reducer.axes.num_data * target.shape[2]
    count *= reducer.rows.size * target.shape[-1]
    pairs = ((first, second), (first, first), (second, second))
    sums = [count * context.channel_mean(a * b) for a, b in pairs]
    return sums[0], sums[1], sums[2]


def _named(scores: dict[str, ChannelValues], names: Sequence[str]) -> dict[str, Array]:
    by_variable = {
        f"{score}_{name}": values[i]
        for i, name in enumerate(names)
        for score, values in scores.items()
    }
    return by_variable | {score: values.mean() for score, values in scores.items()}
