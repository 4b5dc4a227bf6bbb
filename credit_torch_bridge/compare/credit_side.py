"""Serial CREDIT as the reference: one forward and backward pass of a model."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from credit_torch_bridge.checkpoint.key_plan import State
from credit_torch_bridge.compare.credit_import import import_credit


@dataclass(frozen=True)
class ModelOutputs:
    """What a model did with one input.

    Attributes:
        prediction: (batch, channel, time, lat, lon).
        blocks: output of each block, (batch, channel, lat, lon), by CREDIT's name of
            the module.
        gradients: of mean(prediction**2), by CREDIT's parameter names.
    """

    prediction: np.ndarray
    blocks: dict[str, np.ndarray]
    gradients: State


def fresh_credit(block: Mapping[str, Any]) -> torch.nn.Module:
    """CREDIT's model of a `model:` block, freshly initialized by torch's generator.

    Raises:
        ValueError: CREDIT is missing.
    """
    arguments = copy.deepcopy(dict(block))
    registry = import_credit("models")._MODEL_REGISTRY
    module, name = registry[arguments.pop("type")][:2]
    return getattr(import_credit(module.removeprefix("credit.")), name)(**arguments)


def build_credit(
    block: Mapping[str, Any], state: Mapping[str, np.ndarray]
) -> torch.nn.Module:
    """CREDIT's model of a `model:` block with given weights, in evaluation mode.

    Args:
        block: as it stands in the YAML.
        state: CREDIT's state dict.

    Raises:
        ValueError: CREDIT is missing, or the weights are not those of the model.
    """
    model = fresh_credit(block)
    tensors = {key: torch.from_numpy(np.array(a)) for key, a in state.items()}
    try:
        model.load_state_dict(tensors, strict=True)
    except RuntimeError as error:
        raise ValueError(f"CREDIT does not load these weights: {error}") from None
    return model.eval()


def run_credit(
    model: torch.nn.Module, x: np.ndarray, blocks: Sequence[str]
) -> ModelOutputs:
    """One forward pass in evaluation mode, and its gradient.

    Args:
        model: from `build_credit`.
        x: (batch, channel, time, lat, lon).
        blocks: names of modules whose output is wanted.
    """
    seen: dict[str, np.ndarray] = {}

    def record(name: str) -> Any:
        def hook(_: Any, __: Any, output: torch.Tensor) -> None:
            seen[name] = output.detach().numpy().copy()

        return hook

    hooks = [
        module.register_forward_hook(record(name))
        for name, module in model.named_modules()
        if name in blocks
    ]
    try:
        model.zero_grad()
        prediction = model(torch.from_numpy(x))
        (prediction**2).mean().backward()
    finally:
        for hook in hooks:
            hook.remove()
    gradients = {
        name: p.grad.numpy().copy()
        for name, p in model.named_parameters()
        if p.grad is not None
    }
    return ModelOutputs(prediction.detach().numpy(), seen, gradients)
