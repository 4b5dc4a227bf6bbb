"""CREDIT's side of the speed benchmark: eager and under torch.compile."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch

from benchmarks.speed.cases import Case
from credit_torch_bridge.compare.credit_side import (
    build_credit,
    call_network,
    network_of,
)

Run = Callable[[], object]


class TorchSide:
    """A model of CREDIT with given weights, and its timed functions.

    Args:
        case: model and data.
        state: CREDIT's state dict.
        device: "cpu" or "cuda".
        dtype: float32, or bfloat16 by autocast.
        compiled: whether to use torch.compile, like `trainer.compile` of CREDIT.
        backend: backend of torch.compile.
    """

    def __init__(
        self,
        case: Case,
        state: Mapping[str, np.ndarray],
        *,
        device: str = "cpu",
        dtype: str = "float32",
        compiled: bool = False,
        backend: str = "inductor",
    ) -> None:
        self.device = device
        self.model = build_credit(case.block, state).to(device)
        network = network_of(self.model)
        compile_network = partial(torch.compile, backend=backend)
        self.network: Any = compile_network(network) if compiled else network
        arrays = case.inputs.items()
        self.inputs = {k: torch.from_numpy(array).to(device) for k, array in arrays}
        self.y = torch.from_numpy(case.y).to(device)
        self.dtype = dtype
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=1e-3, weight_decay=0.0, betas=(0.9, 0.95)
        )

    def infer(self) -> None:
        """One forward pass in evaluation mode."""
        self.model.eval()
        with torch.no_grad(), self._cast():
            call_network(self.network, self.inputs)
        self._finish()

    def rollout(self, steps: int) -> None:
        """An autoregressive forecast: predictions replace the first input channels."""
        self.model.eval()
        x = self.inputs["x"]
        channels = min(x.shape[1], self.y.shape[1])
        with torch.no_grad(), self._cast():
            for _ in range(steps):
                y = self.network(x).reshape(self.y.shape)[:, :channels, -1:]
                frame = torch.cat([y.float(), x[:, channels:, -1:]], 1)
                x = torch.cat([x[:, :, 1:], frame], 2)
        self._finish()

    def train(self) -> float:
        """One step of CREDIT's trainer: forward, MSE, backward, clipping, AdamW."""
        self.model.train()
        self.optimizer.zero_grad()
        with self._cast():
            y = call_network(self.network, self.inputs).float().reshape(self.y.shape)
            loss = torch.nn.functional.mse_loss(y, self.y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), max_norm=1.0)
        self.optimizer.step()
        self._finish()
        return float(loss.detach())

    def _cast(self) -> Any:
        return torch.autocast(
            self.device, torch.bfloat16, enabled=self.dtype == "bfloat16"
        )

    def _finish(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()

    def peak_memory(self) -> int | None:
        """Bytes that a training step needs on a GPU, with its arguments."""
        if self.device != "cuda":
            return None
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        self.train()
        return torch.cuda.max_memory_allocated() - before + self.bytes_held()

    def bytes_held(self) -> int:
        """Bytes of the model, its gradients, the optimizer's state and the batch."""
        held = [
            *self.inputs.values(),
            self.y,
            *self.model.parameters(),
            *self.model.buffers(),
        ]
        held += [p.grad for p in self.model.parameters() if p.grad is not None]
        for state in self.optimizer.state.values():
            held += [value for value in state.values() if torch.is_tensor(value)]
        return sum(tensor.nbytes for tensor in held)

    def operations(self) -> dict[str, tuple[Run, Run]]:
        """Forward, and forward with backward, of the parts of the model by name."""
        inputs = self._inputs()
        return {
            name: self._timed(module, inputs[name])
            for name, module in self._parts().items()
        }

    def _parts(self) -> dict[str, Any]:
        parts = {}
        for stage in range(4):
            embed, blocks = self.model.layers[stage]
            parts[f"stage {stage} embedding"] = embed
            names = ("short attention", "feed-forward", "long attention")
            for name, module in zip(names, blocks.layers[0], strict=False):
                parts[f"stage {stage} {name}"] = module
        for number in (1, 2, 3, 4):
            parts[f"up block {number}"] = getattr(self.model, f"up_block{number}")
        return parts

    def _inputs(self) -> dict[str, torch.Tensor]:
        """The inputs of each part in a forward pass."""
        seen: dict[str, torch.Tensor] = {}

        def keep(name: str) -> Any:
            def hook(_: Any, inputs: tuple[torch.Tensor, ...]) -> None:
                seen[name] = inputs[0].detach().clone()

            return hook

        hooks = [
            module.register_forward_pre_hook(keep(name))
            for name, module in self._parts().items()
        ]
        self.model.eval()
        with torch.no_grad():
            self.model(self.inputs["x"])
        for hook in hooks:
            hook.remove()
        return seen

    def _timed(self, module: Any, x: torch.Tensor) -> tuple[Run, Run]:
        part = copy.deepcopy(module).eval()

        def forward() -> None:
            with torch.no_grad(), self._cast():
                part(x)
            self._finish()

        leaf = x.clone().requires_grad_()

        def both() -> None:
            part.zero_grad()
            leaf.grad = None
            with self._cast():
                loss = (part(leaf).float() ** 2).sum()
            loss.backward()
            self._finish()

        return forward, both
