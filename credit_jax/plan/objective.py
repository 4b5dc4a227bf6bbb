"""The losses and metrics of a run, built once from its config."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from credit_jax.config import Config
from credit_jax.data import ChannelSchema, Loader, build_climatology
from credit_jax.data.latitude import read_latitude
from credit_jax.data.mean_fields import read_fields
from credit_jax.io.open_files import OpenFiles
from credit_jax.losses import build_loss, error_spread, value_and_parts
from credit_jax.losses.by_variable import PART
from credit_jax.metrics import (
    Metrics,
    build_metrics,
    metric_names,
    metric_settings,
    needs_climatology,
)
from credit_jax.named_fields.coordinates import UNKNOWN, places_of, take_places
from credit_jax.plan.files import latitude_files
from credit_jax.plan.findings import Findings
from credit_jax.plan.named_fields import (
    base_notes,
    base_problems,
    metrics_notes,
    scores_are_physical,
)
from credit_jax.plan.variances import read_tendencies, variance_reader
from credit_jax.transforms import (
    ONE_STEP,
    Backprop,
    Pipeline,
    Rollout,
    with_gradients,
)

Latitude = Float[np.ndarray, " lat"]
# (tree, context) -> values by name, inside `shard_map`.
Evaluate = Callable[..., dict[str, Any]]


@dataclass(frozen=True)
class Objective:
    """Losses and metrics as functions inside `shard_map`.

    Attributes:
        loss: the training loss, (tree, context) -> scalar.
        metrics: computes the metrics of training batches by name, for the log.
        evaluate: computes validation loss and metrics by name; None with
            `skip_validation`. Its first trace reads the climatology.
        measured: keys of the result of `evaluate`.
        rollout: the forecast whose losses are minimized.
        valid_rollout: the forecast whose last step is evaluated.
        measure: computes further values of each training step for the log, by name;
            None for no such values.
    """

    loss: Callable[..., Any]
    metrics: Evaluate
    evaluate: Evaluate | None
    measured: tuple[str, ...] = ()
    rollout: Rollout = ONE_STEP
    valid_rollout: Rollout = ONE_STEP
    measure: Evaluate | None = None


def plan_objective(
    config: Config,
    schema: ChannelSchema,
    pipeline: Pipeline | None,
    latitudes: Latitudes,
    findings: Findings,
) -> Objective | None:
    """Builds the losses and metrics of a config.

    Args:
        config: the whole config.
        schema: channels of the data.
        pipeline: the transforms; None if they have problems.
        latitudes: the latitudes of the rows.
        findings: receives the problems of the sections loss and metrics, and of
            `trainer.training_metric`.

    Returns:
        The objective; None if it has problems.
    """
    # Earlier problems are of other sections, and do not keep these from being built.
    before = len(findings.problems)
    findings.problems += base_problems(config)
    if pipeline is not None and pipeline.normalizes:
        findings.notes += base_notes(config)
    findings.notes += metrics_notes(config)
    rows = latitudes.of("loss", findings)
    path, opened = config.loss.scaler_file, latitudes.open_files is not None
    read = variance_reader(
        "loss.args.scaler_path", schema.target_counts, findings, opened=opened
    )
    variances = loss = scores = rollouts = None
    with findings.collecting():
        variances = None if path is None else read(path)
    named, tendencies = config.loss.tendency_weights, None
    if named is not None and opened and Path(os.path.expandvars(named)).exists():
        with findings.collecting():
            tendencies = read_tendencies(named, schema.target_counts)
    build = partial(
        build_loss,
        config.loss,
        schema.target_counts,
        latitude=rows,
        variances=variances,
        levels=_levels(config, schema, opened=opened),
        tendencies={} if tendencies is None else tendencies,
        num_members=config.trainer.ensemble_size,
    )
    with findings.collecting():
        loss = build(validation=False)
    with findings.collecting():
        scores = _metrics(config, schema, latitudes, findings)
    if scores is None:
        return None
    evaluate, measured = None, []
    trained, names = (_names(config, schema, in_training=t) for t in (True, False))
    if config.loss.is_base:
        parts = [f"{PART}{key}" for key in schema.target_counts]
        trained, names = trained + parts, names + parts
    if not config.trainer.skip_validation:
        valid_loss = None
        with findings.collecting():
            valid_loss = build(validation=True)
        if valid_loss is None:
            return None
        evaluate = together(valid_loss, scores)
        measured = ["loss", *names]
    findings.problems += _training_metric_problems(config, measured, trained)
    with findings.collecting():
        rollouts = plan_rollouts(config, schema, pipeline)
    if loss is None or rollouts is None or len(findings.problems) > before:
        return None
    measure = _spread if config.shares_batches else None
    return Objective(
        loss, scores.in_training(), evaluate, tuple(measured), *rollouts, measure
    )


def _levels(
    config: Config, schema: ChannelSchema, *, opened: bool
) -> dict[str, Sequence[float] | None]:
    """Values of the levels of each target variable, of its files or of the config.

    Where no file is opened to find unknown ones, they are numbers, with which the
    section is checked.
    """
    levels: dict[str, Sequence[float] | None] = {}
    for group in schema.target:
        values: Sequence[float] | None = group.levels
        source = config.data.source.get(group.source)
        deep = group.var_key.split("/")[2] == "3d"
        if values is None and deep and source is not None:
            values = source.level_values
        if values is None and deep and not opened:
            values = range(1, group.n_levels + 1)
        levels[group.var_key] = values
    return levels


def plan_rollouts(
    config: Config, schema: ChannelSchema, pipeline: Pipeline | None
) -> tuple[Rollout, Rollout] | None:
    """Plans the forecasts of training and of validation; None if `pipeline` is None.

    Raises:
        ValueError: a transform cannot be traced, or no transform makes the named fields
            that a forecast of several steps feeds back.
    """
    if pipeline is None:
        return None
    channels = schema.input_slices(), schema.target_slices()
    full = config.trainer.backprop == "full"
    pipeline = with_gradients(pipeline) if full else pipeline
    steps = config.data.forecast_len, config.validation_data.forecast_len
    clamp, num_members = config.data.data_clamp, config.num_members
    train, valid = (
        replace(
            Rollout.of(pipeline, *channels, num_steps),
            clamp=clamp,
            num_members=num_members,
        )
        for num_steps in steps
    )
    backprop = Backprop(
        config.trainer.backprop,
        config.backprop_on_timestep,
        config.loss.step_weights(train.num_steps),
    )
    return replace(train, backprop=backprop), valid


def _metrics(
    config: Config, schema: ChannelSchema, latitudes: Latitudes, findings: Findings
) -> Metrics:
    files = latitudes.open_files

    @cache
    def mean_fields(path: str | None) -> dict[str, np.ndarray]:
        if path is None:
            return _training_mean(config, schema, latitudes.loader)
        assert files is not None, "a plan that is executed has its data open"
        grid = UNKNOWN
        if latitudes.loader is not None:
            grid = latitudes.loader.coordinates().grid
        levels = {group.variable: group.levels for group in schema.target}
        return read_fields(path, "metrics: climatology_path", files, grid, levels)

    return build_metrics(
        config.metrics,
        schema.target_counts,
        latitude=latitudes.of("metrics", findings),
        climatology=mean_fields if _compares(config) else None,
        variances=variance_reader(
            "metrics.args.scaler_path",
            schema.target_counts,
            findings,
            opened=files is not None,
        ),
    )


def _compares(config: Config) -> bool:
    """Whether a metric needs a climatology from a file or of the training period."""
    if config.metrics is None:
        return False
    settings = metric_settings(config.metrics)
    return any(
        setting.needs_climatology or setting.climatology_path for setting in settings
    )


def _names(config: Config, schema: ChannelSchema, *, in_training: bool) -> list[str]:
    return metric_names(
        config.metrics,
        schema.target_counts,
        has_climatology=needs_climatology(config.metrics),
        in_training=in_training,
    )


def _training_mean(
    config: Config, schema: ChannelSchema, loader: Loader | None
) -> dict[str, Float[np.ndarray, "level lat lon"]]:
    """Computes the mean of the training period by variable, from the training data.

    It has the units of the fields that metrics score: physical if postblocks undo the
    scaling of "y_target_processed", else normalized.
    """
    assert loader is not None, "a plan that is executed has its data open"
    mean = build_climatology(loader.dataset).mean[:, :, 0]
    if not scores_are_physical(config):
        mean = loader.units.normalize(mean)
    return {key: mean[0, place] for key, place in schema.target_slices().items()}


def together(loss: Callable[..., Any], scores: Evaluate) -> Evaluate:
    """Computes a loss, as "loss", its parts, and scores by name."""

    def evaluate(tree: Any, context: Any) -> dict[str, Any]:
        value, parts = value_and_parts(loss, tree, context)
        return {"loss": value} | parts | scores(tree, context)

    return evaluate


def _spread(tree: Any, context: Any) -> dict[str, Any]:
    """The standard deviation of errors, which CREDIT logs when it trains by a CRPS."""
    return {"std": error_spread(tree, context)}


def _training_metric_problems(
    config: Config, measured: Sequence[str], trained: Sequence[str]
) -> list[str]:
    """Checks that `trainer.training_metric` is a value that the run computes."""
    metric = config.trainer.training_metric
    available = ["train_loss", *(f"valid_{name}" for name in sorted(measured))]
    if metric in (f"train_{name}" for name in trained):
        return []
    if metric in available:
        return []
    short = [name for name in available if "/" not in name]
    return [
        f"trainer.training_metric: got {metric!r}, expected one of {', '.join(short)}, "
        f"or one variable's, such as {available[-1]}"
    ]


@dataclass(frozen=True)
class Latitudes:
    """Latitudes of all rows, for the sections that weight rows by area.

    Attributes:
        config: the whole config.
        num_rows: rows of the model, to compare with; None skips the comparison.
        open_files: cache of open files; None reads no file.
        loader: loader of the training data, for a section that names no file; None if
            no data is open.
    """

    config: Config
    num_rows: int | None
    open_files: OpenFiles | None
    loader: Loader | None

    def of(self, section: str, findings: Findings) -> Latitude | None:
        """Returns the latitudes for the section "loss" or "metrics".

        Args:
            section: "loss" or "metrics".
            findings: receives the problem of a file that cannot be read, or whose
                number of rows is not the model's.

        Returns:
            (lat,) degrees north; None if the section does not weight rows. If no file
            can be read, a placeholder of one row, with which the section is checked.
        """
        if not _weighs_rows(self.config, section):
            return None
        rows = None
        with findings.collecting():
            rows = self._read(section)
        # The problem of the file is reported; the rest of the section is checked, too.
        return np.zeros(1) if rows is None else rows

    def _read(self, section: str) -> Latitude | None:
        """Returns the latitudes; None if the file is missing, or no file is read.

        Raises:
            ValueError: as `read_latitude`, or the rows are not those of the data, or
                not as many as the model's.
        """
        key = "metrics.args.latitude_weights"
        if section == "loss":
            key, _ = self.config.loss.latitude_file
        path = latitude_files(self.config).get(key)
        if path and self.open_files is not None and Path(path).exists():
            latitude = read_latitude(path, key, self.open_files)
        elif self.loader is not None and not path:
            latitude = self.loader.latitude
        else:
            return None
        if self.num_rows not in (None, len(latitude)):
            raise ValueError(
                f"{key}: {path or 'the data'} has {len(latitude)} latitudes, expected "
                f"model.image_height {self.num_rows}"
            )
        return self._in_order(latitude, key, path) if path else latitude

    def _in_order(self, latitude: Latitude, key: str, path: str) -> Latitude:
        """Returns the latitudes of a file in the order of the data.

        Raises:
            ValueError: they are not those of the data.
        """
        if self.loader is None:
            return latitude
        rows = self.loader.coordinates()
        places = places_of(
            rows.latitude, latitude, "latitude", f"{key}: {path}", rows.where
        )
        return take_places(latitude, places, 0)


def _weighs_rows(config: Config, section: str) -> bool:
    if section == "loss":
        return config.loss.needs_latitude
    args = config.metrics.args if config.metrics else {}
    return bool(args.get("use_latitude_weights"))
