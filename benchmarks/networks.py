"""Networks with all their inputs, including those of diffusion processes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from credit_jax.models.common.config import InputSpec
from credit_jax.models.diffusion.process import TIME, Process
from credit_jax.models.model_def import ModelDef


@dataclass(frozen=True)
class Network(ModelDef):
    """The network of a process as a model, with the noised field as an input.

    A training step then draws no noise, and the loss is that of the network's output.
    """

    @property
    def inputs(self) -> Mapping[str, InputSpec]:
        """See `ModelDef.network_inputs`."""
        return self.network_inputs

    @property
    def process(self) -> Process | None:
        """None: the network is trained without its process."""
        return None


def network_of(model_def: ModelDef) -> ModelDef:
    """The model, or the network of its process."""
    if model_def.process is None:
        return model_def
    return Network(model_def.config, model_def.make, model_def.keep_whole)


def random_arrays(
    model_def: ModelDef, batch: int, rng: np.random.Generator
) -> dict[str, np.ndarray]:
    """A random batch of the network: its inputs and the target "y", float32."""
    specs = {**model_def.network_inputs, "y": model_def.output}
    arrays = {name: rng.normal(size=spec.shape(batch)) for name, spec in specs.items()}
    if model_def.process is not None:
        steps = rng.integers(len(model_def.process.betas), size=(batch, 1))
        arrays[TIME] = steps.astype(float)
    return {name: array.astype(np.float32) for name, array in arrays.items()}
