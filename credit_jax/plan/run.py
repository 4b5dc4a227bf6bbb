"""The plan of a run: all its parts, and all problems of its config."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib.util import find_spec
from typing import Any

from credit_jax.config import Config
from credit_jax.config.trainer import TrainerConfig
from credit_jax.data import ChannelSchema, Loader, Split, build_loader, splits
from credit_jax.data.further_inputs import FurtherInputs
from credit_jax.io.activity import activity
from credit_jax.io.open_files import OpenFiles
from credit_jax.losses import LOSSES
from credit_jax.losses.base import pointwise_losses
from credit_jax.models.common.config import ModelConfig
from credit_jax.models.model_def import float8_notes
from credit_jax.models.parallel_model import ParallelModel
from credit_jax.named_fields.coordinates import Coordinates
from credit_jax.parallel.mesh.devices import required_devices
from credit_jax.parallel.params.precision import Float8, Precision, default_mp_policy
from credit_jax.plan.channel_problems import (
    check_corrections,
    fit_problems,
    further_schemas,
    schema_of,
)
from credit_jax.plan.curriculum import (
    StageLength,
    StagePlan,
    notes_on_lengths,
    notes_on_schedules,
    plan_stages,
    stage_lengths,
)
from credit_jax.plan.files import find_missing
from credit_jax.plan.findings import Findings, titled, unique
from credit_jax.plan.finetune import check_base, find_base, notes_on_base
from credit_jax.plan.model import ModelPlan, plan_model
from credit_jax.plan.objective import Objective, WeightFiles, plan_objective
from credit_jax.plan.run_record import RunRecord
from credit_jax.transforms import (
    Pipeline,
    build_pipeline,
    notes_on_inverses,
    notes_on_order,
    notes_on_schema,
    units_after,
)


def _process_findings(config: Config, model: ModelConfig) -> Findings:
    """Problems and notes of training the network of a diffusion process.

    It is trained on single steps to predict the noise, the target or v at each point.
    Its output is no state, which postblocks could correct or a later step could read.
    """
    findings = Findings()
    if model.process is None:
        return findings
    if config.data.forecast_len > 1:
        findings.problems.append(
            f"data.forecast_len: {model.type} is trained on single steps, got "
            f"{config.data.forecast_len}; expected 1 (CREDIT feeds the output of the "
            "network, which is no state, back)"
        )
    if config.trainer.ensemble_size > 1:
        findings.problems.append(
            f"trainer.ensemble_size: {model.type} is trained on single samples, got "
            f"{config.trainer.ensemble_size}; expected 1 (members of a forecast are in "
            "inference.members)"
        )
    loss = config.loss
    name = None if loss.is_base else loss.type or loss.training_loss
    points = pointwise_losses()
    if name is None or (name in LOSSES and name not in points):
        findings.problems.append(
            f"loss: {name or 'base'} cannot be weighted by the step of the noise, as "
            f"{model.type} needs; expected one of {', '.join(points)}"
        )
    for key in ("use_power_loss", "use_spectral_loss"):
        if loss.is_weighted and getattr(loss, key):
            findings.problems.append(
                f"loss.{key}: {model.type} is trained on noised fields, whose spectra "
                "say nothing; remove the key"
            )
    findings.notes.append(
        f"a validation sample takes {model.process.num_samples} evaluations of the "
        "network; postblocks correct samples, and nothing in training"
    )
    return findings


@dataclass(frozen=True)
class RunPlan:
    """The parts of a run; each section is parsed once, each file opened once.

    Attributes:
        config: the config.
        num_devices: devices that the run is planned for.
        model: the model and the degrees of its mesh.
        schema: channels of the data, from the files if they are open.
        pipeline: the transforms; None if planned before their files are there.
        loaders: loaders of data-parallel rank 0 by split; empty if no data is open.
        objective: losses and metrics; None if no data is open.
        stages: those of `trainer.curriculum`; () without one.
        notes: information for the user, one line each.
        open_files: cache of open files; None if planned without data.

    >>> plan = credit_jax.plan_run(credit_jax.load_config("RUN/model.yml"))
    >>> [*plan.loaders]
    ['train', 'valid']
    """

    config: Config
    num_devices: int
    model: ModelPlan
    schema: ChannelSchema
    pipeline: Pipeline | None = None
    loaders: Mapping[Split, Loader] = field(default_factory=dict)
    objective: Objective | None = None
    stages: tuple[StagePlan, ...] = ()
    notes: tuple[str, ...] = ()
    open_files: OpenFiles | None = None

    @cached_property
    def record(self) -> RunRecord:
        """What the run is; its files are read once."""
        return RunRecord.of(self.config)

    @property
    def units(self) -> dict[str, tuple[str, str]]:
        """Key of a channel's variable -> its unit and file, those that are known."""
        loader = self.loaders.get("train")
        if loader is None or self.pipeline is None:
            return {}
        return units_after(self.pipeline, loader.dataset.units())

    @property
    def further_schemas(self) -> dict[str, ChannelSchema]:
        """Channels of each input of the model other than x, if they are known."""
        loader = self.loaders.get("train")
        opened = None if loader is None else loader.dataset.further
        schemas = further_schemas(self.config.data, opened)
        if self.pipeline is None:
            return schemas
        return {name: schema.after(self.pipeline) for name, schema in schemas.items()}

    @property
    def stage_lengths(self) -> list[StageLength]:
        """Numbers of updates and epochs of each stage; see `stage_lengths`."""
        return _lengths(self.config, self.model, self.stages)

    def build_model(self, devices: Sequence[object]) -> ParallelModel:
        """Builds the model on a mesh of devices, with the options of `trainer`."""
        trainer = self.config.trainer
        options = model_options(trainer)
        model = self.model.build(devices, mp_policy=precision_of(trainer), **options)
        return replace(model, channels=self.schema)


@activity("planning the run")
@titled("this run cannot start")
def plan_run(
    config: Config,
    *,
    num_devices: int | None = None,
    with_data: bool = True,
    expected_files: Sequence[str] = (),
    like: Coordinates | None = None,
    begins: bool = True,
) -> RunPlan:
    """Plans a run, in stages: sections and names of files, files, how all fits.

    It uses no device, creates no weights and compiles nothing.

    Args:
        config: the config.
        num_devices: devices to plan for; None uses `trainer.num_devices`, or the
            smallest number that `trainer.parallelism` can run on.
        with_data: whether to find the data files and open them.
        expected_files: paths of files that are created before the first training; if
            they do not exist yet, that is a note instead of a problem.
        like: coordinates of the run that is continued, at which the data are read; None
            takes those of the first file.
        begins: whether the run begins, with the base of `trainer.finetune` if there is
            one; one that goes on needs none.

    Raises:
        ConfigError: the run cannot start; lists all problems of the first stage that
            has some.

    >>> config = credit_jax.load_config("RUN/model.yml")
    >>> credit_jax.plan_run(config, num_devices=1).num_devices
    1
    """
    trainer = config.trainer
    devices = num_devices or trainer.num_devices
    devices = devices or required_devices(trainer.parallelism)
    model = plan_model(
        config.model,
        trainer.parallelism,
        num_devices=devices,
        keep_whole=trainer.fsdp.keep_whole,
        finetune=trainer.finetune,
    )
    dp_size = model.dims.batch_size

    # What sections say of each other, and files that are missing.
    findings = Findings(notes=[*model.notes])
    findings.notes += float8_notes(model.model_def, precision_of(trainer))
    if trainer.finetune is not None and begins:
        with findings.collecting():
            base = find_base(trainer.finetune.base)
            check_base(base, model.model_def, trainer.finetune)
            findings.notes += notes_on_base(base, model.model_def)
    for each in (config, *config.stages):
        findings.add(_ring_findings(each, dp_size))
    findings.add(_process_findings(config, model.config))
    findings.problems += [
        f"trainer.use_{name}: the package {name} is not installed; pip install "
        f"'credit-jax[{name}]', or write false"
        for name in ("wandb", "mlflow")
        if getattr(trainer, f"use_{name}")
        and not (sys.modules.get(name) or find_spec(name))
    ]
    missing = Findings()
    if with_data:
        missing = find_missing(config, expected_files, model.config)
        findings.add(missing)
    findings.check()

    # The files: of the model, of transforms, of the data.
    open_files = pipeline = None
    if with_data:
        model.config.check_files()
        open_files = OpenFiles()
    with suppress(FileNotFoundError):  # `find_missing` lists it.
        pipeline = build_pipeline(config.preblocks, config.postblocks)
    loaders: dict[Split, Loader] = {}
    if open_files is not None and pipeline is not None and not missing.notes:
        for split in splits(config):
            shared = split == "train" and config.shares_batches
            # Validation data have the coordinates of the training data.
            if first := loaders.get("train"):
                like, pipeline = first.coordinates(), first.pipeline
            loaders[split] = build_loader(
                config,
                split=split,
                dp_size=1 if shared else dp_size,
                pipeline=pipeline,
                open_files=open_files,
                grid=model.grid,
                like=like,
            )
            if like is not None:
                section = "data" if split == "train" else "validation_data"
                like.check_calendar(loaders[split].coordinates().calendar, section)
        pipeline = loaders["train"].pipeline
        read = loaders["train"].dataset.schema.as_read()
        findings.notes += notes_on_order(pipeline, read)
        check_corrections(model.config, loaders["train"])
        findings.notes += [note for loader in loaders.values() for note in loader.notes]
        seen = "" if "valid" not in loaders else loaders["valid"].seen_in(config.data)
        if seen:
            findings.notes.append(
                f"validation_data: {seen}: its losses and scores are of data that the "
                "model was trained on; give it other dates"
            )

    # The model, the losses and the metrics fit the data.
    train = loaders.get("train")
    if pipeline is not None:
        tree_schema = schema_of(config.data, model.config).as_read()
        findings.notes += notes_on_schema(pipeline, tree_schema)
        lengths = config.data.forecast_len, config.validation_data.forecast_len
        if max(*lengths, *(stage.data.forecast_len for stage in config.stages)) > 1:
            findings.notes += notes_on_inverses(pipeline, tree_schema)
    schemas: dict[Split, ChannelSchema] = {k: v.schema for k, v in loaders.items()}
    schema = schemas.get("train") or schema_of(config.data, model.config, pipeline)
    further: dict[Split, FurtherInputs | None]
    further = {split: loader.dataset.further for split, loader in loaders.items()}
    findings.problems += fit_problems(config, model.config, schemas, pipeline, further)
    files = WeightFiles(model.grid[0], open_files, train)
    objective = plan_objective(config, schema, pipeline, files, findings)
    stages = plan_stages(
        config, train, objective, schema, files, findings, dp_size=dp_size
    )
    findings.check()
    findings.notes += notes_on_lengths(config, _lengths(config, model, stages))
    of_stages = {i: s.loader for i, s in enumerate(stages) if s.loader is not None}
    if train is not None:
        of_stages.setdefault(0, train)
    findings.notes += notes_on_schedules(config, of_stages, dp_size)
    return RunPlan(
        config,
        devices,
        model,
        schema,
        pipeline,
        loaders,
        objective if loaders else None,
        stages,
        unique(findings.notes),
        open_files,
    )


def _lengths(
    config: Config, model: ModelPlan, stages: Sequence[StagePlan]
) -> list[StageLength]:
    loaders = {i: s.loader for i, s in enumerate(stages) if s.loader is not None}
    return stage_lengths(config, loaders, model.dims.batch_size)


def _ring_findings(config: Config, dp_size: int) -> Findings:
    """Checks that `ring-crps` has a member on each rank and another validation loss.

    Without `validation_loss` the loss `base` validates with it, too, as in CREDIT.
    """
    findings, size = Findings(), config.trainer.ensemble_size
    if not config.loss.members_are_ranks:
        return findings
    if size < 2 or size != dp_size:
        findings.problems.append(
            "trainer.ensemble_size: ring-crps has one member on each data-parallel "
            f"rank, and at least 2: {size} members do not fit {dp_size} ranks"
        )
    validation_loss = config.loss.args.get("validation_loss")
    if (
        config.loss.is_base
        and not validation_loss
        and not config.trainer.skip_validation
    ):
        findings.notes.append(
            "loss.args.validation_loss: without one the validation takes ring-crps, "
            "whose members are then forecasts of different samples; mae is better"
        )
    return findings


def model_options(trainer: TrainerConfig) -> dict[str, Any]:
    """Arguments of `build_parallel_model` by `trainer`, but for the precision."""
    return {
        "ac_mode": trainer.activation_checkpoint,
        "reshard_after_forward": trainer.fsdp.reshard_after_forward,
        "min_shard_size": trainer.fsdp.min_shard_size,
        "over_domain": trainer.fsdp.over_domain,
        "unroll_blocks": trainer.unroll_blocks,
    }


def precision_of(trainer: TrainerConfig) -> Precision:
    """The dtypes for `trainer.amp`, `trainer.fp8` and `trainer.matmul_precision`."""
    policy = trainer.mp_policy
    precision = Precision(matmul=trainer.matmul_precision)
    if policy is not None:
        precision = default_mp_policy(
            policy.param_dtype,
            reduce_dtype=policy.reduce_dtype,
            output_dtype=policy.output_dtype,
            matmul_precision=trainer.matmul_precision,
        )
    if not trainer.fp8:
        return precision
    return precision.with_float8(
        Float8(trainer.float8.min_channels, trainer.float8.gradient_dtype)
    )
