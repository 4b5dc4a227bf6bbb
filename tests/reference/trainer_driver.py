"""Runs CREDIT's own gen2 trainer and records its steps.

    python -m tests.reference.trainer_driver YAML OUT [NOISE]

It is a program, because CREDIT sets global flags of torch. OUT, a folder, gets
steps.npz (per step: x, y, loss, learning_rate, gradient_norm), and the state dicts
initial.npz, final.npz and ema.npz. NOISE, an .npz, has arrays that are added to the
predictions: `train`, one for each step, `valid`, one for each batch of an epoch.
"""

import logging
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
import torch

from credit_torch_bridge.compare.jax_side import import_torchvision

# Wrappers of these functions record the steps; CREDIT's own files are unchanged.
_RECORD: dict[str, list[np.ndarray | float]] = defaultdict(list)


def main(config: str, out: str, noise: str | None = None) -> None:
    """Trains as `credit train` does on one process, and writes the records."""
    torch.set_num_threads(1)
    import_torchvision()
    from credit.applications.train_gen2 import main_cli
    from credit.trainers import trainer_gen2

    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    _watch(trainer_gen2, folder)
    if noise is not None:
        _add_noise(trainer_gen2.TrainerERA5Gen2, Path(noise))
    logging.getLogger().addHandler(logging.StreamHandler())
    sys.argv = ["train_gen2", "-c", config]
    main_cli()
    np.savez(folder / "steps.npz", **{k: np.stack(v) for k, v in _RECORD.items()})


def _watch(module, folder: Path) -> None:
    trainer = module.TrainerERA5Gen2
    train, forward, validate = (
        trainer.train_one_epoch,
        trainer._sharded_forward,
        trainer.validate,
    )
    clip = module.clip_grad_norm_

    def train_one_epoch(self, epoch, loader, optimizer, *args):
        if not (folder / "initial.npz").exists():
            _save_state(folder / "initial.npz", self._raw_model.state_dict())
        if "learning_rate" not in _RECORD:  # of the first epoch
            optimizer.register_step_pre_hook(_record_learning_rate)
        results = train(self, epoch, loader, optimizer, *args)
        _RECORD["loss"] += results["train_loss"]
        _save_state(folder / "final.npz", self._raw_model.state_dict())
        if self.ema is not None:
            _save_state(folder / "ema.npz", self.ema.shadow)
        return results

    def sharded_forward(self, data, amp):
        if self.model.training:
            _RECORD["x"].append(data["x"].detach().numpy().copy())
            _RECORD["y"].append(data["y"].detach().numpy().copy())
        return forward(self, data, amp)

    def clip_grad_norm(*args, **kwargs):
        norm = clip(*args, **kwargs)
        _RECORD["gradient_norm"].append(float(norm))
        return norm

    def validate_and_record(self, *args):
        results = validate(self, *args)
        _RECORD["valid_loss"] += results["valid_loss"]
        return results

    trainer.train_one_epoch = train_one_epoch
    trainer._sharded_forward = sharded_forward
    trainer.validate = validate_and_record
    module.clip_grad_norm_ = clip_grad_norm


def _add_noise(trainer, path: Path) -> None:
    with np.load(path) as arrays:
        fields = {name: torch.from_numpy(arrays[name]) for name in ("train", "valid")}
    turns = {name: iter(field) for name, field in fields.items()}
    forward, validate = trainer._sharded_forward, trainer.validate

    def noisy_forward(self, data, amp):
        forward(self, data, amp)
        noise = next(turns["train" if self.model.training else "valid"])
        data["y_pred"] = data["y_pred"] + noise.reshape(data["y_pred"].shape)

    def validate_anew(self, *args):
        turns["valid"] = iter(fields["valid"])
        return validate(self, *args)

    trainer._sharded_forward, trainer.validate = noisy_forward, validate_anew


def _record_learning_rate(optimizer, args, kwargs) -> None:
    _RECORD["learning_rate"].append(optimizer.param_groups[0]["lr"])


def _save_state(path: Path, state) -> None:
    np.savez(path, **{k: v.detach().cpu().numpy() for k, v in state.items()})


if __name__ == "__main__":
    main(*sys.argv[1:])
