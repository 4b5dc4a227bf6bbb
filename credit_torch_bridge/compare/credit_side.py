"""One forward and backward pass of serial CREDIT, the reference."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from credit_torch_bridge.compare.credit_import import import_credit
from credit_torch_bridge.compare.outputs import ModelOutputs


def new_credit_model(section: Mapping[str, Any]) -> torch.nn.Module:
    """A model of CREDIT, initialized by torch's generator.

    Args:
        section: `model:` of the YAML.

    Raises:
        ValueError: CREDIT is missing.
    """
    arguments = copy.deepcopy(dict(section))
    registry = import_credit("models")._MODEL_REGISTRY
    module, name = registry[arguments.pop("type")][:2]
    return getattr(import_credit(module.removeprefix("credit.")), name)(**arguments)


def build_credit(
    section: Mapping[str, Any], state: Mapping[str, np.ndarray]
) -> torch.nn.Module:
    """A model of CREDIT with given weights, in evaluation mode.

    Args:
        section: `model:` of the YAML.
        state: CREDIT's state dict.

    Raises:
        ValueError: CREDIT is missing, or the weights are not those of the model.
    """
    model = new_credit_model(section)
    tensors = {key: torch.from_numpy(np.array(a)) for key, a in state.items()}
    try:
        model.load_state_dict(tensors, strict=True)
    except RuntimeError as error:
        raise ValueError(f"CREDIT does not load these weights: {error}") from None
    return model.eval()


def run_credit(
    model: torch.nn.Module, x: np.ndarray, blocks: Sequence[str]
) -> ModelOutputs:
    """One forward and backward pass in evaluation mode.

    Args:
        model: from `build_credit`.
        x: (batch, channel, time, lat, lon).
        blocks: names of the modules whose outputs are recorded.
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
