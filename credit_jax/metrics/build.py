"""The metrics section of the configuration as one function inside `shard_map`."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from credit_jax.config.base import StrictModel, parse
from credit_jax.config.metrics import MetricsConfig
from credit_jax.fields import ChannelLayout, FieldContext, latitude_weights
from credit_jax.metrics.base import Pair
from credit_jax.metrics.registry import METRICS

# (prediction, target, context) -> numbers by name, the same on every shard.
Metrics = Callable[[Array, Array, FieldContext], dict[str, Array]]
Prediction = Float[Array, "samples channel time rows lon"]
Target = Float[Array, "batch channel time rows lon"]

# CREDIT's set without a `metrics` section; `acc` joins it where there is a climatology.
DEFAULT = ("rmse", "r2score", "bias")
_KNOWN_ARGS = (
    "metrics",
    "var_weighting",
    "variable_weights",
    "normalize_weights",
    "use_latitude_weights",
    "latitude_weights",
    "include_computed_diagnostics",
)


def build_metrics(
    config: MetricsConfig | None,
    channels: Mapping[str, int],
    *,
    latitude: Float[np.ndarray, " lat"] | None = None,
    climatology: Callable[[], Float[np.ndarray, "channel lat lon"]] | None = None,
    scale: Float[np.ndarray, " channel"] | None = None,
    offset: Float[np.ndarray, " channel"] | None = None,
) -> Metrics:
    """The metrics of the validation.

    Args:
        config: the `metrics` section; None is CREDIT's default set.
        channels: number of channels of each target variable, in channel order, by key
            ("ERA5/prognostic/3d/T").
        latitude: (H,) degrees north; needed with `use_latitude_weights`. The file of
            `latitude_weights` is the caller's to read.
        climatology: gives the mean state of the training period, (C_out, H, W) in the
            units of the model's output; `acc` and `activity` need it. It is called when
            the metrics are traced.
        scale: (C_out,) physical value = model's output * scale + offset; scores are in
            physical units if it is given.
        offset: (C_out,) see `scale`.

    Returns:
        `(prediction, target, context) -> {"rmse": mean over variables,
        "rmse/ERA5/...": one variable, ...}` for local (b, C_out, T_out, rows, lon)
        arrays. The channels and weights of the section replace those of the context.

    Raises:
        ValueError: unknown metric or argument, or a missing climatology.

    Differs from CREDIT: the climatology is the mean of the training period; without a
    file CREDIT takes the running mean of the validation targets seen so far. Without
    `var_weighting` all variables weigh alike (they are normalized); CREDIT asks for a
    scaler file then.
    """
    args = dict(config.args) if config else {}
    scores = _scores(config, climatology is not None)
    weights = _variable_weights(args, channels)
    to_units = _units(scale, offset)
    settings = {
        "channels": ChannelLayout.of(channels),
        "row_weights": _row_weights(args, latitude),
        "channel_weights": None,
    }

    def evaluate(
        prediction: Prediction, target: Target, context: FieldContext
    ) -> dict[str, Array]:
        context = dataclasses.replace(context, **settings)
        pair = Pair(
            context.members(to_units(_widened(prediction))),
            to_units(_widened(target)),
            None if climatology is None else to_units(_local(climatology(), context)),
            context,
        )
        found: dict[str, Array] = {}
        for name, score in scores.items():
            values = score(pair)
            found[name] = jnp.mean(values * jnp.asarray(weights))
            found |= {f"{name}/{key}": values[i] for i, key in enumerate(channels)}
        return found

    return evaluate


def metric_names(
    config: MetricsConfig | None, channels: Collection[str], *, has_climatology: bool
) -> list[str]:
    """The keys of what the function of `build_metrics` returns.

    Args:
        config: the `metrics` section; None is CREDIT's default set.
        channels: the target variables, in channel order.
        has_climatology: whether `build_metrics` will be given one.

    Raises:
        ValueError: as `build_metrics`.
    """
    names = _scores(config, has_climatology)
    return [key for name in names for key in (name, *(f"{name}/{c}" for c in channels))]


def needs_climatology(config: MetricsConfig | None) -> bool:
    """Whether a metric that the section names compares with the climatology.

    Raises:
        ValueError: as `build_metrics`.
    """
    wanted = _wanted(config) if config is not None else {}
    return any(METRICS[name].needs_climatology for name in wanted)


def _widened(field: Array) -> Array:
    return field.astype(jnp.promote_types(field.dtype, jnp.float32))


def _units(
    scale: np.ndarray | None, offset: np.ndarray | None
) -> Callable[[Array], Array]:
    if scale is None or offset is None:
        return lambda field: field
    factor, shift = (
        jnp.asarray(x, jnp.float32).reshape(1, -1, 1, 1, 1) for x in (scale, offset)
    )
    return lambda field: field * factor + shift


def _local(climatology: np.ndarray, context: FieldContext) -> Array:
    by_row = jnp.asarray(np.moveaxis(climatology, 1, 0), jnp.float32)
    return jnp.moveaxis(context.local_rows(by_row), 0, 1)[None, :, None]


def _scores(
    config: MetricsConfig | None, has_climatology: bool
) -> dict[str, Callable[[Pair], Array]]:
    """Metric -> its score with parameters bound, in the order of the section."""
    if config is None:
        names = (*DEFAULT, "acc") if has_climatology else DEFAULT
        return {name: METRICS[name].score for name in names}
    wanted = _wanted(config)
    lacking = [name for name in wanted if METRICS[name].needs_climatology]
    if lacking and not has_climatology:
        raise ValueError(f"metrics: {', '.join(lacking)} need a climatology")
    return {
        name: functools.partial(METRICS[name].score, **dict(parameters))
        for name, parameters in wanted.items()
    }


def _wanted(config: MetricsConfig) -> dict[str, StrictModel]:
    """Metric -> its parameters, in the order of the section."""
    settings = _settings(config)
    strangers = [name for name in settings if name not in METRICS]
    if strangers:
        raise ValueError(
            f"metrics: {', '.join(map(repr, strangers))} not implemented; there are "
            f"{', '.join(METRICS)}"
        )
    args = config.args
    unknown = [key for key in args if key not in _KNOWN_ARGS]
    unknown += [
        f"metrics.{name}"
        for name, own in settings.items()
        if own and not METRICS[name].parameters.model_fields
    ]
    if unknown:
        raise ValueError(
            f"metrics.args: {', '.join(unknown)} not implemented; known: "
            f"{', '.join(_KNOWN_ARGS)} (and metrics without arguments of their own)"
        )
    return {
        name: parse(METRICS[name].parameters, own or {}, f"metrics.args.metrics.{name}")
        for name, own in settings.items()
    }


def _settings(config: MetricsConfig) -> Mapping[str, Any]:
    """Metric -> its own arguments."""
    if config.type != "combined":
        return {config.type: {}}
    settings = config.args.get("metrics")
    if isinstance(settings, Mapping) and settings:
        return settings
    got = "nothing" if settings in (None, {}) else repr(settings)
    raise ValueError(
        f"metrics.args.metrics: got {got}, expected at least one metric with its "
        "arguments, such as {rmse: {}, acc: {}}"
    )


def _row_weights(
    args: Mapping[str, Any], latitude: np.ndarray | None
) -> np.ndarray | None:
    if not args.get("use_latitude_weights", False):
        return None
    if latitude is None:
        raise ValueError(
            "metrics.args.use_latitude_weights: true needs "
            "metrics.args.latitude_weights, a file with a `latitude` coordinate"
        )
    return latitude_weights(latitude)


def _variable_weights(
    args: Mapping[str, Any], channels: Mapping[str, int]
) -> Float[np.ndarray, " variable"]:
    """Weight of each variable in the mean over variables."""
    mode = args.get("var_weighting", "none")
    if mode not in ("none", "manual"):
        raise ValueError(
            f"metrics.args.var_weighting: got {mode!r}, expected 'none' or 'manual'"
        )
    given = args.get("variable_weights") or {}
    if not isinstance(given, Mapping):
        raise ValueError(
            f"metrics.args.variable_weights: got {given!r}, expected a weight for each "
            "variable, such as {ERA5/prognostic/3d/T: 2.0}"
        )
    unknown = [name for name in given if name not in channels]
    if unknown:
        raise ValueError(
            f"metrics.args.variable_weights: {unknown} are no targets; those are "
            f"{list(channels)}"
        )
    weights = np.asarray([float(given.get(key, 1.0)) for key in channels], np.float32)
    normalize = args.get("normalize_weights", True) and weights.mean() > 0
    return weights / weights.mean() if normalize else weights
