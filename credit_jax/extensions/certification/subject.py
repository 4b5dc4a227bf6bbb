"""What a certificate is about: a model, how it is trained, and data to run it on."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from credit_jax.checkpoint.artifact import Artifact
from credit_jax.config import Config
from credit_jax.extensions.certification.small_config import MIN_SHARD_SIZE
from credit_jax.models.model_def import ModelDef
from credit_jax.named_fields import FieldContext
from credit_jax.parallel.params.precision import Precision
from credit_jax.parallel.params.spec import torch_uniform
from credit_jax.plan import plan_run
from credit_jax.plan.run import model_options
from credit_jax.training.optimizer import adamw, build_optimizer
from credit_jax.transforms import ONE_STEP, FieldTree, Rollout

# Samples of a batch: the degrees of data parallelism up to 8 divide them.
NUM_SAMPLES = 8
NUM_UPDATES = 3
# Of a gradient, so small that it is clipped.
MAX_NORM = 0.1
NUM_STEPS = 3


@dataclass(frozen=True)
class Subject:
    """A model, its training and its forecast, and batches of all ranks."""

    model_def: ModelDef
    optimizer: optax.GradientTransformation  # with elementwise state
    # Arrays of `num_samples` samples by name; with a config the first batch alone, as a
    # run reads its own.
    batches: tuple[Mapping[str, Any], ...]
    # Start of the forecast and what its steps need, as a batch; None for no forecast.
    first: Mapping[str, Any] | None = None
    forecast: Rollout = ONE_STEP
    accumulate: int = 1  # micro-batches of an update, without a config
    ema_decay: float | None = None
    # Of `build_parallel_model`.
    options: Mapping[str, Any] = field(default_factory=dict)
    precision: Precision = field(default_factory=Precision)
    # Whether every data-parallel rank has all samples, as the members of one ensemble.
    shared: bool = False
    seed: int = 0
    weights: Artifact | None = None  # of a run; None for random ones
    config: Path | None = None  # None: trained on `batches` for the least mean square

    @property
    def num_samples(self) -> int:
        """Samples of a batch, of all data-parallel ranks."""
        return len(self.batches[0]["y"])

    @property
    def dtype(self) -> Any:
        """The dtype that weights are stored in: float32, or float64 with x64."""
        return jnp.promote_types(self.precision.compute, jnp.float32)


def mean_square(tree: FieldTree, context: FieldContext) -> Any:
    """The mean of (y_pred - y)^2 over all samples, channels and points."""
    # Rows weigh as those of a global grid, the cosine of their latitude.
    rows = context.reducer.rows.size
    latitude = np.deg2rad(90 - 180 * (np.arange(rows) + 0.5) / rows)
    weights = np.cos(latitude) / np.cos(latitude).mean()
    return context.reducer.mean((tree["y_pred"] - tree["y"]) ** 2, weights)


def subject_of_model(
    model_def: ModelDef, *, x64: bool = False, seed: int = 0
) -> Subject:
    """Returns any model with AdamW and random batches, in float64 with `x64`."""
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
        adamw(weight_decay=0.01, max_norm=MAX_NORM),
        tuple(batches),
        first=batches[0],
        ema_decay=0.9,
        # FSDP shards the parameters of a small model, too.
        options={"min_shard_size": MIN_SHARD_SIZE},
        precision=Precision.of("float64") if x64 else Precision(),
        seed=seed,
    )


def subject_of_config(
    config: Config, path: Path, *, x64: bool = False, weights: Artifact | None = None
) -> Subject:
    """The model, the optimizer and the data of a config and of its file."""
    plan = plan_run(config, num_devices=ranks_of(config) or 1, begins=False)
    objective, trainer = plan.objective, config.trainer
    assert objective is not None, "a plan without problems has losses"
    model_def = plan.model.model_def
    low_rank = model_def.low_rank
    if weights is None and low_rank is not None:
        low_rank = replace(low_rank, up_init=torch_uniform(low_rank.rank))
        model_def = replace(model_def, low_rank=low_rank)

    def first_batch(split: Any) -> Mapping[str, Any]:
        # Every mesh reads the same samples, on all of whose rows the first rank's
        # loader works as one of a single rank.
        batches = plan.loaders[split].for_ranks((0,), 1).epoch(0)
        (batch,) = itertools.islice(batches, 1)
        return wide(batch.arrays) if x64 else batch.arrays

    return Subject(
        model_def,
        build_optimizer(trainer),
        (first_batch("train"),),
        first=first_batch("valid" if "valid" in plan.loaders else "train"),
        forecast=objective.valid_rollout if model_def.process is None else ONE_STEP,
        ema_decay=trainer.ema_decay if trainer.use_ema else None,
        options=model_options(trainer),
        precision=Precision.of("float64") if x64 else Precision(),
        shared=config.loss.members_are_ranks,
        seed=config.seed,
        weights=weights,
        config=path,
    )


def ranks_of(config: Config) -> int | None:
    """Data-parallel ranks that a config of `for_any_mesh` needs; None for any."""
    return config.trainer.num_devices


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
