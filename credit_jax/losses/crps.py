"""Continuous ranked probability scores of an ensemble.

With members x_1 ... x_m of a forecast and the target y:

    crps = sum_i |x_i - y| / m - c sum_ij |x_i - x_j|

where c is 1 / (2 m (m - 1)) for the fair score. Members are on the batch dim
(`FieldContext.num_members`), except for `ring-crps`, whose members are on the
data-parallel ranks.
"""

from __future__ import annotations

import abc
from typing import ClassVar

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

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

Members = Float[Array, "batch member channel time rows lon"]
PerSample = Float[Array, "batch channel time rows lon"]


class _Crps(ConfiguredLoss):
    """The mean of `mean_i |x_i - y|` minus `spread` of the members."""

    num_members: ClassVar = 2

    @abc.abstractmethod
    def spread(self, members: Members) -> PerSample:
        """`c sum_ij |x_i - x_j|`."""

    def __call__(self, tree: FieldTree, context: FieldContext) -> Scalar:
        """Computes the score."""
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
        return factor * half_pair_sum_of_signs(members)


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


def half_pair_sum_of_signs(members: Members) -> PerSample:
    """`half_pair_sum` as `sum_i x_i s_i`, where `s_i = sum_j sign(x_i - x_j)`.

    Its gradient is s: 0 between equal members, where that of sorted ones is of their
    order.
    """
    each = jnp.split(members, members.shape[1], axis=1)
    signs = lax.stop_gradient(sum(jnp.sign(members - other) for other in each))
    # The signs have sum 0; around their mean the members do not cancel.
    centered = members - lax.stop_gradient(members.mean(axis=1, keepdims=True))
    return (centered * signs).sum(axis=1)


def error_spread(tree: FieldTree, context: FieldContext) -> Scalar:
    """Sample standard deviation of the errors of all members at all points."""
    error = widened(tree["y_pred"]) - context.repeat_members(widened(tree["y"]))
    axes, rows = context.reducer.axes, context.reducer.rows
    points = error.size // error.shape[3] * rows.size * axes.num_data
    variance = context.mean(jnp.square(error - context.mean(error)))
    return jnp.sqrt(variance * (points / (points - 1)))
