"""One process of CREDIT's gen2 trainer, with every step recorded.

    python -m benchmarks.accuracy.credit_process YAML OUT [--threads N] [--bfloat16]
        [--rollout N] [--rollout-from NPZ]

`RANK`, `LOCAL_RANK` and `WORLD_SIZE` are read as by torchrun (gloo). CREDIT's files are
not changed; functions of CREDIT are wrapped to record their values. Written to OUT:

- rank{r}.npz: x, y, loss and gradient_norm of every step, prediction of the first one,
  weights (the norm of all parameters), rollout (`benchmarks.accuracy.rollout`);
- gradients.npz: of all parameters at the first step, before clipping;
- initial.npz and final.npz: the state dict before the first and after the last step.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
import yaml

from benchmarks.accuracy.rollout import roll_out
from benchmarks.small_models import NOISY, WIDE
from credit_torch_bridge.compare.jax_side import import_torchvision

# Standard deviation of the noise added to every parameter before training, so that none
# is exactly one or zero, like norms and biases of a new model.
_NOISE = 0.1

_RECORD: dict[str, list[Any]] = defaultdict(list)


def main(arguments: Sequence[str] | None = None) -> None:
    """Trains as `credit train --backend gloo` does, and writes the records."""
    options = _parse(arguments)
    torch.set_num_threads(options.threads)
    import_torchvision()
    from credit.applications.train_gen2 import main_cli
    from credit.trainers import trainer_gen2

    rank = int(os.environ.get("RANK", "0"))
    _watch(trainer_gen2, options, rank)
    if options.bfloat16:
        _autocast_on_cpu()
    logging.getLogger().addHandler(logging.StreamHandler())
    sys.argv = ["train_gen2", "-c", str(options.config), "--backend", "gloo"]
    main_cli()
    arrays = {name: np.stack(seen) for name, seen in _RECORD.items()}
    _write(options.out / f"rank{rank}.npz", arrays)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def _watch(module: Any, options: Any, rank: int) -> None:
    trainer = module.TrainerERA5Gen2
    train, forward = trainer.train_one_epoch, trainer._sharded_forward
    clip = module.clip_grad_norm_
    folder = options.out
    num_steps = _num_steps(options.config)
    watched: list[Any] = []

    def train_one_epoch(self: Any, *arguments: Any) -> Any:
        watched[:] = [self]
        if "weights" not in _RECORD:
            add_noise(self._raw_model)
            _RECORD["weights"].append(_norm(self._raw_model))
            _save(folder / "initial.npz", _state(self._raw_model), rank)
            if self.conf["model"]["type"] in WIDE:
                self._raw_model.double()
        results = train(self, *arguments)
        _RECORD["loss"] += results["train_loss"]
        if len(_RECORD["loss"]) == num_steps:
            _save(folder / "final.npz", _state(self._raw_model), rank)
            if options.rollout:
                _RECORD["rollout"] = list(_roll_out(self, forward, options))
        return results

    def sharded_forward(self: Any, data: Any, amp: bool) -> None:
        _RECORD["x"].append(data["x"].detach().numpy().copy())
        _RECORD["y"].append(data["y"].detach().numpy().copy())
        with _same_draws(self.conf):
            forward(self, _cast(data, self.conf), amp)
        if "prediction" not in _RECORD:
            _RECORD["prediction"].append(_whole(data["y_pred"]))

    def clip_grad_norm(*arguments: Any, **keywords: Any) -> Any:
        if "gradient_norm" not in _RECORD:
            named = watched[0]._raw_model.named_parameters()
            grads = {k: _whole(p.grad) for k, p in named if p.grad is not None}
            _save(folder / "gradients.npz", grads, rank)
        norm = clip(*arguments, **keywords)
        _RECORD["gradient_norm"].append(float(norm))
        return norm

    trainer.train_one_epoch = train_one_epoch
    trainer._sharded_forward = sharded_forward
    module.clip_grad_norm_ = clip_grad_norm


def _cast(data: Any, conf: Any) -> Any:
    """Casts fields, which are float32, to the dtype of the model."""
    if conf["model"]["type"] in WIDE:
        for name in data.keys() & {"x", "y"}:
            data[name] = data[name].double()
    return data


@contextmanager
def _same_draws(conf: Any) -> Iterator[None]:
    """Replaces the draws of a model with noise by ones, as `mesh_run` does."""
    if conf["model"]["type"] not in NOISY:
        yield
        return
    with mock.patch.object(torch, "randn", torch.ones):
        yield


def _num_steps(config: Path) -> int:
    trainer = yaml.safe_load(config.read_text())["trainer"]
    return trainer["epochs"] * trainer["batches_per_epoch"]


def _autocast_on_cpu() -> None:
    """Replaces `torch.autocast("cuda", ...)` of CREDIT's trainer by the CPU's."""
    original = torch.autocast

    def autocast(*_: Any, **__: Any) -> Any:
        return original("cpu", dtype=torch.bfloat16)

    torch.autocast = autocast  # pyright: ignore[reportAttributeAccessIssue]


def _roll_out(trainer: Any, forward: Any, options: Any) -> np.ndarray:
    """The rollout of the first batch in evaluation mode, by the trainer's forward.

    As in CREDIT's validation, a prediction that is split over a domain axis is gathered
    between the steps.
    """
    from credit.parallel.domain import gather_spatial

    if options.rollout_from is not None:
        _load(trainer._raw_model, options.rollout_from)
    trainer.model.eval()

    def predict(x: np.ndarray) -> np.ndarray:
        data = _cast({"x": torch.from_numpy(x)}, trainer.conf)
        with torch.no_grad(), _same_draws(trainer.conf):
            forward(trainer, data, False)
            return _whole(gather_spatial(data["y_pred"], trainer.domain_manager))

    return roll_out(predict, _RECORD["x"][0], options.rollout)


def add_noise(model: torch.nn.Module) -> None:
    """Moves every parameter off its initial value."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in model.parameters():
            noise = torch.randn(p.shape, generator=generator) * _NOISE
            p.add_(_split_like(p, noise))


def _load(model: torch.nn.Module, path: Path) -> None:
    """Loads a state dict by position: CREDIT's domain axis changes names."""
    with np.load(path) as arrays, torch.no_grad():
        state = model.state_dict().values()
        for tensor, name in zip(state, arrays.files, strict=True):
            tensor.copy_(_split_like(tensor, torch.from_numpy(arrays[name])))


def _split_like(tensor: Any, whole: torch.Tensor) -> torch.Tensor:
    """Splits a whole tensor as FSDP splits `tensor`, if it does."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    if not isinstance(tensor, DTensor):
        return whole
    return distribute_tensor(whole, tensor.device_mesh, tensor.placements)


def _whole(tensor: Any) -> np.ndarray:
    """A tensor as a whole array, float32 or wider; a collective if FSDP split it."""
    tensor = tensor.detach()
    if hasattr(tensor, "full_tensor"):
        tensor = tensor.full_tensor()
    wide = torch.promote_types(tensor.dtype, torch.float32)
    return tensor.to(wide).numpy().copy()


def _state(model: torch.nn.Module) -> dict[str, np.ndarray]:
    return {name: _whole(tensor) for name, tensor in model.state_dict().items()}


def _norm(model: torch.nn.Module) -> float:
    squares = [np.square(_whole(p), dtype=np.float64).sum() for p in model.parameters()]
    return float(np.sqrt(sum(squares)))


def _save(path: Path, arrays: dict[str, np.ndarray], rank: int) -> None:
    if rank == 0:
        _write(path, arrays)


def _write(path: Path, arrays: dict[str, np.ndarray]) -> None:
    np.savez(path, allow_pickle=False, **arrays)


def _parse(arguments: Sequence[str] | None) -> Any:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.accuracy.credit_process"
    )
    add = parser.add_argument
    add("config", type=Path, metavar="YAML")
    add("out", type=Path, metavar="OUT", help="folder of what was seen")
    add("--threads", type=int, default=1)
    add("--bfloat16", action="store_true", help="autocast, on the CPU")
    add("--rollout", type=int, default=0, help="steps of the rollout after training")
    add("--rollout-from", type=Path, metavar="NPZ", help="state dict to roll out from")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
