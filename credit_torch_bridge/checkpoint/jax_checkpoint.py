"""The config of a run, and a checkpoint as host arrays: the form that both sides share.

Also the folder of a run of credit_jax: `model.yml` and Orbax checkpoints, with the
items that `credit_jax.checkpoint` describes.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from credit_jax.checkpoint import (
    ADAPTERS,
    EMA,
    EMA_STATS,
    LOSS_SCALE,
    OPTIMIZER,
    WEIGHTS,
    CheckpointStore,
    Progress,
)
from credit_jax.checkpoint.store import ADAM
from credit_jax.config import Config, ConfigError, apply_overrides, build_config, parse
from credit_jax.config.custom_objects import register_objects
from credit_jax.config.data import num_samples
from credit_jax.config.finetune import finetune_of
from credit_jax.config.trainer import TrainerConfig
from credit_jax.config.yaml_file import read_yaml
from credit_jax.models.conversion import key_map_for
from credit_jax.models.model_def import ModelDef
from credit_jax.models.registry import build
from credit_jax.nn.parameters import (
    COLLECTIONS,
    wide_statistics,
    with_averaged_statistics,
)
from credit_jax.plan.finetune import frozen_parameters
from credit_jax.state_dict.key_map import Arrays, HostModelState, KeyMap
from credit_torch_bridge.config.convert import dump
from credit_torch_bridge.config.editor import ConfigEditor

CONFIG_FILE = "model.yml"


@dataclass(frozen=True)
class RunConfig:
    """The config of a run, whose sections are validated when they are first read."""

    raw: Mapping[str, Any]  # the mapping of the YAML
    source: str = "config"  # file that it was read from, for error messages

    @cached_property
    def model_def(self) -> ModelDef:
        """The model of the `model:` section, frozen as `trainer.finetune` says."""
        section = self.raw.get("model")
        if not isinstance(section, Mapping):
            raise ConfigError(["model: missing; this section is required"], self.source)
        model_def = build(section)
        frozen = frozen_parameters(model_def, finetune_of(self.raw))
        return replace(model_def, frozen=frozen)

    @cached_property
    def key_map(self) -> KeyMap:
        """The mapping between CREDIT's arrays and those of credit_jax."""
        return key_map_for(self.model_def)

    @cached_property
    def trainer(self) -> TrainerConfig:
        """The `trainer:` section."""
        section = self.raw.get("trainer")
        if not isinstance(section, Mapping):
            raise ConfigError(
                ["trainer: missing; optimizer and schedule need it"], self.source
            )
        if "parallelism" not in section:
            raise ConfigError(
                [
                    "trainer.parallelism: missing; the config is of CREDIT's "
                    "generation 1. Convert it first (credit-jax config), or give "
                    "--weights-only"
                ],
                self.source,
            )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return parse(TrainerConfig, section, "trainer")

    @cached_property
    def full_config(self) -> Config | None:
        """The validated config; None if credit_jax cannot train with it."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return build_config(self.raw, source=self.source)
        except ValueError:
            return None

    @property
    def learns(self) -> bool:
        """Whether parameters of the loss are trained, which CREDIT never saves."""
        loss = self.raw.get("loss") or {}
        args = loss.get("args") or {}
        learnable = args.get("var_weighting") == "learnable"
        return loss.get("type") == "base" and learnable

    @property
    def seed(self) -> int:
        seed = self.raw.get("seed", 42)
        return seed if isinstance(seed, int) else 42

    def batches_per_epoch(self, requested: int | None = None) -> int | None:
        """Micro-batches per epoch in credit_jax; None if not implied."""
        config = self.full_config
        if requested is not None or config is None:
            return requested or self.trainer.batches_per_epoch or None
        parallel = self.trainer.parallelism
        split = parallel.tensor * parallel.domain
        dp = (self.trainer.num_devices or 0) // split
        cap = self.trainer.batches_per_epoch
        if parallel.data == "none" or config.shares_batches:
            dp = 1
        if dp < 1:
            return cap or None
        samples = -(-num_samples(config.data) // dp)
        batches = samples // self.trainer.train_batch_size
        return min(cap, batches) if cap else batches

    def with_settings(self, settings: Mapping[str, Any]) -> RunConfig:
        """A copy with some values replaced, by dotted key."""
        editor = ConfigEditor(dict(self.raw))
        for dotted, value in settings.items():
            editor.put(dotted, value)
        return RunConfig(editor.config, self.source)


def read_run_config(
    config: str | Path | Mapping[str, Any], overrides: tuple[str, ...] = ()
) -> RunConfig:
    """Reads a config from a file or a mapping."""
    if isinstance(config, Mapping):
        raw, source = apply_overrides(config, overrides), "config"
    else:
        raw, source = apply_overrides(read_yaml(config), overrides), str(config)
    register_objects(raw, source=source)
    return RunConfig(raw, source)


@dataclass(frozen=True)
class Moments:
    """The state of AdamW.

    Attributes:
        mu: first moment by path.
        nu: second moment by path.
        count: number of updates.
    """

    mu: Arrays
    nu: Arrays
    count: int


@dataclass(frozen=True)
class JaxCheckpoint:
    """One checkpoint as host arrays.

    Attributes:
        params: parameters by path, float32.
        model_state: state of spectral norm and batch norms (`nn.parameters`).
        moments: moments of the optimizer, or None.
        ema: averaged parameters by path, or None.
        ema_stats: averaged statistics of batch norms, float32, by path and name, or
            None.
        micro_step: micro-batches seen, as the schedule counts them.
        update_step: number of updates averaged.
        progress: epoch and best result.
        loss_scale: state of torch's GradScaler; empty if it was disabled.
        settings: values that a resumed run of CREDIT takes from the checkpoint instead
            of its config: dotted key of the config -> value.
        notes: notes for the user.
    """

    params: Arrays
    model_state: HostModelState
    moments: Moments | None = None
    ema: Arrays | None = None
    ema_stats: Mapping[str, Arrays] | None = None
    micro_step: int = 0
    update_step: int = 0
    progress: Progress = field(default_factory=Progress)
    loss_scale: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def weights_alone(self, *, average: bool) -> JaxCheckpoint:
        """Returns a checkpoint of the weights, without average and optimizer."""
        alone = replace(self, moments=None, ema=None, ema_stats=None, loss_scale={})
        if not average:
            return alone
        assert self.ema is not None, "asked for by the caller"
        state = with_averaged_statistics(self.model_state, self.ema_stats)
        return replace(alone, params=self.ema, model_state=state)


_int = partial(np.asarray, dtype=np.int32)
_SCALE, _TRACKER = "scale", "_growth_tracker"
# Constant entries of torch.amp.GradScaler's state, with CREDIT's settings.
_SCALER = {"growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 2000}


def write_run(
    folder: Path, run_config: RunConfig, checkpoints: Sequence[JaxCheckpoint]
) -> None:
    """Writes a run: its config, and checkpoints in increasing `micro_step`."""
    folder.mkdir(parents=True, exist_ok=True)
    text = dump(dict(run_config.raw))
    (folder / CONFIG_FILE).write_text(text, encoding="utf-8")
    store = CheckpointStore(folder, keep_all=True)
    try:
        for checkpoint in checkpoints:
            items = items_of(checkpoint, run_config.seed)
            store.save(checkpoint.micro_step, items, checkpoint.progress)
            store.wait()
    finally:
        store.close()


def items_of(checkpoint: JaxCheckpoint, seed: int) -> dict[str, PyTree]:
    """The items of an Orbax checkpoint, by name."""
    weights = {"params": checkpoint.params, **checkpoint.model_state}
    items: dict[str, PyTree] = {WEIGHTS: weights}
    if checkpoint.ema is not None:
        items[EMA] = checkpoint.ema
    if checkpoint.ema_stats:
        items[EMA_STATS] = checkpoint.ema_stats
    if checkpoint.moments is not None:
        moments = checkpoint.moments
        state = {"count": _int(moments.count), "mu": moments.mu, "nu": moments.nu}
        items[OPTIMIZER] = {
            "opt_state": {ADAM: state},
            "micro_step": _int(checkpoint.micro_step),
            "update_step": _int(checkpoint.update_step),
            # CREDIT's checkpoints have none: it is that of a fresh run.
            "key": dropout_key(seed),
        }
    if _SCALE in checkpoint.loss_scale:
        items[LOSS_SCALE] = {
            "scale": np.asarray(checkpoint.loss_scale[_SCALE], np.float32),
            "good_updates": _int(checkpoint.loss_scale.get(_TRACKER, 0)),
        }
    return items


def dropout_key(seed: int) -> jax.Array:
    """The dropout key of a new run with this seed."""
    return jax.random.split(jax.random.key(seed), 3)[2]


def read_run(
    folder: Path,
    model_def: ModelDef,
    step: int | None = None,
    *,
    verify: bool = True,
) -> JaxCheckpoint:
    """Reads a checkpoint of a run."""
    store = CheckpointStore(
        folder, num_latest=10**9, keep_best=False, verify=verify, pins=True
    )
    try:
        chosen = store.latest_step() if step is None else step
        if chosen is None:
            raise FileNotFoundError(f"{folder}: no checkpoint in {store.folder}")
        progress = store.progress(chosen)
        targets = _targets(model_def, store.item_names(chosen))
        items = store.restore(chosen, targets)
    finally:
        store.close()
    scaler: dict[str, Any] = {}
    if LOSS_SCALE in items:
        scaler = {
            _SCALE: float(items[LOSS_SCALE]["scale"]),
            **_SCALER,
            _TRACKER: int(items[LOSS_SCALE]["good_updates"]),
        }
    checkpoint = JaxCheckpoint(
        items[WEIGHTS]["params"],
        {name: items[WEIGHTS][name] for name in COLLECTIONS},
        ema=items.get(EMA),
        ema_stats=items.get(EMA_STATS),
        micro_step=chosen,
        progress=progress,
        loss_scale=scaler,
    )
    if OPTIMIZER not in items:
        return checkpoint
    optimizer = items[OPTIMIZER]
    state = optimizer["opt_state"][ADAM]
    return replace(
        checkpoint,
        moments=Moments(state["mu"], state["nu"], int(state["count"])),
        micro_step=int(optimizer["micro_step"]),
        update_step=int(optimizer["update_step"]),
    )


def _targets(model_def: ModelDef, items: Sequence[str]) -> dict[str, PyTree]:
    """Arrays with the shapes and dtypes of a checkpoint of this model."""
    params = {
        k: np.broadcast_to(np.float32(0), d.shape)
        for k, d in model_def.param_specs.items()
    }
    model_state = jax.tree.map(
        lambda leaf: np.broadcast_to(np.zeros((), leaf.dtype), leaf.shape),
        model_def.model_state_shapes,
    )
    moments = {path: params[path] for path in model_def.trainable}
    count = np.zeros((), np.int32)
    optimizer = {
        "opt_state": {ADAM: {"count": count, "mu": moments, "nu": moments}},
        "micro_step": count,
        "update_step": count,
        "key": np.asarray(jax.random.key_data(dropout_key(0))),
    }
    targets: dict[str, PyTree] = {
        WEIGHTS: {"params": params, **model_state},
        EMA: params,
        EMA_STATS: wide_statistics(model_state),
        OPTIMIZER: optimizer,
        LOSS_SCALE: {"scale": np.zeros((), np.float32), "good_updates": count},
    }
    if ADAPTERS in items:  # PyTorch's optimizer has no such moments.
        del targets[OPTIMIZER]
    # CREDIT does not save the trained parameters of a loss.
    return {name: targets[name] for name in items if name in targets}
