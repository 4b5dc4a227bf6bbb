"""The weights of a checkpoint of a run, on a mesh or on the host."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jax
import numpy as np
import optax

from credit_jax.checkpoint.artifact import Artifact
from credit_jax.checkpoint.progress import channel_differences
from credit_jax.checkpoint.store import (
    ADAM,
    ADAPTERS,
    EMA,
    EMA_STATS,
    FOLDER,
    OPTIMIZER,
    WEIGHTS,
    CheckpointStore,
    takes_average,
)
from credit_jax.config import Config, ConfigError
from credit_jax.config.load import CONFIG_NAME, config_of, read_model_section
from credit_jax.config.yaml_file import read_yaml
from credit_jax.data import ChannelSchema
from credit_jax.io.atomic import new_file
from credit_jax.io.digests import digest_of
from credit_jax.models.model_def import ModelDef, Weights
from credit_jax.models.parallel_model import ParallelModel, packing_of, weight_targets
from credit_jax.named_fields.coordinates import Coordinates
from credit_jax.named_fields.units import unit_problems
from credit_jax.nn.parameters import (
    COLLECTIONS,
    ModelState,
    wide_statistics,
    with_averaged_statistics,
)
from credit_jax.parallel.params.packing import pack_tree
from credit_jax.plan.finetune import Base
from credit_jax.plan.run_record import RunRecord
from credit_jax.state_dict.key_map import Arrays, HostModelState

# The coordinates of a run whose checkpoints record none, which were converted.
COORDINATES = "coordinates.json"


@dataclass(frozen=True, kw_only=True)
class RunArtifact(Artifact):
    """A run of credit_jax at one of its checkpoints."""

    step: int  # number of the checkpoint
    run: CheckpointStore  # all checkpoints of the run
    # `ChannelSchema.names` of the data; None compares no channels.
    channels: Mapping[str, tuple[str, ...]] | None = None

    def of_data(self, schema: ChannelSchema, *args: Any, **kwargs: Any) -> RunArtifact:
        """See `Artifact.of_data`."""
        return replace(self, channels=schema.names)

    def restore(self, model: ParallelModel) -> tuple[Weights, ModelState]:
        """The weights on the mesh of a model; every device reads its own shards."""
        params, model_state = weight_targets(model)
        like = self._items(params, model_state)
        packing = packing_of(model)
        check_channels(self.run, self.step, self.channels)
        # Parts of packed vectors are restored to the host.
        targets = packing.unpack_tree(like, lambda x: np.zeros(x.shape, x.dtype))
        items = self.run.restore(self.step, targets)
        params, model_state = self._weights(pack_tree(items, like, packing))
        return packing.unpack(params), model_state

    def on_host(self, model_def: ModelDef) -> tuple[Arrays, HostModelState]:
        """See `Artifact.on_host`."""
        specs = model_def.param_specs.items()
        params = {path: np.zeros(spec.shape, spec.dtype) for path, spec in specs}
        shapes = model_def.model_state_shapes
        state = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)
        check_channels(self.run, self.step, self.channels)
        items = self.run.restore(self.step, self._items(params, state))
        return jax.tree.map(np.asarray, self._weights(items))

    def _items(self, params: Any, model_state: Any) -> dict[str, Any]:
        """What is read of a checkpoint, like weights."""
        items: dict[str, Any] = {WEIGHTS: {"params": params, **model_state}}
        if self.average:
            items[EMA] = params
        if self.average and EMA_STATS in self.run.item_names(self.step):
            items[EMA_STATS] = wide_statistics(model_state)
        return items

    def _weights(self, items: Mapping[str, Any]) -> tuple[Any, Any]:
        """The inverse of `_items`."""
        weights = items[WEIGHTS]
        model_state = {name: weights[name] for name in COLLECTIONS}
        model_state = with_averaged_statistics(model_state, items.get(EMA_STATS))
        return items[EMA] if self.average else weights["params"], model_state

    def parts_on_host(self, model_def: ModelDef) -> tuple[Arrays, HostModelState]:
        """`on_host` with adapters, and with their matrices as they are in the base."""
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

    def moments_on_host(self, model_def: ModelDef) -> optax.ScaleByAdamState:
        """See `Artifact.moments_on_host`."""
        specs = model_def.trainable.items()
        like = {name: jax.ShapeDtypeStruct(d.shape, d.dtype) for name, d in specs}
        state = jax.eval_shape(optax.scale_by_adam().init, like)
        adam = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), state)
        counts = dict.fromkeys(("micro_step", "update_step"), np.zeros((), np.int32))
        targets = {"opt_state": {ADAM: adam}, **counts, "key": jax.random.key(0)}
        stored = self.run.restore(self.step, {OPTIMIZER: targets})[OPTIMIZER]
        return jax.tree.map(np.asarray, stored["opt_state"][ADAM])

    @cached_property
    def record(self) -> RunRecord | None:
        """What the run is, by the checkpoint or else model.yml; None without both."""
        progress = self.run.progress(self.step)
        written = self.files.path / CONFIG_NAME
        if progress.config is not None:
            return RunRecord(progress.config, progress.digests, str(self.path))
        if not written.is_file():
            return None
        record = RunRecord.of(config_in(written), str(written), forecasts=True)
        return replace(record, digests={**record.digests, **progress.digests})

    def record_coordinates(self, coordinates: Coordinates) -> str:
        """Records the coordinates of the data of model.yml; returns a note."""
        path = self.files.path / COORDINATES
        try:
            if jax.process_index() == 0:
                with new_file(path) as partial:
                    partial.write_text(json.dumps(coordinates.to_json()))
        except OSError as error:
            return f"{path} cannot be written: {error.strerror}"
        return (
            f"{path} now records the latitudes, longitudes, levels and calendar of the "
            "files that its config names; later data are put in their order"
        )

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the files of the weights."""
        return digest_of(self.path / (EMA if self.average else WEIGHTS))


def run_at(
    store: CheckpointStore, step: int, weights: str | None = None
) -> RunArtifact:
    """A run at one of its checkpoints."""
    folder, items = store.folder.parent, store.item_names(step)
    average = takes_average(weights, has_average=EMA in items, origin=store.path(step))
    config = folder / CONFIG_NAME
    written = read_yaml(config) if config.is_file() else {}
    progress, origin = store.progress(step), f"checkpoint {store.path(step)}"
    at, units = progress.coordinates, progress.units
    if at is None and (path := folder / COORDINATES).is_file():
        at, origin = json.loads(path.read_text()), str(path)
    return RunArtifact(
        files=Base(folder, "run", written),
        path=store.path(step),
        average=average,
        step=step,
        coordinates=None if at is None else Coordinates.from_json(at, origin, units),
        units={key: (unit, origin) for key, unit in units.items()},
        has_moments=OPTIMIZER in items,
        run=store,
    )


def open_run(
    folder: str | Path,
    step: int | None = None,
    weights: str | None = None,
    *,
    verify: bool = True,
) -> RunArtifact:
    """Opens a run at a checkpoint, the newest undamaged one for None."""
    path = Path(folder)
    if path.name == FOLDER and not (path / FOLDER).exists():
        path = path.parent
    # A run that goes on in the folder removes none that is read, until it is closed.
    store = CheckpointStore(path, verify=verify, pins=True)
    newest = store.newest_whole_step()
    if newest is None and store.steps():
        raise ValueError(
            f"all checkpoints in {store.folder} are damaged:\n  "
            + "\n  ".join(store.damaged())
        )
    if newest is None:
        raise FileNotFoundError(
            f"there is no checkpoint in {store.folder}; give the folder of a run, or "
            "convert one: credit-jax convert --to jax"
        )
    return run_at(store, newest if step is None else step, weights)


def check_channels(
    store: CheckpointStore,
    step: int,
    channels: Mapping[str, tuple[str, ...]] | None,
    units: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Compares the channels and units of a checkpoint with those of data."""
    # Channels in another order, and variables in another unit, have arrays of the same
    # shapes, so no other check detects them.
    progress, path = store.progress(step), store.path(step)
    trained, current = (
        {key: (unit, origin) for key, unit in units.items()}
        for units, origin in ((progress.units, str(path)), (units, "data"))
    )
    if others := unit_problems(trained, current):
        raise ConfigError(others)
    if progress.channels is None or channels is None:
        return
    if problems := channel_differences(progress.channels, channels):
        raise ValueError(
            f"checkpoint {path} was trained with other channels:\n  "
            + "\n  ".join(problems)
            + "\nList the variables of data.source as the run did (model.yml), or "
            "rename those of the files with a preblock of type rename."
        )


def config_in(path: Path) -> Config | dict[str, Any]:
    """The config of a file, or its `model` section, if it trains nothing here."""
    with suppress(ValueError), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return config_of(read_yaml(path), forecasts=True)
    return {"model": read_model_section(path)}
