"""Builds the `metrics` section of a config as one function inside `shard_map`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeAlias

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from credit_jax.config.metrics import MetricsConfig
from credit_jax.metrics.base import Pair
from credit_jax.metrics.settings import MetricSettings, metric_settings
from credit_jax.named_fields import (
    ChannelLayout,
    FieldContext,
    FieldTree,
    check_multipliers,
    combination_weights,
    has_named_pair,
    keys_of_tree,
    latitude_weights,
    named_pair,
    target_variances,
    warn_unscored,
    widened,
)

# (path of a file, or None for the training period) -> mean fields, (lat, lon) or
# (level, lat, lon), by key or name of a variable.
Climatologies: TypeAlias = Callable[[str | None], Mapping[str, np.ndarray]]


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
    for key, place in context.layout.slices.items():
        values = target[:, place]
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


# (path of a scaler file) -> variance of each target variable, by key.
Variances: TypeAlias = Callable[[str], Mapping[str, float]]


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
    _check(settings, channels, climatology)
    shown = tuple(
        _Shown(
            setting,
            _row_weights(setting, latitude),
            _variances(setting, variances),
            climatology
            if setting.climatology_path or setting.needs_climatology
            else None,
        )
        for setting in settings
    )
    return Metrics(shown, channels)


def metric_names(
    config: MetricsConfig | None,
    channels: Collection[str],
    *,
    has_climatology: bool,
    in_training: bool = False,
) -> list[str]:
    """Returns the keys of the result of the function that `build_metrics` builds.

    Keys of variables that a postblock computes are not included.

    Args:
        config: the `metrics` section; None is CREDIT's default set.
        channels: keys of the target variables, in channel order.
        has_climatology: whether `build_metrics` will be given a climatology.
        in_training: whether to return the keys of `Metrics.in_training`.

    Raises:
        ValueError: as `build_metrics`.
    """
    names = [
        setting.name
        for setting in metric_settings(config, has_climatology=has_climatology)
        if not (in_training and setting.needs_climatology)
    ]
    return [key for name in names for key in (name, *(f"{name}/{c}" for c in channels))]


def needs_climatology(config: MetricsConfig | None) -> bool:
    """Whether a metric of the section needs the mean of the training period.

    Raises:
        ValueError: as `build_metrics`.
    """
    return any(setting.needs_climatology for setting in metric_settings(config))


@dataclasses.dataclass(frozen=True, eq=False)
class _Shown:
    """A metric and the contents of its files."""

    settings: MetricSettings
    row_weights: Float[np.ndarray, " lat"] | None
    variances: Mapping[str, float] | None
    climatology: Climatologies | None

    def pair(
        self, tree: FieldTree, channels: Mapping[str, int], context: FieldContext
    ) -> Pair:
        """Selects the forecast and target that the metric scores."""
        settings = self.settings
        if has_named_pair(tree):
            prediction, target, layout = named_pair(
                tree,
                channels,
                include_computed=settings.args.include_computed_diagnostics,
            )
        else:
            prediction, target = (widened(tree[key]) for key in ("y_pred", "y"))
            layout = ChannelLayout.of(channels)
        context = dataclasses.replace(
            context,
            channels=layout,
            row_weights=self.row_weights,
            channel_weights=None,
        )
        mean_fields = None
        if settings.is_anomaly:
            climatology = self.climatology
            fields = (
                climatology(settings.climatology_path)
                if climatology is not None
                else {}
            )
            mean_fields = local_climatology(fields, target, context)
        target = context.repeat_members(target)
        return Pair(prediction, target, mean_fields, context)

    def scores(self, pair: Pair) -> dict[str, Array]:
        """Computes the weighted mean over variables, and the score of each variable."""
        settings, keys = self.settings, pair.context.layout.keys
        warn_unscored(
            settings.args.variable_weights, keys, "metrics.args.variable_weights"
        )
        parameters = {} if settings.is_anomaly else dict(settings.parameters)
        values = settings.entry.score(pair, **parameters)
        weights = combination_weights(
            keys,
            variances=self.variances,
            multipliers=settings.args.variable_weights,
            normalize=settings.args.normalize_weights,
            scale_power=settings.entry.scale_power,
        )
        named = {f"{settings.name}/{key}": values[i] for i, key in enumerate(keys)}
        return {settings.name: jnp.mean(values * jnp.asarray(weights)), **named}


@dataclasses.dataclass(frozen=True, eq=False)
class Metrics:
    """Metrics as a function (tree, context) -> values, the same on every shard.

    Attributes:
        shown: the metrics, each with the contents of its files.
        channels: number of channels of each target variable, in channel order.
    """

    shown: tuple[_Shown, ...]
    channels: Mapping[str, int]

    def __call__(self, tree: FieldTree, context: FieldContext) -> dict[str, Array]:
        """Computes all scores by name."""
        scores: dict[str, Array] = {}
        for each in self.shown:
            with keys_of_tree(f"the metric {each.settings.name}", tree):
                scores |= each.scores(each.pair(tree, self.channels, context))
        return scores

    def in_training(self) -> Metrics:
        """The metrics of training batches: all that need no mean of training data."""
        metrics = (
            metric for metric in self.shown if not metric.settings.needs_climatology
        )
        return Metrics(tuple(metrics), self.channels)


def _check(
    settings: Sequence[MetricSettings],
    channels: Mapping[str, int],
    climatology: Climatologies | None,
) -> None:
    for setting in settings:
        check_multipliers(
            setting.args.variable_weights,
            list(channels),
            "metrics.args",
            include_computed=setting.args.include_computed_diagnostics,
        )
    lacking = [
        setting.name
        for setting in settings
        if setting.needs_climatology or setting.climatology_path
    ]
    if lacking and climatology is None:
        raise ValueError(f"metrics: {', '.join(lacking)} need a climatology")


def _row_weights(
    settings: MetricSettings, latitude: np.ndarray | None
) -> Float[np.ndarray, " lat"] | None:
    if not settings.args.use_latitude_weights:
        return None
    if latitude is None:
        raise ValueError(
            "metrics.args.use_latitude_weights: true needs "
            "metrics.args.latitude_weights, a file with a `latitude` coordinate"
        )
    return latitude_weights(latitude)


def _variances(
    settings: MetricSettings, variances: Variances
) -> Mapping[str, float] | None:
    path = settings.scaler_path
    return None if path is None else variances(path)
