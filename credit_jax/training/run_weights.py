"""The weights of a checkpoint of a run, on a mesh or on the host."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax

from credit_jax.checkpoint import (
    ADAPTERS,
    EMA,
    EMA_STATS,
    OPTIMIZER,
    WEIGHTS,
    CheckpointStore,
)
from credit_jax.config import Config
from credit_jax.config.data import DateRange, raw_ranges
from credit_jax.config.load import CONFIG_NAME
from credit_jax.config.yaml_file import read_yaml
from credit_jax.io.digests import digest_of
from credit_jax.models.model_def import ModelDef, Weights
from credit_jax.models.parallel_model import ParallelModel
from credit_jax.named_fields.coordinates import Coordinates
from credit_jax.nn.model_state import COLLECTIONS, ModelState
from credit_jax.plan.run_record import RunRecord
from credit_jax.training.optimizer import ADAM, adamw
from credit_jax.training.restore import (
    RunStore,
    average_is_taken,
    compare_with_run,
    coordinates_at,
    open_run,
    record_at,
)
from credit_jax.training.state import wide_statistics, with_averaged_statistics


@dataclass(frozen=True)
class RunWeights:
    """The weights of a checkpoint.

    Attributes:
        path: folder of the checkpoint.
        step: its number.
        average: whether the moving average of the weights is taken.
        run: all checkpoints of the run.
        channels: `ChannelSchema.names` of the data; None compares no channels.
    """

    path: Path
    step: int
    average: bool
    run: CheckpointStore
    channels: Mapping[str, tuple[str, ...]] | None = None

    @property
    def folder(self) -> Path:
        """The folder of the run."""
        return self.run.folder.parent

    def restore(self, model: ParallelModel) -> tuple[Weights, ModelState]:
        """The weights on the mesh of a model.

        Raises:
            ValueError: they belong to another model, or to other channels.
        """
        store = RunStore(self.run, model.model_def.param_specs, self.channels)
        return store.restore_model(self.step, model, average=self.average)

    def on_host(self, model_def: ModelDef) -> tuple[dict[str, np.ndarray], Any]:
        """Whole parameters by path and model state, as they are in the files.

        Raises:
            ValueError: see `restore`.
        """
        store = RunStore(self.run, model_def.param_specs, self.channels)
        store.check_channels(self.step)
        params = {
            path: np.zeros(spec.shape, spec.dtype)
            for path, spec in model_def.param_specs.items()
        }
        state = jax.tree.map(
            lambda leaf: np.zeros(leaf.shape, leaf.dtype),
            model_def.model_state_shapes,
        )
        targets: dict[str, Any] = {WEIGHTS: {"params": params, **state}}
        if self.average:
            targets[EMA] = params
        if self.average and EMA_STATS in self.run.item_names(self.step):
            targets[EMA_STATS] = wide_statistics(state)
        items = self.run.restore(self.step, targets)
        weights = items[EMA] if self.average else items[WEIGHTS]["params"]
        state = {name: items[WEIGHTS][name] for name in COLLECTIONS}
        state = with_averaged_statistics(state, items.get(EMA_STATS))
        return jax.tree.map(np.asarray, (weights, state))

    def parts_on_host(self, model_def: ModelDef) -> tuple[dict[str, np.ndarray], Any]:
        """`on_host` with adapters, and with their matrices as they are in the base.

        Args:
            model_def: the model of the run, with its adapters.

        Raises:
            ValueError: see `restore`; or the run has no adapters.
        """
        low_rank = model_def.low_rank
        if low_rank is None or ADAPTERS not in self.run.item_names(self.step):
            raise ValueError(
                f"{self.path} has no adapters (trainer.finetune.lora); expected a "
                "checkpoint of a run that trains some"
            )
        sums, state = self.on_host(replace(model_def, low_rank=None))
        specs = model_def.param_specs
        like = {name: np.zeros(spec.shape, spec.dtype) for name, spec in specs.items()}
        adapters = {name: like[name] for name in low_rank.param_specs(specs)}
        targets = {"base": {name: like[name] for name in low_rank.targets}}
        targets["weights"] = adapters
        if EMA in self.run.item_names(self.step):
            targets[EMA] = adapters
        stored = self.run.restore(self.step, {ADAPTERS: targets})[ADAPTERS]
        chosen = stored[EMA if self.average else "weights"]
        return {**sums, **jax.tree.map(np.asarray, stored["base"] | chosen)}, state

    @property
    def has_moments(self) -> bool:
        """Whether the checkpoint has an optimizer."""
        return OPTIMIZER in self.run.item_names(self.step)

    def moments_on_host(self, model_def: ModelDef) -> optax.ScaleByAdamState:
        """Adam's moments of whole parameters by path, and the number of its updates.

        Args:
            model_def: the model of the run.

        Raises:
            ValueError: the checkpoint has another optimizer.
        """
        specs = model_def.trainable.items()
        like = {name: jax.ShapeDtypeStruct(d.shape, d.dtype) for name, d in specs}
        state = jax.eval_shape(adamw().init, like)
        counts = dict.fromkeys(("micro_step", "update_step"), np.zeros((), np.int32))
        targets = {
            "opt_state": jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), state)
        }
        targets |= {**counts, "key": jax.random.key(0)}
        stored = self.run.restore(self.step, {OPTIMIZER: targets})[OPTIMIZER]
        return jax.tree.map(np.asarray, stored["opt_state"][ADAM])

    @cached_property
    def coordinates(self) -> Coordinates | None:
        """Of the data of the run; None if the checkpoint does not record them."""
        return coordinates_at(self.run, self.step)

    @cached_property
    def units(self) -> dict[str, tuple[str, str]]:
        """Key -> unit of variables of the data of the run and where it is recorded."""
        recorded = self.run.progress(self.step).units
        where = f"checkpoint {self.path}"
        return {key: (unit, where) for key, unit in recorded.items()}

    @cached_property
    def record(self) -> RunRecord | None:
        """See `record_at`."""
        return record_at(self.run, self.step)

    def compare(self, config: Config | Mapping[str, Any]) -> list[str]:
        """See `compare_with_run`."""
        return compare_with_run(self.run, self.step, config)

    @cached_property
    def training_dates(self) -> tuple[DateRange, ...]:
        """Date ranges of the training, by model.yml of the run; () if unknown."""
        path = self.folder / CONFIG_NAME
        return raw_ranges(read_yaml(path)) if path.is_file() else ()

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the files of the weights."""
        return digest_of(self.path / (EMA if self.average else WEIGHTS))


def open_weights(
    folder: str | Path,
    step: int | None = None,
    weights: str | None = None,
    channels: Mapping[str, tuple[str, ...]] | None = None,
    *,
    verify: bool = True,
) -> RunWeights:
    """The weights of a run in a folder.

    Args:
        folder: folder of the run.
        step: step of the checkpoint; None is the newest.
        weights: "average", "last", or None for the average if there is one.
        channels: see `RunWeights`.
        verify: compare files with their digests before they are read.

    Raises:
        FileNotFoundError: there is no checkpoint.
        ValueError: all checkpoints are damaged, or there is no moving average.
    """
    store, newest = open_run(folder, verify=verify)
    step = newest if step is None else step
    average = average_is_taken(store, step, weights)
    return RunWeights(store.path(step), step, average, store, channels)
