"""Converts a checkpoint of credit_jax to the files of a PyTorch checkpoint."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from credit_jax.models.conversion import idle_keys
from credit_jax.nn.parameters import BATCH_STATS
from credit_torch_bridge.checkpoint.jax_checkpoint import (
    JaxCheckpoint,
    RunConfig,
    read_run,
    read_run_config,
)
from credit_torch_bridge.checkpoint.optimizer import write_moments, write_position
from credit_torch_bridge.checkpoint.torch_checkpoint import CHECKPOINT
from credit_torch_bridge.config.convert import GEN2, convert_config
from credit_torch_bridge.config.editor import ConfigEditor
from credit_torch_bridge.config.to_gen2 import jax_keys

AVERAGE = "checkpoint_ema.pt"


def to_torch(
    config: str | Path | Mapping[str, Any],
    checkpoint: str | Path | JaxCheckpoint,
    *,
    step: int | None = None,
    batches_per_epoch: int | None = None,
) -> dict[str, dict[str, Any]]:
    """Converts a checkpoint of credit_jax to CREDIT's files: inverts `from_torch`.

    Args:
        config: CREDIT's YAML, or a mapping like it.
        checkpoint: the folder of a run of credit_jax, or a checkpoint.
        step: step of the checkpoint in the folder; None is the newest.
        batches_per_epoch: micro-batches per epoch of the run, needed if the schedule
            counts epochs and the config does not imply it.

    Returns:
        Arguments of `torch.save` by file name: `checkpoint.pt`, and
        `checkpoint_ema.pt` if there is an average.

    Raises:
        FileNotFoundError, ValueError: the config or the checkpoint is missing, invalid,
            or does not fit; the error lists all problems.
    """
    run_config = read_run_config(config)
    if not isinstance(checkpoint, JaxCheckpoint):
        checkpoint = read_run(Path(checkpoint), run_config.model_def, step)
    return to_torch_files(run_config, checkpoint, batches_per_epoch=batches_per_epoch)


def to_torch_files(
    run_config: RunConfig,
    checkpoint: JaxCheckpoint,
    *,
    batches_per_epoch: int | None = None,
) -> dict[str, dict[str, Any]]:
    """`to_torch` for a checkpoint in memory."""
    key_map, epoch = run_config.key_map, checkpoint.progress.epoch - 1
    state = key_map.write(checkpoint.params, checkpoint.model_state)
    tensors = OrderedDict((key, torch.from_numpy(x)) for key, x in state.items())
    content: dict[str, Any] = {"epoch": epoch, "model_state_dict": tensors}
    if checkpoint.moments is not None:
        trainer, batches = run_config.trainer, batches_per_epoch
        scheduler, rate = write_position(
            trainer,
            checkpoint.micro_step,
            run_config.batches_per_epoch(batches),
            checkpoint.progress,
        )
        content["optimizer_state_dict"] = write_moments(
            checkpoint.moments,
            key_map.parameters,
            trainer,
            rate,
            idle=idle_keys(run_config.model_def),
        )
        content["scheduler_state_dict"] = scheduler
        content["scaler_state_dict"] = dict(checkpoint.loss_scale)
    files = {CHECKPOINT: content}
    if checkpoint.ema is not None:
        averaged = key_map.parameters.write(checkpoint.ema, {})
        if checkpoint.ema_stats:
            stats = {BATCH_STATS: dict(checkpoint.ema_stats)}
            averaged |= key_map.averaged_statistics.write({}, stats)
        # The average of every array that CREDIT averages, in the order of its state
        # dict. These are all except the vectors of spectral norm. Arrays without an
        # average in credit_jax (tables of a process) are copied in float32.
        stems = [key.removesuffix("orig") for key in state if key.endswith("_orig")]
        vectors = {f"{stem}{end}" for stem in stems for end in "uv"}
        shadow: dict[str, torch.Tensor] = OrderedDict()
        for key, array in state.items():
            if key not in vectors:
                array = averaged[key] if key in averaged else array.astype(np.float32)
                shadow[key] = torch.from_numpy(array)
        average = {
            "shadow": shadow,
            "decay": run_config.trainer.ema_decay,
            "step": checkpoint.update_step,
        }
        files[AVERAGE] = {"epoch": epoch, "model_state_dict": average}
    return files


def config_for_credit(
    run_config: RunConfig, *, drop: tuple[str, ...] = ()
) -> tuple[RunConfig, list[str]]:
    """Returns the config of a run as CREDIT's gen2 reads it, and what was changed."""
    if not _trains(run_config):
        # A model section alone, or generation 1, is enough for weights.
        return run_config, []
    # Checkpoints are those of one device, whatever the mesh of the run.
    trainer = run_config.trainer
    settings = {
        "trainer.parallelism": {
            "data": trainer.parallelism.data,
            "tensor": 1,
            "domain": 1,
        },
        "trainer.compile": False,
        "trainer.use_scheduler": trainer.schedule is not None,
    }
    one_device = run_config.with_settings(settings)
    editor = ConfigEditor(dict(one_device.raw))
    for key in jax_keys(editor.get("model", {})):
        editor.drop(key, "CREDIT's model has no such argument")
    raw, report = convert_config(editor.config, to=GEN2, drop=drop)
    lines = [str(c) for c in (*editor.changes, *report.changes)]
    return RunConfig(raw, run_config.source), lines


def resume_settings(run_config: RunConfig, checkpoint: JaxCheckpoint) -> dict[str, Any]:
    """The keys with which CREDIT begins from the files of a checkpoint."""
    if not _trains(run_config):
        has_trainer = bool(run_config.raw.get("trainer"))
        return {"trainer.load_weights": True} if has_trainer else {}
    resumes = checkpoint.moments is not None
    return {
        "trainer.start_epoch": max(checkpoint.progress.epoch, 0) if resumes else 0,
        "trainer.reload_epoch": resumes,
        "trainer.load_weights": True,
        "trainer.load_optimizer": resumes,
        "trainer.load_scaler": resumes,
        "trainer.load_scheduler": resumes,
    }


def _trains(run_config: RunConfig) -> bool:
    """Whether the config has a `trainer:` section of generation 2."""
    return "parallelism" in (run_config.raw.get("trainer") or {})


def cautions(run_config: RunConfig, checkpoint: JaxCheckpoint) -> list[str]:
    """Notes on what CREDIT does differently after a resume."""
    if not _trains(run_config):
        return []
    progress, parallel = checkpoint.progress, run_config.trainer.parallelism
    epochs, done = run_config.trainer.epochs, progress.batches
    notes = {
        f"the run stopped in epoch {progress.epoch + 1} after {done} batches; CREDIT "
        "counts whole epochs, and begins this one anew": done,
        "CREDIT loads no schedule in the first epoch: its learning rate starts from "
        "the beginning": done and progress.epoch == 0,
        f"all {epochs} epochs are trained: raise trainer.epochs in model.yml to go "
        "on": checkpoint.moments is not None and progress.epoch >= epochs,
        "CREDIT does not store what var_weighting: learnable has learned, and begins "
        "anew with the variances of the scalers": run_config.learns,
        "model.yml asks for tensor: 1 and domain: 1; CREDIT cannot resume "
        "others": parallel.tensor * parallel.domain > 1,
        "CREDIT's rollout forecasts with the last weights, not with their average, "
        f"which is in {AVERAGE}": checkpoint.ema is not None,
        "model.yml says compile: false; with torch.compile CREDIT expects every name "
        "behind _orig_mod.": (run_config.raw.get("trainer") or {}).get("compile"),
    }
    return [note for note, applies in notes.items() if applies]
