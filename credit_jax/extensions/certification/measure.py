"""What one mesh gives: a forecast, losses, every gradient, weights before and after."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from credit_jax.checkpoint import Progress
from credit_jax.checkpoint.artifact import first_adapters
from credit_jax.extensions.certification.runs import train_config
from credit_jax.extensions.certification.subject import (
    NUM_STEPS,
    Arrays,
    Subject,
    checkpointed,
    dims_of,
    first_state,
    flat,
    host,
    mean_square,
    of_first_update,
    of_run,
    placed_weights,
    recorded,
    run_store,
    trained_arrays,
)
from credit_jax.models.parallel_model import (
    ParallelModel,
    build_parallel_model,
    place_weights,
)
from credit_jax.named_fields import FieldContext
from credit_jax.nn.context import Noise
from credit_jax.parallel.compiler import compile_program
from credit_jax.parallel.params.spec import trainable
from credit_jax.parallel.placement import place_batch
from credit_jax.training.rollout import evaluation_step
from credit_jax.training.state import TrainState
from credit_jax.training.step import make_train_step, make_update
from credit_jax.transforms.rollout import CARRY

# Parts of what is measured.
FORECAST, TRAINING = "forecast", "training"
PARTS = (FORECAST, TRAINING)
# Without a config.
_LEARNING_RATE = 1e-3
# Folder of the first weights of a config as a run, which the bridge reads.
FIRST = "first"
# Standard deviation of what is put in the place of zeros.
_INITIAL_SCALE = 0.02
_MANY_WEIGHTS = 1e6
# Of updates by one gradient, and their rate, which moves weights by much of their size:
# the rounding of small changes would hide a wrong decay.
_FACTORS, _RATE = (1.0, -0.5, 0.25), 0.1


@dataclass(frozen=True)
class Measured:
    """The numbers of one mesh, full arrays on the host, named as in `states`."""

    mesh: str
    # Weights and model state of the reference before the first update, which all meshes
    # take; empty for the others.
    start: Arrays = field(default_factory=dict)
    # Weights as this mesh itself draws or reads them.
    initial: Arrays = field(default_factory=dict)
    # By step, "prediction", "step 2", ...: (batch, channel, time, lat, lon), samples in
    # the order of one device.
    forecast: Arrays = field(default_factory=dict)
    # Gradient of the first x of the forecast.
    sensitivity: Arrays = field(default_factory=dict)
    # By update, those after the first one after restoring; of a config, which logs
    # these, of the first update of each stage.
    losses: np.ndarray = field(default_factory=lambda: np.zeros(0))
    # Of the first update by path, before clipping.
    gradients: Arrays = field(default_factory=dict)
    # Running statistics and vectors of spectral norm after this update, and their
    # average.
    state: Arrays = field(default_factory=dict)
    # Weights, average and state of the optimizer after updates by the gradient of the
    # reference.
    optimized: Arrays = field(default_factory=dict)
    # The same after the last update of a run, which goes on from the first checkpoint
    # of the reference.
    trained: Arrays = field(default_factory=dict)
    # The weights in a checkpoint, counts, and digests of all else: of the reference in
    # the one that other meshes go on from.
    saved: Arrays = field(default_factory=dict)
    # The same, read back without the mesh.
    written: Arrays = field(default_factory=dict)
    # `saved` of the reference, restored on this mesh; empty on the former.
    restored: Arrays = field(default_factory=dict)
    # What a run of the config logs, see `runs`; empty without a config.
    logged: Arrays = field(default_factory=dict)
    # The same in the dtype of the config, if it has 16 bits.
    logged_in_dtype: Arrays = field(default_factory=dict)
    # Weights of the run of the reference, as a forecast here has them.
    opened: Arrays = field(default_factory=dict)


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
    reference: Path | None = None,  # None on one device
    expected: Measured | None = None,
    parts: Sequence[str] = PARTS,
) -> Measured:
    """Runs the forecast and the training of a subject on a mesh."""
    model = build_model(subject, mesh, devices)
    order = samples_of_mesh(subject.num_samples, model, subject)
    weights = _drawn_weights(subject, model)
    numbers: dict[str, Any] = {"initial": host(weights[0])}
    if expected is None:
        weights = _without_zeros(subject, model, weights)
        weights = jax.tree.map(lambda leaf: leaf.astype(subject.dtype), weights)
        start = numbers["start"] = flat(*weights)
        if subject.config is not None:
            state = _first_state(subject, model, subject.optimizer, weights)
            with run_store(folder / FIRST, model) as store:
                store.save(0, state, Progress())
    else:
        start = expected.start
        weights = placed_weights(model, start)
    if FORECAST in parts:
        numbers |= _forecast(subject, model, weights, order)
    # Weights that are not finite are found by whoever compares them.
    is_finite = all(np.isfinite(array).all() for array in numbers["initial"].values())
    if TRAINING in parts and is_finite:
        if subject.config is None:
            numbers |= _train(subject, model, weights, order, folder, reference)
        else:
            is_wide = subject.dtype == np.float64
            numbers |= train_config(
                subject.config, mesh, devices, start, folder, reference, is_wide=is_wide
            )
        gradients = numbers["gradients"] if expected is None else expected.gradients
        numbers["optimized"] = _optimized(subject, model, weights, gradients)
    return Measured(mesh, **numbers)


def _train(
    subject: Subject,
    model: ParallelModel,
    weights: tuple[Any, Any],
    order: np.ndarray,
    folder: Path,
    reference: Path | None,
) -> dict[str, Any]:
    """Fields of `Measured` of an update with each batch of a subject."""
    optimizer = recorded(subject.optimizer)
    train = make_train_step(
        model,
        optimizer,
        mean_square,
        accumulate=subject.accumulate,
        ema_decay=subject.ema_decay,
    )
    step, batches = compiled(train, model), subject.batches

    def update(state: TrainState, index: int) -> tuple[TrainState, float]:
        micro = [batches[(index + i) % len(batches)] for i in range(subject.accumulate)]
        batch = jax.tree.map(lambda *leaves: np.stack(leaves), *micro)
        batch = placed_batch(batch, model, subject, order, sample_dim=1)
        state, info = step(state, batch, jnp.float32(_LEARNING_RATE))
        return state, float(info["loss"].mean())

    fresh = _first_state(subject, model, optimizer, weights)
    state, loss = update(fresh, 0)
    losses, begun = [loss], None
    numbers: dict[str, Any] = of_first_update(state)
    with run_store(folder, model) as store:
        # As in the run of a config, other meshes make the first update, then go on from
        # the checkpoint that the reference wrote after it.
        if reference is None:
            store.save(1, state, Progress())
        else:
            with run_store(reference, model) as earlier:
                state = earlier.restore(1, fresh)
            begun = checkpointed(state)
        for index in range(1, len(batches)):
            state, loss = update(state, index)
            losses.append(loss)
        if reference is not None:
            store.save(len(batches), state, Progress())
    numbers |= {"losses": np.asarray(losses)}
    return numbers | of_run(state, model, folder, begun)


def _first_state(
    subject: Subject, model: ParallelModel, optimizer: Any, weights: tuple[Any, Any]
) -> TrainState:
    ema = subject.ema_decay is not None
    return first_state(model, optimizer, weights, seed=subject.seed, ema=ema)


def _optimized(
    subject: Subject,
    model: ParallelModel,
    weights: tuple[Any, Any],
    gradients: Arrays,
) -> Arrays:
    """What an optimizer makes of a gradient that is the same on every mesh."""
    state = _first_state(subject, model, subject.optimizer, weights)
    update = make_update(model, subject.optimizer, ema_decay=subject.ema_decay)

    def updated(state: TrainState, gradients: Any, factor: Any) -> TrainState:
        packed = state.packing.pack(gradients)
        packed = trainable(packed, model.model_def.param_specs)
        scaled = jax.tree.map(lambda gradient: factor * gradient, packed)
        return update(state, scaled, jnp.float32(_RATE))

    # One program, which packs the gradients, too: by themselves these operations are
    # dozens of programs on every mesh.
    step = compiled(updated, model)
    for factor in _FACTORS:
        state = step(state, gradients, factor)
    return trained_arrays(state)


def compiled(function: Callable[..., Any], model: ParallelModel) -> Callable[..., Any]:
    """A program of a certificate, which runs a few times."""
    # With many weights runs take longer than compiling well: the U-Net's in float64 a
    # third of the time at level 1.
    level = int(model.model_def.num_parameters > _MANY_WEIGHTS)
    return compile_program(function, model.mesh, level=level)


def _drawn_weights(subject: Subject, model: ParallelModel) -> tuple[Any, Any]:
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
    """Weights of no run with random numbers for those that begin as zeros."""
    if subject.weights is not None:
        return weights
    # Zeros would hide what is wrong with them, such as a bias that is added twice, and
    # a model that begins as no change forecasts the same however it is sharded.
    params, model_state = jax.device_get(weights)
    specs, rng = model.model_def.param_specs, np.random.default_rng(subject.seed)
    drawn = {
        path: rng.normal(scale=_INITIAL_SCALE, size=leaf.shape).astype(leaf.dtype)
        for path, leaf in sorted(params.items())
        if not (specs[path].frozen or leaf.any())
    }
    return place_weights(model, {**params, **drawn}, model_state)


def samples_of_mesh(
    num_samples: int, model: ParallelModel, subject: Subject
) -> np.ndarray:
    """The samples of one device in the order of this mesh's ranks."""
    # As the sampler gives them: dropout and noise go by these numbers.
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


def _forecast(
    subject: Subject, model: ParallelModel, weights: tuple[Any, Any], order: np.ndarray
) -> dict[str, Arrays]:
    """Fields of `Measured` of some steps in evaluation mode."""
    if subject.first is None:
        return {}
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
        fields, *outputs = run(*weights, now)
        rows = model.model_def.image_height, subject.first["x"].shape[-2]
        # Those of a loss of ranks stay in the order of the mesh.
        predictions[name], gradient = (
            output
            if subject.shared
            else output.reshape(len(back), -1, *output.shape[1:])[back].reshape(
                output.shape
            )
            for output in (
                np.asarray(x)[..., :count, :]
                for x, count in zip(outputs, rows, strict=True)
            )
        )
        sensitivity = sensitivity or {"x": gradient}
    return {"forecast": predictions, "sensitivity": sensitivity}


def forecast_step(
    subject: Subject, model: ParallelModel, names: tuple[str, ...]
) -> Callable[..., tuple[dict[str, Any], Any]]:
    """A program of one step: (next fed-back fields, prediction, its pullback to x)."""
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

        # A second program, without the gradient of half the sum of squares, would
        # compile for longer than the gradients of later steps take.
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
