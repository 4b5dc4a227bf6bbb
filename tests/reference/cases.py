"""One forward and backward pass of a CREDIT model, or of its process's network."""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

from credit_jax.models.diffusion.process import TIME
from credit_jax.models.registry import build
from credit_torch_bridge.compare.credit_side import (
    call_network,
    cast_credit,
    floats_of,
    network_of,
    new_credit_model,
    share_edges,
)

# Running statistics converge slowly: each batch has a weight of a tenth.
_SETTLING_FORWARDS, _WITH_BATCH_NORMS = 5, 40
_SPREAD = 0.1

State = dict[str, np.ndarray]


@dataclass(frozen=True)
class CreditCase:
    """Results of a CREDIT model on one input; names of parameters are CREDIT's.

    Attributes:
        inputs: by credit_jax's names; "x" is (batch, channel, time, lat, lon).
        y: prediction (batch, channel, time, lat, lon).
        loss: mean(y**2).
        gradients: of the loss, one per parameter that took part.
        by_input: gradients of the loss by the inputs, but noise steps.
        state: the state dict before the forward pass: parameters, and the vectors of
            spectral norm.
        state_after: the state dict after it; in training mode the vectors have moved by
            one power iteration.
        parameters: names of the parameters in the order of `model.parameters()`, which
            is the order of an optimizer's integer keys.
    """

    inputs: State
    y: np.ndarray
    loss: float
    gradients: State
    by_input: State
    state: State
    state_after: State
    parameters: tuple[str, ...]

    @property
    def x(self) -> np.ndarray:
        """The input of a model with one."""
        return self.inputs["x"]

    @property
    def x_gradient(self) -> np.ndarray:
        """The gradient of the loss by it."""
        return self.by_input["x"]


def credit_case(
    model_block: Mapping[str, Any],
    seed: int = 0,
    mode: Literal["eval", "train"] = "eval",
    *,
    batch: int = 2,
    dtype: torch.dtype = torch.float32,
    prepare: Callable[[torch.nn.Module], None] = lambda model: None,
) -> CreditCase:
    """Builds a CREDIT model and runs it once, forward and backward.

    Every parameter is moved away from its initial value first, so that none hides
    behind a one or a zero. Forward passes in training mode let the vectors of spectral
    norm converge, and further ones the running statistics of batch norms.
    """
    model = build_credit(model_block, seed)
    share_edges(model, model_block)
    cast_credit(model, dtype)
    generator = torch.Generator().manual_seed(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of CREDIT's keys without effect
        model_def = build(model_block)
    inputs = {
        name: torch.randn(spec.shape(batch), generator=generator, dtype=dtype)
        for name, spec in model_def.network_inputs.items()
    }
    if model_def.process is not None:
        last = len(model_def.process.betas) - 1
        inputs[TIME] = (last - 7 * torch.arange(batch) % last)[:, None].to(dtype)
    moved = [name for name in inputs if name != TIME]

    def forward() -> torch.Tensor:
        return call_network(network_of(model), inputs)

    with floats_of(dtype):
        _settle(model, forward, generator)
        prepare(model)
        model.train(mode == "train")
        state = _numpy_state(model)
        for name in moved:
            inputs[name].requires_grad_()
        y = forward()
        loss = (y**2).mean()
        loss.backward()
    named = list(model.named_parameters())
    return CreditCase(
        inputs={name: x.detach().numpy() for name, x in inputs.items()},
        y=y.detach().numpy(),
        loss=float(loss.detach()),
        gradients={k: p.grad.numpy() for k, p in named if p.grad is not None},
        by_input={name: np.asarray(inputs[name].grad) for name in moved},
        state=state,
        state_after=_numpy_state(model),
        parameters=tuple(name for name, _ in named),
    )


def build_credit(model_block: Mapping[str, Any], seed: int = 0) -> torch.nn.Module:
    """Builds a CREDIT model of a `model:` section on the CPU, freshly initialized."""
    torch.set_num_threads(1)
    # Silence warnings of CREDIT and its libraries; ours are errors.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(seed)
        return new_credit_model(model_block)


def _settle(
    model: torch.nn.Module, forward: Callable[[], Any], generator: torch.Generator
) -> None:
    model.train()
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(
                parameter.shape, generator=generator, dtype=parameter.dtype
            )
            parameter.add_(noise * _SPREAD)
        norms = [m for m in model.modules() if isinstance(m, torch.nn.BatchNorm2d)]
        for _ in range(_WITH_BATCH_NORMS if norms else _SETTLING_FORWARDS):
            forward()


def _numpy_state(model: torch.nn.Module) -> State:
    return {k: v.detach().numpy().copy() for k, v in model.state_dict().items()}
