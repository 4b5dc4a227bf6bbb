"""Parses the `metrics` section to the metrics that it names, with their arguments."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from credit_jax.config import StrictModel, parse
from credit_jax.config.base import nearest_key
from credit_jax.config.messages import hint
from credit_jax.config.metrics import COMBINED, MetricArgs, MetricsConfig
from credit_jax.metrics.base import AnomalyParameters, MetricEntry
from credit_jax.metrics.registry import METRICS

# CREDIT's default set, for configs without a `metrics` section.
DEFAULT = ("rmse", "r2score", "bias")


@dataclass(frozen=True)
class MetricSettings:
    """One metric of a section.

    Attributes:
        name: key in the registry.
        args: arguments that all metrics accept; for "combined", those of this metric
            override the shared ones.
        parameters: arguments of this metric.
    """

    name: str
    args: MetricArgs
    parameters: StrictModel

    @property
    def entry(self) -> MetricEntry:
        """Entry of the metric in the registry."""
        return METRICS[self.name]

    @property
    def is_anomaly(self) -> bool:
        """Whether it compares with a climatology."""
        return isinstance(self.parameters, AnomalyParameters)

    @property
    def climatology_path(self) -> str | None:
        """Path of the climatology file, if the metric has one."""
        parameters = self.parameters
        return (
            parameters.climatology_path
            if isinstance(parameters, AnomalyParameters)
            else None
        )

    @property
    def needs_climatology(self) -> bool:
        """Whether it compares with the mean of the training period."""
        parameters = self.parameters
        return (
            isinstance(parameters, AnomalyParameters)
            and parameters.climatology_path is None
            and parameters.accumulate_climatology
        )

    @property
    def scaler_path(self) -> str | None:
        """Path of the scaler file, if its variances weight the variables.

        Raises:
            ValueError: the path is needed but not set.
        """
        if not self.args.by_variance or self.entry.scale_power == 0:
            return None
        if self.args.scaler_path is None:
            raise ValueError(
                f"metrics.args.var_weighting: inverse_variance needs "
                f"metrics.args.scaler_path, a file of scalers ({self.name} has the "
                "unit of its variable)"
            )
        return self.args.scaler_path


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
        names = (*DEFAULT, "acc") if has_climatology else DEFAULT
        shared = MetricArgs(var_weighting="none")
        return [
            MetricSettings(name, shared, METRICS[name].parameters()) for name in names
        ]
    if config.type != COMBINED:
        _check_names([config.type])
        return [_settings(config.type, {}, config.args, "metrics.args")]
    by_name = _named(config.args.get("metrics"))
    _check_names(by_name)
    shared = {key: value for key, value in config.args.items() if key != "metrics"}
    parse(MetricArgs, shared, "metrics.args")
    path = "metrics.args.metrics"
    return [
        _settings(name, shared, args or {}, f"{path}.{name}")
        for name, args in by_name.items()
    ]


def _settings(
    name: str, shared: Mapping[str, Any], args: Any, path: str
) -> MetricSettings:
    """Parses one metric, whose arguments override shared ones of the same name."""
    if not isinstance(args, Mapping):
        raise ValueError(f"{path}: must be a mapping of arguments, got {args!r}")
    entry, fields = METRICS[name], MetricArgs.model_fields
    specific = {key: value for key, value in args.items() if key not in fields}
    common = {key: value for key, value in args.items() if key in fields}
    known = [*entry.parameters.model_fields, *fields]
    unknown = [key for key in specific if key not in known]
    if unknown:
        raise ValueError(
            f"{path}.{unknown[0]}: unknown key; {nearest_key(unknown[0], known)}"
        )
    return MetricSettings(
        name,
        parse(MetricArgs, {**shared, **common}, path),
        parse(entry.parameters, specific, path),
    )


def _named(metrics: Any) -> Mapping[str, Any]:
    """Validates the mapping of metrics to their arguments."""
    if isinstance(metrics, Mapping) and metrics:
        return metrics
    got = "nothing" if metrics in (None, {}) else repr(metrics)
    raise ValueError(
        f"metrics.args.metrics: got {got}, expected at least one metric with its "
        "arguments, such as {rmse: {}, acc: {}}"
    )


def _check_names(names: Collection[str]) -> None:
    strangers = [name for name in names if name not in METRICS]
    if strangers:
        raise ValueError(
            f"metrics.args.metrics: {', '.join(map(repr, strangers))} not implemented; "
            f"there are {', '.join(METRICS)}{hint(strangers[0], METRICS)}"
        )
