"""A training run of CREDIT's own trainer, as a reference for trajectories."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

# 20 steps of a small WXFormer on the data of `write_dataset`.
GEN2_CONFIG = Path(__file__).with_name("gen2.yml")

_ROOT = Path(__file__).parents[2]
_TIME_LIMIT = 600  # seconds
_TAIL = 3000  # characters of output in an error


@dataclass(frozen=True)
class CreditRun:
    """Records of CREDIT's trainer, step by step; state dicts have CREDIT's names.

    Attributes:
        x: (step, batch, channel, time, lat, lon) as handed to the model.
        y: (step, batch, channel, time, lat, lon), the normalized target.
        loss: (step,) of the training batches.
        learning_rate: (update,) used by each optimizer update.
        gradient_norm: (update,) before clipping; empty where nothing is clipped.
        valid_loss: (epoch * validation batch,), with the averaged weights where there
            is EMA.
        initial, final: state dicts before the first and after the last step.
        ema: shadow of the parameters after the last step; None without EMA.
    """

    x: np.ndarray
    y: np.ndarray
    loss: np.ndarray
    learning_rate: np.ndarray
    gradient_norm: np.ndarray
    valid_loss: np.ndarray
    initial: dict[str, np.ndarray]
    final: dict[str, np.ndarray]
    ema: dict[str, np.ndarray] | None


def credit_train(
    config_path: Path, cwd: Path, *, noise: Mapping[str, np.ndarray] | None = None
) -> CreditRun:
    """Runs CREDIT's gen2 trainer on a YAML in the folder `cwd`, in a subprocess."""
    out = cwd / "watched"
    arguments = [str(config_path.resolve()), str(out)]
    if noise is not None:
        np.savez(cwd / "noise.npz", **noise)
        arguments.append(str(cwd / "noise.npz"))
    run_credit("tests.reference.trainer_driver", arguments, cwd)
    return _read_run(out)


def run_credit(
    module: str, arguments: Sequence[str], cwd: Path, *, threads: int = 1
) -> str:
    """Runs CREDIT in a subprocess, by a driver module; returns what it printed."""
    run = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(_ROOT), "OMP_NUM_THREADS": str(threads)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_TIME_LIMIT,
        check=False,
    )
    if run.returncode != 0:
        listed = " ".join(arguments)
        raise RuntimeError(f"CREDIT failed: {module} {listed}:\n{run.stdout[-_TAIL:]}")
    return run.stdout


def _read_run(folder: Path) -> CreditRun:
    steps = _read(folder / "steps.npz")
    empty = np.zeros(0)
    ema = folder / "ema.npz"
    return CreditRun(
        x=steps["x"],
        y=steps["y"],
        loss=steps["loss"],
        learning_rate=steps["learning_rate"],
        gradient_norm=steps.get("gradient_norm", empty),
        valid_loss=steps.get("valid_loss", empty),
        initial=_read(folder / "initial.npz"),
        final=_read(folder / "final.npz"),
        ema=_read(ema) if ema.exists() else None,
    )


def _read(path: Path) -> dict[str, np.ndarray]:
    with np.load(path) as arrays:
        return dict(arrays)
