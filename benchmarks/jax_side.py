"""credit_jax on one mesh: the steps of a `Case`, and the first prediction."""

from __future__ import annotations

import math
import re
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from benchmarks.parity_case import Case
from credit_jax.config import Config, build_config
from credit_jax.losses import build_loss
from credit_jax.models.parallel_model import build_parallel_model
from credit_jax.parallel.axes import DOMAIN, DP_REPLICATE, DP_SHARD, TP
from credit_jax.parallel.device_mesh import mesh_of_degrees
from credit_jax.parallel.packing import pack
from credit_jax.parallel.placement import place_batch
from credit_jax.training.optimisers import build_optimiser
from credit_jax.training.schedules import build_schedule
from credit_jax.training.state import place_state, state_of, state_specs
from credit_jax.training.step import make_train_step

_AXES = {"dp": DP_SHARD, "ddp": DP_REPLICATE, "tp": TP, "domain": DOMAIN}
_FACTOR = re.compile(r"(dp|ddp|tp|domain)(\d+)")


@dataclass(frozen=True)
class MeshRun:
    """What one mesh did.

    Attributes:
        loss: (step,).
        gradient_norm: (step,) before clipping.
        prediction: (batch, channel, lat, lon) of the first step, after its power
            iteration, as CREDIT's training forward has it.
        seconds: wall time, nearly all of it compilation.
    """

    loss: np.ndarray
    gradient_norm: np.ndarray
    prediction: np.ndarray
    seconds: float


def parse_mesh(name: str) -> dict[str, int]:
    """Degrees of the mesh axes of a name such as "dp2xtp2xdomain2"; "1" is one device.

    `dp` also splits the parameters (FSDP), `ddp` keeps them whole.

    Raises:
        ValueError: that is no mesh.
    """
    degrees: dict[str, int] = {}
    for factor in [] if name == "1" else name.split("x"):
        match = _FACTOR.fullmatch(factor)
        if not match or _AXES[match[1]] in degrees or int(match[2]) < 1:
            raise ValueError(
                f"mesh {name!r}: expected 1, or factors dpN, ddpN, tpN, domainN joined "
                "by x, each at most once, such as dp2xtp2xdomain2"
            )
        degrees[_AXES[match[1]]] = int(match[2])
    return degrees


def num_devices(name: str) -> int:
    """Devices of the mesh of that name."""
    return math.prod(parse_mesh(name).values())


def build_mesh(name: str) -> Mesh:
    """The mesh of that name on the first devices."""
    return mesh_of_degrees(parse_mesh(name), jax.devices()[: num_devices(name)])


def run_mesh(config: Mapping[str, Any], case: Case, name: str) -> MeshRun:
    """Trains a case on the mesh of that name.

    Args:
        config: CREDIT's YAML as a mapping; the learning rate of its first step is 0.
        case: weights and batches.
        name: see `parse_mesh`.
    """
    begin = time.monotonic()
    job = _job(config)
    trainer, mesh = job.trainer, build_mesh(name)
    model = build_parallel_model(job.model, mesh)
    architecture = model.architecture
    optimiser = build_optimiser(trainer)
    loss = build_loss(job.loss, latitude=case.latitude)
    schedule = build_schedule(trainer, batches_per_epoch=trainer.batches_per_epoch)
    step = make_train_step(model, optimiser, schedule, loss)
    # Copies: the step takes its state's memory, and the next mesh needs the case again.
    params = jax.tree.map(jnp.array, pack(case.params, architecture.declarations))
    vectors = jax.tree.map(jnp.array, dict(case.vectors))
    state = state_of(params, vectors, optimiser, jax.random.key(0), ema=False)
    state = place_state(state, state_specs(model, optimiser), mesh)
    losses, norms, prediction = [], [], np.zeros(())
    for index, (x, y) in enumerate(zip(case.x, case.y, strict=True)):
        state, info = step(state, place_batch({"x": x[None], "y": y[None]}, mesh))
        losses.append(float(info["loss"][0]))
        norms.append(float(info["grad_norm"]))
        if index == 0:
            # The rate was 0: weights as given, vectors after one power iteration.
            placed = place_batch({"x": x}, mesh)["x"]
            rows = np.asarray(model.apply(state.params, state.vectors, placed))
            prediction = rows[:, :, 0, : architecture.image_height]
    seconds = time.monotonic() - begin
    return MeshRun(np.asarray(losses), np.asarray(norms), prediction, seconds)


def _job(config: Mapping[str, Any]) -> Config:
    # Keys that only CREDIT reads are no news here: it reads them beside us.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return build_config(config)
