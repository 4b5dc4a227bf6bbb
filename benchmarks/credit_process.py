"""One process of CREDIT's own gen2 trainer, watched.

    python -m benchmarks.credit_process YAML OUT

`RANK`, `LOCAL_RANK` and `WORLD_SIZE` say which of how many (gloo). CREDIT's files stay
as they are; what a step records passes through functions put around CREDIT's. OUT gets
rank{r}.npz (x, y, loss and gradient_norm of every step, prediction of the first one,
weights: the norm of all parameters) and initial.npz, the state dict before training.
"""

from __future__ import annotations

import logging
import os
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from credit_torch_bridge.credit_import import import_torchvision

# Standard deviation of what is added to every parameter before training, so that none
# stands at a one or a zero, where a fresh model has its norms and biases.
_SPREAD = 0.1

_RECORD: dict[str, list[Any]] = defaultdict(list)


def main(config: str, out: str) -> None:
    """Trains as `credit train --backend gloo` does, and writes what was seen."""
    torch.set_num_threads(1)
    import_torchvision()
    from credit.applications.train_gen2 import main_cli
    from credit.trainers import trainer_gen2

    folder, rank = Path(out), int(os.environ.get("RANK", "0"))
    _watch(trainer_gen2, folder, rank)
    logging.getLogger().addHandler(logging.StreamHandler())
    sys.argv = ["train_gen2", "-c", config, "--backend", "gloo"]
    main_cli()
    np.savez(folder / f"rank{rank}.npz", **{k: np.stack(v) for k, v in _RECORD.items()})
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def _watch(module: Any, folder: Path, rank: int) -> None:
    trainer = module.TrainerERA5Gen2
    train, forward = trainer.train_one_epoch, trainer._sharded_forward
    clip = module.clip_grad_norm_

    def train_one_epoch(self: Any, *arguments: Any) -> Any:
        if "weights" not in _RECORD:
            _spread(self._raw_model)
            parameters = [p.detach() for p in self._raw_model.parameters()]
            squares = [float(p.double().square().sum()) for p in parameters]
            _RECORD["weights"].append(np.sqrt(sum(squares)))
            if rank == 0:
                state = self._raw_model.state_dict()
                arrays = {k: v.detach().numpy() for k, v in state.items()}
                np.savez(folder / "initial.npz", **arrays)
        results = train(self, *arguments)
        _RECORD["loss"] += results["train_loss"]
        return results

    def sharded_forward(self: Any, data: Any, amp: bool) -> None:
        _RECORD["x"].append(data["x"].detach().numpy().copy())
        _RECORD["y"].append(data["y"].detach().numpy().copy())
        forward(self, data, amp)
        if "prediction" not in _RECORD:
            _RECORD["prediction"].append(data["y_pred"].detach().numpy().copy())

    def clip_grad_norm(*arguments: Any, **keywords: Any) -> Any:
        norm = clip(*arguments, **keywords)
        _RECORD["gradient_norm"].append(float(norm))
        return norm

    trainer.train_one_epoch = train_one_epoch
    trainer._sharded_forward = sharded_forward
    module.clip_grad_norm_ = clip_grad_norm


def _spread(model: torch.nn.Module) -> None:
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn(p.shape, generator=generator) * _SPREAD)


if __name__ == "__main__":
    main(*sys.argv[1:])
