"""The folder of a run of credit_jax: `model.yml` and Orbax checkpoints, and snapshots.

The items of a checkpoint are those that `credit_jax.checkpoint` describes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import yaml
from jaxtyping import PyTree

from credit_jax.checkpoint import EMA, LOSS_SCALE, OPTIMIZER, WEIGHTS, CheckpointStore
from credit_jax.models.model_def import ModelDef
from credit_jax.nn.batch_norm import fresh_state
from credit_jax.nn.spectral_norm import spectral_norm_shapes
from credit_torch_bridge.checkpoint.keys import Allocate
from credit_torch_bridge.checkpoint.run_config import CONFIG_FILE, Job
from credit_torch_bridge.checkpoint.snapshot import Moments, Snapshot
from credit_torch_bridge.checkpoint.streaming import one_by_one, read_item

_SCALE, _TRACKER = "scale", "_growth_tracker"
# What torch.amp.GradScaler writes besides, with CREDIT's settings.
_SCALER = {"growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 2000}


def write_run(folder: Path, job: Job, snapshots: Sequence[Snapshot]) -> None:
    """Writes a config and its checkpoints.

    Args:
        folder: of the run; made if it is not there.
        job: its config becomes `model.yml`.
        snapshots: the newest last; each has its own `micro_step`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    write_yaml(folder / CONFIG_FILE, job.written)
    store = CheckpointStore(folder, keep_all=True)
    try:
        for snapshot in snapshots:
            items = items_of(snapshot, job.seed)
            with one_by_one():
                store.save(snapshot.micro_step, items, snapshot.progress)
                store.wait()
    finally:
        store.close()


def write_yaml(path: Path, mapping: Mapping[str, Any]) -> None:
    """Writes a config as CREDIT and we read it."""
    text = yaml.safe_dump(dict(mapping), sort_keys=False, width=88)
    path.write_text(text, encoding="utf-8")


def items_of(snapshot: Snapshot, seed: int) -> dict[str, PyTree]:
    """What a checkpoint of Orbax holds of a snapshot.

    Args:
        snapshot: host arrays.
        seed: of the config; PyTorch has no key for dropout, and gets that of a fresh
            run with this seed.
    """
    weights = {
        "params": snapshot.params,
        "spectral_norm_state": snapshot.spectral_norm_state,
    }
    items: dict[str, PyTree] = {WEIGHTS: weights}
    if snapshot.ema is not None:
        items[EMA] = snapshot.ema
    if snapshot.moments is not None:
        moments = snapshot.moments
        state = optax.ScaleByAdamState(
            _int(moments.count),
            moments.mu,
            moments.nu,  # pyright: ignore
        )
        items[OPTIMIZER] = {
            "opt_state": state,
            "micro_step": _int(snapshot.micro_step),
            "update_step": _int(snapshot.update_step),
            "key": dropout_key(seed),
        }
    if _SCALE in snapshot.loss_scale:
        items[LOSS_SCALE] = {
            "scale": np.asarray(snapshot.loss_scale[_SCALE], np.float32),
            "good_updates": _int(snapshot.loss_scale.get(_TRACKER, 0)),
        }
    return items


def _int(value: Any) -> np.ndarray:
    return np.asarray(value, np.int32)


def dropout_key(seed: int) -> jax.Array:
    """The key that a fresh run with this seed gives to dropout."""
    return jax.random.split(jax.random.key(seed), 3)[2]


def read_run(
    folder: Path,
    model_def: ModelDef,
    step: int | None = None,
    allocate: Allocate = np.empty,
) -> Snapshot:
    """A checkpoint of a run.

    Args:
        folder: of the run, its `save_loc`.
        architecture: the model of its config.
        step: which checkpoint; None is the newest.
        allocate: makes the arrays that are filled.

    Raises:
        FileNotFoundError: there is none.
        ValueError: it is of another model.
    """
    store = CheckpointStore(folder, num_latest=10**9, keep_best=False)
    try:
        chosen = store.latest_step() if step is None else step
        if chosen is None:
            raise FileNotFoundError(f"{folder}: no checkpoint in {store.folder}")
        progress = store.progress(chosen)
        targets = _targets(model_def, store.item_names(chosen))
        store.check_fits(chosen, targets)
        path = store.path(chosen)
    finally:
        store.close()
    found = {k: read_item(path / k, tree, allocate) for k, tree in targets.items()}
    snapshot = Snapshot(
        found[WEIGHTS]["params"],
        found[WEIGHTS]["spectral_norm_state"],
        ema=found.get(EMA),
        micro_step=chosen,
        progress=progress,
    )
    return _with_optimizer(snapshot, found)


def _with_optimizer(snapshot: Snapshot, found: Mapping[str, Any]) -> Snapshot:
    scaler: dict[str, Any] = {}
    if LOSS_SCALE in found:
        scaler = {
            _SCALE: float(found[LOSS_SCALE]["scale"]),
            **_SCALER,
            _TRACKER: int(found[LOSS_SCALE]["good_updates"]),
        }
    snapshot = replace(snapshot, loss_scale=scaler)
    if OPTIMIZER not in found:
        return snapshot
    optimizer = found[OPTIMIZER]
    state = optimizer["opt_state"]
    return replace(
        snapshot,
        moments=Moments(state["mu"], state["nu"], int(state["count"])),
        micro_step=int(optimizer["micro_step"]),
        update_step=int(optimizer["update_step"]),
    )


def _targets(model_def: ModelDef, items: Sequence[str]) -> dict[str, PyTree]:
    """Host arrays like those of a checkpoint of this model."""
    params = {k: _like(d.shape) for k, d in model_def.param_specs.items()}
    spectral_norm_state = {
        path: {
            side: _like(shape) for side, shape in spectral_norm_shapes(matrix).items()
        }
        for path, matrix in model_def.matrices.items()
    }
    spectral_norm_state |= jax.tree.map(np.asarray, fresh_state(model_def.norms))
    count = np.zeros((), np.int32)
    optimizer = {
        "opt_state": {"count": count, "mu": params, "nu": params},
        "micro_step": count,
        "update_step": count,
        "key": np.asarray(jax.random.key_data(dropout_key(0))),
    }
    targets: dict[str, PyTree] = {
        WEIGHTS: {"params": params, "spectral_norm_state": spectral_norm_state},
        EMA: params,
        OPTIMIZER: optimizer,
        LOSS_SCALE: {"scale": np.zeros((), np.float32), "good_updates": count},
    }
    return {name: targets[name] for name in items}


def _like(shape: tuple[int, ...]) -> np.ndarray:
    """An array of a shape that takes no memory."""
    return np.broadcast_to(np.float32(0), shape)
