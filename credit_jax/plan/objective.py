"""The objective of a run: what it minimizes, what it measures, over which forecasts.

    sections                      become                            used by
    loss, trainer, data           loss, rollout, measure            the training step
    metrics                       metrics, without climatologies    the log of that step
    validation_data, loss,        evaluate, valid_rollout           the validation step
    metrics

Losses and metrics are functions (tree, context) of a step inside `shard_map`: the named
fields and channels after its postblocks, and the global means. They are built before
anything runs, so that `plan_objective` lists all that is wrong with these sections. A
plan that opens no data (`credit-jax check --no-data`) builds them, too: where it reads
no file, or a file has a problem, a stand-in takes the place of the values.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Array, Float

from credit_jax.config import Config
from credit_jax.config.base import check_problems, together
from credit_jax.data import ChannelSchema, Loader
from credit_jax.data.mean_fields import mean_targets, read_fields
from credit_jax.io.errors import errors_of
from credit_jax.io.open_files import OpenFiles
from credit_jax.losses import (
    Loss,
    build_loss,
    error_spread,
    needs_latitude,
    value_and_parts,
)
from credit_jax.losses.build import PART
from credit_jax.metrics import Measure, Metrics, build_metrics
from credit_jax.metrics.scores import Climatologies
from credit_jax.named_fields import FieldContext, FieldTree, target_variances
from credit_jax.named_fields.axes import horizontal
from credit_jax.named_fields.coordinates import UNKNOWN, indices_of, take_indices
from credit_jax.named_fields.tree import PREDICTION, TARGET
from credit_jax.plan.run_record import latitude_files
from credit_jax.transforms import ONE_STEP, Backprop, Pipeline, Rollout, with_gradients

Latitude = Float[np.ndarray, " lat"]
# Sections that weigh rows and variables.
WeightedSection = Literal["loss", "metrics"]
# A section is built with these latitudes, but never run, where no file is read.
_STAND_IN = np.zeros(1)
TWIN = (
    "{type: reconstruct, args: {in_key: y, out_key: y_target_processed}} and, after "
    "it, what undoes the scaling with key: y_target_processed"
)


@dataclass(frozen=True)
class Objective:
    """Losses and metrics as functions inside `shard_map`."""

    loss: Loss  # the training loss, (tree, context) -> scalar
    metrics: Measure  # computes the metrics of training batches by name, for the log
    # Computes validation loss and metrics by name; None with `skip_validation`. Its
    # first trace reads the climatology.
    evaluate: Measure | None
    evaluated: tuple[str, ...] = ()  # names of the values of `evaluate`
    rollout: Rollout = ONE_STEP  # the forecast whose losses are minimized
    valid_rollout: Rollout = ONE_STEP  # the forecast whose last step is evaluated
    # Computes further values of each training step for the log, by name; None for no
    # such values.
    measure: Measure | None = None


def plan_objective(
    config: Config,
    schema: ChannelSchema,
    pipeline: Pipeline | None,
    files: WeightFiles,
) -> tuple[Objective, list[str]]:
    """Builds the losses and metrics of a config, and returns notes on them."""
    loss, trainer = config.loss, config.trainer
    channels = schema.target_counts
    notes, problems = list[str](), list[str]()
    entries, is_physical = _scored_fields(config)
    if loss.is_base:
        problems = _base_problems(entries)
        normalizes = pipeline is not None and pipeline.normalizes
        weighs = loss.args.get("var_weighting") != "none"
        if normalizes and weighs and not problems and not is_physical:
            notes.append(
                "loss.type: base scores normalized fields, as no postblock undoes the "
                "scaling of y_processed and y_target_processed, while "
                "loss.args.var_weighting is for physical units; add blocks that undo "
                "it, with these keys, to postblocks.per_step"
            )
    validates = not trainer.skip_validation
    is_paired = {PREDICTION, TARGET} <= entries.keys()
    if validates and config.metrics is not None and not is_paired:
        notes.append(
            "metrics: no postblock makes y_target_processed, so they score the model's "
            f"output in its own units; for physical units add {TWIN} to "
            "postblocks.per_step"
        )
    mean_fields = None
    if config.metrics is not None:
        mean_fields = _climatologies(config, schema, files)

    @cache
    def metrics() -> Metrics:
        return build_metrics(
            config.metrics,
            channels,
            latitude=files.latitude(config, "metrics"),
            climatology=mean_fields,
            variances=partial(files.variances, "metrics", channels, notes=notes),
        )

    def built(validation: bool) -> Loss:
        path = loss.scaler_file
        levels: dict[str, Sequence[float] | None] = {}
        for group in schema.target:
            source = config.data.source.get(group.source)
            values: Sequence[float] | None = group.levels
            if values is None and group.var_key.split("/")[2] == "3d":
                values = None if source is None else source.level_values
                if values is None and files.open_files is None:
                    values = range(1, group.n_levels + 1)
            levels[group.var_key] = values
        return build_loss(
            loss,
            channels,
            latitude=files.latitude(config, "loss"),
            variances=None
            if path is None
            else partial(files.variances, "loss", channels, notes=notes)(path),
            levels=levels,
            tendencies=files.tendencies(config, channels),
            num_members=trainer.ensemble_size,
            validation=validation,
        )

    parts = [f"{PART}{key}" for key in channels if loss.is_base]

    def named() -> tuple[str, ...]:
        """Names of the values of validation, among which the metric of the run is."""
        evaluated = ("loss", *metrics().names, *parts) if validates else ()
        trained = (*metrics().in_training().names, *parts)
        available = ["train_loss", *(f"valid_{name}" for name in sorted(evaluated))]
        if trainer.training_metric not in (
            *available,
            *(f"train_{name}" for name in trained),
        ):
            short = [name for name in available if "/" not in name]
            raise ValueError(
                f"trainer.training_metric: got {trainer.training_metric!r}, expected "
                f"one of {', '.join(short)}, or one variable's, such as {available[-1]}"
            )
        return evaluated

    _, training_loss, scores, valid_loss, evaluated, rollouts = together(
        lambda: check_problems(problems),
        lambda: built(validation=False),
        metrics,
        lambda: built(validation=True) if validates else None,
        named,
        lambda: _rollouts(config, schema, pipeline),
    )
    objective = Objective(
        training_loss,
        scores.in_training(),
        with_parts(valid_loss, scores) if validates else None,
        evaluated,
        *rollouts,
        # CREDIT logs it when it trains by a CRPS.
        measure=(lambda tree, context: {"std": error_spread(tree, context)})
        if config.shares_batches
        else None,
    )
    return objective, notes


def _scored_fields(config: Config) -> tuple[dict[str, Mapping[str, Any]], bool]:
    """Arguments of `reconstruct` by entry, and whether both entries are physical."""
    blocks = [*config.postblocks.per_step.values()]
    args = [block.args for block in blocks if block.type == "reconstruct"]
    entries: dict[str, Mapping[str, Any]]
    entries = {str(each.get("out_key", PREDICTION)): each for each in args}
    are_undone = any(block.args.get("key") == TARGET for block in blocks)
    return entries, {PREDICTION, TARGET} <= entries.keys() and are_undone


def _base_problems(entries: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Why `loss.type: base` cannot train with postblocks, one line each."""
    args = entries.get(PREDICTION, {"detach": False})
    problems = {
        "loss.type: base scores y_processed, which no postblock makes: add {type: "
        "reconstruct, args: {detach: false}} to postblocks.per_step": PREDICTION
        not in entries,
        "loss.type: base learns through y_processed, which has no gradient: set "
        "detach: false on the reconstruct block in postblocks.per_step": args.get(
            "detach", True
        ),
        "loss.type: base scores y_target_processed, which no postblock makes: add "
        f"{TWIN} to postblocks.per_step": TARGET not in entries,
    }
    return [line for line, applies in problems.items() if applies]


def _climatologies(
    config: Config, schema: ChannelSchema, files: WeightFiles
) -> Climatologies:
    """Returns the function by which metrics get mean fields, each read once."""

    @cache
    def mean_fields(path: str | None) -> Mapping[str, np.ndarray]:
        loader, open_files = files.loader, files.open_files
        if path is None:
            # That of the training period, in the units that metrics score.
            assert loader is not None, "a plan that is executed has its data open"
            mean = mean_targets(loader.dataset)[None, :, 0]
            if not _scored_fields(config)[1]:
                mean = loader.units.normalize(mean)
            return {key: mean[0, part] for key, part in schema.target_slices().items()}
        assert open_files is not None, "a plan that is executed has its data open"
        grid = UNKNOWN if loader is None else loader.coordinates().grid
        levels = {group.variable: group.levels for group in schema.target}
        key = "metrics: climatology_path"
        return read_fields(path, key, open_files, grid, levels)

    return mean_fields


def _rollouts(
    config: Config, schema: ChannelSchema, pipeline: Pipeline | None
) -> tuple[Rollout, Rollout]:
    """The forecasts of training and of validation."""
    if pipeline is None:
        return ONE_STEP, ONE_STEP
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


def with_parts(loss: Loss, metrics: Measure) -> Measure:
    """Returns a function of a loss, as "loss", its parts, and metrics by name."""

    def evaluate(tree: FieldTree, context: FieldContext) -> dict[str, Array]:
        value, parts = value_and_parts(loss, tree, context)
        return {"loss": value} | parts | metrics(tree, context)

    return evaluate


@dataclass(frozen=True)
class WeightFiles:
    """Reads the files by which losses and metrics weigh rows and variables."""

    num_rows: int  # rows of the model, to compare with
    open_files: OpenFiles | None  # cache of open files; None reads no file
    # Loader of the training data, for a section that names no file; None if no data is
    # open.
    loader: Loader | None

    def latitude(self, config: Config, section: WeightedSection) -> Latitude | None:
        """(lat,) degrees north of all rows; None if a section does not weigh rows."""
        key, is_needed = "metrics.args.latitude_weights", False
        if section == "loss":
            key, is_needed = config.loss.latitude_file[0], needs_latitude(config.loss)
        elif config.metrics is not None:
            is_needed = bool(config.metrics.args.get("use_latitude_weights"))
        if not is_needed:
            return None
        path = latitude_files(config).get(key)
        if path and self.open_files is not None and Path(path).exists():
            latitude = read_latitude(path, key, self.open_files)
        elif self.loader is not None and not path:
            latitude = self.loader.latitude
        else:
            # No file can be read: one row, to check the section with.
            return _STAND_IN
        if len(latitude) != self.num_rows:
            raise ValueError(
                f"{key}: {path or 'the data'} has {len(latitude)} latitudes, expected "
                f"model.image_height {self.num_rows}"
            )
        if not path or self.loader is None:
            return latitude
        # A file may have the rows of the data in another order.
        rows, origin = self.loader.coordinates(), f"{key}: {path}"
        indices = indices_of(rows.latitude, latitude, "latitude", origin, rows.where)
        return take_indices(latitude, indices, 0)

    def variances(
        self,
        section: WeightedSection,
        channels: Mapping[str, int],
        path: str,
        notes: list[str],
    ) -> dict[str, float]:
        """Reads the variances of a scaler file, by key; notes those that it lacks."""
        if self.open_files is None or not Path(os.path.expandvars(path)).exists():
            # `find_missing` reports it.
            return {}
        variances = target_variances(path)
        missing = [key for key in channels if key not in variances]
        if missing:
            notes.append(
                f"{section}.args.scaler_path: {path} has no variance of "
                f"{', '.join(missing)}, weighed as if it were 1, as in CREDIT; it "
                f"has: {', '.join(variances) or 'none'}"
            )
        return variances

    def tendencies(
        self, config: Config, channels: Mapping[str, int]
    ) -> dict[str, list[float]]:
        """Variances of tendencies that `preprocess` fits, by key; often empty."""
        named = config.loss.tendency_weights
        if named is None or self.open_files is None:
            return {}
        path = Path(os.path.expandvars(named))
        # `find_missing` reports it.
        if not path.exists():
            return {}
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            read = {key: [float(v) for v in each] for key, each in values.items()}
        except (ValueError, TypeError, AttributeError) as error:
            raise ValueError(
                f"loss.tendency_weights: {named} is no file of tendencies that "
                f"preprocess writes ({error})"
            ) from error
        fit = all(len(v) == channels.get(key) and min(v) > 0 for key, v in read.items())
        if not fit or not read:
            raise ValueError(
                f"loss.tendency_weights: {named} has the variances of other variables "
                f"or levels: { {key: len(v) for key, v in read.items()} }, the targets "
                f"have {dict(channels)}; fit it anew: credit-jax preprocess --overwrite"
            )
        return read


def read_latitude(
    path: str | Path, key: str, open_files: OpenFiles
) -> Float[np.ndarray, " lat"]:
    """Reads the `latitude` coordinate, degrees north, of a NetCDF or Zarr file."""
    with errors_of(key):
        dataset = open_files.dataset(Path(path))
        latitude, _ = horizontal(dataset, str(path))
    if latitude is not None:
        return np.asarray(latitude.values, np.float64)
    variables = sorted(map(str, dataset.variables))
    raise ValueError(
        f"{key}: {path} has no one-dimensional `latitude`; it has {variables}"
    )
