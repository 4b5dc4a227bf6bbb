"""Compares serial CREDIT and credit_jax with the same weights, block by block."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import torch

from credit_jax.checkpoint.store import label_of, takes_average
from credit_jax.config import parse
from credit_jax.config.parallelism import ParallelismConfig
from credit_jax.models.conversion import from_state_dict, to_state_dict
from credit_jax.models.diffusion.process import TIME
from credit_jax.models.parallel_model import ParallelModel, build_parallel_model
from credit_jax.models.registry import torch_model
from credit_jax.ops.compensated import joint_error, relative_error
from credit_jax.parallel.mesh.devices import forward_devices
from credit_jax.parallel.mesh.dims import ParallelDims
from credit_jax.parallel.params.precision import Precision
from credit_jax.state_dict.key_map import Arrays
from credit_torch_bridge.checkpoint.jax_checkpoint import (
    JaxCheckpoint,
    RunConfig,
    read_run,
    read_run_config,
)
from credit_torch_bridge.checkpoint.torch_checkpoint import open_checkpoint
from credit_torch_bridge.checkpoint.torch_to_jax import to_jax_checkpoint
from credit_torch_bridge.compare import credit_side
from credit_torch_bridge.compare.jax_side import (
    ModelOutputs,
    compile_pass,
    import_credit,
    noise_of,
)

# Tolerances of the relative L2 errors (docs/numerics.md): in float32, and in float64.
FORWARD, GRADIENT = 1e-5, 1e-4
WIDE = 1e-9


@dataclass(frozen=True)
class Comparison:
    """Relative L2 errors of credit_jax against serial CREDIT.

    Attributes:
        blocks: errors of the output of each block, by the name of CREDIT's module.
        prediction: error of the model's output.
        gradients: errors of the gradients of the parameters of each block.
        gradient: error of the gradient of all parameters together.
        mesh: axes and degrees of the mesh of credit_jax.
        batches: number of inputs; each error is the largest over them.
        wide: errors in float64, if an error is above its tolerance.
        weights: weights of the checkpoint that were compared.
        tolerances: the largest errors of prediction and gradient that pass.
    """

    blocks: dict[str, float]
    prediction: float
    gradients: dict[str, float]
    gradient: float
    mesh: str
    batches: int = 1
    wide: Comparison | None = None
    weights: str = "last weights"
    tolerances: tuple[float, float] = (FORWARD, GRADIENT)

    @property
    def within_tolerance(self) -> bool:
        """Whether prediction and gradient are within tolerance.

        Errors above it are accepted if both sides agree in float64, as some weights
        amplify rounding.
        """
        forward, gradient = self.tolerances
        within = self.prediction <= forward and self.gradient <= gradient
        return within or (self.wide is not None and self.wide.within_tolerance)

    def lines(self) -> Iterator[str]:
        """The errors as a table."""
        yield (
            f"credit_jax on {self.mesh}, serial CREDIT: {self.batches} batch(es), "
            f"{self.weights}"
        )
        yield "relative L2 error of"
        for name, error in self.blocks.items():
            yield f"  output of {name:24} {error:9.2e}"
        forward, gradient = self.tolerances
        yield f"  {'prediction':34} {self.prediction:9.2e}  (tolerance {forward:.0e})"
        for name, error in self.gradients.items():
            yield f"  gradient of {name:22} {error:9.2e}"
        yield f"  {'gradient':34} {self.gradient:9.2e}  (tolerance {gradient:.0e})"
        if self.wide is None:
            return
        yield "the same in float64"
        for name in ("prediction", "gradient"):
            error = getattr(self.wide, name)
            yield f"  {name:34} {error:9.2e}  (tolerance {WIDE:.0e})"
        if self.wide.within_tolerance:
            why = "these weights amplify rounding"
            if not math.isfinite(self.prediction):
                why = (
                    "values are not finite in float32, as with vectors of spectral "
                    "norm that no training has iterated"
                )
            yield f"{why}: in float64 both agree"


def compare_with_credit(
    config: str | Path | Mapping[str, Any],
    checkpoint: str | Path,
    *,
    parallelism: ParallelismConfig | Mapping[str, Any] | None = None,
    batches: int = 1,
    seed: int = 0,
    weights: str | None = None,
) -> Comparison:
    """Runs both models on random inputs, in evaluation mode and float32.

    Corrections at the end of a model (`post_conf`) are omitted in both. Models that
    draw noise get the same noise, drawn by CREDIT.

    Args:
        config: CREDIT's YAML or a mapping, of which `model:` is used. Python files in
            `custom_models` are executed, to register PyTorch classes, and those of
            `custom_objects`, to register entries of credit_jax.
        checkpoint: checkpoint of PyTorch, file or folder, or the folder of a run of
            credit_jax.
        parallelism: the mesh of credit_jax; None for one device.
        batches: number of random inputs, each with one sample per data-parallel rank.
        seed: seed of the inputs.
        weights: "average", "last", or None for the moving average if there is one.

    Raises:
        ValueError: CREDIT is not installed, or a file cannot be read or does not fit.
    """
    if batches < 1:
        raise ValueError(f"batches is {batches}; compare at least 1")
    import_credit()
    mesh = parallelism
    if not isinstance(mesh, ParallelismConfig):
        mesh = parse(ParallelismConfig, mesh or {"data": "none"}, "parallelism")
    # Must precede reading, which initializes JAX and fixes the number of devices.
    devices = forward_devices(mesh)
    run_config = read_run_config(config)
    model_section = run_config.raw.get("model")
    if isinstance(model_section, Mapping):
        corrections = "post_conf", "gen1_post_conf"
        network = {k: v for k, v in model_section.items() if k not in corrections}
        raw = {**run_config.raw, "model": network}
        run_config = RunConfig(raw, run_config.source)
    credit_side.register_models(run_config.raw)
    read = read_weights(run_config, Path(checkpoint))
    # A run is read with what it froze; CREDIT has the gradients of all parameters.
    run_config = run_config.with_settings({"trainer.finetune": None})
    average = takes_average(
        weights, has_average=read.ema is not None, origin=checkpoint
    )
    chosen = read.weights_alone(average=average)
    params, model_state = chosen.params, chosen.model_state
    model = _parallel_model(run_config, mesh, devices, Precision())
    model_config = run_config.model_def.config
    blocks = torch_model(model_config.type).block_names(model_config)
    state = to_state_dict(run_config.model_def, params, model_state)
    credit = credit_side.build_credit(run_config.raw["model"], state)
    run_jax = compile_pass(model, params, model_state, blocks)
    rng = np.random.default_rng(seed)
    comparisons = []
    for _ in range(batches):
        # Random inputs of the network, one sample on each data-parallel device.
        size, process = model.axes.num_data, model.model_def.process
        inputs = {
            name: rng.normal(size=spec.shape(size)).astype(np.float32)
            for name, spec in model.model_def.network_inputs.items()
        }
        if process is not None:
            steps = rng.integers(len(process.betas), size=(size, 1))
            inputs[TIME] = steps.astype(np.float32)
        with credit_side.recorded_noise() as drawn:
            reference = credit_side.run_credit(credit, inputs, blocks)
        converted = run_jax(inputs, noise_of(model.model_def, drawn))
        comparison = _compare(converted, reference, blocks, str(dict(model.mesh.shape)))
        if not comparison.within_tolerance:
            wide = _in_float64(run_config, state, mesh, devices, inputs, drawn)
            comparison = replace(comparison, wide=wide)
        comparisons.append(comparison)
    # The largest errors of several inputs.
    first = comparisons[0]
    wide = sorted((c for c in comparisons if c.wide), key=lambda c: c.within_tolerance)
    return replace(
        first,
        blocks={n: max(c.blocks[n] for c in comparisons) for n in first.blocks},
        prediction=max(c.prediction for c in comparisons),
        gradients={
            n: max(c.gradients[n] for c in comparisons) for n in first.gradients
        },
        gradient=max(c.gradient for c in comparisons),
        batches=len(comparisons),
        wide=wide[0].wide if wide else None,
        weights=label_of(average=average),
    )


def read_weights(run_config: RunConfig, path: Path) -> JaxCheckpoint:
    """The weights, and their average, of a checkpoint of CREDIT or of credit_jax."""
    if path.is_dir() and (path / "checkpoints").is_dir():
        return read_run(path, run_config.model_def)
    return to_jax_checkpoint(run_config, open_checkpoint(path), weights_only=True)


def _parallel_model(
    run_config: RunConfig,
    parallelism: ParallelismConfig,
    devices: list[Any],
    precision: Precision,
) -> ParallelModel:
    model_def = run_config.model_def
    dims = ParallelDims.from_config(parallelism, len(devices), model=model_def)
    used = devices[: dims.world_size]
    return build_parallel_model(model_def, dims, devices=used, mp_policy=precision)


def _compare(
    converted: ModelOutputs, reference: ModelOutputs, blocks: Sequence[str], mesh: str
) -> Comparison:
    by_block: dict[str, Arrays] = {}
    for key in sorted(reference.gradients):
        # The top module of a parameter that is in no block.
        inside = (name for name in blocks if key.startswith(f"{name}."))
        block = next(inside, key.split(".")[0])
        by_block.setdefault(block, {})[key] = reference.gradients[key]
    return Comparison(
        {
            name: _block_error(field, reference.blocks[name])
            for name, field in converted.blocks.items()
            if name in reference.blocks
        },
        relative_error(converted.prediction, reference.prediction),
        {
            block: joint_error(converted.gradients, some)
            for block, some in by_block.items()
        },
        joint_error(converted.gradients, dict(sorted(reference.gradients.items()))),
        mesh,
        tolerances=(FORWARD, GRADIENT),
    )


def _in_float64(
    run_config: RunConfig,
    state: Arrays,
    parallelism: ParallelismConfig,
    devices: list[Any],
    inputs: Arrays,
    drawn: Sequence[np.ndarray],
) -> Comparison:
    """The errors of one pass of both sides in float64, with one input and weights."""

    def wide(array: np.ndarray) -> np.ndarray:
        is_float = np.issubdtype(array.dtype, np.floating)
        return np.asarray(array, np.float64) if is_float else array

    model_def = run_config.model_def
    with jax.enable_x64(True):
        arrays = dict(state), dict(inputs), list(drawn)
        state, inputs, drawn = jax.tree.map(wide, arrays)
        precision = Precision.of("float64")
        model = _parallel_model(run_config, parallelism, devices, precision)
        run_jax = compile_pass(model, *from_state_dict(model_def, state), ())
        converted = run_jax(inputs, noise_of(model_def, drawn))
    credit = credit_side.build_credit(run_config.raw["model"], state)
    credit_side.share_edges(credit, run_config.raw["model"])
    with credit_side.floats_of(torch.float64), credit_side.replayed_noise(drawn):
        reference = credit_side.run_credit(
            credit_side.cast_credit(credit, torch.float64), inputs, ()
        )
    return replace(_compare(converted, reference, (), ""), tolerances=(WIDE, WIDE))


def _block_error(field: np.ndarray, array: np.ndarray) -> float:
    """The error of a block's output, whose channels may be second or last in CREDIT."""
    last = np.moveaxis(array, -1, 1) if array.ndim == 4 else array
    orders = [order for order in (array, last) if order.shape == field.shape]
    if not orders and array.size == field.size:  # a time dim of length 1
        orders = [array.reshape(field.shape)]
    # Both orders may have the shape of the field.
    return min((relative_error(field, order) for order in orders), default=float("inf"))
