"""The plan of a run: all its parts, and all problems of its config."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from importlib.util import find_spec
from itertools import chain
from typing import Any

from credit_jax.config import Config
from credit_jax.config.base import as_problems, check_problems, together
from credit_jax.config.finetune import FinetuneConfig
from credit_jax.config.parallelism import ParallelismConfig
from credit_jax.config.trainer import TrainerConfig
from credit_jax.data import ChannelSchema, Loader, Split, build_loader, splits
from credit_jax.io.activity import activity
from credit_jax.io.open_files import OpenFiles
from credit_jax.losses import LOSSES
from credit_jax.losses.base import pointwise_losses
from credit_jax.models.common.config import ModelConfig
from credit_jax.models.model_def import ModelDef, float8_notes
from credit_jax.models.parallel_model import ParallelModel, build_parallel_model
from credit_jax.models.registry import MODELS, parse_model
from credit_jax.named_fields.coordinates import Coordinates
from credit_jax.parallel.mesh.device_mesh import DOMAIN, EP, TP, MeshAxes
from credit_jax.parallel.mesh.devices import required_devices
from credit_jax.parallel.mesh.dims import ParallelDims
from credit_jax.parallel.mesh.model_fit import ULYSSES, model_notes, model_problems
from credit_jax.parallel.params.precision import Float8, Precision, default_mp_policy
from credit_jax.plan.channels import (
    check_corrections,
    fit_problems,
    further_schemas,
    schema_of,
)
from credit_jax.plan.curriculum import StageLength, StagePlan, plan_lengths, plan_stages
from credit_jax.plan.finetune import (
    check_base,
    find_base,
    finetuned,
    note_on_frozen,
    notes_on_base,
)
from credit_jax.plan.objective import Objective, WeightFiles, plan_objective
from credit_jax.plan.run_record import RunRecord, find_missing
from credit_jax.transforms import (
    Pipeline,
    build_pipeline,
    notes_on_inverses,
    notes_on_order,
    notes_on_schema,
    units_after,
)


@dataclass(frozen=True)
class ModelPlan:
    """A `model:` section and the degrees of its mesh."""

    dims: ParallelDims  # degrees of the mesh
    config: ModelConfig  # the validated `model:` section
    model_def: ModelDef  # the model
    # Information for the user, one line each, such as uneven rows.
    notes: tuple[str, ...] = ()

    @property
    def axes(self) -> MeshAxes:
        """The mesh axes of a step."""
        return self.dims.mesh_axes

    @property
    def grid(self) -> tuple[int, int]:
        """(latitudes, longitudes) of the model."""
        return self.config.output.height, self.config.output.width

    def build(self, devices: Sequence[Any], **options: Any) -> ParallelModel:
        """Builds the model on the first devices, with `build_parallel_model`."""
        used = devices[: self.dims.world_size]
        return build_parallel_model(self.model_def, self.dims, devices=used, **options)


def plan_model(
    section: Mapping[str, Any],
    parallelism: ParallelismConfig,
    *,
    num_devices: int,
    keep_whole: Sequence[str] = (),  # patterns of paths that FSDP never splits
    finetune: FinetuneConfig | None = None,
    key: str = "trainer.parallelism",  # for messages
) -> ModelPlan:
    """Parses a model and checks it against the degrees of parallelism."""
    degrees = {
        TP: parallelism.tensor,
        DOMAIN: parallelism.domain,
        EP: parallelism.ep,
        ULYSSES: parallelism.ulysses_degree,
    }

    def sound_config() -> ModelConfig:
        config = parse_model(section)
        check_problems(model_problems(config, degrees))
        return config

    def mesh_dims() -> ParallelDims:
        with as_problems(key=key):
            return ParallelDims.from_config(parallelism, num_devices)

    dims: ParallelDims
    config: ModelConfig
    dims, config = together(mesh_dims, sound_config)
    model_def = ModelDef(config, MODELS[config.type].module, tuple(keep_whole))
    problems = model_def.validate(parallelism.tensor)
    check_problems(
        [*problems, *(f"trainer.fsdp.{line}" for line in model_def.unmatched())]
    )
    model_def, notes = finetuned(model_def, finetune), list[str]()
    if dims.world_size < num_devices:
        notes.append(f"data: none uses {dims.world_size} of {num_devices} devices")
    if model_def.frozen:
        notes.append(note_on_frozen(model_def))
    if parallelism.etp is not None and config.routing is None:
        notes.append(f"etp is {parallelism.etp}, but {config.type} has no experts")
    ulysses = parallelism.ulysses_degree or 1
    notes += model_notes(config, parallelism.domain, ulysses)
    return ModelPlan(dims, config, model_def, tuple(dict.fromkeys(notes)))


@dataclass(frozen=True)
class RunPlan:
    """The parts of a run; each section is parsed once, each file opened once.

    Attributes:
        config: the config.
        num_devices: devices that the run is planned for.
        model: the model and the degrees of its mesh.
        schema: channels of the data, from the files if they are open.
        pipeline: the transforms; none if planned before their files are there.
        loaders: loaders of data-parallel rank 0 by split; empty if no data is open.
        objective: losses and metrics; with stand-ins for values if no data is open.
        stages: those of `trainer.curriculum`; () without one, or if no data is open.
        notes: information for the user, one line each.
        open_files: cache of open files.
        stage_lengths: numbers of updates and epochs of each stage.

    >>> plan = credit_jax.plan_run(credit_jax.load_config("RUN/model.yml"))
    >>> [*plan.loaders]
    ['train', 'valid']
    """

    config: Config
    num_devices: int
    model: ModelPlan
    schema: ChannelSchema
    pipeline: Pipeline
    loaders: Mapping[Split, Loader]
    objective: Objective
    stages: tuple[StagePlan, ...]
    notes: tuple[str, ...]
    open_files: OpenFiles
    stage_lengths: Sequence[StageLength]

    @cached_property
    def record(self) -> RunRecord:
        """What the run is; its files are read once."""
        return RunRecord.of(self.config)

    @property
    def units(self) -> dict[str, tuple[str, str]]:
        """Key of a channel's variable -> its unit and file, those that are known."""
        loader = self.loaders.get("train")
        return units_after(self.pipeline, loader.dataset.units() if loader else {})

    @property
    def further_schemas(self) -> dict[str, ChannelSchema]:
        """Channels of each input of the model other than x, if they are known."""
        loader = self.loaders.get("train")
        schemas = further_schemas(self.config.data, loader and loader.dataset)
        return {name: schema.after(self.pipeline) for name, schema in schemas.items()}

    def build_model(self, devices: Sequence[object]) -> ParallelModel:
        """Builds the model on a mesh of devices, with the options of `trainer`."""
        trainer = self.config.trainer
        options = model_options(trainer)
        model = self.model.build(devices, mp_policy=precision_of(trainer), **options)
        return replace(model, channels=self.schema)


@activity("planning the run")
@as_problems("this run cannot start")
def plan_run(
    config: Config,
    *,
    num_devices: int | None = None,
    with_data: bool = True,
    expected_files: Sequence[str] = (),
    like: Coordinates | None = None,
    begins: bool = True,
    parallelism: ParallelismConfig | None = None,
    batch_ranks: int = 0,
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
        parallelism: degrees of the mesh in place of `trainer.parallelism`.
        batch_ranks: data-parallel ranks whose samples make a batch; 0 for those of the
            mesh.

    Raises:
        ConfigError: the run cannot start; lists all problems of the first stage that
            has some.

    >>> config = credit_jax.load_config("RUN/model.yml")
    >>> credit_jax.plan_run(config, num_devices=1).num_devices
    1
    """
    trainer = config.trainer
    parallelism = parallelism or trainer.parallelism
    devices = num_devices or trainer.num_devices or required_devices(parallelism)
    model = plan_model(
        config.model,
        parallelism,
        num_devices=devices,
        keep_whole=trainer.fsdp.keep_whole,
        finetune=trainer.finetune,
    )
    dp_size = batch_ranks or model.dims.batch_size

    def base_notes() -> list[str]:
        if trainer.finetune is None or not begins:
            return []
        base = find_base(trainer.finetune.base)
        check_base(base, model.model_def, trainer.finetune)
        return notes_on_base(base, model.model_def)

    # What sections say of each other, and files that are missing.
    checks: list[Callable[[], list[str]]] = [base_notes]
    checks += [
        partial(_ring_members, each, dp_size) for each in (config, *config.stages)
    ]
    checks.append(partial(_process_training, config, model.config))
    if with_data:
        checks.append(partial(find_missing, config, expected_files, model.config))
    lines = together(*checks)
    notes = [*model.notes, *float8_notes(model.model_def, precision_of(trainer))]
    notes += chain.from_iterable(lines)
    # Data are opened when no file is left that the first training makes.
    opens_data = with_data and not lines[-1]

    # The files: of the model, of transforms, of the data.
    open_files, pipeline, loaders = OpenFiles(), None, dict[Split, Loader]()
    if with_data:
        model.config.check_files()
    with suppress(FileNotFoundError):  # `find_missing` lists it.
        pipeline = build_pipeline(config.preblocks, config.postblocks)
    if pipeline is not None and opens_data:
        loaders = _open_loaders(config, dp_size, model.grid, pipeline, open_files, like)
        pipeline = loaders["train"].pipeline
        notes += notes_on_order(pipeline, loaders["train"].dataset.schema.as_read())
        check_corrections(model.config, loaders["train"])
        notes += [note for loader in loaders.values() for note in loader.notes]
        if "valid" in loaders and (seen := loaders["valid"].seen_in(config.data)):
            notes.append(
                f"validation_data: {seen}: its losses and scores are of data that the "
                "model was trained on; give it other dates"
            )

    # The model, the losses and the metrics fit the data.
    train = loaders.get("train")
    if pipeline is not None:
        tree_schema = schema_of(config.data, model.config).as_read()
        notes += notes_on_schema(pipeline, tree_schema)
        lengths = config.data.forecast_len, config.validation_data.forecast_len
        if max(*lengths, *(stage.data.forecast_len for stage in config.stages)) > 1:
            notes += notes_on_inverses(pipeline, tree_schema)
    schema = train.schema if train else schema_of(config.data, model.config, pipeline)
    files = WeightFiles(model.grid[0], open_files if with_data else None, train)
    parts = config, schema, pipeline, files
    objective: Objective
    _, (objective, objective_notes) = together(
        lambda: check_problems(fit_problems(config, model.config, loaders, pipeline)),
        lambda: plan_objective(*parts),
    )
    stages, stage_notes = plan_stages(*parts, objective, dp_size=dp_size)
    of_stages = [stage.loader for stage in stages] or [train] * len(
        config.stages or [0]
    )
    lasting, length_notes = plan_lengths(config, of_stages, dp_size)
    notes += [*objective_notes, *stage_notes, *length_notes]
    return RunPlan(
        config,
        devices,
        model,
        schema,
        pipeline or Pipeline(()),
        loaders,
        objective,
        stages,
        tuple(dict.fromkeys(notes)),
        open_files,
        lasting,
    )


def _open_loaders(
    config: Config,
    dp_size: int,
    grid: tuple[int, int],
    pipeline: Pipeline,
    open_files: OpenFiles,
    like: Coordinates | None,
) -> dict[Split, Loader]:
    """The loaders of rank 0; validation data have the coordinates of training data."""
    loaders: dict[Split, Loader] = {}
    for split in splits(config):
        shared = split == "train" and config.shares_batches
        if first := loaders.get("train"):
            like, pipeline = first.coordinates(), first.pipeline
        loaders[split] = build_loader(
            config,
            split=split,
            dp_size=1 if shared else dp_size,
            pipeline=pipeline,
            open_files=open_files,
            grid=grid,
            like=like,
        )
        if like is not None:
            section = "data" if split == "train" else "validation_data"
            like.check_calendar(loaders[split].coordinates().calendar, section)
    return loaders


def _process_training(config: Config, model: ModelConfig) -> list[str]:
    """Checks the trackers of a run, and training of a diffusion; returns notes."""
    trainer, loss = config.trainer, config.loss
    problems, notes = list[str](), list[str]()
    # Its network is trained on single steps to predict the noise, the target or v: no
    # state, which postblocks could correct or a later step could read.
    if model.process is not None:
        name = None if loss.is_base else loss.type or loss.training_loss
        points = pointwise_losses()
        lines = {
            f"data.forecast_len: {model.type} is trained on single steps, got "
            f"{config.data.forecast_len}; expected 1 (CREDIT feeds the output of the "
            "network, which is no state, back)": config.data.forecast_len > 1,
            f"trainer.ensemble_size: {model.type} is trained on single samples, got "
            f"{trainer.ensemble_size}; expected 1 (members of a forecast are in "
            "inference.members)": trainer.ensemble_size > 1,
            f"loss: {name or 'base'} cannot be weighted by the step of the noise, as "
            f"{model.type} needs; expected one of {', '.join(points)}": name is None
            or (name in LOSSES and name not in points),
        } | {
            f"loss.{key}: {model.type} is trained on noised fields, whose spectra say "
            "nothing; remove the key": loss.is_weighted and getattr(loss, key)
            for key in ("use_power_loss", "use_spectral_loss")
        }
        problems = [line for line, applies in lines.items() if applies]
        notes.append(
            f"a validation sample takes {model.process.num_samples} evaluations of the "
            "network; postblocks correct samples, and nothing in training"
        )
    problems += [
        f"trainer.use_{name}: the package {name} is not installed; pip install "
        f"'credit-jax[{name}]', or write false"
        for name in ("wandb", "mlflow")
        if getattr(trainer, f"use_{name}")
        and not (sys.modules.get(name) or find_spec(name))
    ]
    check_problems(problems)
    return notes


def _ring_members(config: Config, dp_size: int) -> list[str]:
    """Checks that `ring-crps` has a member on each rank; returns notes."""
    loss, size = config.loss, config.trainer.ensemble_size
    if not loss.members_are_ranks:
        return []
    if size < 2 or size != dp_size:
        check_problems(
            [
                "trainer.ensemble_size: ring-crps has one member on each data-parallel "
                f"rank, and at least 2: {size} members do not fit {dp_size} ranks"
            ]
        )
    # As in CREDIT, `base` validates with the training loss without one.
    other = loss.args.get("validation_loss") or config.trainer.skip_validation
    if other or not loss.is_base:
        return []
    return [
        "loss.args.validation_loss: without one the validation takes ring-crps, whose "
        "members are then forecasts of different samples; mae is better"
    ]


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
