"""Runs CREDIT's trainer where numbers of float32 or of a generator are no measure.

    python -m tests.bridge.credit_driver YAML OUT

Models of `WIDE` compute in float64. Those of `NOISY` draw `drawn`, a function of the
position, instead of random numbers. All else is `tests.reference.trainer_driver`.
"""

from __future__ import annotations

import sys
from typing import Any
from unittest import mock

import torch

from benchmarks.small_models import NOISY, WIDE
from credit_torch_bridge.compare.jax_side import import_torchvision
from tests.reference import trainer_driver


def main(config: str, out: str) -> None:
    """Trains as `credit train` does on one process, and writes the records."""
    import_torchvision()
    from credit.trainers.trainer_gen2 import TrainerERA5Gen2 as Trainer

    train, forward = Trainer.train_one_epoch, Trainer._sharded_forward

    def train_one_epoch(
        self: Any, epoch: int, loader: Any, optimizer: Any, *arguments: Any
    ) -> Any:
        if self.conf["model"]["type"] in WIDE:
            self._raw_model.double()
            for moments in optimizer.state.values():
                for name in ("exp_avg", "exp_avg_sq"):
                    moments[name] = moments[name].double()
        return train(self, epoch, loader, optimizer, *arguments)

    def sharded_forward(self: Any, data: Any, amp: bool) -> None:
        kind = self.conf["model"]["type"]
        if kind in WIDE:
            data |= {name: data[name].double() for name in ("x", "y")}
        random = _drawn if kind in NOISY else torch.randn
        with mock.patch.object(torch, "randn", random):
            forward(self, data, amp)

    Trainer.train_one_epoch = train_one_epoch
    Trainer._sharded_forward = sharded_forward
    trainer_driver.main(config, out)


def _drawn(*shape: int, **_: Any) -> torch.Tensor:
    """`going_on.drawn` for (sample, channel) or (sample, channel, row, column)."""
    phase = torch.ones(())
    for size, step in zip(shape, (3.0, 5.0, 1.0, 2.0), strict=False):
        phase = phase[..., None] + step * torch.arange(size)
    return torch.cos(phase)


if __name__ == "__main__":
    main(*sys.argv[1:])
