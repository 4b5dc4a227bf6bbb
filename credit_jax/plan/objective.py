"""What a run minimizes and measures: its losses and metrics, built once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from credit_jax.config import Config
from credit_jax.data import ChannelSchema, Loader, build_climatology
from credit_jax.data.latitude import read_latitude
from credit_jax.io.open_files import OpenFiles
from credit_jax.losses import build_loss
from credit_jax.metrics import build_metrics, metric_names, needs_climatology
from credit_jax.plan.files import latitude_files
from credit_jax.plan.findings import Findings
from credit_jax.transforms import Pipeline, Postprocess

Latitude = Float[np.ndarray, " lat"]
# (prediction, target, context) -> numbers by name, inside `shard_map`.
Evaluate = Callable[..., dict[str, Any]]


@dataclass(frozen=True)
class Objective:
    """Losses and metrics as functions inside `shard_map`.

    Attributes:
        loss: the training loss, (prediction, target, context) -> scalar.
        evaluate: validation loss and metrics by name; None with `skip_validation`. Its
            first trace, that of the first validation, reads the climatology.
        measured: the keys of what `evaluate` returns.
        postprocess: the transforms between the model and both; None without any.
    """

    loss: Callable[..., Any]
    evaluate: Evaluate | None
    measured: tuple[str, ...] = ()
    postprocess: Postprocess | None = None


def plan_objective(
    config: Config,
    schema: ChannelSchema,
    pipeline: Pipeline | None,
    latitudes: Latitudes,
    found: Findings,
) -> Objective | None:
    """Builds the losses and metrics of a config.

    Args:
        config: the whole config.
        schema: channels of the data.
        pipeline: the transforms; None if they are wrong.
        latitudes: of the rows.
        found: receives the problems of the sections loss and metrics, and of
            `trainer.training_metric`.

    Returns:
        The objective; None if it has problems.
    """
    before = len(found.problems)
    rows = found.attempt(lambda: latitudes.of("loss"))

    def build(*, validation: bool) -> Callable[..., Any] | None:
        return found.attempt(
            lambda: build_loss(
                config.loss,
                schema.target_counts,
                latitude=rows,
                validation=validation,
            )
        )

    loss = build(validation=False)
    evaluate, measured = None, []
    if not config.trainer.skip_validation:
        valid_loss = build(validation=True)
        scores = found.attempt(lambda: _metrics(config, schema, latitudes))
        if valid_loss is None or scores is None:
            return None
        evaluate = _together(valid_loss, scores)
        measured = ["loss", *_names(config, schema)]
    found.problems += _training_metric_problems(config, measured)
    postprocess = None
    if pipeline is not None:
        channels = schema.input_slices(), schema.target_slices()
        postprocess = found.attempt(lambda: pipeline.postprocess(*channels))
    if loss is None or len(found.problems) > before:
        return None
    return Objective(loss, evaluate, tuple(measured), postprocess)


def _metrics(config: Config, schema: ChannelSchema, latitudes: Latitudes) -> Evaluate:
    climatology = None
    if needs_climatology(config.metrics):
        climatology = cache(lambda: _normalized_climatology(latitudes.loader))
    return build_metrics(
        config.metrics,
        schema.target_counts,
        latitude=latitudes.of("metrics"),
        climatology=climatology,
    )


def _names(config: Config, schema: ChannelSchema) -> list[str]:
    return metric_names(
        config.metrics,
        schema.target_counts,
        has_climatology=needs_climatology(config.metrics),
    )


def _normalized_climatology(loader: Loader | None) -> Float[np.ndarray, "c lat lon"]:
    """(C_out, H, W) mean of the training period, normalized; reads training data."""
    assert loader is not None, "a plan that is executed has its data open"
    mean = build_climatology(loader.dataset).mean[:, :, 0]
    return loader.units.normalize(mean)[0]


def _together(loss: Callable[..., Any], scores: Evaluate) -> Evaluate:
    def evaluate(prediction: Any, target: Any, context: Any) -> dict[str, Any]:
        own = {"loss": loss(prediction, target, context)}
        return own | scores(prediction, target, context)

    return evaluate


def _training_metric_problems(config: Config, measured: Sequence[str]) -> list[str]:
    """`trainer.training_metric` must be something that will be measured."""
    wanted = config.trainer.training_metric
    there = ["train_loss", *(f"valid_{name}" for name in sorted(measured))]
    if wanted in there:
        return []
    short = [name for name in there if "/" not in name]
    return [
        f"trainer.training_metric: got {wanted!r}, expected one of {', '.join(short)}, "
        f"or one variable's, such as {there[-1]}"
    ]


@dataclass(frozen=True)
class Latitudes:
    """Degrees north of every row, for the sections that weigh rows by their area.

    Attributes:
        config: the whole config.
        num_rows: rows of the model; None does not compare.
        open_files: files that are open already; None reads no file.
        loader: of the training data, for a section that names no file; None if no data
            is open.
    """

    config: Config
    num_rows: int | None
    open_files: OpenFiles | None
    loader: Loader | None

    def of(self, section: str) -> Latitude | None:
        """Latitudes of "loss" or "metrics"; None where it does not weigh rows.

        Where nothing can be read, a stand-in of one row: the section itself can be
        checked with it.

        Raises:
            ValueError: see `read_latitude`; or another number of rows than the model's.
        """
        if not _weighs_rows(self.config, section):
            return None
        key = {"loss": "loss", "metrics": "metrics.args"}[section] + ".latitude_weights"
        path = latitude_files(self.config).get(key)
        if path and self.open_files is not None and Path(path).exists():
            latitude = read_latitude(path, key, self.open_files)
        elif self.loader is not None and not path:
            latitude = self.loader.latitude
        else:
            return np.zeros(1)
        if self.num_rows not in (None, len(latitude)):
            raise ValueError(
                f"{key}: {path or 'the data'} has {len(latitude)} latitudes, expected "
                f"model.image_height {self.num_rows}"
            )
        return latitude


def _weighs_rows(config: Config, section: str) -> bool:
    if section == "loss":
        return config.loss.use_latitude_weights
    args = config.metrics.args if config.metrics else {}
    return bool(args.get("use_latitude_weights"))
