"""The training of a plan on a mesh: stages, optimizer, schedule, steps, batches."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import NamedSharding, PartitionSpec

from credit_jax.checkpoint import CheckpointStore, PlateauState, Progress
from credit_jax.checkpoint.artifact import Artifact
from credit_jax.config import Config
from credit_jax.config.finetune import CurriculumStage
from credit_jax.config.schedules import PlateauConfig
from credit_jax.config.trainer import TRAINERS
from credit_jax.data import Batch, Loader
from credit_jax.losses import LOSSES
from credit_jax.models.flops import gradient_flops
from credit_jax.models.parallel_model import ParallelModel, place_weights
from credit_jax.parallel.compiler import check_options, compile_program
from credit_jax.parallel.mesh.credit import (
    local_dp_ranks,
    shares_samples,
)
from credit_jax.parallel.params.precision import Precision
from credit_jax.parallel.placement import place_batch, rows_of
from credit_jax.plan import RunPlan
from credit_jax.plan.channels import ChannelMatch
from credit_jax.training.loggers import MicroBatchWork
from credit_jax.training.optimizer import (
    build_loss_optimizer,
    build_optimizer,
    build_schedule,
    with_first_rate_at,
)
from credit_jax.training.restore import RunStore
from credit_jax.training.state import (
    TrainState,
    init_loss_state,
    init_state,
    with_moments,
)
from credit_jax.training.step import custom_step, make_eval_step, make_train_step


@dataclass(frozen=True)
class CompiledSteps:
    """The compiled functions of a run."""

    # (state, placed micro-batches, learning rate or None for that of the schedule,
    # whether to proceed) -> (state, {"loss": (k,), "grad_norm", "learning_rate",
    # "measured", "proceed"}), see `make_train_step`.
    train: Callable[..., tuple[TrainState, dict[str, Any]]]
    # 1 or 2 -> whether the first update is to proceed, on the mesh.
    proceed: Callable[[int], Any]
    # (params, model_state) -> the same with spectral norm fused into params, for many
    # forwards (`ParallelModel.fuse_spectral_norm`).
    fuse: Callable[[Any, Any], tuple[Any, Any]]
    # (params, model_state, placed batch, noise) -> {"loss", "rmse", ...}; None where
    # nothing is validated.
    evaluate: Callable[..., dict[str, Any]] | None
    # Micro-batches of one update -> arrays on the mesh.
    place_train: Callable[[Sequence[Batch]], Any]
    place_valid: Callable[[Batch], Any]  # one batch -> arrays on the mesh
    # Micro-batches seen at the end of an epoch -> learning rate that CREDIT logs then.
    learning_rate: Callable[[int], float]


def num_batches(loader: Loader, cap: int) -> int:
    """Batches of an epoch: all of the loader's, or at most `cap` if it is not 0."""
    return min(cap, loader.sampler.num_batches) if cap else loader.sampler.num_batches


@dataclass(frozen=True)
class Setup:
    """The training of a plan on a mesh; nothing is compiled yet."""

    plan: RunPlan  # config, channels, losses and metrics
    model: ParallelModel
    train_loader: Loader  # batches of the training period, of this process's dp ranks
    # Those of the held-out period; None with `skip_validation`.
    valid_loader: Loader | None
    # The setups of the stages of `trainer.curriculum`; () without one.
    stages: tuple[Setup, ...] = ()

    @cached_property
    def valid_model(self) -> ParallelModel:
        """The model of the validation: float32 where training is float16 by `amp`."""
        # CREDIT validates without autocast; the formats of `fsdp2_mp_policy` stay.
        if not self.plan.config.trainer.trains_in_autocast:
            return self.model
        precision = Precision(matmul=self.plan.config.trainer.matmul_precision)
        parallel_config = replace(self.model.parallel_config, precision=precision)
        return replace(self.model, parallel_config=parallel_config)

    @property
    def batches_per_epoch(self) -> int:
        return num_batches(
            self.train_loader, self.plan.config.trainer.batches_per_epoch
        )

    @property
    def batch_parts(self) -> int:
        """Parts of a micro-batch that a rank takes one after another."""
        sampler = self.train_loader.sampler
        local, size = sampler.samples_per_batch // sampler.dp_size, sampler.batch_size
        loss = LOSSES.get(self.plan.config.loss.name)
        # With fewer ranks than a run began with, each has more samples than its memory
        # is meant for. Where samples depend on each other, it takes all at once.
        if self.model.model_def.batch_stats or (loss and loss.mixes_samples):
            return 1
        return next(n for n in range(-(-local // size), local + 1) if local % n == 0)

    @cached_property
    def optimizer(self) -> optax.GradientTransformation:
        return build_optimizer(self.plan.config.trainer)

    @cached_property
    def loss_optimizer(self) -> optax.GradientTransformation | None:
        """The optimizer of the parameters of the loss; None if it has none."""
        learns = self.plan.config.loss.learns
        return build_loss_optimizer(self.plan.config.trainer) if learns else None

    @cached_property
    def schedule(self) -> optax.Schedule:
        return build_schedule(
            self.plan.config.trainer, batches_per_epoch=self.batches_per_epoch
        )

    def train_step(self, rate: optax.Schedule) -> Callable[..., Any]:
        """The step of `trainer.type`, not compiled."""
        trainer, objective = self.plan.config.trainer, self.plan.objective
        arguments = self.model, self.optimizer, objective.loss
        options: dict[str, Any] = {
            "schedule": rate,
            "accumulate": trainer.grad_accum_every,
            "parts": self.batch_parts,
            "ema_decay": trainer.ema_decay if trainer.use_ema else None,
            "rollout": replace(
                objective.rollout, prepare=self.train_loader.preparation
            ),
            "loss_optimizer": self.loss_optimizer,
            "measure": objective.measure,
            "metrics": objective.metrics,
        }
        make = TRAINERS[trainer.type]
        if make is None:
            return make_train_step(*arguments, **options)
        return custom_step(make, trainer.type, *arguments, **options, **trainer.args)

    def steps(
        self, *, first_rate_at: int | None = None, schedule_step: int = 0
    ) -> CompiledSteps:
        """The functions of the loop; each is compiled at its first call."""
        trainer = self.plan.config.trainer
        first_rate = trainer.learning_rate if trainer.sets_first_rate else None
        counted = self.schedule
        if schedule_step:
            counted = lambda step: self.schedule(step - schedule_step)  # noqa: E731
        rate = with_first_rate_at(counted, first_rate_at, first_rate)
        evaluate = None
        if self.plan.objective.evaluate is not None:
            prepare = self.valid_loader.preparation if self.valid_loader else None
            eval_step = make_eval_step(
                self.valid_model,
                self.plan.objective.evaluate,
                rollout=replace(self.plan.objective.valid_rollout, prepare=prepare),
            )
            evaluate = compile_program(eval_step, self.model.mesh)
        train = compile_program(
            self.train_step(rate),
            self.model.mesh,
            donate_argnums=0,
            options=trainer.compiler.options,
            group_halos=trainer.compiler.group_halos,
        )

        full = NamedSharding(self.model.mesh, PartitionSpec())
        back = int(trainer.schedule is not None and trainer.schedule.by_epoch)
        schedule = jax.jit(rate)
        return CompiledSteps(
            train=train,
            proceed=lambda value: jax.make_array_from_callback(
                (), full, lambda _: np.int32(value)
            ),
            fuse=compile_program(self.valid_model.fuse_spectral_norm, self.model.mesh),
            evaluate=evaluate,
            place_train=self.place_train,
            place_valid=self.place_valid,
            learning_rate=lambda step: float(schedule(jnp.int32(step - back))),
        )

    def place_train(self, group: Sequence[Batch]) -> dict[str, Any]:
        """Micro-batches of one update, stacked, on the mesh."""
        arrays = [batch.arrays for batch in group]
        stacked = jax.tree.map(
            lambda *x: x[0][None] if len(x) == 1 else np.stack(x), *arrays
        )
        return self._placed(stacked, shared=self.plan.config.shares_batches)

    def place_valid(self, batch: Batch) -> dict[str, Any]:
        return self._placed(batch.arrays)

    def _placed(
        self, arrays: dict[str, Any], *, shared: bool = False
    ) -> dict[str, Any]:
        mesh, rows = self.model.mesh, None
        if self.train_loader.rows is not None:
            rows = rows_of(mesh, self.model.model_def.image_height)
        ranks = None if shared else local_dp_ranks(mesh)
        return place_batch(arrays, mesh, local_dp_ranks=ranks, shared=shared, rows=rows)

    @property
    def work(self) -> MicroBatchWork:
        """The work of a micro-batch; a forward pass costs a third of a gradient."""
        config, trainer = self.plan.config, self.plan.config.trainer
        samples = self.train_loader.sampler.samples_per_batch
        steps, counted = config.data.forecast_len, len(config.backprop_on_timestep)
        passes = (counted + (steps - counted) / 3) * trainer.ensemble_size
        return MicroBatchWork(
            samples,
            lambda: samples * passes * gradient_flops(self.model.model_def),
            self.model.mesh.devices.reshape(-1).tolist(),
        )

    @property
    def lengths(self) -> dict[str, int]:
        """`train_history_len` and the like, constant columns of the log."""
        config = self.plan.config
        sections = {"train": config.data}
        if not config.trainer.skip_validation:
            sections["valid"] = config.validation_data
        return {
            f"{split}_{key}": getattr(data, key)
            for split, data in sections.items()
            for key in ("history_len", "forecast_len")
        }

    def store_in(self, checkpoints: CheckpointStore) -> RunStore:
        """What writes the states of this training, and reads them again."""
        plan, loader, model_def = self.plan, self.train_loader, self.model.model_def
        recorded = {
            "channels": plan.schema.names,
            "coordinates": loader.coordinates().to_json(),
            "digests": plan.record.digests,
            "config": plan.record.config,
            "units": {key: unit for key, (unit, _) in plan.units.items()},
            "batch_ranks": loader.sampler.batch_ranks or self.model.axes.num_data,
        }
        specs, low_rank = model_def.param_specs, model_def.low_rank
        return RunStore(checkpoints, specs, recorded, low_rank)

    def match_channels(self, base: Artifact) -> ChannelMatch | None:
        plan = self.plan
        return base.match(plan.schema, plan.config, plan.units, self.model.model_def)

    def fresh_state(self, base: Artifact | None = None) -> TrainState:
        """The state before the first update, with new weights from `seed`."""
        key, weights = jax.random.key(self.plan.config.seed), None
        match = None if base is None else self.match_channels(base)
        if base is not None:
            arrays = base.weights_for(self.model.model_def, match)
            weights = place_weights(self.model, *arrays)
        state = init_state(
            self.model,
            self.optimizer,
            key,
            weights=weights,
            ema=self.plan.config.trainer.use_ema,
            loss_state=init_loss_state(self.plan.objective.loss, self.loss_optimizer),
        )
        finetune = self.plan.config.trainer.finetune
        if base is None or finetune is None or not finetune.moments:
            return state
        return with_moments(state, base.moments_for(self.model.model_def, match))


def prepare(plan: RunPlan, devices: Sequence[Any]) -> Setup:
    """Puts the model and the loaders of a plan on a mesh; nothing is compiled."""
    check_options(plan.config.trainer.compiler.options)
    model = plan.build_model(devices)
    mesh, data = model.mesh, plan.config.data
    keys = [k for k in ("on_bad_sample", "on_outlier") if getattr(data, k) == "skip"]
    if keys and shares_samples(mesh):
        raise ValueError(
            f"data.{keys[0]}: 'skip' needs all tp and domain peers in one process: "
            "a sample that only one of them cannot read would differ between them; "
            "take 'raise', or fewer devices along trainer.parallelism.tensor and domain"
        )
    ranks, dp_size = local_dp_ranks(mesh), model.axes.num_data
    rows = rows_of(mesh, model.model_def.image_height).part

    def local(loader: Loader, *, shared: bool) -> Loader:
        # A plan has the ranks whose samples make a batch.
        of_batch = loader.sampler.dp_size
        shards = ((0,), 1, 0) if shared else (ranks, dp_size, of_batch)
        return loader.for_ranks(*shards).for_step().for_rows(rows)

    loaders = {
        split: local(loader, shared=split == "train" and plan.config.shares_batches)
        for split, loader in plan.loaders.items()
    }
    setup = Setup(plan, model, loaders["train"], loaders.get("valid"))
    stages = []
    for stage in plan.stages:
        alone = {"config": stage.config, "objective": stage.objective, "stages": ()}
        loader = local(stage.loader, shared=stage.config.shares_batches)
        stages.append(replace(setup, plan=replace(plan, **alone), train_loader=loader))
    return replace(setup, stages=tuple(stages))


@dataclass(frozen=True, eq=False)
class Stage:
    """A part of a run with one training program; a run without curriculum has one."""

    setup: Setup
    section: CurriculumStage  # of the config; without a curriculum it gives no key
    # Makes the compiled functions from `schedule_step` of `Progress`; called when the
    # stage begins.
    steps: Callable[..., CompiledSteps]


def stage_at(stages: Sequence[Stage], progress: Progress) -> int:
    """Index of the stage that trains next from a position."""
    for index, stage in enumerate(stages):
        if (until := stage.section.until) is None:
            return index
        by_updates = until.unit == "updates"
        done = (progress.updates or 0) if by_updates else progress.epoch
        if done < until.number:
            return index
    raise AssertionError("`CurriculumStage.until` lets the last stage end with the run")


def entered(
    progress: Progress, stages: Sequence[Stage], index: int, micro_step: int
) -> Progress:
    """The position with the learning rate and the records that a stage begins with."""
    if len(stages) == 1:
        return progress
    trainer, previous = stages[index].setup.plan.config.trainer, progress.stage
    first = 0 if previous is None or previous > index else previous + 1
    passed = [stage.section for stage in stages[first : index + 1]]
    changes: dict[str, Any] = {"stage": index}
    begins = any(section.scheduler is not None for section in passed)
    # A rate that is part of the state, and that of `plateau`, go on, except where a
    # stage gives one or a schedule.
    if begins:
        start = {"schedule_epoch": progress.epoch, "schedule_step": micro_step}
        changes |= {"plateau": None, **start}
    # Losses of different stages are not comparable.
    if passed and previous is not None and trainer.training_metric.startswith("train_"):
        best = ("best_metric", "best_epoch", "best_step")
        changes |= dict.fromkeys(("plateau", *best))
    after = dataclasses.replace(progress, **changes)
    begins = begins or any(section.learning_rate is not None for section in passed)
    rate = None
    if trainer.keeps_rate:
        rate = after.learning_rate
        if begins or trainer.update_learning_rate or rate is None:
            rate = trainer.learning_rate
    by_plateau = isinstance(trainer.schedule, PlateauConfig)
    plateau = (after.plateau or PlateauState()) if by_plateau else None
    return dataclasses.replace(after, learning_rate=rate, plateau=plateau)


def summary_of(config: Config) -> str:
    """The settings of a stage in words."""
    trainer, steps = config.trainer, config.data.forecast_len
    schedule, rate = trainer.schedule, f"{trainer.learning_rate:g}"
    parts = [
        f"forecast_len {steps}",
        f"backprop {trainer.backprop}" if steps > 1 else "",
        f"learning rate {rate}" + (f" {schedule.scheduler_type}" if schedule else ""),
        f"batch size {trainer.train_batch_size}",
        f"accumulation {trainer.grad_accum_every}",
        f"loss {config.loss.name}",
    ]
    return ", ".join(part for part in parts if part)
