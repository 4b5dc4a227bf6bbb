"""Converts a PyTorch checkpoint to a `JaxCheckpoint`."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from credit_jax.checkpoint import Progress
from credit_jax.config.trainer import TrainerConfig
from credit_jax.models.registry import MODELS, torch_model
from credit_jax.nn.parameters import BATCH_STATS
from credit_jax.state_dict.key_map import Arrays, HostModelState, KeyMap
from credit_jax.state_dict.torch_model import RenamedKey
from credit_jax.training.epoch_end import is_better
from credit_jax.training.loggers import LOG_NAME, read_log
from credit_torch_bridge.checkpoint.jax_checkpoint import JaxCheckpoint
from credit_torch_bridge.checkpoint.optimizer import read_moments
from credit_torch_bridge.checkpoint.run_config import RunConfig, read_run_config
from credit_torch_bridge.checkpoint.schedulers import (
    PER_EPOCH,
    PLATEAU,
    kind_of,
    read_plateau,
    read_position,
    settings_of,
)
from credit_torch_bridge.checkpoint.torch_checkpoint import (
    TorchCheckpoint,
    open_checkpoint,
)
from credit_torch_bridge.checkpoint.torch_files import as_arrays, raise_non_finite


def recognized_model(keys: Collection[str]) -> str | None:
    """Describes the model that a state dict belongs to; None if unknown.

    See `TorchModel.signature`.
    """
    for name, entry in sorted(MODELS.items()):
        model = torch_model(name) if entry.key_table else None
        if model is None or model.signature is None:
            continue
        if any(model.signature.search(key) for key in keys):
            upgrade = model.upgrade
            old = upgrade is not None and any(upgrade.is_older(k, None) for k in keys)
            return name + (", in an older layout" if old else "")
    return None


def refuse_unsupported(
    keys: Collection[str], recognized: Collection[str], model_type: str
) -> None:
    """Raises if the keys of a file show that it cannot be converted.

    Args:
        keys: keys of the file, with their current names.
        recognized: keys of the key table.
        model_type: `model.type` of the config.

    Raises:
        ValueError: weights of another model, or a layer that CREDIT removed.
    """
    unknown = [key for key in keys if key not in recognized]
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
    jax_checkpoint = JaxCheckpoint(
        params,
        model_state,
        ema=average,
        ema_stats=averaged_statistics,
        notes=checkpoint.notes + _notes(run_config),
    )
    epoch = -1 if checkpoint.epoch is None else checkpoint.epoch
    jax_checkpoint = replace(
        jax_checkpoint, progress=_progress(run_config, checkpoint.path, epoch + 1)
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
    """Returns the checkpoint with the current arrays, and whether it was an older one.

    If it was, a note describes the change. See
    `credit_jax.state_dict.torch_model.Upgrade`.
    """
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


def _notes(run_config: RunConfig) -> tuple[str, ...]:
    if not run_config.learns:
        return ()
    return (
        "CREDIT does not save what var_weighting: learnable has learned; it begins "
        "anew with the variances of the scalers, as in CREDIT",
    )


def renamed_keys(
    run_config: RunConfig, checkpoint: TorchCheckpoint
) -> list[RenamedKey]:
    """Maps every key of the file to its name in the key table.

    Raises:
        ValueError: the file belongs to a model that cannot be converted.
    """
    renamed = run_config.key_map.current_names(checkpoint.model)
    recognized, model_type = (
        set(run_config.key_map.keys),
        run_config.model_def.config.type,
    )
    names = [key.name for key in renamed]
    refuse_unsupported(names, recognized, model_type)
    return renamed


def read_model(
    run_config: RunConfig, checkpoint: TorchCheckpoint
) -> tuple[Arrays, HostModelState]:
    """Reads parameters and model state; ValueError if keys or shapes do not fit."""
    tensors = {
        r.name: checkpoint.model[r.file_key]
        for r in renamed_keys(run_config, checkpoint)
    }
    state = as_arrays(tensors)
    try:
        run_config.key_map.check(state)
        raise_non_finite(state, "the weights")
        return run_config.key_map.read(state)
    except ValueError as error:
        hint = _spectral_hint(run_config.key_map, tensors)
        raise ValueError(f"{checkpoint.path}: {error}{hint}") from None


def _spectral_hint(key_map: KeyMap, state: Mapping[str, torch.Tensor]) -> str:
    """A hint at the most common cause of keys that do not fit."""
    asked = any(key.endswith("_orig") for key in key_map.keys)
    has_norm = any(key.endswith("_orig") for key in state)
    if asked == has_norm:
        return ""
    return (
        f"\nthe checkpoint was written {'with' if has_norm else 'without'} spectral "
        f"norm; model.use_spectral_norm: {str(has_norm).lower()} may be what it is"
    )


def _read_average(
    key_map: KeyMap, checkpoint: TorchCheckpoint
) -> tuple[Arrays | None, Mapping[str, Arrays] | None]:
    """The average of the parameters, and that of the statistics of batch norms."""
    if checkpoint.average is None:
        return None, None
    shadow = checkpoint.average.shadow
    # CREDIT averages constants of a process, too.
    names = [
        r for r in key_map.current_names(shadow) if r.name not in key_map.constants
    ]
    state = as_arrays({r.name: shadow[r.file_key] for r in names})
    raise_non_finite(state, "the average")
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
    trainer = run_config.trainer
    moments, group = read_moments(checkpoint.optimizer, run_config.key_map.parameters)
    settings = {"trainer.weight_decay": group.get("weight_decay")}
    if kind_of(trainer) is None:
        settings["trainer.learning_rate"] = group.get("lr")
    position, more = _position(run_config, checkpoint, moments.count, batches_per_epoch)
    settings |= more
    if trainer.update_learning_rate:
        settings.pop("trainer.learning_rate", None)
    progress = replace(
        _with_rate(jax_checkpoint.progress, trainer, checkpoint, group.get("lr")),
        first_rate_at=_first_rate_at(trainer, position),
    )
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
        settings={k: v for k, v in settings.items() if _differs(run_config, k, v)},
    )


def _with_rate(
    progress: Progress, trainer: TrainerConfig, checkpoint: TorchCheckpoint, rate: Any
) -> Progress:
    """The position with the checkpoint's rate, if that is part of the run's state."""
    if not trainer.keeps_rate:
        return progress
    state = checkpoint.scheduler if kind_of(trainer) == PLATEAU else None
    return replace(
        progress,
        learning_rate=None if rate is None else float(rate),
        plateau=None if state is None else read_plateau(state),
    )


def _first_rate_at(trainer: TrainerConfig, position: int) -> int | None:
    """The micro-batch that a resumed run of CREDIT trains at the schedule's first rate.

    None unless the schedule counts micro-batches and each of them is an update.
    """
    kind = kind_of(trainer)
    counts = not trainer.keeps_rate and kind not in PER_EPOCH
    return position if counts and trainer.grad_accum_every == 1 else None


def _position(
    run_config: RunConfig,
    checkpoint: TorchCheckpoint,
    updates: int,
    requested: int | None,
) -> tuple[int, dict[str, Any]]:
    """Micro-batches seen, and the schedule's settings."""
    kind, state = kind_of(run_config.trainer), checkpoint.scheduler
    batches = run_config.batches_per_epoch(requested)
    settings: dict[str, Any] = {}
    if kind is not None and state is not None:
        if not run_config.trainer.keeps_rate:
            return read_position(state, kind, batches), settings_of(state, kind)
        read_plateau(state)  # Raises if the state is that of another schedule.
        settings = settings_of(state, kind)
    elif kind is not None:
        raise ValueError(
            f"{checkpoint.path}: trainer.use_scheduler is true, but the checkpoint has "
            "no scheduler_state_dict; set use_scheduler: false, or give --weights-only"
        )
    # Constant rates and `plateau` have no position; the count names the checkpoint.
    epochs = (checkpoint.epoch or 0) + 1
    accumulated = run_config.trainer.grad_accum_every
    if accumulated == 1 or batches is None:
        return updates * accumulated, settings
    return epochs * batches, settings


def _differs(run_config: RunConfig, dotted: str, value: Any) -> bool:
    """Whether the config has another value for a setting that is not None."""
    if value is None:
        return False
    here: Any = run_config.trainer
    for part in dotted.split(".")[1:]:
        here = getattr(here, part)
    return here != value


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
