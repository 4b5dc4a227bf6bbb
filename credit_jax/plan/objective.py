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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Array, Float

from credit_jax.config import Config
from credit_jax.data import ChannelSchema, Loader, build_climatology
from credit_jax.data.mean_fields import read_fields
from credit_jax.io.errors import errors_of
from credit_jax.io.open_files import OpenFiles
from credit_jax.losses import (
    Loss,
    build_loss,
    error_spread,
    needs_latitude,
    value_and_parts,
)
from credit_jax.losses.by_variable import PART
from credit_jax.metrics import (
    Measure,
    build_metrics,
)
from credit_jax.metrics.build import Climatologies
from credit_jax.named_fields import FieldContext, FieldTree, target_variances
from credit_jax.named_fields.axes import horizontal
from credit_jax.named_fields.coordinates import UNKNOWN, indices_of, take_indices
from credit_jax.named_fields.tree import PREDICTION, TARGET
from credit_jax.plan.files import latitude_files
from credit_jax.plan.findings import Findings
from credit_jax.transforms import (
    ONE_STEP,
    Backprop,
    Pipeline,
    Rollout,
    with_gradients,
)

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
class _Postblocks:
    """What postblocks make of the fields that metrics and `type: base` score.

    Attributes:
        entries: arguments of the `reconstruct` block that makes an entry of the tree.
        undo_scaling: whether they undo the scaling of the target.
    """

    entries: Mapping[str, Mapping[str, Any]]
    undo_scaling: bool

    @classmethod
    def of(cls, config: Config) -> _Postblocks:
        blocks = [*config.postblocks.per_step.values()]
        args = [block.args for block in blocks if block.type == "reconstruct"]
        entries = {str(each.get("out_key", PREDICTION)): each for each in args}
        return cls(entries, any(block.args.get("key") == TARGET for block in blocks))

    @property
    def make_both(self) -> bool:
        return {PREDICTION, TARGET} <= self.entries.keys()

    @property
    def are_physical(self) -> bool:
        """Whether the fields that metrics score are in physical units."""
        return self.make_both and self.undo_scaling

    def problems(self) -> list[str]:
        """Why `loss.type: base` cannot train with them, one line each."""
        problems = []
        if PREDICTION not in self.entries:
            problems.append(
                "loss.type: base scores y_processed, which no postblock makes: add "
                "{type: reconstruct, args: {detach: false}} to postblocks.per_step"
            )
        elif self.entries[PREDICTION].get("detach", True):
            problems.append(
                "loss.type: base learns through y_processed, which has no gradient: "
                "set detach: false on the reconstruct block in postblocks.per_step"
            )
        if TARGET not in self.entries:
            problems.append(
                "loss.type: base scores y_target_processed, which no postblock makes: "
                f"add {TWIN} to postblocks.per_step"
            )
        return problems


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
    of_sections, postblocks = Findings(), _Postblocks.of(config)
    if config.loss.is_base:
        of_sections.problems += postblocks.problems()
        normalizes = pipeline is not None and pipeline.normalizes
        weighs = config.loss.args.get("var_weighting") != "none"
        is_fit = not of_sections.problems and not postblocks.are_physical
        if normalizes and weighs and is_fit:
            of_sections.notes.append(
                "loss.type: base scores normalized fields, as no postblock undoes the "
                "scaling of y_processed and y_target_processed, while "
                "loss.args.var_weighting is for physical units; add blocks that undo "
                "it, with these keys, to postblocks.per_step"
            )
    validates = config.metrics is not None and not config.trainer.skip_validation
    if validates and not postblocks.make_both:
        of_sections.notes.append(
            "metrics: no postblock makes y_target_processed, so they score the model's "
            f"output in its own units; for physical units add {TWIN} to "
            "postblocks.per_step"
        )
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
        channels, section = schema.target_counts, config.metrics
        mean_fields = None if section is None else _climatologies(config, schema, files)
        metrics = build_metrics(
            section,
            channels,
            latitude=files.latitude(config, "metrics", findings),
            climatology=mean_fields,
            variances=files.variance_reader("metrics", channels, findings),
        )
    if not config.trainer.skip_validation and metrics is not None:
        with findings.collecting():
            valid_loss = build(validation=True)
    # `training_metric` names values of the metrics and of the validation loss.
    if metrics is None or (valid_loss is None and not config.trainer.skip_validation):
        return None
    is_base, of_batches = config.loss.is_base, metrics.in_training()
    parts = [f"{PART}{key}" for key in schema.target_counts if is_base]
    evaluate, evaluated = None, ()
    if valid_loss is not None:
        evaluate = together(valid_loss, metrics)
        evaluated = ("loss", *metrics.names, *parts)
    trained = (*of_batches.names, *parts)
    findings.problems += _training_metric_problems(config, evaluated, trained)
    if pipeline is not None:
        with findings.collecting():
            rollouts = _rollouts(config, schema, pipeline)
    if loss is None or rollouts is None:
        return None
    measure = _spread if config.shares_batches else None
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
    # Values of the levels of each target variable, of its files or of the config. Where
    # no file is opened to find unknown ones, they are numbers, with which the section
    # is checked.
    opened = files.open_files is not None
    levels: dict[str, Sequence[float] | None] = {}
    for group in schema.target:
        source = config.data.source.get(group.source)
        values: Sequence[float] | None = group.levels
        if values is None and group.var_key.split("/")[2] == "3d":
            values = None if source is None else source.level_values
            if values is None and not opened:
                values = range(1, group.n_levels + 1)
        levels[group.var_key] = values
    return partial(
        build_loss,
        config.loss,
        channels,
        latitude=latitude,
        variances=variances,
        levels=levels,
        tendencies=tendencies or {},
        num_members=config.trainer.ensemble_size,
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
    """The mean of the training period by variable, in the units that metrics score."""
    assert loader is not None, "a plan that is executed has its data open"
    mean = build_climatology(loader.dataset).mean[:, :, 0]
    if not _Postblocks.of(config).are_physical:
        mean = loader.units.normalize(mean)
    return {key: mean[0, part] for key, part in schema.target_slices().items()}


def _training_metric_problems(
    config: Config, evaluated: Sequence[str], trained: Sequence[str]
) -> list[str]:
    """Checks that `trainer.training_metric` is a value that the run computes."""
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
    """The forecasts of training and of validation."""
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


@dataclass(frozen=True)
class WeightFiles:
    """Reads the files by which losses and metrics weigh rows and variables.

    Attributes:
        num_rows: rows of the model, to compare with; None skips the comparison.
        open_files: cache of open files; None reads no file.
        loader: loader of the training data, for a section that names no file; None if
            no data is open.
    """

    num_rows: int | None
    open_files: OpenFiles | None
    loader: Loader | None

    def latitude(
        self, config: Config, section: WeightedSection, findings: Findings
    ) -> Latitude | None:
        """(lat,) degrees north of all rows; None if a section does not weigh rows.

        If no file can be read, a stand-in of one row, to check the section with.
        """
        key, is_needed = "metrics.args.latitude_weights", False
        if section == "loss":
            key, is_needed = config.loss.latitude_file[0], needs_latitude(config.loss)
        elif config.metrics is not None:
            is_needed = bool(config.metrics.args.get("use_latitude_weights"))
        if not is_needed:
            return None
        rows = None
        with findings.collecting():
            rows = self._latitude(key, latitude_files(config).get(key))
        return _STAND_IN if rows is None else rows

    def _latitude(self, key: str, path: str | None) -> Latitude | None:
        """The latitudes; None if the file is missing, or no file is read."""
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
        if not path or self.loader is None:
            return latitude
        # A file may have the rows of the data in another order.
        rows, origin = self.loader.coordinates(), f"{key}: {path}"
        indices = indices_of(rows.latitude, latitude, "latitude", origin, rows.where)
        return take_indices(latitude, indices, 0)

    def variance_reader(
        self, section: WeightedSection, channels: Mapping[str, int], findings: Findings
    ) -> Callable[[str], dict[str, float]]:
        """Returns a function that reads the variances of a scaler file, by key.

        It reads none if there is no such file, which `find_missing` reports.
        """

        def read(path: str) -> dict[str, float]:
            if self.open_files is None or not Path(os.path.expandvars(path)).exists():
                return {}
            variances = target_variances(path)
            missing = [key for key in channels if key not in variances]
            if missing:
                findings.notes.append(
                    f"{section}.args.scaler_path: {path} has no variance of "
                    f"{', '.join(missing)}, weighed as if it were 1, as in CREDIT; it "
                    f"has: {', '.join(variances) or 'none'}"
                )
            return variances

        return read

    def tendencies(
        self, config: Config, channels: Mapping[str, int]
    ) -> dict[str, list[float]]:
        """Variances of tendencies that `preprocess` fits, by key; often empty.

        There are none if the file does not exist, which `find_missing` reports.
        """
        named = config.loss.tendency_weights
        if named is None or self.open_files is None:
            return {}
        path = Path(os.path.expandvars(named))
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
    """Reads the `latitude` coordinate, degrees north, of a NetCDF or Zarr file.

    Args:
        path: path of the file.
        key: dotted config key of the path, for errors.
        open_files: cache of open files.

    Raises:
        ValueError: the file cannot be opened, or has no one-dimensional latitude
            coordinate.
    """
    with errors_of(key):
        dataset = open_files.dataset(Path(path))
        latitude, _ = horizontal(dataset, str(path))
    if latitude is not None:
        return np.asarray(latitude.values, np.float64)
    variables = sorted(map(str, dataset.variables))
    raise ValueError(
        f"{key}: {path} has no one-dimensional `latitude`; it has {variables}"
    )
