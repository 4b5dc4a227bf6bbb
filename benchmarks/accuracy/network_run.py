"""Trains networks of CREDIT that its trainer cannot run, by a loop in PyTorch.

These are `small_models.SEVERAL`: models of several inputs, and the networks of
diffusion processes. Model, spectral norm and schedule are CREDIT's; AdamW, clipping and
the mean squared error are torch's, with the settings of CREDIT's trainer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import torch

from benchmarks.accuracy.credit_process import add_noise
from benchmarks.accuracy.credit_run import CreditRun, CreditWay
from benchmarks.accuracy.rollout import roll_out
from benchmarks.networks import random_arrays
from credit_jax.models.diffusion.process import NOISED
from credit_jax.models.registry import build
from credit_jax.training.optimizer import BETAS
from credit_torch_bridge.compare.credit_side import (
    call_network,
    network_of,
    new_credit_model,
)
from credit_torch_bridge.compare.jax_side import import_credit

Arrays = dict[str, np.ndarray]


def network_run(
    config: Mapping[str, Any],
    way: CreditWay | None = None,
    *,
    rollout: int = 0,
    rollout_from: Mapping[str, np.ndarray] | None = None,
) -> CreditRun:
    """Trains CREDIT's network on random batches, on one process.

    Args:
        config: CREDIT's gen2 YAML as a mapping; sections model and trainer count.
        way: threads and dtype; by default one thread, float32.
        rollout: steps of a rollout after training, with the other inputs constant.
        rollout_from: state dict to roll out from; None for the end of the training.
    """
    way = way or CreditWay()
    with _threads(way.threads):
        torch.manual_seed(config["seed"])
        model = new_credit_model(config["model"])
        add_noise(model)
        batches = random_batches(config)
        record = _train(model, config["trainer"], batches, way)
        states = np.zeros(0)
        if rollout and NOISED not in batches:
            if rollout_from is not None:
                tensors = {k: torch.from_numpy(v) for k, v in rollout_from.items()}
                model.load_state_dict(tensors)
            first = {name: array[0] for name, array in batches.items()}
            states = _roll_out(model, first, rollout, way)
    further = {k: v for k, v in batches.items() if k not in ("x", "y")}
    return CreditRun(
        x=batches["x"], y=batches["y"], rollout=states, further=further, **record
    )


def random_batches(config: Mapping[str, Any]) -> Arrays:
    """Inputs of the network and the target "y", (step, batch, ...) each."""
    trainer, rng = config["trainer"], np.random.default_rng(config["seed"])
    steps = trainer["epochs"] * trainer["batches_per_epoch"]
    model_def = build(config["model"])
    batches = [
        random_arrays(model_def, trainer["train_batch_size"], rng) for _ in range(steps)
    ]
    return {name: np.stack([batch[name] for batch in batches]) for name in batches[0]}


def _train(
    model: torch.nn.Module, trainer: Mapping[str, Any], batches: Arrays, way: CreditWay
) -> dict[str, Any]:
    """Trains; returns the attributes of `CreditRun` about training."""
    network = network_of(model.train())
    parameters = [p for p in model.parameters() if p.requires_grad]
    rate, decay = trainer["learning_rate"], trainer["weight_decay"]
    optimizer = torch.optim.AdamW(parameters, rate, BETAS, weight_decay=decay)
    scheduler = import_credit("scheduler").load_scheduler(
        optimizer, {"trainer": dict(trainer)}
    )
    initial, norm = _state(model), _norm(parameters)
    losses, norms, first = [], [], dict[str, Any]()
    for step in range(len(batches["y"])):
        batch = {k: torch.from_numpy(array[step]) for k, array in batches.items()}
        target = batch.pop("y")
        optimizer.zero_grad()
        with _autocast(way):
            prediction = call_network(network, batch)
            loss = torch.nn.functional.mse_loss(prediction, target)
        loss.backward()
        if not step:
            named = model.named_parameters()
            grads = {k: p.grad.numpy().copy() for k, p in named if p.grad is not None}
            first["prediction"] = prediction.detach().float().numpy()[:, :, 0]
            first["gradients"] = grads
        limit = trainer["grad_max_norm"]
        norms.append(float(torch.nn.utils.clip_grad_norm_(parameters, limit)))
        losses.append(float(loss.detach()))
        optimizer.step()
        scheduler.step()
    return {
        "loss": np.array(losses),
        "gradient_norm": np.array(norms),
        "initial": initial,
        "final": _state(model),
        "weights": norm,
        **first,
    }


def _roll_out(
    model: torch.nn.Module, first: Arrays, num_steps: int, way: CreditWay
) -> np.ndarray:
    """The rollout of the first batch in evaluation mode."""
    network = network_of(model.eval())
    held = {k: torch.from_numpy(v) for k, v in first.items() if k not in ("x", "y")}

    def predict(x: np.ndarray) -> np.ndarray:
        with torch.no_grad(), _autocast(way):
            output = call_network(network, {"x": torch.from_numpy(x), **held})
        return output.float().numpy()[:, :, 0]

    return roll_out(predict, first["x"], num_steps)


def _autocast(way: CreditWay) -> Any:
    return torch.autocast("cpu", torch.bfloat16) if way.bfloat16 else nullcontext()


@contextmanager
def _threads(number: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _state(model: torch.nn.Module) -> Arrays:
    return {k: v.detach().numpy().copy() for k, v in model.state_dict().items()}


def _norm(parameters: list[torch.nn.Parameter]) -> float:
    squares = [float((p.detach().double() ** 2).sum()) for p in parameters]
    return float(np.sqrt(sum(squares)))
