"""Builds the `metrics` section of a config as one function inside `shard_map`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from credit_jax.config import parse
from credit_jax.config.base import nearest_key
from credit_jax.config.loss import COMBINED, MetricsConfig, WeightArgs
from credit_jax.metrics.scores import (
    METRICS,
    AnomalyCorrelation,
    AnomalyMetric,
    Bias,
    ConfiguredMetric,
    Pair,
    R2Score,
    Rmse,
)
from credit_jax.named_fields import (
    FieldContext,
    FieldTree,
    ScoredVariables,
    keys_of_tree,
    row_weights,
    target_variances,
)

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


@dataclass(frozen=True)
class MetricSettings:
    """One metric of a section.

    Attributes:
        name: key in the registry.
        args: arguments that all metrics accept; for "combined", those of this metric
            override the shared ones.
        metric: the metric, with its own arguments.
    """

    name: str
    args: MetricArgs
    metric: ConfiguredMetric

    @property
    def compares(self) -> bool:
        """Whether it compares with fields of a file or of the training period."""
        metric = self.metric
        has_file = isinstance(metric, AnomalyMetric) and metric.climatology_path
        return bool(has_file) or metric.needs_climatology

    def variances(self, read: Variances) -> Mapping[str, float] | None:
        """Variances that weight the variables; None if none do.

        Raises:
            ValueError: the scaler file is needed but not set.
        """
        mode, path = self.args.var_weighting, self.args.scaler_path
        is_needed = path is not None if mode is None else mode == "inverse_variance"
        if not is_needed or self.metric.scale_power == 0:
            return None
        if path is None:
            raise ValueError(
                f"{ARGS}.var_weighting: inverse_variance needs {ARGS}.scaler_path, a "
                f"file of scalers ({self.name} has the unit of its variable)"
            )
        return read(path)


def metric_settings(
    config: MetricsConfig | None, *, has_climatology: bool = False
) -> list[MetricSettings]:
    """Parses the metrics of a section, in its order.

    Args:
        config: the `metrics` section; None is CREDIT's default set.
        has_climatology: whether to add `acc` to the default set.

    Raises:
        ValueError: a metric or an argument is unknown, or a value is invalid.
    """
    if config is None:
        default = {"rmse": Rmse(), "r2score": R2Score(), "bias": Bias()}
        if has_climatology:
            default["acc"] = AnomalyCorrelation()
        shared = MetricArgs(var_weighting="none")
        return [MetricSettings(k, shared, metric) for k, metric in default.items()]
    if config.type != COMBINED:
        return [_settings(config.type, {}, config.args, ARGS, "metrics.type")]
    path = f"{ARGS}.metrics"
    by_name = config.args.get("metrics")
    if not isinstance(by_name, Mapping) or not by_name:
        got = "nothing" if by_name in (None, {}) else repr(by_name)
        raise ValueError(
            f"{path}: got {got}, expected at least one metric with its arguments, such "
            "as {rmse: {}, acc: {}}"
        )
    shared = {key: value for key, value in config.args.items() if key != "metrics"}
    parse(MetricArgs, shared, ARGS)
    return [
        _settings(name, shared, args or {}, f"{path}.{name}", path)
        for name, args in by_name.items()
    ]


def _settings(
    name: str, shared: Mapping[str, Any], args: Any, path: str, name_path: str
) -> MetricSettings:
    """Parses one metric, whose arguments override shared ones of the same name."""
    cls = METRICS.find(name, name_path)
    if not isinstance(args, Mapping):
        raise ValueError(f"{path}: must be a mapping of arguments, got {args!r}")
    common = {k: value for k, value in args.items() if k in MetricArgs.model_fields}
    specific = {k: value for k, value in args.items() if k not in common}
    unknown = [key for key in specific if key not in cls.model_fields]
    if unknown:
        nearest = nearest_key(unknown[0], [*cls.model_fields, *MetricArgs.model_fields])
        raise ValueError(f"{path}.{unknown[0]}: unknown key; {nearest}")
    shared_args = parse(MetricArgs, {**shared, **common}, path)
    return MetricSettings(name, shared_args, parse(cls, specific, path))


def build_metrics(
    config: MetricsConfig | None,
    channels: Mapping[str, int],
    *,
    latitude: Float[np.ndarray, " lat"] | None = None,
    climatology: Climatologies | None = None,
    variances: Variances = target_variances,
) -> Metrics:
    """Builds the metrics of a run.

    Members of an ensemble are scored one by one, as in CREDIT.

    Args:
        config: the `metrics` section; None is CREDIT's default set.
        channels: number of channels of each target variable, in channel order, by key
            ("ERA5/prognostic/3d/T").
        latitude: (lat,) degrees north, which the caller reads from the file
            `latitude_weights`; needed with `use_latitude_weights`.
        climatology: returns mean fields, (lat, lon) or (level, lat, lon), by key or
            name of a variable, in the units of the scored fields: those of a file,
            given its path, or those of the training period, given None. `acc` and
            `activity` call it when they are traced.
        variances: returns the variance of each target variable, given the path of a
            scaler file, for `var_weighting: inverse_variance`.

    Returns:
        `(tree, context) -> {"rmse": mean over variables, "rmse/ERA5/...": one variable,
        ...}`, see `Metrics`. It scores the fields "y_processed" and
        "y_target_processed" of the tree, or "y_pred" and "y" if the postblocks do not
        make both. The channels and weights of the section replace those of the context.

    Raises:
        ValueError: a metric or an argument is unknown, or a climatology, a latitude or
            a scaler file is missing.

    Differs from CREDIT: scores "y_pred" and "y" if the postblocks make no
    "y_target_processed", where CREDIT raises KeyError. Without a file the climatology
    is the mean of the training period; CREDIT uses the running mean of the targets seen
    so far.
    """
    settings = metric_settings(config, has_climatology=climatology is not None)
    lacking = [setting.name for setting in settings if setting.compares]
    if lacking and climatology is None:
        raise ValueError(f"metrics: {', '.join(lacking)} need a climatology")
    metrics = tuple(
        _BoundMetric(
            setting,
            ScoredVariables(
                setting.args,
                ARGS,
                channels,
                row_weights(latitude, ARGS)
                if setting.args.use_latitude_weights
                else None,
                setting.variances(variances),
            ),
            climatology if setting.compares else None,
        )
        for setting in settings
    )
    return Metrics(metrics)


@dataclass(frozen=True, eq=False)
class _BoundMetric:
    """A metric, the variables that it scores, and what it compares them with."""

    settings: MetricSettings
    variables: ScoredVariables
    climatology: Climatologies | None

    def scores(self, tree: FieldTree, context: FieldContext) -> dict[str, Array]:
        """Computes the weighted mean over variables, and the score of each variable."""
        name, metric = self.settings.name, self.settings.metric
        prediction, target, context = self.variables.pair(
            tree, context, normalized=True
        )
        mean_fields = None
        if isinstance(metric, AnomalyMetric):
            read = self.climatology
            fields = {} if read is None else read(metric.climatology_path)
            mean_fields = local_climatology(fields, target, context)
        target = context.repeat_members(target)
        values = metric(Pair(prediction, target, mean_fields, context))
        keys = context.layout.keys
        mean = self.variables.mean(values, keys, metric.scale_power)
        return {name: mean, **{f"{name}/{k}": values[i] for i, k in enumerate(keys)}}


@dataclass(frozen=True, eq=False)
class Metrics:
    """Metrics as a function (tree, context) -> values, the same on every shard.

    Attributes:
        metrics: the metrics, each with the contents of its files.
    """

    metrics: tuple[_BoundMetric, ...]

    @property
    def names(self) -> list[str]:
        """Names of the scores, but for those of variables that postblocks compute."""
        pairs = [(m.settings.name, m.variables.channels) for m in self.metrics]
        return [
            key
            for name, keys in pairs
            for key in (name, *(f"{name}/{variable}" for variable in keys))
        ]

    def __call__(self, tree: FieldTree, context: FieldContext) -> dict[str, Array]:
        scores: dict[str, Array] = {}
        for each in self.metrics:
            with keys_of_tree(f"the metric {each.settings.name}", tree):
                scores |= each.scores(tree, context)
        return scores

    def in_training(self) -> Metrics:
        """The metrics of training batches: all that need no mean of training data."""
        every = self.metrics
        return Metrics(
            tuple(m for m in every if not m.settings.metric.needs_climatology)
        )


def local_climatology(
    fields: Mapping[str, np.ndarray],
    target: Float[Array, "batch channel time rows lon"],
    context: FieldContext,
) -> Float[Array, "1 channel time rows lon"]:
    """This shard's rows of the mean field of every channel.

    Args:
        fields: (lat, lon) or (level, lat, lon) by key ("ERA5/prognostic/3d/T") or name
            ("T") of a variable. For missing variables, the mean of `target` over all
            samples of the batch is used.
        target: the local target.
        context: has the channels of `target`.

    Raises:
        ValueError: a field has other levels, rows or longitudes than its variable.
    """
    parts = []
    for key, channels in context.layout.slices.items():
        values = target[:, channels]
        stored = fields.get(key, fields.get(key.rsplit("/", 1)[-1]))
        if stored is None:
            part = context.data_mean(values)[None]
        else:
            part = _local(key, np.asarray(stored), values, context)
        parts.append(jnp.broadcast_to(part, (1, *values.shape[1:])))
    return jnp.concatenate(parts, axis=1)


def _local(key: str, field: np.ndarray, values: Array, context: FieldContext) -> Array:
    levels, lon, lat = values.shape[1], values.shape[-1], context.reducer.rows.size
    field = field[None] if field.ndim == 2 else field
    if field.shape not in ((levels, lat, lon), (1, lat, lon)):
        raise ValueError(
            f"climatology of {key}: got shape {field.shape}, expected "
            f"{(levels, lat, lon)} (level, lat, lon)"
        )
    by_row = jnp.asarray(np.moveaxis(field, 1, 0), values.dtype)
    return jnp.moveaxis(context.local_rows(by_row), 0, 1)[None, :, None]
