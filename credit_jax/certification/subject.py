"""What a certificate is about: a model, how it is trained, and data to run it on."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from credit_jax.certification.small_config import MIN_SHARD_SIZE
from credit_jax.config import Config
from credit_jax.data import Batch, Loader
from credit_jax.losses import Loss
from credit_jax.models.model_def import ModelDef
from credit_jax.named_fields import FieldContext
from credit_jax.parallel.params.initializers import torch_uniform
from credit_jax.parallel.params.precision import Precision
from credit_jax.plan import RunPlan, plan_run
from credit_jax.plan.curriculum import StagePlan
from credit_jax.plan.run import model_options
from credit_jax.training.optimizer import (
    adamw,
    build_loss_optimizer,
    build_optimizer,
)
from credit_jax.training.run_weights import RunWeights
from credit_jax.training.state import init_loss_state
from credit_jax.transforms import ONE_STEP, FieldTree, Rollout

# Samples of a batch: the degrees of data parallelism up to 8 divide them.
NUM_SAMPLES = 8
NUM_UPDATES = 3
# Of a gradient, so small that it is clipped.
MAX_NORM = 0.1
NUM_STEPS = 3


@dataclass(frozen=True)
class Subject:
    """A model, its training and its forecast, and batches of all ranks.

    Attributes:
        model_def: the model.
        loss: loss of the fields after a step of `rollout`.
        optimizer: optimizer of the weights, with elementwise state.
        batches: batches of the updates: arrays of `num_samples` samples by name.
        first: start of the forecast and what its steps need, as a batch; None for no
            forecast.
        rollout: the forecast whose losses are minimized.
        forecast: the forecast of `first`.
        learning_rate: learning rate of every update.
        accumulate: micro-batches of an update.
        ema_decay: decay of the averaged weights; None for no average.
        loss_optimizer: optimizer of the parameters of the loss; None if it has none.
        options: further arguments of `build_parallel_model`.
        precision: dtypes of the model.
        num_ranks: number of data-parallel ranks that the loss needs; None for any.
        shared: whether every data-parallel rank has all samples, as the members of one
            ensemble.
        seed: seed of the weights, of dropout and of noise.
        weights: those of a run, before the first update; None for random ones.
        stages: the subjects of the stages of a curriculum, whose batches and losses are
            trained on one after the other; () for a run without stages.
    """

    model_def: ModelDef
    loss: Loss
    optimizer: optax.GradientTransformation
    batches: tuple[Mapping[str, Any], ...]
    first: Mapping[str, Any] | None = None
    rollout: Rollout = ONE_STEP
    forecast: Rollout = ONE_STEP
    learning_rate: float = 1e-3
    accumulate: int = 1
    ema_decay: float | None = None
    loss_optimizer: optax.GradientTransformation | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    precision: Precision = field(default_factory=Precision)
    num_ranks: int | None = None
    shared: bool = False
    seed: int = 0
    weights: RunWeights | None = None
    stages: tuple[Subject, ...] = ()

    @property
    def num_samples(self) -> int:
        """Samples of a batch, of all data-parallel ranks."""
        return len(self.batches[0]["y"])

    @property
    def loss_state(self) -> Any:
        """Initial parameters of the loss; None if it has none."""
        return init_loss_state(self.loss, self.loss_optimizer)


def mean_square(tree: FieldTree, context: FieldContext) -> Any:
    """The mean of (y_pred - y)^2 over all samples, channels and points.

    Rows weigh as those of a global grid, the cosine of their latitude.
    """
    rows = context.reducer.rows.size
    latitude = np.deg2rad(90 - 180 * (np.arange(rows) + 0.5) / rows)
    weights = np.cos(latitude) / np.cos(latitude).mean()
    return context.reducer.mean((tree["y_pred"] - tree["y"]) ** 2, weights)


def subject_of_model(
    model_def: ModelDef, *, x64: bool = False, seed: int = 0
) -> Subject:
    """Returns a model with a mean square loss, AdamW and random batches.

    Args:
        model_def: any model, also one that no config names.
        x64: compute in float64; needs `jax_enable_x64`.
        seed: seed of weights and batches.
    """
    rng = np.random.default_rng(seed)
    batches = []
    for _ in range(NUM_UPDATES):
        specs = {**model_def.inputs, "y": model_def.output}
        batch = {
            name: rng.normal(size=spec.shape(NUM_SAMPLES)).astype(np.float32)
            for name, spec in specs.items()
        }
        batches.append(wide(batch) if x64 else batch)
    return Subject(
        model_def,
        mean_square,
        adamw(weight_decay=0.01, max_norm=MAX_NORM),
        tuple(batches),
        first=batches[0],
        ema_decay=0.9,
        # FSDP shards the parameters of a small model, too.
        options={"min_shard_size": MIN_SHARD_SIZE},
        precision=_precision(x64),
        seed=seed,
    )


def subject_of_config(
    config: Config, *, x64: bool = False, weights: RunWeights | None = None
) -> Subject:
    """Returns the model, the training and the data of a config.

    Every mesh reads the same samples, on all of whose rows the first rank's loader
    works as one of a single rank.

    Args:
        config: config of a run whose files exist.
        x64: compute in float64; needs `jax_enable_x64`.
        weights: those to begin with; None for random ones.

    Raises:
        ConfigError: the run has problems.
    """
    num_ranks = ranks_of(config)
    plan = plan_run(config, num_devices=num_ranks or 1, begins=False)
    plan.check()
    objective, trainer = plan.objective, config.trainer
    assert objective is not None, "a plan without problems has losses"
    model_def = plan.model.model_def
    assert model_def is not None, "and a model"
    low_rank = model_def.low_rank
    if weights is None and low_rank is not None:
        low_rank = replace(low_rank, up_init=torch_uniform(low_rank.rank))
        model_def = replace(model_def, low_rank=low_rank)
    train = _batches(plan, "train", NUM_UPDATES)
    split = "valid" if "valid" in plan.loaders else "train"
    has_process = model_def.process is not None
    convert = wide if x64 else dict
    subject = Subject(
        model_def,
        objective.loss,
        build_optimizer(trainer),
        tuple(convert(batch.arrays) for batch in train),
        first=convert(_batches(plan, split, 1)[0].arrays),
        rollout=objective.rollout,
        forecast=ONE_STEP if has_process else objective.valid_rollout,
        learning_rate=trainer.learning_rate,
        accumulate=trainer.grad_accum_every,
        ema_decay=trainer.ema_decay if trainer.use_ema else None,
        loss_optimizer=build_loss_optimizer(trainer) if config.loss.learns else None,
        options=model_options(trainer),
        precision=_precision(x64),
        num_ranks=num_ranks,
        # Ranks that only share their batches average over them as over other samples:
        # with each sample once, one device computes the same.
        shared=config.loss.members_are_ranks,
        seed=config.seed,
        weights=weights,
    )
    stages = [
        _stage(subject, stage, len(plan.stages), convert) for stage in plan.stages
    ]
    return replace(subject, stages=tuple(stages))


def _stage(
    subject: Subject, stage: StagePlan, count: int, convert: Callable[..., Any]
) -> Subject:
    """The subject of one of `count` stages, together of at least `NUM_UPDATES`."""
    assert stage.objective is not None, "a plan without problems has losses"
    assert stage.loader is not None, "and data"
    batches = _first_batches(stage.loader, -(-NUM_UPDATES // count))
    return replace(
        subject,
        loss=stage.objective.loss,
        rollout=stage.objective.rollout,
        batches=tuple(convert(batch.arrays) for batch in batches),
    )


def ranks_of(config: Config) -> int | None:
    """Number of data-parallel ranks that the loss of a config needs; None for any."""
    return config.trainer.ensemble_size if config.loss.members_are_ranks else None


def _batches(plan: RunPlan, split: Any, count: int) -> list[Batch]:
    return _first_batches(plan.loaders[split], count)


def _first_batches(loader: Loader, count: int) -> list[Batch]:
    """The first batches of a loader, with the samples of all ranks."""
    return [*itertools.islice(loader.for_ranks((0,), 1).epoch(0), count)]


def _precision(x64: bool) -> Precision:
    return Precision.of("float64") if x64 else Precision()


def wide(tree: Any) -> Any:
    """A tree of arrays with all floats in float64."""
    return jax.tree.map(
        lambda leaf: (
            leaf.astype(np.float64)
            if jnp.issubdtype(leaf.dtype, jnp.floating)
            else leaf
        ),
        tree,
    )
