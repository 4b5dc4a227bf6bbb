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


@dataclass(frozen=True, eq=False)
class BoundMetric:
    """A metric of a section, and the variables that it scores.

    Attributes:
        name: key in the registry.
        metric: the metric, with its own arguments.
        variables: the variables, and their weights.
        climatology: reads what an `AnomalyMetric` subtracts; None for means of batches.
    """

    name: str
    metric: ConfiguredMetric
    variables: ScoredVariables
    climatology: Climatologies | None

    def scores(self, tree: FieldTree, context: FieldContext) -> dict[str, Array]:
        """Computes the weighted mean over variables, and the score of each variable."""
        prediction, target, context = self.variables.pair(
            tree, context, normalized=True
        )
        mean_fields = None
        if isinstance(self.metric, AnomalyMetric):
            read = self.climatology
            fields = {} if read is None else read(self.metric.climatology_path)
            mean_fields = local_climatology(fields, target, context)
        target = context.repeat_members(target)
        values = self.metric(Pair(prediction, target, mean_fields, context))
        keys = context.layout.keys
        mean = self.variables.mean(values, keys, self.metric.scale_power)
        by_variable = {f"{self.name}/{key}": values[i] for i, key in enumerate(keys)}
        return {self.name: mean, **by_variable}


@dataclass(frozen=True, eq=False)
class Metrics:
    """Metrics as a function (tree, context) -> values, the same on every shard.

    Attributes:
        metrics: the metrics, each with the contents of its files.
    """

    metrics: tuple[BoundMetric, ...]

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
    """Parses the metrics of a section, in its order.

    Args:
        config: the `metrics` section; None is CREDIT's default set.
        has_climatology: whether to add `acc` to the default set.

    Returns:
        Name -> the arguments that all metrics accept, of which those of a metric
        override the shared ones of "combined"; and the metric with its own arguments.
    """
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
    """This shard's rows of the mean field of every channel.

    Args:
        fields: (lat, lon) or (level, lat, lon) by key ("ERA5/prognostic/3d/T") or name
            ("T") of a variable. For missing variables, the mean of `target` over all
            samples of the batch is used.
        target: the local target.
        context: has the channels of `target`.
    """
    lat, parts = context.reducer.rows.size, []
    for key, channels in context.layout.slices.items():
        values = target[:, channels]
        stored = fields.get(key, fields.get(key.rsplit("/", 1)[-1]))
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
