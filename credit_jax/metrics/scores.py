"""Metrics: functions of forecast and target with a value per variable, and a section.

To add one, write a class with `@METRICS.register(NAME)`, and its test.

`w` are area weights of mean 1, `p` is the forecast, `t` the target, `c` the
climatology, and means are over samples, levels, times and grid points:

    mse     mean(w (p - t)^2)          rmse    sqrt(mse)
    mae     mean(w |p - t|)            bias    mean(w (p - t))
    r2score             1 - mse / mean(w (t - mean(w t))^2)
    log_variance_ratio  log10 var(p) - log10 var(t), var(x) = mean(w (x - mean(w x))^2)
    acc                 mean(w f a) / sqrt(mean(w f^2) mean(w a^2)), where f and a are
                        the anomalies p - c and t - c minus their weighted means
    activity            sqrt(mean(w f^2))

They are CREDIT's (`credit/metrics/common.py`, `anomaly.py`; for the last two Bonavita
and Geer 2026, appendix A).
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from credit_jax.config import StrictModel, parse
from credit_jax.config.base import nearest_key
from credit_jax.config.components import Registry
from credit_jax.config.loss import COMBINED, MetricsConfig, WeightArgs
from credit_jax.named_fields import (
    FieldContext,
    FieldTree,
    ScoredVariables,
    keys_of_tree,
    row_weights,
    target_variances,
)

EPSILON = 1e-12
PerVariable = Float[Array, " variable"]
# (tree, context) -> values of a step by name, the same on every shard.
Measure: TypeAlias = Callable[[FieldTree, FieldContext], dict[str, Array]]


@dataclass(frozen=True)
class Pair:
    """A forecast and its target, as local arrays in float32 or wider."""

    # (samples, channel, time, rows, lon); every ensemble member is a sample, those of
    # the first target first.
    prediction: Array
    target: Array  # (samples, channel, time, rows, lon), repeated for every member
    # (1, channel, time, rows, lon), or None for metrics without one.
    climatology: Array | None
    context: FieldContext  # global means, channels, area weights, number of members

    @property
    def members(self) -> Array:
        """The forecast by member, (batch, member, channel, time, rows, lon)."""
        return self.context.members(self.prediction)

    @property
    def ensemble_mean(self) -> Array:
        """The mean over members, (batch, channel, time, rows, lon)."""
        return self.members.mean(axis=1)

    @property
    def truth(self) -> Array:
        """The target without repetition, (batch, channel, time, rows, lon)."""
        return self.context.members(self.target)[:, 0]

    def mean(self, values: Array) -> PerVariable:
        """Area-weighted mean of each variable."""
        return self.context.variable_mean(values)

    def centered(self, values: Array) -> Array:
        """`values` minus the area-weighted mean of their variable."""
        return values - self.context.layout.per_channel(self.mean(values))

    def anomaly(self, values: Array) -> Array:
        """`values` minus the climatology, centered."""
        assert self.climatology is not None, "checked when the metrics are built"
        return self.centered(values - self.climatology)


class ConfiguredMetric(StrictModel, abc.ABC):
    """A metric that configs name; its fields are its arguments.

    `scale_power` is the power of a variable's unit in the score: 2 for a squared error,
    1 for an error, 0 for a ratio. `needs_climatology` is whether it compares with the
    mean of the training period.
    """

    scale_power: ClassVar[int] = 2

    @abc.abstractmethod
    def __call__(self, pair: Pair) -> PerVariable:
        """Computes the scores, the same on every shard."""

    @property
    def needs_climatology(self) -> bool:
        return False


class AnomalyMetric(ConfiguredMetric):
    """A metric that compares with a climatology.

    Attributes:
        climatology_path: file with a mean field of each variable, by its name; for
            variables that it lacks, the mean of the targets of the batch is used. null
            uses the mean of the training period.
        accumulate_climatology: if false, and without a file, the mean of the targets of
            the batch is used.

    Differs from CREDIT: without a file CREDIT uses the running mean of the targets of
    training and validation.
    """

    climatology_path: str | None = None
    accumulate_climatology: bool = True

    @property
    def needs_climatology(self) -> bool:
        return self.climatology_path is None and self.accumulate_climatology


METRICS: Registry[type[ConfiguredMetric]] = Registry("metric", ConfiguredMetric)


@METRICS.register("rmse")
class Rmse(ConfiguredMetric):
    """Root mean squared error."""

    scale_power: ClassVar = 1

    def __call__(self, pair: Pair) -> PerVariable:
        return jnp.sqrt(_mse(pair))


@METRICS.register("mse")
class Mse(ConfiguredMetric):
    """Mean squared error."""

    def __call__(self, pair: Pair) -> PerVariable:
        return _mse(pair)


@METRICS.register("mae")
class Mae(ConfiguredMetric):
    """Mean absolute error."""

    scale_power: ClassVar = 1

    def __call__(self, pair: Pair) -> PerVariable:
        return pair.mean(jnp.abs(pair.prediction - pair.target))


@METRICS.register("bias")
class Bias(ConfiguredMetric):
    """Mean error."""

    scale_power: ClassVar = 1

    def __call__(self, pair: Pair) -> PerVariable:
        return pair.mean(pair.prediction - pair.target)


@METRICS.register("r2score")
class R2Score(ConfiguredMetric):
    """Coefficient of determination: 1 - mse / variance of the target."""

    scale_power: ClassVar = 0

    def __call__(self, pair: Pair) -> PerVariable:
        total = pair.mean(jnp.square(pair.centered(pair.target)))
        return 1.0 - _mse(pair) / (total + EPSILON)


@METRICS.register("log_variance_ratio")
class LogVarianceRatio(ConfiguredMetric):
    """Base-10 logarithm of variance of the forecast / variance of the target.

    Attributes:
        eps: added to both variances.
    """

    eps: float = EPSILON

    scale_power: ClassVar = 0

    def __call__(self, pair: Pair) -> PerVariable:
        variances = [
            pair.mean(jnp.square(pair.centered(field)))
            for field in (pair.prediction, pair.target)
        ]
        return jnp.log10(variances[0] + self.eps) - jnp.log10(variances[1] + self.eps)


@METRICS.register("acc")
class AnomalyCorrelation(AnomalyMetric):
    """Anomaly correlation coefficient of forecast and target."""

    scale_power: ClassVar = 0

    def __call__(self, pair: Pair) -> PerVariable:
        forecast, truth = pair.anomaly(pair.prediction), pair.anomaly(pair.target)
        deviation = [
            jnp.sqrt(pair.mean(jnp.square(field)) + EPSILON)
            for field in (forecast, truth)
        ]
        return pair.mean(forecast * truth) / (deviation[0] * deviation[1])


@METRICS.register("activity")
class Activity(AnomalyMetric):
    """Standard deviation of the anomaly of the forecast."""

    scale_power: ClassVar = 1

    def __call__(self, pair: Pair) -> PerVariable:
        squares = jnp.square(pair.anomaly(pair.prediction))
        return jnp.sqrt(pair.mean(squares) + EPSILON)


def _mse(pair: Pair) -> PerVariable:
    return pair.mean(jnp.square(pair.prediction - pair.target))


ARGS = "metrics.args"
# (path of a file, or None for the training period) -> mean fields, (lat, lon) or
# (level, lat, lon), by key or name of a variable.
Climatologies: TypeAlias = Callable[[str | None], Mapping[str, np.ndarray]]
# (path of a scaler file) -> variance of each target variable, by key.
Variances: TypeAlias = Callable[[str], Mapping[str, float]]


class MetricArgs(WeightArgs):
    """Arguments that every metric accepts; those of "combined" share them.

    Attributes:
        var_weighting: weights in the mean over variables: `inverse_variance` divides
            each score by the standard deviation of the target scaler, to the power of
            the variable's unit in the score; `manual` and `none` use only
            `variable_weights`. null is `inverse_variance` with a `scaler_path`, and
            `none` without.

    Differs from CREDIT: without `var_weighting` and `scaler_path` all variables have
    equal weights, where CREDIT requires a scaler.
    """

    var_weighting: Literal["inverse_variance", "manual", "none"] | None = None


@dataclass(frozen=True, eq=False)
class BoundMetric:
    """A metric of a section, and the variables that it scores."""

    name: str  # key in the registry
    metric: ConfiguredMetric  # the metric, with its own arguments
    variables: ScoredVariables  # the variables, and their weights
    # Reads what an `AnomalyMetric` subtracts; None for means of batches.
    climatology: Climatologies | None

    def scores(self, tree: FieldTree, context: FieldContext) -> dict[str, Array]:
        """Computes the weighted mean over variables, and the score of each variable."""
        # Differs from CREDIT: takes "y_pred" and "y" if the postblocks do not make both
        # "y_processed" and "y_target_processed", where CREDIT raises KeyError.
        prediction, target, context = self.variables.pair(
            tree, context, normalized=True
        )
        mean_fields = None
        if isinstance(self.metric, AnomalyMetric):
            read = self.climatology
            # In the units of the scored fields; read when this is traced.
            fields = {} if read is None else read(self.metric.climatology_path)
            mean_fields = local_climatology(fields, target, context)
        # Members of an ensemble are scored one by one, as in CREDIT.
        target = context.repeat_members(target)
        values = self.metric(Pair(prediction, target, mean_fields, context))
        keys = context.layout.keys
        mean = self.variables.mean(values, keys, self.metric.scale_power)
        by_variable = {f"{self.name}/{key}": values[i] for i, key in enumerate(keys)}
        return {self.name: mean, **by_variable}


@dataclass(frozen=True, eq=False)
class Metrics:
    """Metrics as a function (tree, context) -> values, the same on every shard."""

    metrics: tuple[BoundMetric, ...]  # the metrics, each with the contents of its files

    @property
    def names(self) -> list[str]:
        """Names of the scores, but for those of variables that postblocks compute."""
        return [
            key
            for each in self.metrics
            for key in (
                each.name,
                *(f"{each.name}/{k}" for k in each.variables.channels),
            )
        ]

    def __call__(self, tree: FieldTree, context: FieldContext) -> dict[str, Array]:
        scores: dict[str, Array] = {}
        for each in self.metrics:
            with keys_of_tree(f"the metric {each.name}", tree):
                scores |= each.scores(tree, context)
        return scores

    def in_training(self) -> Metrics:
        """The metrics of training batches: all that need no mean of training data."""
        alone = (each for each in self.metrics if not each.metric.needs_climatology)
        return Metrics(tuple(alone))


def parse_metrics(
    config: MetricsConfig | None, *, has_climatology: bool = False
) -> dict[str, tuple[MetricArgs, ConfiguredMetric]]:
    """Parses the metrics of a section, in its order; None is CREDIT's default set."""
    if config is None:
        default = {"rmse": Rmse(), "r2score": R2Score(), "bias": Bias()}
        if has_climatology:
            default["acc"] = AnomalyCorrelation()
        shared = MetricArgs(var_weighting="none")
        return {name: (shared, metric) for name, metric in default.items()}

    def parsed(
        name: str, shared: Mapping[str, Any], args: Any, path: str, name_path: str
    ) -> tuple[MetricArgs, ConfiguredMetric]:
        cls, common_fields = METRICS.find(name, name_path), MetricArgs.model_fields
        if not isinstance(args, Mapping):
            raise ValueError(f"{path}: must be a mapping of arguments, got {args!r}")
        common = {k: value for k, value in args.items() if k in common_fields}
        specific = {k: value for k, value in args.items() if k not in common}
        unknown = [key for key in specific if key not in cls.model_fields]
        if unknown:
            nearest = nearest_key(unknown[0], [*cls.model_fields, *common_fields])
            raise ValueError(f"{path}.{unknown[0]}: unknown key; {nearest}")
        # Those of a metric override the shared ones of "combined".
        common_args = parse(MetricArgs, {**shared, **common}, path)
        return common_args, parse(cls, specific, path)

    if config.type != COMBINED:
        args = config.args
        return {config.type: parsed(config.type, {}, args, ARGS, "metrics.type")}
    path, by_name = f"{ARGS}.metrics", config.args.get("metrics")
    if not isinstance(by_name, Mapping) or not by_name:
        got = "nothing" if by_name in (None, {}) else repr(by_name)
        raise ValueError(
            f"{path}: got {got}, expected at least one metric with its arguments, such "
            "as {rmse: {}, acc: {}}"
        )
    shared_args = {k: value for k, value in config.args.items() if k != "metrics"}
    parse(MetricArgs, shared_args, ARGS)
    return {
        name: parsed(name, shared_args, args or {}, f"{path}.{name}", path)
        for name, args in by_name.items()
    }


def build_metrics(
    config: MetricsConfig | None,
    channels: Mapping[str, int],
    *,
    latitude: Float[np.ndarray, " lat"] | None = None,
    climatology: Climatologies | None = None,
    variances: Variances = target_variances,
) -> Metrics:
    """Builds the metrics of a run; None is CREDIT's default set."""
    parsed = parse_metrics(config, has_climatology=climatology is not None)
    # Those that compare with fields of a file or of the training period.
    compare = {
        name
        for name, (_, metric) in parsed.items()
        if metric.needs_climatology
        or (isinstance(metric, AnomalyMetric) and metric.climatology_path)
    }
    if compare and climatology is None:
        lacking = ", ".join(filter(compare.__contains__, parsed))
        raise ValueError(f"metrics: {lacking} need a climatology")
    metrics = []
    for name, (args, metric) in parsed.items():
        mode, path, by_variance = args.var_weighting, args.scaler_path, None
        is_weighted = path is not None if mode is None else mode == "inverse_variance"
        rows = row_weights(latitude, ARGS) if args.use_latitude_weights else None
        # The score of a ratio has no unit that a variance could weigh.
        if is_weighted and metric.scale_power:
            if path is None:
                raise ValueError(
                    f"{ARGS}.var_weighting: inverse_variance needs {ARGS}.scaler_path, "
                    f"a file of scalers ({name} has the unit of its variable)"
                )
            by_variance = variances(path)
        scored = ScoredVariables(args, ARGS, channels, rows, by_variance)
        read = climatology if name in compare else None
        metrics.append(BoundMetric(name, metric, scored, read))
    return Metrics(tuple(metrics))


def local_climatology(
    fields: Mapping[str, np.ndarray],
    target: Float[Array, "batch channel time rows lon"],
    context: FieldContext,
) -> Float[Array, "1 channel time rows lon"]:
    """This shard's rows of the mean field of every channel, by key or name."""
    lat, parts = context.reducer.rows.size, []
    for key, channels in context.layout.slices.items():
        values = target[:, channels]
        stored = fields.get(key, fields.get(key.rsplit("/", 1)[-1]))
        # That of a missing variable is the mean over all samples of the batch.
        if stored is None:
            part = context.data_mean(values)[None]
        else:
            field, (levels, lon) = (
                np.asarray(stored),
                (values.shape[1], values.shape[-1]),
            )
            field = field[None] if field.ndim == 2 else field
            if field.shape not in ((levels, lat, lon), (1, lat, lon)):
                raise ValueError(
                    f"climatology of {key}: got shape {field.shape}, expected "
                    f"{(levels, lat, lon)} (level, lat, lon)"
                )
            by_row = jnp.asarray(np.moveaxis(field, 1, 0), values.dtype)
            part = jnp.moveaxis(context.local_rows(by_row), 0, 1)[None, :, None]
        parts.append(jnp.broadcast_to(part, (1, *values.shape[1:])))
    return jnp.concatenate(parts, axis=1)
