"""A run with checkpoints for CREDIT and credit_jax, and CREDIT's own rollout of it."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from tests.reference import GEN2_CONFIG, write_dataset
from tests.reference.scalers import scaler_blocks, write_scalers
from tests.reference.training import run_credit

NUM_CHANNELS = 7
# Training forwards after which the estimates of spectral norm have converged.
NUM_ITERATIONS = 15


def raw_config(**inference: Any) -> dict[str, Any]:
    """Returns CREDIT's YAML of a model in physical units, with an inference section."""
    raw = yaml.safe_load(GEN2_CONFIG.read_text())
    raw["model"]["depth"] = [1, 1, 1, 1]
    scaler, inverse, inverse_twin = scaler_blocks()
    raw["preblocks"] = {"per_step": {"scaler": scaler, "concat": {"type": "concat"}}}
    own = {"reconstruct": {"type": "reconstruct"}, "scaler": inverse}
    key = "y_target_processed"
    twin = {
        "twin": {"type": "reconstruct", "args": {"in_key": "y", "out_key": key}},
        "scaler_twin": inverse_twin,
    }
    # CREDIT's rollout fails with preblocks of the target.
    raw["postblocks"] = {"per_step": own | twin}
    raw["inference"] = {"mode": "none", "postblocks": {"per_step": own}, **inference}
    return raw


def write_run(folder: Path, raw: dict[str, Any]) -> Path:
    """Writes data, scalers, a YAML, and a checkpoint for CREDIT and for credit_jax."""
    write_dataset(folder)
    write_scalers(folder)
    path = folder / "case.yml"
    path.write_text(yaml.safe_dump(raw, sort_keys=False))
    write_checkpoints(folder / "run", raw["model"], _new_state(raw["model"]))
    return path


def _new_state(model: dict[str, Any]) -> dict[str, Any]:
    import torch

    from tests.support.credit_modules import credit_attribute

    load_model = credit_attribute("models", "load_model")
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = load_model({"model": dict(model)})
    x = torch.randn(1, NUM_CHANNELS, 1, model["image_height"], model["image_width"])
    with torch.no_grad():
        for _ in range(NUM_ITERATIONS):
            module(x)
    return {name: tensor.numpy() for name, tensor in module.state_dict().items()}


def write_checkpoints(
    run: Path, model: dict[str, Any], state: dict[str, np.ndarray]
) -> None:
    """Writes a CREDIT state dict as checkpoints of CREDIT and of credit_jax."""
    import jax
    import torch

    from credit_jax.checkpoint import CheckpointStore, Progress
    from credit_jax.models.conversion import from_state_dict
    from credit_jax.models.registry import build

    run.mkdir(exist_ok=True)
    tensors = {name: torch.from_numpy(np.array(x)) for name, x in state.items()}
    torch.save({"model_state_dict": tensors}, run / "checkpoint.pt")
    params, model_state = jax.device_put(from_state_dict(build(model), state))
    store = CheckpointStore(run)
    store.save(1, {"weights": {"params": params, **model_state}}, Progress(epoch=0))
    store.close()


def credit_rollout(config: Path, threads: int = 1, *arithmetic: str) -> None:
    """Runs CREDIT's `rollout_gen2.py` in a subprocess, in the folder of a YAML.

    `arithmetic` is how the model computes, if not in float32 (`rollout_driver`).
    """
    arguments = [str(config), str(threads), *arithmetic]
    driver = "tests.reference.rollout_driver"
    run_credit(driver, arguments, config.parent, threads=threads)
