"""What one mesh gives: a forecast, losses, every gradient, weights before and after."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.traverse_util import flatten_dict, unflatten_dict
from jax.sharding import PartitionSpec

from credit_jax.certification.meshes import dims_of
from credit_jax.certification.subject import NUM_STEPS, Subject
from credit_jax.checkpoint import (
    EMA,
    EMA_STATS,
    LOSS,
    OPTIMIZER,
    WEIGHTS,
    CheckpointStore,
    Progress,
)
from credit_jax.checkpoint.trees import is_key
from credit_jax.models.parallel_model import ParallelModel, build_parallel_model
from credit_jax.named_fields import FieldContext
from credit_jax.nn.model_state import COLLECTIONS
from credit_jax.nn.noise import Noise
from credit_jax.parallel.compiler import compile_program
from credit_jax.parallel.params.spec import trainable
from credit_jax.parallel.placement import place_batch
from credit_jax.training.base_weights import first_adapters
from credit_jax.training.optimizer import UniformTransformation
from credit_jax.training.restore import RunStore, place_weights
from credit_jax.training.rollout import evaluation_step
from credit_jax.training.state import (
    TrainState,
    place_state,
    state_of,
    state_specs,
)
from credit_jax.training.step import make_train_step, make_update
from credit_jax.transforms.rollout import CARRY

Arrays = dict[str, np.ndarray]
# The update after which a checkpoint is written, and restored on another mesh.
SAVED = 1
# Parts of what is measured.
FORECAST, TRAINING, RUN = "forecast", "training", "run"
PARTS = (FORECAST, TRAINING, RUN)
# Standard deviation of what is put in the place of zeros.
_INITIAL_SCALE = 0.02
_MANY_WEIGHTS = 1e6
# Of updates by one gradient, and their rate, which moves weights by much of their size:
# the rounding of small changes would hide a wrong decay.
_FACTORS, _RATE = (1.0, -0.5, 0.25), 0.1
# Of a training state.
_COUNTS = ("micro_step", "update_step")
# Of the names of `Measured.start`.
PARAMS, SEPARATOR = "params", "|"


@dataclass(frozen=True)
class Measured:
    """The numbers of one mesh, whole arrays on the host.

    Attributes:
        mesh: its name.
        forecast: prediction of each step, (batch, channel, time, lat, lon), samples in
            the order of one device; by "prediction" for one step, "step 2", ...
        losses: (update,).
        gradients: gradients of the first update by path, before clipping.
        start: weights and model state of the reference before the first update, which
            all meshes take; empty for the others.
        initial: weights as this mesh itself draws or reads them.
        updated: weights after the last update. Without training there are neither
            losses nor gradients, nor what follows from them.
        average: average of the weights after the last update; empty without.
        state: state of the model after update `SAVED`, and its average: running
            statistics and vectors of spectral norm.
        saved: the weights in the checkpoint after update `SAVED`, with the counts of
            micro-batches and updates, and digests of all else that it has.
        written: the same, read back from that checkpoint without the mesh.
        restored: the same, read from the checkpoint of one device, that this mesh goes
            on from; None on one device.
        restored_loss: loss of the update that follows; None on one device.
        sensitivity: gradient of the first x of the forecast.
        optimized: weights, their average and the state of the optimizer after
            `NUM_UPDATES` updates by the gradient of the reference.
        logged: what a run of the config logs, see `runs`; empty without a config.
        logged_in_dtype: the same in the dtype of the config, if it has 16 bits.
        trained: weights, average and state of the optimizer of its last checkpoint.
        opened: weights of the run of the reference, as a forecast here has them.
    """

    mesh: str
    forecast: Arrays
    losses: np.ndarray
    gradients: Arrays
    start: Arrays
    initial: Arrays
    updated: Arrays
    average: Arrays
    state: Arrays
    saved: Arrays
    written: Arrays
    restored: Arrays | None = None
    restored_loss: float | None = None
    sensitivity: Arrays = field(default_factory=dict)
    optimized: Arrays = field(default_factory=dict)
    logged: Arrays = field(default_factory=dict)
    logged_in_dtype: Arrays = field(default_factory=dict)
    trained: Arrays = field(default_factory=dict)
    opened: Arrays = field(default_factory=dict)


class RecordedGradient(NamedTuple):
    """The state of `record_gradient`."""

    gradient: Any


def record_gradient() -> optax.GradientTransformation:
    """A transformation that keeps the last gradient as its state, and passes it on."""

    def init(params: Any) -> RecordedGradient:
        return RecordedGradient(jax.tree.map(jnp.zeros_like, params))

    def update(updates: Any, state: Any, params: Any = None) -> Any:
        del state, params
        return updates, RecordedGradient(updates)

    return optax.GradientTransformation(init, update)


def build_model(subject: Subject, mesh: str, devices: Sequence[Any]) -> ParallelModel:
    """Builds the model of a subject on the mesh of a name."""
    dims = dims_of(mesh)
    return build_parallel_model(
        subject.model_def,
        dims,
        devices=devices[: dims.world_size],
        mp_policy=subject.precision,
        **subject.options,
    )


def measure(
    subject: Subject,
    mesh: str,
    devices: Sequence[Any],
    *,
    folder: Path,
    reference: Path | None = None,
    expected: Measured | None = None,
    parts: Sequence[str] = PARTS,
    run: Path | None = None,
) -> Measured:
    """Runs the forecast and the updates of a subject on a mesh.

    Three programs are compiled: a step of the forecast with the gradient of its input,
    the training step, whose optimizer records the gradient, and an update alone.

    Args:
        subject: what to run.
        mesh: name of the mesh.
        devices: devices, at least as many as the mesh has.
        folder: folder where the checkpoint of this mesh is written; empty.
        reference: folder of the checkpoint of one device; None on one device.
        expected: numbers of one device; None on one device.
        parts: what is measured, of `PARTS`.
        run: folder where the first weights are written as the checkpoint of a run; None
            for nowhere.
    """
    model = build_model(subject, mesh, devices)
    order = samples_of_mesh(subject.num_samples, model, subject)
    optimizer = optax.chain(record_gradient(), subject.optimizer)
    if isinstance(subject.optimizer, UniformTransformation):
        optimizer = UniformTransformation(*optimizer)
    weights = drawn_weights(subject, model)
    initial = _host(weights[0])
    if expected is None:
        weights = _as_computed(subject, _without_zeros(subject, model, weights))
    else:
        weights = placed_weights(model, expected.start)
    first = flat(*weights) if expected is None else {}
    if run is not None:
        _write_run(subject, model, weights, run)
    state = _first_state(subject, model, optimizer, weights)
    forecast, sensitivity = {}, {}
    if FORECAST in parts:
        forecast, sensitivity = _forecast(subject, model, state, order)
    if TRAINING not in parts:
        nothing = {}, {}, {}, {}, {}
        numbers = mesh, forecast, np.zeros(0), {}, first, initial
        return Measured(*numbers, *nothing, sensitivity=sensitivity)
    updates = [
        (step, micro_batches)
        for stage in subject.stages or (subject,)
        for step, micro_batches in product(
            [_step(stage, model, optimizer)], _accumulated(stage)
        )
    ]

    def update(state: TrainState, index: int) -> tuple[TrainState, float]:
        step, micro_batches = updates[index]
        batch = jax.tree.map(lambda *leaves: np.stack(leaves), *micro_batches)
        batch = placed_batch(batch, model, subject, order, sample_dim=1)
        state, info = step(state, batch, jnp.float32(subject.learning_rate))
        return state, float(info["loss"].mean())

    fresh, losses, gradients, model_state, saved = state, [], {}, {}, {}
    written = {}
    store = _run_store(CheckpointStore(folder), model)
    try:
        for index in range(len(updates)):
            state, loss = update(state, index)
            losses.append(loss)
            if index == 0:
                gradients = _host(state.opt_state[0].gradient)
            if index + 1 == SAVED:
                model_state = _state_of_model(state)
                saved = _checkpointed(state)
                store.save(SAVED, state, Progress())
        written = _read_back(store, fresh)
    finally:
        store.checkpoints.close()
    restored, restored_loss = None, None
    if reference is not None:
        other = CheckpointStore(reference)
        try:
            again = _run_store(other, model).restore_all(SAVED, fresh)
        finally:
            other.close()
        restored = _checkpointed(again)
        restored_loss = update(again, SAVED)[1]
    return Measured(
        mesh,
        forecast,
        np.asarray(losses),
        gradients,
        first,
        initial,
        _host(state.params),
        _host(state.ema or {}),
        model_state,
        saved,
        written,
        restored,
        restored_loss,
        sensitivity,
        _optimized(
            subject,
            model,
            weights,
            gradients if expected is None else expected.gradients,
        ),
    )


def _optimized(
    subject: Subject,
    model: ParallelModel,
    weights: tuple[Any, Any],
    gradients: Arrays,
) -> Arrays:
    """What an optimizer makes of a gradient that is the same on every mesh."""
    state = _first_state(subject, model, subject.optimizer, weights, with_loss=False)
    update = make_update(model, subject.optimizer, ema_decay=subject.ema_decay)
    update = compiled(update, model)
    packed = state.packing.pack(jax.tree.map(jnp.asarray, gradients))
    packed = trainable(packed, model.model_def.param_specs)
    for factor in _FACTORS:
        gradient = {
            path: jax.device_put(
                factor * np.asarray(x, state.stored_params[path].dtype),
                state.stored_params[path].sharding,
            )
            for path, x in packed.items()
        }
        state = update(state, gradient, jnp.float32(_RATE))
    return trained_arrays(state)


def trained_arrays(state: TrainState) -> Arrays:
    """Parts of a training state on the host, by the part and the path within it."""
    parts = {WEIGHTS: state.params, "average": state.ema, OPTIMIZER: state.opt_state}
    return {
        f"{name}{SEPARATOR}{_name_of(path)}": np.asarray(jax.device_get(leaf))
        for name, part in parts.items()
        for path, leaf in jax.tree_util.tree_leaves_with_path(part)
    }


def compiled(function: Callable[..., Any], model: ParallelModel) -> Callable[..., Any]:
    """A program of a certificate, which runs a few times.

    With many weights these runs take longer than to compile it well: the U-Net's in
    float64 a third of the time at level 1.
    """
    level = int(model.model_def.num_parameters > _MANY_WEIGHTS)
    return compile_program(function, model.mesh, level=level)


def _step(
    stage: Subject, model: ParallelModel, optimizer: optax.GradientTransformation
) -> Callable[..., Any]:
    """The training step of a stage, compiled at its first call."""
    train = make_train_step(
        model,
        optimizer,
        stage.loss,
        accumulate=stage.accumulate,
        rollout=stage.rollout,
        loss_optimizer=stage.loss_optimizer,
        ema_decay=stage.ema_decay,
    )
    return compiled(train, model)


def _accumulated(stage: Subject) -> list[tuple[Mapping[str, Any], ...]]:
    """The micro-batches of each update: its own batch, and those after it."""
    count = len(stage.batches)
    return [
        tuple(stage.batches[(first + i) % count] for i in range(stage.accumulate))
        for first in range(count)
    ]


def _run_store(store: CheckpointStore, model: ParallelModel) -> RunStore:
    model_def = model.model_def
    return RunStore(store, model_def.param_specs, low_rank=model_def.low_rank)


def _checkpointed(state: TrainState) -> Arrays:
    """The weights of a state, its position in the training, and digests of the rest.

    A digest in the place of an array, such as a moment, costs no memory.
    """
    counts = {name: getattr(state, name) for name in _COUNTS}
    rest = {
        "optimizer": state.opt_state,
        "average": state.ema,
        "state": state.model_state,
        "average of the state": state.ema_stats,
        "loss": None if state.loss_state is None else vars(state.loss_state),
    }
    return _digested({**state.params, **counts}, rest)


def _read_back(store: RunStore, state: TrainState) -> Arrays:
    """What `_checkpointed` gives, read as whole arrays from the checkpoint of a mesh.

    Args:
        store: the store of that checkpoint.
        state: another state of the run.
    """
    store.checkpoints.wait()
    targets = jax.tree.map(
        lambda leaf: leaf if is_key(leaf) else np.zeros(leaf.shape, leaf.dtype),
        store.items_of(state),
    )
    items = store.without_sums(store.checkpoints.restore(SAVED, targets))
    weights, optimizer = items[WEIGHTS], items[OPTIMIZER]
    counts = {name: optimizer[name] for name in _COUNTS}
    rest = {
        "optimizer": optimizer["opt_state"],
        "average": items.get(EMA),
        "state": {name: weights[name] for name in COLLECTIONS},
        "average of the state": items.get(EMA_STATS, state.ema_stats),
        "loss": items.get(LOSS),
    }
    return _digested({**weights["params"], **counts}, rest)


def _digested(arrays: Mapping[str, Any], rest: Mapping[str, Any]) -> Arrays:
    """Arrays on the host, and digests of the leaves of a tree."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(rest)
    digests = {_name_of(path): _digest(leaf) for path, leaf in leaves}
    return _host(arrays) | digests


def _name_of(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")


def _digest(leaf: Any) -> np.ndarray:
    """The SHA-256 of an array, (32,)."""
    content = np.asarray(jax.device_get(leaf)).tobytes()
    return np.frombuffer(hashlib.sha256(content).digest(), np.uint8)


def _state_of_model(state: TrainState) -> Arrays:
    collections = {**state.model_state, "average": state.ema_stats or {}}
    return _host(flatten_dict(collections, sep="/"))


def _write_run(
    subject: Subject, model: ParallelModel, weights: tuple[Any, Any], folder: Path
) -> None:
    """Writes weights with a fresh state of the subject's optimizer, as a run does."""
    state = _first_state(subject, model, subject.optimizer, weights)
    store = _run_store(CheckpointStore(folder), model)
    try:
        store.save(0, state, Progress())
    finally:
        store.checkpoints.close()


def drawn_weights(subject: Subject, model: ParallelModel) -> tuple[Any, Any]:
    """Parameters and model state as a mesh draws them, or reads them from a run."""
    if subject.weights is None:
        return model.init(jax.random.key(subject.seed))
    if model.model_def.low_rank is None:
        return subject.weights.restore(model)
    params, model_state = subject.weights.on_host(
        replace(model.model_def, low_rank=None)
    )
    adapters = first_adapters(model.model_def, subject.seed)
    return place_weights(model, {**params, **adapters}, model_state)


def _without_zeros(
    subject: Subject, model: ParallelModel, weights: tuple[Any, Any]
) -> tuple[Any, Any]:
    """Weights of no run with random numbers in the place of those that begin as zeros.

    Zeros would hide what is wrong with them, such as a bias that is added twice, and a
    model that begins as no change forecasts the same however it is sharded.
    """
    if subject.weights is not None:
        return weights
    params, model_state = jax.device_get(weights)
    specs, rng = model.model_def.param_specs, np.random.default_rng(subject.seed)
    drawn = {
        path: rng.normal(scale=_INITIAL_SCALE, size=leaf.shape).astype(leaf.dtype)
        for path, leaf in sorted(params.items())
        if not (specs[path].frozen or leaf.any())
    }
    return place_weights(model, {**params, **drawn}, model_state)


def placed_weights(model: ParallelModel, start: Arrays) -> tuple[Any, Any]:
    """Parameters and model state of `Measured.start` on the mesh of a model."""
    tree: Any = unflatten_dict(start, sep=SEPARATOR)
    collections = {name: tree.get(name, {}) for name in COLLECTIONS}
    return place_weights(model, tree[PARAMS], collections)


def flat(params: Any, model_state: Any) -> Arrays:
    """Weights and state as one dict of arrays on the host."""
    tree = {PARAMS: dict(params), **model_state}
    return _host(flatten_dict(tree, sep=SEPARATOR))


def _as_computed(subject: Subject, weights: tuple[Any, Any]) -> tuple[Any, Any]:
    """Weights in the dtype that the subject stores them in: float64 with x64."""
    dtype = jnp.promote_types(subject.precision.compute, jnp.float32)
    return jax.tree.map(lambda leaf: leaf.astype(dtype), weights)


def _first_state(
    subject: Subject,
    model: ParallelModel,
    optimizer: optax.GradientTransformation,
    weights: tuple[Any, Any],
    *,
    with_loss: bool = True,
) -> TrainState:
    """The state before the first update, with the parameters of the loss if it has."""
    loss_state = subject.loss_state if with_loss else None
    options = {"ema": subject.ema_decay is not None, "loss_state": loss_state}
    key = jax.random.key(subject.seed)
    state = state_of(model, *weights, optimizer, key, **options)
    return place_state(state, state_specs(model, optimizer, **options), model.mesh)


def samples_of_mesh(
    num_samples: int, model: ParallelModel, subject: Subject
) -> np.ndarray:
    """The samples of one device in the order of this mesh's ranks.

    Rank r of n has samples r, r + n, ..., as the sampler gives them: dropout and noise
    go by these numbers.
    """
    ranks = 1 if subject.shared else model.axes.num_data
    return np.concatenate([np.arange(r, num_samples, ranks) for r in range(ranks)])


def placed_batch(
    batch: Mapping[str, Any],
    model: ParallelModel,
    subject: Subject,
    order: np.ndarray,
    *,
    sample_dim: int = 0,
) -> dict[str, Any]:
    """Puts samples on the mesh of a model, in the order of its ranks."""
    ordered = jax.tree.map(lambda leaf: np.take(leaf, order, sample_dim), dict(batch))
    return place_batch(ordered, model.mesh, shared=subject.shared)


def _host(tree: Mapping[str, Any]) -> Arrays:
    return {path: np.asarray(leaf) for path, leaf in jax.device_get(dict(tree)).items()}


def _forecast(
    subject: Subject, model: ParallelModel, state: TrainState, order: np.ndarray
) -> tuple[Arrays, Arrays]:
    """The predictions of each step in evaluation mode; the gradient of the first x."""
    if subject.first is None:
        return {}, {}
    run = forecast_step(subject, model, tuple(subject.first))
    batch = placed_batch(subject.first, model, subject, order)
    rollout, names = subject.forecast, ["prediction"]
    steps = min(rollout.num_steps, NUM_STEPS)
    names += [f"step {number}" for number in range(2, steps + 1)]
    noise = None
    if model.model_def.draws_noise:
        noise = Noise(jax.random.key(subject.seed))
    context = FieldContext(model.reducer, num_members=rollout.num_members)
    fields = rollout.first_carry(batch, context)
    predictions, sensitivity = {}, {}
    back = np.argsort(order)
    for index, name in enumerate(names):
        now = (batch, fields, jnp.asarray(index, jnp.int32), noise)
        fields, *outputs = run(state.params, state.model_state, now)
        rows = model.model_def.image_height, subject.first["x"].shape[-2]
        # Those of a loss of ranks stay in the order of the mesh.
        predictions[name], gradient = (
            output if subject.shared else _reordered(output, back)
            for output in (
                np.asarray(x)[..., :count, :]
                for x, count in zip(outputs, rows, strict=True)
            )
        )
        sensitivity = sensitivity or {"x": gradient}
    return predictions, sensitivity


def _reordered(y: np.ndarray, back: np.ndarray) -> np.ndarray:
    """Samples, each with its adjacent members, in the order of `back`."""
    return y.reshape(len(back), -1, *y.shape[1:])[back].reshape(y.shape)


def forecast_step(
    subject: Subject, model: ParallelModel, names: tuple[str, ...]
) -> Callable[..., tuple[dict[str, Any], Any]]:
    """Compiles one step of the forecast of a subject.

    Args:
        subject: the model and its forecast.
        model: the model on its mesh.
        names: entries of a batch.

    Returns:
        Function (params, model_state, (batch, fed-back fields, index of the step,
        noise)) -> (fed-back fields of the next step, prediction, gradient of x for
        half the sum of its squares).
    """
    rollout = subject.forecast
    context = FieldContext(model.reducer, num_members=rollout.num_members)

    def body(params: Any, model_state: Any, step: Any) -> Any:
        batch, fields, index, noise = step
        target, forcing = rollout.per_step(batch)
        now = jax.tree.map(lambda leaf: leaf[index], (target, forcing))

        def predicted(x: Any) -> Any:
            carry = {**fields, "x": x}
            tree = evaluation_step(
                model, rollout, params, model_state, batch, carry, index, now[0], noise
            )
            return tree["y_pred"], tree

        y, pullback, tree = jax.vjp(predicted, fields["x"], has_aux=True)
        carry = rollout.next_carry(batch, fields, tree, now[1], context)
        return carry, y, pullback(y)[0]

    of_fields = model.batch_specs()
    specs = {name: of_fields.get(name, of_fields["y"]) for name in names}
    fed_back = {name: specs[name] for name in CARRY if name in specs}
    sharded = model.shard_map(
        body,
        batch_specs=(specs, fed_back, PartitionSpec(), PartitionSpec()),
        out_specs=(fed_back, of_fields["y"], of_fields["x"]),
    )
    return compiled(sharded, model)
