"""A program that runs a model and training with the compiler flags of training.

Tests disable XLA's optimizations (`tests/conftest.py`); users do not. This process has
the settings of `credit_jax.train`. The working folder contains the data.
"""

from __future__ import annotations

import os
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding

from credit_jax.config import load_config
from credit_jax.models.conversion import from_state_dict, to_state_dict
from credit_jax.models.parallel_model import build_parallel_model
from credit_jax.parallel.compiler import compile_program, compile_sooner
from credit_jax.parallel.mesh.devices import training_devices
from credit_jax.parallel.placement import place_batch
from tests.support import make_mesh
from tests.training.credit_trajectory import Trajectory, train_as_credit

MESH = "dp2_tensor2_domain2"
DEGREES = {"dp": 2, "tp": 2, "domain": 2}


@dataclass(frozen=True)
class Task:
    """The task of this program.

    Attributes:
        config_path: YAML of model and training.
        run: CREDIT's training steps, a `CreditRun`.
        case: CREDIT's forward and backward pass, a `CreditCase`.
    """

    config_path: Path
    run: Any
    case: Any


@dataclass(frozen=True)
class Results:
    """The results on dp 2 x tp 2 x domain 2.

    Attributes:
        flags: XLA_FLAGS of the process.
        y, loss: prediction and mean(y**2) of the case.
        gradients: of that loss, by CREDIT's names.
        trajectory: the training steps.
    """

    flags: str
    y: np.ndarray
    loss: float
    gradients: dict[str, np.ndarray]
    trajectory: Trajectory


def main(task_file: str, out: str) -> None:
    """Runs a task.

    Args:
        task_file: pickled `Task`.
        out: file to write the pickled `Results` to.
    """
    compile_sooner()
    task: Task = pickle.loads(Path(task_file).read_bytes())
    config = load_config(task.config_path)
    training_devices(config.trainer.parallelism, 8)
    y, loss, gradients = _forward_and_backward(config.model, task.case)
    trajectory = train_as_credit(task.config_path, MESH, task.run)
    results = Results(os.environ["XLA_FLAGS"], y, loss, gradients, trajectory)
    Path(out).write_bytes(pickle.dumps(results))


def _forward_and_backward(block: Any, case: Any) -> tuple[np.ndarray, float, Any]:
    """Returns prediction, loss and gradients of a `CreditCase` on the mesh."""
    model = build_parallel_model(block, make_mesh(**DEGREES))
    model_def, height = model.model_def, model.model_def.image_height
    params, model_state = from_state_dict(model_def, case.state)
    specs = model.specs, model.model_state_specs
    shardings = jax.tree.map(lambda spec: NamedSharding(model.mesh, spec), specs)
    weights = jax.device_put((params, model_state), shardings)
    placed = place_batch({"x": case.x}, model.mesh)

    def loss(params: Any, model_state: Any, inputs: Any) -> Any:
        y = model.apply(params, model_state, inputs)[..., :height, :]
        return jnp.mean(y**2), y

    both = compile_program(jax.value_and_grad(loss, has_aux=True), model.mesh)
    (value, y), grads = jax.device_get(both(*weights, placed))
    return (
        y,
        float(value),
        to_state_dict(model_def, grads, jax.device_get(model_state)),
    )
