"""A training state from a checkpoint, and a checkpoint of a training state."""

from __future__ import annotations

import dataclasses
import logging
import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import PyTree

from credit_jax.checkpoint import (
    ADAPTERS,
    EMA,
    EMA_STATS,
    LOSS,
    LOSS_SCALE,
    OPTIMIZER,
    WEIGHTS,
    CheckpointStore,
    Progress,
)
from credit_jax.checkpoint.progress import channel_differences
from credit_jax.checkpoint.store import takes_average
from credit_jax.config import Config, ConfigError
from credit_jax.config.load import CONFIG_NAME, config_of, read_model_section
from credit_jax.config.yaml_file import read_yaml
from credit_jax.models.model_def import Weights
from credit_jax.models.parallel_model import ParallelModel, build_parallel_model
from credit_jax.named_fields.coordinates import Coordinates
from credit_jax.named_fields.units import unit_problems
from credit_jax.nn.low_rank import LowRank, is_adapter, merged
from credit_jax.nn.model_state import BATCH_STATS, COLLECTIONS, ModelState
from credit_jax.parallel.mesh.dims import ParallelDims
from credit_jax.parallel.params.packing import (
    Packing,
    pack_tree,
    unpack_on_host,
    unpacked_targets,
)
from credit_jax.parallel.params.spec import ParamSpec, trainable
from credit_jax.plan.finetune import Base, base_channels
from credit_jax.plan.run_record import RunRecord
from credit_jax.training.loss_scale import LossScale
from credit_jax.training.state import (
    LossState,
    TrainState,
    packed_specs,
    packing_of,
    shardings,
    wide_statistics,
    with_averaged_statistics,
)

_LOG = logging.getLogger("credit_jax")
# Items that a checkpoint of another run may lack.
_OPTIONAL = frozenset({EMA, EMA_STATS, LOSS_SCALE, LOSS})
# Fields of a state in the item of the optimizer, beside its own state.
_COUNTS = ("micro_step", "update_step", "key")


@dataclass(frozen=True)
class RunStore:
    """Saves and restores the training states of one model.

    Attributes:
        checkpoints: the store of the run.
        param_specs: specs of the model's parameters.
        channels: `ChannelSchema.names` of the run's data; None compares no channels.
        coordinates: coordinates of the run's data, which checkpoints record; None
            records none.
        record: what the run is, which checkpoints record; None records nothing.
        units: key -> unit of variables of the run's data, which checkpoints record.
        low_rank: adapters of the model. Weights and average in a checkpoint are those
            of the model without them, with the sums: whatever reads it needs to know
            nothing of adapters.
    """

    checkpoints: CheckpointStore
    param_specs: Mapping[str, ParamSpec]
    channels: Mapping[str, tuple[str, ...]] | None = None
    coordinates: Coordinates | None = None
    record: RunRecord | None = None
    units: Mapping[str, str] = field(default_factory=dict)
    low_rank: LowRank | None = None

    def save(self, step: int, state: TrainState, progress: Progress) -> None:
        """Starts to write a checkpoint; see `CheckpointStore.save`."""
        where, record = self.coordinates, self.record or RunRecord({})
        progress = dataclasses.replace(
            progress,
            channels=self.channels,
            coordinates=None if where is None else where.to_json(),
            digests=record.digests,
            config=record.config or None,
            units=self.units,
        )
        self.checkpoints.save(step, self.items_of(state), progress)

    def items_of(self, state: TrainState) -> dict[str, PyTree]:
        """The items of a checkpoint (`credit_jax.checkpoint`), nothing packed."""
        items: dict[str, PyTree] = {
            WEIGHTS: {"params": state.stored_params, **state.model_state},
            OPTIMIZER: {"opt_state": state.stored_opt_state}
            | {name: getattr(state, name) for name in _COUNTS},
        }
        if state.stored_ema is not None:
            items[EMA] = {**state.stored_params, **state.stored_ema}
        if state.ema_stats:
            items[EMA_STATS] = state.ema_stats
        if state.loss_scale is not None:
            items[LOSS_SCALE] = dict(vars(state.loss_scale))
        if state.loss_state is not None:
            items[LOSS] = dict(vars(state.loss_state))
        items = unpack_on_host(items, self._packing)
        return items if self.low_rank is None else self._with_sums(items, self.low_rank)

    def _with_sums(
        self, items: Mapping[str, PyTree], low_rank: LowRank
    ) -> dict[str, PyTree]:
        """Items with the sums of matrices and adapters, and an item of these."""
        params, specs = items[WEIGHTS]["params"], self.param_specs
        adapters = {"base": {path: params[path] for path in low_rank.targets}}
        whole = merged(params, low_rank, specs)
        sums = {**items, WEIGHTS: {**items[WEIGHTS], "params": whole}}
        adapters["weights"] = {p: x for p, x in params.items() if is_adapter(p)}
        if EMA in items:
            average = items[EMA]
            sums[EMA] = merged(average, low_rank, specs)
            adapters[EMA] = {p: x for p, x in average.items() if is_adapter(p)}
        return {**sums, ADAPTERS: adapters}

    def without_sums(self, items: Mapping[str, PyTree]) -> dict[str, PyTree]:
        """The inverse of `_with_sums`."""
        if ADAPTERS not in items:
            return dict(items)
        adapters, weights = items[ADAPTERS], items[WEIGHTS]
        base = adapters["base"]
        parts = dict(items)
        params = {**weights["params"], **base, **adapters["weights"]}
        parts[WEIGHTS] = {**weights, "params": params}
        if EMA in items:
            parts[EMA] = {**items[EMA], **base, **adapters[EMA]}
        return parts

    @property
    def _packing(self) -> Packing:
        return Packing.of(self.param_specs)

    def check_fits(self, step: int, state: TrainState, *, resume: bool) -> None:
        """Checks that a checkpoint can be restored, without reading arrays.

        Args:
            step: step of the checkpoint.
            state: shapes of a fresh state (`jax.eval_shape`).
            resume: whether the optimizer is restored, too.

        Raises:
            ValueError: see `CheckpointStore.check_fits` and `check_channels`.
        """
        items = self.items_of(state)
        for optional in _OPTIONAL:
            items.pop(optional, None)
        if not resume:
            del items[OPTIMIZER]
        self.checkpoints.check_fits(step, items)
        self.check_channels(step)

    def check_channels(self, step: int) -> None:
        """Compares the channels of a checkpoint with those of this run.

        Channels in another order, and variables in another unit, have arrays of the
        same shapes, so no other check detects them.

        Raises:
            ValueError: there are other variables, they are in another order, or one is
                in another unit.
        """
        progress, path = self.checkpoints.progress(step), self.checkpoints.path(step)
        trained, ours = (
            {key: (unit, where) for key, unit in units.items()}
            for units, where in ((progress.units, str(path)), (self.units, "data"))
        )
        if others := unit_problems(trained, ours):
            raise ConfigError(others)
        stored = progress.channels
        if stored is None or self.channels is None:
            return
        problems = channel_differences(stored, self.channels)
        if problems:
            raise ValueError(
                f"checkpoint {self.checkpoints.path(step)} was trained with other "
                "channels:\n  " + "\n  ".join(problems) + "\nList the variables of "
                "data.source as the run did (model.yml), or rename those of the files "
                "with a preblock of type rename."
            )

    def restore_all(self, step: int, state: TrainState) -> TrainState:
        """The state in a checkpoint.

        Args:
            step: step of the checkpoint.
            state: a fresh state, with the shapes and shardings of the result.
        """
        return self.restore_parts(step, state, optimizer=True, position=True)

    def restore_weights(self, step: int, state: TrainState) -> TrainState:
        """`state` with the weights and the average of a checkpoint."""
        return self.restore_parts(step, state, optimizer=False, position=False)

    def restore_parts(
        self, step: int, state: TrainState, *, optimizer: bool, position: bool
    ) -> TrainState:
        """`state` with the weights, the average and further parts of a checkpoint.

        Args:
            step, state: as for `restore_all`.
            optimizer: whether to take the state of the optimizer, and the trained
                parameters of the loss.
            position: whether to take the micro-batches seen and the loss scale.
        """
        self.check_channels(step)
        targets, stored = self.items_of(state), self.checkpoints.item_names(step)
        if not optimizer:
            del targets[OPTIMIZER]
            targets.pop(LOSS, None)
        if not position:
            targets.pop(LOSS_SCALE, None)
        for optional in _OPTIONAL.difference(stored):
            targets.pop(optional, None)
        items = self.without_sums(self.checkpoints.restore(step, targets))
        fields = self._fields(state, items)
        if not position:
            fields.pop("micro_step", None)
        elif not optimizer:
            fields["micro_step"] = self._count(step, "micro_step", state)
        if EMA in items and not optimizer and OPTIMIZER in stored:
            fields["update_step"] = self._count(step, "update_step", state)
        return dataclasses.replace(state, **fields)

    def restore_model(
        self, step: int, model: ParallelModel, *, average: bool = False
    ) -> tuple[Weights, ModelState]:
        """The weights of a checkpoint on the mesh of a model, for a forward pass.

        Args:
            step: step of the checkpoint.
            model: its mesh may be another one than that which wrote the checkpoint.
            average: the moving average of the weights instead of the last ones.

        Raises:
            FileNotFoundError, ValueError: see `CheckpointStore.restore`.
        """
        self.check_channels(step)
        params, model_state = weight_targets(model)
        like = {WEIGHTS: {"params": params, **model_state}}
        if average:
            like[EMA] = params
        if average and EMA_STATS in self.checkpoints.item_names(step):
            stats = model_state[BATCH_STATS]
            like[EMA_STATS] = jax.tree.map(lambda x: x.update(dtype="float32"), stats)
        targets = unpacked_targets(like, self._packing)
        items = self.checkpoints.restore(step, targets)
        packed = pack_tree(items, like, self._packing)
        weights = packed[WEIGHTS]
        params = self._packing.unpack(packed[EMA] if average else weights["params"])
        model_state = {name: weights[name] for name in COLLECTIONS}
        return params, with_averaged_statistics(model_state, packed.get(EMA_STATS))

    def _fields(self, state: TrainState, items: Mapping[str, Any]) -> dict[str, Any]:
        """Fields of a state from the items of a checkpoint, packed."""
        weights, optimizer = items[WEIGHTS], dict(items.get(OPTIMIZER, {}))
        fields: dict[str, Any] = {
            "stored_params": weights["params"],
            "model_state": {name: weights[name] for name in COLLECTIONS},
            **({"stored_opt_state": optimizer.pop("opt_state")} if optimizer else {}),
            **optimizer,
        }
        if state.stored_ema is not None:
            # An average that begins in this run begins with the restored weights.
            averaged = trainable(items.get(EMA, weights["params"]), self.param_specs)
            if EMA not in items:
                averaged = jax.tree.map(jnp.copy, averaged)
            fields["stored_ema"] = averaged
            fields["ema_stats"] = items.get(EMA_STATS, wide_statistics(weights))
        like = {name: getattr(state, name) for name in fields}
        fields = pack_tree(fields, like, self._packing)
        if LOSS_SCALE in items:
            fields["loss_scale"] = LossScale(**items[LOSS_SCALE])
        if LOSS in items:
            fields["loss_state"] = LossState(**items[LOSS])
        return fields

    def _count(self, step: int, name: str, state: TrainState) -> jax.Array:
        """A count stored with the optimizer, with the sharding of that of `state`."""
        count = self.checkpoints.read_array(step, OPTIMIZER, name)
        return jax.device_put(count, getattr(state, name).sharding)


def weight_targets(model: ParallelModel) -> tuple[Any, Any]:
    """Shapes, dtypes and shardings of the weights of a model, small ones packed."""
    param_specs = packing_of(model).param_specs(model.model_def.param_specs)
    params = {
        path: jax.ShapeDtypeStruct(d.shape, d.dtype) for path, d in param_specs.items()
    }
    shapes = params, model.model_def.model_state_shapes
    specs = (packed_specs(model), model.model_state_specs)
    return jax.tree.map(
        lambda leaf, place: jax.ShapeDtypeStruct(
            leaf.shape, leaf.dtype, sharding=place
        ),
        shapes,
        shardings(specs, model.parallel_config.mesh),
    )


def place_weights(
    model: ParallelModel, params: Mapping[str, Any], model_state: Mapping[str, Any]
) -> tuple[Weights, ModelState]:
    """Puts whole host arrays on the mesh of a model.

    Args:
        model: model on its mesh.
        params: parameters by path; the same in every process.
        model_state: collections of `nn.model_state`.
    """
    # As one vector, the small parameters are one transfer.
    like, packing = weight_targets(model), packing_of(model)
    packed = pack_tree((params, model_state), like, packing)
    placed = jax.tree.map(lambda x, to: jax.device_put(x, to.sharding), packed, like)
    return packing.unpack(placed[0]), placed[1]


def restore(
    folder: str | Path,
    mesh: Mesh | ParallelDims,
    *,
    step: int | None = None,
    weights: str | None = None,
    **options: Any,
) -> tuple[ParallelModel, Weights, ModelState]:
    """The model of a run on a mesh, with the weights of one of its checkpoints.

    Its `channels` are those of the run's data, by channel_schema.yaml or model.yml.

    Args:
        folder: folder of a trained or converted run; its model.yml describes the model.
        mesh: a mesh or degrees, as for `build_parallel_model`; may be another one than
            that which wrote the checkpoint.
        step: step of the checkpoint; None takes the newest.
        weights: "average", "last", or None for the moving average if there is one.
        options: options of `build_parallel_model`.

    Raises:
        FileNotFoundError: there is no model.yml or no checkpoint.
        ValueError: the model does not fit the mesh, the checkpoint not the model,
            model.yml is not that of the training, or there is no moving average.

    >>> model, params, model_state = credit_jax.restore("RUN", mesh)
    >>> sorted(params)
    ['dense/bias', 'dense/down', 'dense/up']
    >>> [model.channels.describe(channel) for channel in range(6)]
    ['U 1', 'U 4.6', 'T 1', 'T 4.6', 'SP', 'TP']
    """
    written = Path(folder) / "model.yml"
    model = build_parallel_model(read_model_section(written), mesh, **options)
    checkpoints, newest = open_run(folder)
    store = RunStore(checkpoints, model.model_def.param_specs)
    step = newest if step is None else step
    for note in compare_with_run(checkpoints, step, _config_in(written)):
        _LOG.warning("note: %s", note)
    base = Base(Path(folder), "run", read_yaml(written))
    channels = base_channels(base, coordinates_at(checkpoints, step))
    model = dataclasses.replace(model, channels=channels)
    average = average_is_taken(checkpoints, step, weights)
    return model, *store.restore_model(step, model, average=average)


def average_is_taken(store: CheckpointStore, step: int, weights: str | None) -> bool:
    """`takes_average` of a checkpoint of a run."""
    has_average = EMA in store.item_names(step)
    return takes_average(weights, has_average=has_average, where=store.path(step))


def coordinates_at(store: CheckpointStore, step: int) -> Coordinates | None:
    """The coordinates of the data of a run, as a checkpoint records them."""
    stored = store.progress(step).coordinates
    where = f"checkpoint {store.path(step)}"
    return None if stored is None else Coordinates.from_json(stored, where)


def no_coordinates(path: object) -> str:
    """The note on a checkpoint or a package without coordinates."""
    return (
        f"{path} does not record the latitudes, longitudes and levels of its data, as "
        "it was made by an earlier version or from PyTorch: rows, columns and levels "
        "are taken in the order of the files"
    )


def record_at(store: CheckpointStore, step: int) -> RunRecord | None:
    """What a run is, as a checkpoint records it, or else model.yml of its folder.

    Returns:
        None if both are silent.
    """
    progress, where = store.progress(step), str(store.path(step))
    if progress.config is not None:
        return RunRecord(progress.config, progress.digests, where)
    written = store.folder.parent / CONFIG_NAME
    if not written.is_file():
        return None
    record = RunRecord.of(_config_in(written), str(written), forecasts=True)
    return replace(record, digests={**record.digests, **progress.digests})


def compare_with_run(
    store: CheckpointStore, step: int, config: Config | Mapping[str, Any]
) -> list[str]:
    """Compares a run with the config of a forward pass or of forecasts.

    Args:
        store: the checkpoints of the run.
        step: step of the checkpoint.
        config: the config, or its section `model` alone.

    Returns, Raises: see `RunRecord.compare`.
    """
    record = record_at(store, step)
    if record is None:
        return [
            f"{store.path(step)} does not record the config of its run, which has no "
            f"{CONFIG_NAME}: nothing says whether model, data and blocks are those of "
            "the training"
        ]
    here = RunRecord.of(config, forecasts=True)
    return record.compare(here, forecasts=True)


def _config_in(path: Path) -> Config | dict[str, Any]:
    """The config of a file, or its `model` section, if it trains nothing here."""
    with suppress(ValueError), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return config_of(read_yaml(path), forecasts=True)
    return {"model": read_model_section(path)}


def open_run(folder: str | Path, *, verify: bool = True) -> tuple[CheckpointStore, int]:
    """Returns the checkpoints of a run and the step of the newest undamaged one.

    A run that goes on in the folder removes none that is read, until the store is
    closed.

    Args:
        folder: folder of the run, or of its checkpoints.
        verify: compare files with their digests before they are read.

    Raises:
        FileNotFoundError: there are no checkpoints.
        ValueError: all are damaged.
    """
    path = Path(folder)
    if path.name == "checkpoints" and not (path / "checkpoints").exists():
        path = path.parent
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
    return store, newest
