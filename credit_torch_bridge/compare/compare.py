"""The same weights and inputs through serial CREDIT and credit_jax, block by block."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from credit_jax.config.base import parse
from credit_jax.config.parallelism import ParallelismConfig
from credit_jax.models.parallel_model import ParallelModel, build_parallel_model
from credit_jax.parallel.mesh.credit import build_device_mesh
from credit_jax.parallel.mesh.devices import model_devices
from credit_jax.parallel.mesh.dims import ParallelDims
from credit_jax.parallel.params.precision import Precision
from credit_torch_bridge.checkpoint.orbax_run import read_run
from credit_torch_bridge.checkpoint.run_config import RunConfig, read_run_config
from credit_torch_bridge.checkpoint.state_dict import to_state_dict
from credit_torch_bridge.checkpoint.torch_checkpoint import open_checkpoint
from credit_torch_bridge.checkpoint.torch_to_jax import read_model
from credit_torch_bridge.compare.credit_import import import_credit
from credit_torch_bridge.compare.credit_side import (
    ModelOutputs,
    build_credit,
    run_credit,
)
from credit_torch_bridge.compare.jax_side import make_pass
from credit_torch_bridge.models.registry import torch_model

# Relative L2 errors in float32 (docs/numerics.md).
FORWARD, GRADIENT = 1e-5, 1e-4


@dataclass(frozen=True)
class Comparison:
    """Relative L2 errors, the largest of all batches.

    Attributes:
        blocks: output of each block, by CREDIT's module name.
        prediction: of the model.
        gradients: of the parameters of each of CREDIT's top modules.
        gradient: of all parameters together.
        mesh: what credit_jax ran on.
        batches: how many were compared.
    """

    blocks: dict[str, float]
    prediction: float
    gradients: dict[str, float]
    gradient: float
    mesh: str
    batches: int

    @property
    def within_tolerance(self) -> bool:
        """Whether prediction and gradient are CREDIT's; NaN never is."""
        return self.prediction <= FORWARD and self.gradient <= GRADIENT

    def lines(self) -> Iterator[str]:
        """The errors as a table."""
        yield f"credit_jax on {self.mesh}, serial CREDIT: {self.batches} batch(es)"
        yield "relative L2 error of"
        for name, error in self.blocks.items():
            yield f"  output of {name:24} {error:9.2e}"
        yield f"  {'prediction':34} {self.prediction:9.2e}  (tolerance {FORWARD:.0e})"
        for name, error in self.gradients.items():
            yield f"  gradient of {name:22} {error:9.2e}"
        yield f"  {'gradient':34} {self.gradient:9.2e}  (tolerance {GRADIENT:.0e})"


def compare(
    config: str | Path | Mapping[str, Any],
    checkpoint: str | Path,
    *,
    parallelism: ParallelismConfig | Mapping[str, Any] | None = None,
    batches: int = 1,
    seed: int = 0,
) -> Comparison:
    """Run both on random inputs, in evaluation mode and float32.

    Args:
        config: CREDIT's YAML, or a mapping like it; its model section counts.
        checkpoint: of PyTorch, file or folder, or the folder of a run of credit_jax.
        parallelism: the mesh of credit_jax; None is one device.
        batches: how many inputs.
        seed: of the inputs.

    Raises:
        ValueError: CREDIT is not installed, or what cannot be read or does not fit.
    """
    if batches < 1:
        raise ValueError(f"batches is {batches}; compare at least 1")
    import_credit()
    mesh = parallelism_of(parallelism)
    # Before anything is read, since reading uses JAX, which then has its devices.
    devices = model_devices(mesh)
    run_config = read_run_config(config)
    params, model_state = read_weights(run_config, Path(checkpoint))
    model = parallel_model(run_config, mesh, devices)
    names = _block_names(run_config.model_def.config)
    state = to_state_dict(run_config.model_def, params, model_state)
    credit = build_credit(run_config.raw["model"], state)
    ours = make_pass(model, params, model_state, names)
    rng = np.random.default_rng(seed)
    found = []
    with jax.default_matmul_precision("highest"):
        for _ in range(batches):
            x = rng.normal(size=_input_shape(model)).astype(np.float32)
            found.append(_errors(ours(x), run_credit(credit, x, names), names))
    return _worst(found, str(dict(model.parallel_config.mesh.shape)))


def read_weights(run_config: RunConfig, path: Path) -> tuple[Any, Any]:
    """Parameters and model state of a checkpoint of either side."""
    if path.is_dir() and (path / "checkpoints").is_dir():
        checkpoint = read_run(path, run_config.model_def)
        return checkpoint.params, checkpoint.model_state
    return read_model(run_config, open_checkpoint(path))


def parallelism_of(
    given: ParallelismConfig | Mapping[str, Any] | None,
) -> ParallelismConfig:
    """The parallelism block; None is one device."""
    if isinstance(given, ParallelismConfig):
        return given
    return parse(ParallelismConfig, given or {"data": "none"}, "parallelism")


def parallel_model(
    run_config: RunConfig, parallelism: ParallelismConfig, devices: list[Any]
) -> ParallelModel:
    """The model on the mesh that is asked for."""
    ParallelDims.from_config(parallelism, len(devices), model=run_config.model_def)
    mesh, _ = build_device_mesh(parallelism, devices)
    return build_parallel_model(run_config.model_def, mesh, mp_policy=Precision())


def _block_names(config: Any) -> list[str]:
    return torch_model(config.type).block_names(config)


def _input_shape(model: ParallelModel) -> tuple[int, ...]:
    a = model.model_def
    size = model.axes.num_data
    return size, a.input_channels, a.frames, a.image_height, a.image_width


def _errors(
    ours: ModelOutputs, credits: ModelOutputs, names: Sequence[str]
) -> dict[str, dict[str, float]]:
    """Relative errors by kind and name."""
    keys = sorted(credits.gradients)
    tops: dict[str, list[str]] = {}
    for key in keys:
        tops.setdefault(_block_of(key, names), []).append(key)
    return {
        "blocks": {
            name: relative_error(field, _like(credits.blocks[name], field))
            for name, field in ours.blocks.items()
            if name in credits.blocks
        },
        "prediction": {"": relative_error(ours.prediction, credits.prediction)},
        "gradients": {
            top: relative_error(
                _joined(ours.gradients, some), _joined(credits.gradients, some)
            )
            for top, some in tops.items()
        },
        "gradient": {
            "": relative_error(
                _joined(ours.gradients, keys), _joined(credits.gradients, keys)
            )
        },
    }


def _block_of(key: str, blocks: Sequence[str]) -> str:
    """The block that a parameter is in; its top module if it is in none."""
    found = (name for name in blocks if key.startswith(f"{name}."))
    return next(found, key.split(".")[0])


def _like(array: np.ndarray, field: np.ndarray) -> np.ndarray:
    """CREDIT's output without the time dim that a field of ours does not have."""
    return array.reshape(field.shape) if array.size == field.size else array


def _joined(arrays: Mapping[str, np.ndarray], keys: list[str]) -> np.ndarray:
    return np.concatenate([np.ravel(arrays[key]) for key in keys])


def relative_error(actual: np.ndarray, expected: np.ndarray) -> float:
    """|actual - expected| / |expected| in L2, float64; infinite for unlike shapes."""
    if actual.shape != expected.shape:
        return float("inf")
    wide = expected.astype(np.float64)
    size = np.linalg.norm(wide)
    difference = np.linalg.norm(actual.astype(np.float64) - wide)
    return float(difference / size) if size else float(difference)


def _worst(found: list[dict[str, dict[str, float]]], mesh: str) -> Comparison:
    worst = {
        kind: {name: float(np.max([f[kind][name] for f in found])) for name in names}
        for kind, names in found[0].items()
    }
    return Comparison(
        worst["blocks"],
        worst["prediction"][""],
        worst["gradients"],
        worst["gradient"][""],
        mesh,
        len(found),
    )
