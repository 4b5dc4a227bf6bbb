"""The objective of a run: what it minimizes, what it measures, over which forecasts.

    sections                      become                            used by
    loss, trainer, data           loss, rollout, measure            the training step
    metrics                       metrics, without climatologies    the log of that step
    validation_data, loss,        evaluate, valid_rollout           the validation step
    metrics

Losses and metrics are functions (tree, context) of a step inside `shard_map`: the named
fields and channels after its postblocks, and the global means. They are built before
anything runs, so that `plan_objective` lists all that is wrong with these sections.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import numpy as np
from jaxtyping import Array, Float

from credit_jax.config import Config
from credit_jax.data import ChannelSchema, Loader, build_climatology
from credit_jax.data.mean_fields import read_fields
from credit_jax.losses import Loss, build_loss, error_spread, value_and_parts
from credit_jax.losses.by_variable import PART
from credit_jax.metrics import (
    Measure,
    Metrics,
    build_metrics,
    metric_names,
    metric_settings,
    needs_climatology,
)
from credit_jax.metrics.build import Climatologies
from credit_jax.named_fields import FieldContext, FieldTree
from credit_jax.named_fields.coordinates import UNKNOWN
from credit_jax.plan.findings import Findings
from credit_jax.plan.weighting import WeightFiles
from credit_jax.transforms import (
    ONE_STEP,
    Backprop,
    Pipeline,
    Rollout,
    with_gradients,
)

PREDICTION, TARGET = "y_processed", "y_target_processed"
TWIN = (
    "{type: reconstruct, args: {in_key: y, out_key: y_target_processed}} and, after "
    "it, what undoes the scaling with key: y_target_processed"
)


def base_problems(config: Config) -> list[str]:
    """Finds why `loss.type: base` cannot train with the postblocks, one line each."""
    if not config.loss.is_base:
        return []
    entries, problems = _reconstructed(config), []
    if PREDICTION not in entries:
        problems.append(
            "loss.type: base scores y_processed, which no postblock makes: add {type: "
            "reconstruct, args: {detach: false}} to postblocks.per_step"
        )
    elif entries[PREDICTION].get("detach", True):
        problems.append(
            "loss.type: base learns through y_processed, which has no gradient: set "
            "detach: false on the reconstruct block in postblocks.per_step"
        )
    if TARGET not in entries:
        problems.append(
            "loss.type: base scores y_target_processed, which no postblock makes: add "
            f"{TWIN} to postblocks.per_step"
        )
    return problems


def metrics_notes(config: Config) -> list[str]:
    """Returns a note if the metrics section scores normalized fields."""
    entries = _reconstructed(config)
    if config.metrics is None or config.trainer.skip_validation:
        return []
    if PREDICTION in entries and TARGET in entries:
        return []
    return [
        "metrics: no postblock makes y_target_processed, so they score the model's "
        f"output in its own units; for physical units add {TWIN} to postblocks.per_step"
    ]


def base_notes(config: Config) -> list[str]:
    """Returns a note if `loss.type: base` has weights of units that it does not see."""
    if not config.loss.is_base or config.loss.args.get("var_weighting") == "none":
        return []
    if base_problems(config) or scores_are_physical(config):
        return []
    return [
        "loss.type: base scores normalized fields, as no postblock undoes the scaling "
        "of y_processed and y_target_processed, while loss.args.var_weighting is for "
        "physical units; add blocks that undo it, with these keys, to "
        "postblocks.per_step"
    ]


def scores_are_physical(config: Config) -> bool:
    """Whether postblocks undo the scaling of the fields that metrics score."""
    entries = _reconstructed(config)
    if PREDICTION not in entries or TARGET not in entries:
        return False
    return any(args.get("key") == TARGET for _, args in _blocks(config))


def _reconstructed(config: Config) -> dict[str, Mapping[str, Any]]:
    """Tree entries that `reconstruct` blocks make, with the arguments of each block."""
    blocks = (args for name, args in _blocks(config) if name == "reconstruct")
    keyed = ((args.get("out_key", PREDICTION), args) for args in blocks)
    return {key: args for key, args in keyed if isinstance(key, str)}


def _blocks(config: Config) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for block in config.postblocks.per_step.values():
        yield block.type, block.args


@dataclass(frozen=True)
class Objective:
    """Losses and metrics as functions inside `shard_map`.

    Attributes:
        loss: the training loss, (tree, context) -> scalar.
        metrics: computes the metrics of training batches by name, for the log.
        evaluate: computes validation loss and metrics by name; None with
            `skip_validation`. Its first trace reads the climatology.
        evaluated: names of the values of `evaluate`.
        rollout: the forecast whose losses are minimized.
        valid_rollout: the forecast whose last step is evaluated.
        measure: computes further values of each training step for the log, by name;
            None for no such values.
    """

    loss: Loss
    metrics: Measure
    evaluate: Measure | None
    evaluated: tuple[str, ...] = ()
    rollout: Rollout = ONE_STEP
    valid_rollout: Rollout = ONE_STEP
    measure: Measure | None = None


def plan_objective(
    config: Config,
    schema: ChannelSchema,
    pipeline: Pipeline | None,
    files: WeightFiles,
    findings: Findings,
) -> Objective | None:
    """Builds the losses and metrics of a config.

    Args:
        config: the whole config.
        schema: channels of the data.
        pipeline: the transforms; None if they have problems.
        files: reads the files by which losses and metrics weigh.
        findings: receives the problems of the sections loss and metrics, and of
            `trainer.training_metric`.

    Returns:
        The objective; None if it has problems.
    """
    # Problems of other sections do not keep these from being built.
    normalizes = pipeline is not None and pipeline.normalizes
    notes = [*(base_notes(config) if normalizes else ()), *metrics_notes(config)]
    of_sections = Findings(base_problems(config), notes)
    objective = _objective(config, schema, pipeline, files, of_sections)
    findings.add(of_sections)
    return None if of_sections.problems else objective


def _objective(
    config: Config,
    schema: ChannelSchema,
    pipeline: Pipeline | None,
    files: WeightFiles,
    findings: Findings,
) -> Objective | None:
    """Builds what it can of the objective; None if a part is missing."""
    build = _loss_builder(config, schema, files, findings)
    loss = valid_loss = metrics = rollouts = None
    with findings.collecting():
        loss = build(validation=False)
    with findings.collecting():
        metrics = _metrics(config, schema, files, findings)
    if not config.trainer.skip_validation and metrics is not None:
        with findings.collecting():
            valid_loss = build(validation=True)
    # `training_metric` names values of the metrics and of the validation loss.
    if metrics is None or (valid_loss is None and not config.trainer.skip_validation):
        return None
    evaluate, evaluated = None, ()
    if valid_loss is not None:
        evaluate = together(valid_loss, metrics)
        evaluated = ("loss", *_value_names(config, schema, in_training=False))
    trained = _value_names(config, schema, in_training=True)
    findings.problems += _training_metric_problems(config, evaluated, trained)
    if pipeline is not None:
        with findings.collecting():
            rollouts = _rollouts(config, schema, pipeline)
    if loss is None or rollouts is None:
        return None
    measure = _spread if config.shares_batches else None
    of_batches = metrics.in_training()
    return Objective(loss, of_batches, evaluate, evaluated, *rollouts, measure)


def _loss_builder(
    config: Config, schema: ChannelSchema, files: WeightFiles, findings: Findings
) -> Callable[..., Loss]:
    """Reads the files of the loss; returns `build_loss` of (validation=...)."""
    channels, path = schema.target_counts, config.loss.scaler_file
    latitude = files.latitude(config, "loss", findings)
    variances = tendencies = None
    if path is not None:
        with findings.collecting():
            variances = files.variance_reader("loss", channels, findings)(path)
    with findings.collecting():
        tendencies = files.tendencies(config, channels)
    return partial(
        build_loss,
        config.loss,
        channels,
        latitude=latitude,
        variances=variances,
        levels=_levels(config, schema, opened=files.open_files is not None),
        tendencies=tendencies or {},
        num_members=config.trainer.ensemble_size,
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


def _metrics(
    config: Config, schema: ChannelSchema, files: WeightFiles, findings: Findings
) -> Metrics:
    compares = any(
        metric.needs_climatology or metric.climatology_path
        for metric in metric_settings(config.metrics)
    )
    channels = schema.target_counts
    return build_metrics(
        config.metrics,
        channels,
        latitude=files.latitude(config, "metrics", findings),
        climatology=_climatologies(config, schema, files) if compares else None,
        variances=files.variance_reader("metrics", channels, findings),
    )


def _climatologies(
    config: Config, schema: ChannelSchema, files: WeightFiles
) -> Climatologies:
    """Returns the function by which metrics get mean fields, each read once."""

    @cache
    def mean_fields(path: str | None) -> Mapping[str, np.ndarray]:
        if path is None:
            return _training_mean(config, schema, files.loader)
        assert files.open_files is not None, "a plan that is executed has its data open"
        grid = UNKNOWN
        if files.loader is not None:
            grid = files.loader.coordinates().grid
        levels = {group.variable: group.levels for group in schema.target}
        key = "metrics: climatology_path"
        return read_fields(path, key, files.open_files, grid, levels)

    return mean_fields


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


def _value_names(
    config: Config, schema: ChannelSchema, *, in_training: bool
) -> list[str]:
    """Names of the metrics of a step, and of the parts of its loss."""
    channels = schema.target_counts
    names = metric_names(
        config.metrics,
        channels,
        has_climatology=needs_climatology(config.metrics),
        in_training=in_training,
    )
    parts = [f"{PART}{key}" for key in channels] if config.loss.is_base else []
    return names + parts


def _training_metric_problems(
    config: Config, evaluated: Sequence[str], trained: Sequence[str]
) -> list[str]:
    """Checks that `trainer.training_metric` is a value that the run computes.

    Args:
        config: the whole config.
        evaluated: names of the values of the validation step.
        trained: names of the values of the training step, but for its loss.
    """
    metric = config.trainer.training_metric
    available = ["train_loss", *(f"valid_{name}" for name in sorted(evaluated))]
    if metric in (*available, *(f"train_{name}" for name in trained)):
        return []
    short = [name for name in available if "/" not in name]
    return [
        f"trainer.training_metric: got {metric!r}, expected one of {', '.join(short)}, "
        f"or one variable's, such as {available[-1]}"
    ]


def _rollouts(
    config: Config, schema: ChannelSchema, pipeline: Pipeline
) -> tuple[Rollout, Rollout]:
    """Returns the forecasts of training and of validation.

    Raises:
        ValueError: a transform cannot be traced, or no transform makes the named fields
            that a forecast of several steps feeds back.
    """
    if config.trainer.backprop == "full":
        pipeline = with_gradients(pipeline)
    channels = schema.input_slices(), schema.target_slices()
    train, valid = (
        replace(
            Rollout.of(pipeline, *channels, data.forecast_len),
            clamp=config.data.data_clamp,
            num_members=config.num_members,
        )
        for data in (config.data, config.validation_data)
    )
    backprop = Backprop(
        config.trainer.backprop,
        config.backprop_on_timestep,
        config.loss.step_weights(train.num_steps),
    )
    return replace(train, backprop=backprop), valid


def together(loss: Loss, metrics: Measure) -> Measure:
    """Returns a function of a loss, as "loss", its parts, and metrics by name."""

    def evaluate(tree: FieldTree, context: FieldContext) -> dict[str, Array]:
        value, parts = value_and_parts(loss, tree, context)
        return {"loss": value} | parts | metrics(tree, context)

    return evaluate


def _spread(tree: FieldTree, context: FieldContext) -> dict[str, Array]:
    """The standard deviation of errors, which CREDIT logs when it trains by a CRPS."""
    return {"std": error_spread(tree, context)}
