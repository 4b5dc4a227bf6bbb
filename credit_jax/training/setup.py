"""From a config to everything that a run needs, checked before anything is compiled."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh

from credit_jax.config import Config
from credit_jax.config.trainer import TrainerConfig
from credit_jax.data import Batch, ChannelSchema, Loader, build_loader, splits
from credit_jax.data.climatology import build_climatology
from credit_jax.data.latitude import read_latitude
from credit_jax.fields import FieldContext
from credit_jax.losses import build_loss
from credit_jax.metrics import build_metrics, metric_names, needs_climatology
from credit_jax.models.model_def import ModelDef
from credit_jax.models.parallel_model import ParallelModel, build_parallel_model
from credit_jax.models.registry import build
from credit_jax.parallel.compiler import compile_program
from credit_jax.parallel.mesh.credit import (
    build_device_mesh,
    data_parallel_coords,
    local_dp_ranks,
)
from credit_jax.parallel.mesh.dims import ParallelDims
from credit_jax.parallel.params.precision import Precision, default_mp_policy
from credit_jax.parallel.placement import place_batch
from credit_jax.training.loop import Steps, num_batches
from credit_jax.training.optimizer import build_optimizer
from credit_jax.training.schedules import build_schedule, with_first_rate_at
from credit_jax.training.state import TrainState, init_state
from credit_jax.training.step import (
    make_eval_step,
    make_train_step,
)
from credit_jax.transforms import Postprocess


@dataclass(frozen=True)
class Setup:
    """A run that can begin; nothing is compiled yet.

    Attributes:
        config: the whole config.
        model: on its mesh, with its precision and rematerialization.
        train_loader: batches of the training period.
        valid_loader: those of the held-out period; None with `skip_validation`.
    """

    config: Config
    model: ParallelModel
    train_loader: Loader
    valid_loader: Loader | None

    @property
    def mesh(self) -> Mesh:
        return self.model.parallel_config.mesh

    @property
    def model_def(self) -> ModelDef:
        return self.model.model_def

    @property
    def schema(self) -> ChannelSchema:
        return self.train_loader.schema

    @property
    def batches_per_epoch(self) -> int:
        """Micro-batches of one training epoch."""
        return num_batches(self.train_loader, self.config.trainer.batches_per_epoch)

    @cached_property
    def optimizer(self) -> optax.GradientTransformation:
        return build_optimizer(self.config.trainer)

    @cached_property
    def schedule(self) -> optax.Schedule:
        return build_schedule(
            self.config.trainer, batches_per_epoch=self.batches_per_epoch
        )

    @cached_property
    def climatology(self) -> np.ndarray:
        """(C_out, H, W) normalized mean state; the first call reads training data."""
        mean = build_climatology(self.train_loader.dataset).mean[:, :, 0]
        return self.train_loader.units.normalize(mean)[0]

    @property
    def _needs_climatology(self) -> bool:
        return self.valid_loader is not None and needs_climatology(self.config.metrics)

    @cached_property
    def postprocess(self) -> Postprocess | None:
        """The transforms between the model and the loss."""
        return self.train_loader.pipeline.postprocess(
            self.schema.input_slices(), self.schema.target_slices()
        )

    @cached_property
    def loss(self) -> Callable[..., Any]:
        """The training loss."""
        return self._loss(validation=False)

    def _loss(self, *, validation: bool) -> Callable[..., Any]:
        return build_loss(
            self.config.loss,
            self._channels,
            latitude=self._loss_latitude,
            validation=validation,
        )

    @cached_property
    def metrics(self) -> Callable[..., dict[str, Any]]:
        """Validation loss and metrics as one function of prediction and target.

        Its first trace, that of the first validation, reads the climatology.
        """
        loss = self._loss(validation=True)
        scores = build_metrics(
            self.config.metrics,
            self._channels,
            latitude=self._metrics_latitude,
            climatology=(lambda: self.climatology) if self._needs_climatology else None,
        )

        def evaluate(pred: Any, target: Any, context: FieldContext) -> dict[str, Any]:
            return {"loss": loss(pred, target, context)} | scores(pred, target, context)

        return evaluate

    @property
    def measured(self) -> list[str]:
        """The keys of what `metrics` returns; nothing is read or traced for it."""
        names = metric_names(
            self.config.metrics, self._channels, has_climatology=self._needs_climatology
        )
        return ["loss", *names]

    @cached_property
    def _loss_latitude(self) -> np.ndarray | None:
        loss = self.config.loss
        if not loss.use_latitude_weights:
            return None
        return self._latitude("loss.latitude_weights", loss.latitude_weights)

    @cached_property
    def _metrics_latitude(self) -> np.ndarray | None:
        args = self.config.metrics.args if self.config.metrics else {}
        if not args.get("use_latitude_weights", False):
            return None
        path = args.get("latitude_weights")
        return self._latitude("metrics.args.latitude_weights", path)

    def _latitude(self, key: str, path: str | None) -> np.ndarray:
        """Latitudes of the file that `key` names, or else of the data."""
        if path:
            found = read_latitude(path, key)
        else:
            found = self.train_loader.dataset.latitude
        if len(found) != self.model_def.image_height:
            raise ValueError(
                f"{key}: {path or 'the data'} has {len(found)} latitudes, expected "
                f"model.image_height {self.model_def.image_height}"
            )
        return found

    @property
    def _channels(self) -> dict[str, int]:
        return {group.var_key: group.n_levels for group in self.schema.target}

    def steps(self, *, first_rate_at: int | None = None) -> Steps:
        """The functions of the loop; each is compiled at its first call.

        Args:
            first_rate_at: see `Progress`.
        """
        trainer = self.config.trainer
        rate = with_first_rate_at(self.schedule, first_rate_at)
        train_step = make_train_step(
            self.model,
            self.optimizer,
            self.loss,
            schedule=rate,
            accumulate=trainer.grad_accum_every,
            ema_decay=trainer.ema_decay if trainer.use_ema else None,
            postprocess=self.postprocess,
        )
        evaluate = None
        if self.valid_loader is not None:
            eval_step = make_eval_step(
                self.model, self.metrics, postprocess=self.postprocess
            )
            evaluate = compile_program(eval_step, self.mesh)
        schedule = jax.jit(rate)
        return Steps(
            train=compile_program(train_step, self.mesh, donate_argnums=0),
            fuse=compile_program(self.model.fuse_spectral_norm, self.mesh),
            evaluate=evaluate,
            place_train=self.place_train,
            place_valid=self.place_valid,
            learning_rate=lambda step: float(schedule(jnp.int32(step))),
        )

    def place_train(self, group: Sequence[Batch]) -> dict[str, jax.Array]:
        """Micro-batches of one update, stacked, on the mesh."""
        return self._placed(
            np.stack([batch.x for batch in group]),
            np.stack([batch.y for batch in group]),
        )

    def place_valid(self, batch: Batch) -> dict[str, jax.Array]:
        """One batch on the mesh."""
        return self._placed(batch.x, batch.y)

    def _placed(self, x: np.ndarray, y: np.ndarray) -> dict[str, jax.Array]:
        ranks = local_dp_ranks(self.mesh)
        return place_batch({"x": x, "y": y}, self.mesh, local_dp_ranks=ranks)

    def fresh_state(self) -> TrainState:
        """New weights, from `seed`."""
        return init_state(
            self.model,
            self.optimizer,
            jax.random.key(self.config.seed),
            ema=self.config.trainer.use_ema,
        )

    def forecaster(self, params: Any, model_state: Any) -> Callable[..., np.ndarray]:
        """Host input of a whole batch (b, C, T, H, W) -> host prediction."""
        ranks, size = local_dp_ranks(self.mesh), data_parallel_coords(self.mesh)[1]
        fuse = compile_program(self.model.fuse_spectral_norm, self.mesh)
        forward = compile_program(self.model.apply, self.mesh)
        params, model_state = fuse(params, model_state)
        height = self.model_def.image_height

        def run(x: np.ndarray) -> np.ndarray:
            own = np.concatenate([np.split(x, size)[rank] for rank in ranks])
            placed = place_batch({"x": own}, self.mesh, local_dp_ranks=ranks)
            return to_host(forward(params, model_state, placed["x"]))[..., :height, :]

        return run


def prepare(
    config: Config,
    devices: Sequence[Any],
    loaders: Mapping[str, Loader] | None = None,
) -> Setup:
    """Open the data and build the model of a config; nothing is compiled.

    Args:
        config: the whole config.
        devices: to build the mesh of.
        loaders: the loaders of this config by split, of any dp rank, as `inspect_job`
            has them; None opens the files.

    Raises:
        FileNotFoundError, ValueError: what is wrong, and what would do.
    """
    trainer = config.trainer
    model_def = build(config.model)
    ParallelDims.from_config(trainer.parallelism, len(devices), model=model_def)
    mesh, _ = build_device_mesh(trainer.parallelism, devices)
    ranks, (_, dp_size) = local_dp_ranks(mesh), data_parallel_coords(mesh)
    place = {"local_dp_ranks": ranks, "dp_size": dp_size}
    if loaders is None:
        own = {k: build_loader(config, split=k, **place) for k in splits(config)}
    else:
        own = {k: loader.for_ranks(**place) for k, loader in loaders.items()}
    model = build_parallel_model(
        model_def,
        mesh,
        ac_mode=trainer.activation_checkpoint,
        mp_policy=_mp_policy(trainer),
        reshard_after_forward=trainer.fsdp.reshard_after_forward,
        min_shard_size=trainer.fsdp.min_shard_size,
        keep_whole=trainer.fsdp.keep_whole,
    )
    setup = Setup(config, model, own["train"], own.get("valid"))
    # Their errors belong here.
    _ = setup.loss
    _ = setup.postprocess
    if setup.valid_loader is not None:
        _ = setup.metrics
    _check_metric(setup)
    return setup


def _mp_policy(trainer: TrainerConfig) -> Precision:
    """The dtypes that `trainer.amp` asks for."""
    policy = trainer.mp_policy
    if policy is None:
        return Precision()
    return default_mp_policy(
        policy.param_dtype,
        reduce_dtype=policy.reduce_dtype,
        output_dtype=policy.output_dtype,
    )


def _check_metric(setup: Setup) -> None:
    """`trainer.training_metric` must be something that will be measured."""
    wanted = setup.config.trainer.training_metric
    there = ["train_loss"]
    if setup.valid_loader is not None:
        there += [f"valid_{name}" for name in sorted(setup.measured)]
    if wanted not in there:
        short = [name for name in there if "/" not in name]
        raise ValueError(
            f"trainer.training_metric: got {wanted!r}, expected one of "
            f"{', '.join(short)}, or one variable's, such as {there[-1]}"
        )


def check_writable(save_loc: str | Path) -> Path:
    """Make the folder of the run, and try to write into it.

    Raises:
        ValueError: that is not possible.
    """
    folder = Path(os.path.expandvars(str(save_loc))).resolve()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ValueError(
            f"save_loc: cannot write to {folder}: {error.strerror}; choose another "
            "folder (--save-loc DIR)"
        ) from None
    return folder


def to_host(array: jax.Array) -> np.ndarray:
    """The whole array in this process, float32."""
    if array.is_fully_addressable:
        return np.asarray(array, np.float32)
    from jax.experimental import multihost_utils

    return np.asarray(multihost_utils.process_allgather(array, tiled=True), np.float32)
