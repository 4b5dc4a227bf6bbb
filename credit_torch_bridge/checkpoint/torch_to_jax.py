"""Converts a PyTorch checkpoint to a `JaxCheckpoint`; opens one as a trained model."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Any

from credit_jax.checkpoint import Progress
from credit_jax.checkpoint.artifact import Artifact
from credit_jax.checkpoint.store import takes_average
from credit_jax.models.model_def import ModelDef
from credit_jax.models.registry import MODELS, torch_model
from credit_jax.nn.parameters import BATCH_STATS
from credit_jax.plan.finetune import Base
from credit_jax.state_dict.key_map import Arrays, HostModelState, KeyMap
from credit_jax.state_dict.key_table import raise_non_finite
from credit_jax.state_dict.torch_model import RenamedKey
from credit_jax.training.loggers import LOG_NAME, read_log
from credit_jax.training.loop import is_better
from credit_torch_bridge.checkpoint import optimizer
from credit_torch_bridge.checkpoint.jax_checkpoint import (
    JaxCheckpoint,
    RunConfig,
    read_run_config,
)
from credit_torch_bridge.checkpoint.torch_checkpoint import (
    LazyArray,
    TorchCheckpoint,
    open_checkpoint,
)


def recognized_model(keys: Collection[str]) -> str | None:
    """Describes the model of a state dict by its `signature`; None if unknown."""
    for name, entry in sorted(MODELS.items()):
        model = torch_model(name) if entry.key_table else None
        if model is None or model.signature is None:
            continue
        if any(model.signature.search(key) for key in keys):
            upgrade = model.upgrade
            old = upgrade is not None and any(upgrade.is_older(k, None) for k in keys)
            return name + (", in an older layout" if old else "")
    return None


def from_torch(
    config: str | Path | Mapping[str, Any],
    checkpoint: str | Path | TorchCheckpoint,
    *,
    weights_only: bool = False,
    batches_per_epoch: int | None = None,
) -> JaxCheckpoint:
    """Converts a PyTorch checkpoint of CREDIT.

    Args:
        config: CREDIT's YAML, or a mapping like it.
        checkpoint: a file, a folder, or the result of `open_checkpoint`.
        weights_only: omit optimizer, schedule and position.
        batches_per_epoch: micro-batches per epoch of the run to resume, needed if the
            schedule counts epochs and the config does not imply it.

    Raises:
        FileNotFoundError, ValueError: the config or the checkpoint is missing, invalid,
            or does not fit; the error lists all problems.
    """
    if not isinstance(checkpoint, TorchCheckpoint):
        checkpoint = open_checkpoint(checkpoint)
    return to_jax_checkpoint(
        read_run_config(config),
        checkpoint,
        weights_only=weights_only,
        batches_per_epoch=batches_per_epoch,
    )


def to_jax_checkpoint(
    run_config: RunConfig,
    checkpoint: TorchCheckpoint,
    *,
    weights_only: bool = False,
    batches_per_epoch: int | None = None,
) -> JaxCheckpoint:
    """`from_torch` for an open checkpoint."""
    checkpoint, is_older = upgraded(run_config, checkpoint)
    params, model_state = read_model(run_config, checkpoint)
    average, averaged_statistics = _read_average(run_config.key_map, checkpoint)
    learns = (
        "CREDIT does not save what var_weighting: learnable has learned; it begins "
        "anew with the variances of the scalers, as in CREDIT",
    )
    epoch = -1 if checkpoint.epoch is None else checkpoint.epoch
    jax_checkpoint = JaxCheckpoint(
        params,
        model_state,
        ema=average,
        ema_stats=averaged_statistics,
        progress=_progress(run_config, checkpoint.path, epoch + 1),
        notes=checkpoint.notes + (learns if run_config.learns else ()),
    )
    if weights_only or checkpoint.optimizer is None:
        return jax_checkpoint
    if is_older:
        raise ValueError(
            f"{checkpoint.path}: the checkpoint is of an older version of the model, "
            "whose optimizer state belongs to other arrays; give --weights-only"
        )
    return _with_state(run_config, checkpoint, jax_checkpoint, batches_per_epoch)


def upgraded(
    run_config: RunConfig, checkpoint: TorchCheckpoint
) -> tuple[TorchCheckpoint, bool]:
    """The checkpoint with the current arrays, and whether it was an older one."""
    upgrade = torch_model(run_config.model_def.config.type).upgrade
    model = upgrade and upgrade.applied(checkpoint.model)
    if upgrade is None or model is None:
        return checkpoint, False
    average = checkpoint.average
    if average is not None:
        shadow = upgrade.applied(average.shadow) or average.shadow
        average = replace(average, shadow=shadow)
    notes = *checkpoint.notes, upgrade.note
    return replace(checkpoint, model=model, average=average, notes=notes), True


def renamed_keys(
    run_config: RunConfig, checkpoint: TorchCheckpoint
) -> list[RenamedKey]:
    """Maps every key of the file to its name in the key table."""
    key_map, model_type = run_config.key_map, run_config.model_def.config.type
    renamed = key_map.current_names(checkpoint.model)
    recognized = set(key_map.keys)
    unknown = [key.name for key in renamed if key.name not in recognized]
    other, model = recognized_model(unknown), torch_model(model_type)
    if other is not None and model.signature is None:
        raise ValueError(
            f"these are the weights of a {other}; model.type {model_type!r} is another "
            "model"
        )
    for layer in model.removed:
        for key in unknown:
            if layer.pattern.fullmatch(key):
                raise ValueError(f"{key}: {layer.reason}")
    return renamed


def read_model(
    run_config: RunConfig, checkpoint: TorchCheckpoint
) -> tuple[Arrays, HostModelState]:
    """Reads parameters and model state; ValueError if keys or shapes do not fit."""
    tensors = {
        r.name: checkpoint.model[r.file_key]
        for r in renamed_keys(run_config, checkpoint)
    }
    state = {key: LazyArray(tensor) for key, tensor in tensors.items()}
    try:
        run_config.key_map.check(state)
        raise_non_finite(state, "the weights: NaN or infinite values")
        return run_config.key_map.read(state)
    except ValueError as error:
        # A hint at the most common cause of keys that do not fit.
        asked, has_norm = (
            any(key.endswith("_orig") for key in keys)
            for keys in (run_config.key_map.keys, tensors)
        )
        which = "with" if has_norm else "without"
        hint = (
            f"\nthe checkpoint was written {which} spectral "
            f"norm; model.use_spectral_norm: {str(has_norm).lower()} may be what it is"
        )
        text = f"{checkpoint.path}: {error}{hint if asked != has_norm else ''}"
        raise ValueError(text) from None


def _read_average(
    key_map: KeyMap, checkpoint: TorchCheckpoint
) -> tuple[Arrays | None, Mapping[str, Arrays] | None]:
    """The average of the parameters, and that of the statistics of batch norms."""
    if checkpoint.average is None:
        return None, None
    shadow = checkpoint.average.shadow
    # CREDIT averages constants of a process, too.
    state = {
        key.name: LazyArray(shadow[key.file_key])
        for key in key_map.current_names(shadow)
        if key.name not in key_map.constants
    }
    raise_non_finite(state, "the average: NaN or infinite values")
    statistics = key_map.averaged_statistics
    stats = {key: state.pop(key) for key in statistics.keys if key in state}
    try:
        params = key_map.parameters.read(state)[0]
        if not stats:
            return params, None
        return params, statistics.read(stats)[1][BATCH_STATS]
    except ValueError as error:
        raise ValueError(f"the average: {error}") from None


def _with_state(
    run_config: RunConfig,
    checkpoint: TorchCheckpoint,
    jax_checkpoint: JaxCheckpoint,
    batches_per_epoch: int | None,
) -> JaxCheckpoint:
    """The checkpoint with optimizer, schedule and position."""
    assert checkpoint.optimizer is not None, "asked for by the caller"
    trainer, state = run_config.trainer, checkpoint.scheduler
    kind = trainer.schedule and trainer.schedule.scheduler_type
    batches = run_config.batches_per_epoch(batches_per_epoch)
    moments, group = optimizer.read_moments(
        checkpoint.optimizer, run_config.key_map.parameters
    )
    rate, plateau = group.get("lr"), None
    settings = {"trainer.weight_decay": group.get("weight_decay")}
    # Constant rates and `plateau` have no position; the count names the checkpoint.
    position = moments.count * trainer.grad_accum_every
    if trainer.grad_accum_every != 1 and batches is not None:
        position = ((checkpoint.epoch or 0) + 1) * batches
    if kind is None:
        settings["trainer.learning_rate"] = rate
    elif state is None:
        raise ValueError(
            f"{checkpoint.path}: trainer.use_scheduler is true, but the checkpoint has "
            "no scheduler_state_dict; set use_scheduler: false, or give --weights-only"
        )
    else:
        if trainer.keeps_rate:
            plateau = optimizer.read_plateau(state)
        else:
            position = optimizer.read_position(state, kind, batches)
        settings |= optimizer.settings_of(state, kind)
    if trainer.update_learning_rate:
        settings.pop("trainer.learning_rate", None)
    progress = jax_checkpoint.progress
    if trainer.keeps_rate:
        known = None if rate is None else float(rate)
        progress = replace(progress, learning_rate=known, plateau=plateau)
    elif kind not in optimizer.PER_EPOCH and trainer.grad_accum_every == 1:
        # A resumed run of CREDIT trains one more micro-batch at the schedule's first
        # rate, where the schedule counts them and each of them is an update.
        progress = replace(progress, first_rate_at=position)
    average = checkpoint.average
    if average is not None:
        settings["trainer.ema_decay"] = average.decay
    return replace(
        jax_checkpoint,
        moments=moments,
        progress=progress,
        micro_step=position,
        update_step=0 if average is None else average.step,
        loss_scale=dict(checkpoint.scaler or {}),
        # Those for which the config has another value.
        settings={
            key: value
            for key, value in settings.items()
            if value is not None
            and reduce(getattr, key.split(".")[1:], trainer) != value
        },
    )


def _progress(run_config: RunConfig, path: Path, epoch: int) -> Progress:
    """The position after a finished epoch, with the best result of the log."""
    log = (path if path.is_dir() else path.parent) / LOG_NAME
    try:
        trainer = run_config.trainer
        rows = read_log(log) if log.is_file() else []
    except (ValueError, OSError):
        return Progress(epoch=epoch)
    best = Progress(epoch=epoch)
    for row in rows:
        value = row.get(trainer.training_metric, math.nan)
        if row.get("epoch", epoch) < epoch and is_better(
            value, best.best_metric, trainer.training_metric_direction
        ):
            best = replace(best, best_metric=value, best_epoch=int(row["epoch"]))
    return best


@dataclass(frozen=True, kw_only=True)
class TorchArtifact(Artifact):
    """A file or a folder of a checkpoint of CREDIT, with model.yml beside it."""

    checkpoint: TorchCheckpoint

    @classmethod
    def open(cls, files: Base, weights: str | None) -> TorchArtifact:
        """Opens a checkpoint."""
        opened = open_checkpoint(files.path)
        has_average = opened.average is not None
        average = takes_average(weights, has_average=has_average, origin=files.path)
        return cls(
            files=files, path=opened.path, average=average, step=None, checkpoint=opened
        )

    def on_host(self, model_def: ModelDef) -> tuple[Arrays, HostModelState]:
        """See `Artifact.on_host`; the model is that of model.yml."""
        del model_def
        config = RunConfig(self.files.written, f"{self.files.path}: model.yml")
        checkpoint = to_jax_checkpoint(config, self.checkpoint, weights_only=True)
        alone = checkpoint.weights_alone(average=self.average)
        return alone.params, alone.model_state
