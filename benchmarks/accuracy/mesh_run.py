"""The training run of a `Case` with credit_jax on one mesh."""

from __future__ import annotations

import dataclasses
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks.accuracy.case import Case
from benchmarks.accuracy.rollout import roll_out
from benchmarks.meshes import build_mesh
from benchmarks.networks import network_of
from benchmarks.small_models import NOISY, WIDE
from credit_jax.config import Config, build_config
from credit_jax.forecast import Forecaster
from credit_jax.losses import build_loss
from credit_jax.models.diffusion.process import NOISED
from credit_jax.models.model_def import Weights
from credit_jax.models.parallel_model import (
    ParallelModel,
    build_parallel_model,
    place_weights,
)
from credit_jax.models.registry import build
from credit_jax.nn import context
from credit_jax.nn.context import Noise
from credit_jax.nn.parameters import ModelState
from credit_jax.parallel.compiler import compile_program
from credit_jax.parallel.params.precision import Precision
from credit_jax.parallel.placement import place_batch
from credit_jax.training.optimizer import (
    BETAS,
    CLIP_EPSILON,
    build_optimizer,
    build_schedule,
)
from credit_jax.training.state import TrainState, place_state, state_of, state_specs
from credit_jax.training.step import make_train_step


@dataclass(frozen=True)
class MeshRun:
    """The record of a training run on one mesh.

    Attributes:
        loss: (step,).
        gradient_norm: (step,) before clipping.
        prediction: (batch, channel, lat, lon) of the first step, after its power
            iteration, as in CREDIT's training forward.
        seconds: wall time, nearly all of it compilation.
        gradients: gradients of the first step by path, before clipping.
        rollout: (step, batch, prognostic, lat, lon) of the first batch; empty without.
    """

    loss: np.ndarray
    gradient_norm: np.ndarray
    prediction: np.ndarray
    seconds: float
    gradients: dict[str, np.ndarray] = field(default_factory=dict)
    rollout: np.ndarray = field(default_factory=lambda: np.zeros(0))


def run_mesh(
    config: Mapping[str, Any],
    case: Case,
    name: str,
    *,
    precision: Precision | None = None,
    rollout: int = 0,
) -> MeshRun:
    """Trains a case on the mesh of that name.

    Args:
        config: CREDIT's YAML as a mapping; the learning rate of its first step is 0.
        case: weights and batches.
        name: name of the mesh, see `benchmarks.meshes.parse_mesh`.
        precision: dtypes of the model; None is float32.
        rollout: steps of a rollout in evaluation mode from `case.trained`.
    """
    model = config["model"]["type"]
    if model in NOISY:
        with mock.patch.object(context, "random_normal", _ones):
            return _run(config, case, name, precision, rollout)
    if model in WIDE and precision is None:
        with jax.enable_x64(True):
            return _run(config, _double(case), name, Precision.of("float64"), rollout)
    return _run(config, case, name, precision, rollout)


def _double(case: Case) -> Case:
    fields = {f.name: getattr(case, f.name) for f in dataclasses.fields(case)}
    return Case(**jax.tree.map(lambda array: np.asarray(array, np.float64), fields))


def _ones(key: Any, high: Any, low: Any) -> Any:
    """Replaces random draws by ones, as for CREDIT (`credit_process`)."""
    del key
    return jnp.ones(jnp.broadcast_shapes(high.shape, low.shape))


def _run(
    config: Mapping[str, Any],
    case: Case,
    name: str,
    precision: Precision | None,
    rollout: int,
) -> MeshRun:
    begin = time.monotonic()
    job = _job(config)
    trainer, mesh = job.trainer, build_mesh(name)
    model_def = network_of(build(job.model))
    model = build_parallel_model(model_def, mesh, mp_policy=precision)
    optimizer = build_optimizer(trainer)
    loss = build_loss(job.loss, latitude=case.latitude)
    schedule = build_schedule(trainer, batches_per_epoch=trainer.batches_per_epoch)
    train = make_train_step(model, optimizer, loss, schedule=schedule)
    step = compile_program(train, mesh, donate_argnums=0)
    state = _first_state(model, optimizer, case)
    losses, norms, prediction, gradients = [], [], np.zeros(()), {}
    for index in range(len(case.y)):
        inputs, y = case.inputs(index), case.y[index]
        batch = {name: array[None] for name, array in {**inputs, "y": y}.items()}
        state, info = step(state, place_batch(batch, mesh))
        losses.append(float(info["loss"][0]))
        norms.append(float(info["grad_norm"]))
        if index == 0:
            # The rate was 0: weights are unchanged, vectors have one power iteration.
            if _is_as_in_evaluation(model):
                weights = state.params, state.model_state
                prediction = _predict(Forecaster(model, *weights), inputs)[:, :, 0]
            else:
                start = _first_state(model, optimizer, case)
                prediction = _training_forward(model, start, inputs)[:, :, 0]
            gradients = _first_gradients(model, state, norms[0], trainer.clip_norm)
    rolls_out = rollout and NOISED not in case.further
    states = _roll_out(model, case, rollout) if rolls_out else np.zeros(0)
    return MeshRun(
        loss=np.asarray(losses),
        gradient_norm=np.asarray(norms),
        prediction=prediction,
        seconds=time.monotonic() - begin,
        gradients=gradients,
        rollout=states,
    )


def _first_state(model: ParallelModel, optimizer: Any, case: Case) -> TrainState:
    """The state before the first step, with the weights of the case."""
    # Copies, because the step donates its state and the next mesh needs the case.
    params = jax.tree.map(jnp.array, dict(case.params))
    model_state = jax.tree.map(jnp.array, dict(case.model_state))
    state = state_of(model, params, model_state, optimizer, jax.random.key(0))
    specs = state_specs(model, optimizer)
    return place_state(state, specs, model.parallel_config.mesh)


def _is_as_in_evaluation(model: ParallelModel) -> bool:
    """Whether a training forward equals an evaluation after its power iteration.

    With batch norms, which use the statistics of the batch, it does not; nor with
    layers that are called several times, whose spectral norm differs at each call.
    """
    model_def = model.model_def
    several = any(spec.calls > 1 for spec in model_def.matrices.values())
    return not model_def.batch_stats and not several


def _training_forward(
    model: ParallelModel, state: TrainState, inputs: Mapping[str, np.ndarray]
) -> np.ndarray:
    """A forward in training mode of the network, with its power iterations."""

    def body(params: Weights, model_state: ModelState, inputs: Any) -> Any:
        key = jax.random.key(0)
        iterated = model.local_iterate(params, model_state)
        return model.local_training_forward(params, iterated, inputs, key)[0]

    output = model.model_def.output.partition_spec(model.axes)
    network = model.model_def.network_inputs.items()
    specs = {name: spec.partition_spec(model.axes) for name, spec in network}
    forward = model.shard_map(body, batch_specs=specs, out_specs=output)
    batch = place_batch(dict(inputs), model.mesh)
    y = forward(state.params, state.model_state, batch)
    return np.asarray(y)[..., : model.model_def.image_height, :]


def _predict(forecaster: Forecaster, inputs: Mapping[str, np.ndarray]) -> np.ndarray:
    """Predicts in the dtype of the model; `Forecaster` would return float32."""
    y = forecaster.step(forecaster.place(inputs), _noise(forecaster.model))
    return np.asarray(y)[..., : forecaster.model.model_def.image_height, :]


def _noise(model: ParallelModel) -> Noise | None:
    """Noise with any key, because all draws are ones."""
    return Noise(jax.random.key(0)) if model.model_def.draws_noise else None


def _first_gradients(
    model: ParallelModel, state: TrainState, norm: float, max_norm: float
) -> dict[str, np.ndarray]:
    """The gradient of the first update by path, before clipping.

    Adam's first moment after one step is (1 - beta) times the clipped gradient. Reading
    it from there needs no program besides the training step.
    """
    clipped = min(1.0, max_norm / (norm + CLIP_EPSILON)) if max_norm else 1.0
    whole = jax.device_get(optax.tree.get(state.opt_state, "mu"))
    factor = (1 - BETAS[0]) * clipped
    return {
        path: (np.asarray(value, np.float64) / factor).astype(value.dtype)
        for path, value in whole.items()
    }


def _roll_out(model: ParallelModel, case: Case, num_steps: int) -> np.ndarray:
    """The rollout of the first batch, see `benchmarks.accuracy.rollout`."""
    assert case.trained is not None, "a case without weights to roll out from"
    forecaster = Forecaster(model, *place_weights(model, *case.trained))
    held = case.inputs(0)

    def predict(x: np.ndarray) -> np.ndarray:
        return _predict(forecaster, {**held, "x": x})[:, :, 0]

    return roll_out(predict, case.x[0], num_steps)


def _job(config: Mapping[str, Any]) -> Config:
    # Silences warnings of keys that only CREDIT reads.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return build_config(config)
