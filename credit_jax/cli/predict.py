"""One forward pass: `python -m credit_jax.predict --config F --checkpoint DIR ...`.

Evaluation mode: no dropout, spectral norm with the stored vectors. The input is that of
the model: normalized channels in its order, on its grid.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import jax
import numpy as np

from credit_jax.checkpoint.store import label_of
from credit_jax.cli.commands import OK, MeshOptions, WeightsOptions, option, print_line
from credit_jax.config.load import read_model_section
from credit_jax.config.parallelism import parse_parallelism
from credit_jax.forecast import Forecaster
from credit_jax.io.atomic import new_file, refuse_existing
from credit_jax.models.model_def import ModelDef
from credit_jax.nn.context import Noise
from credit_jax.packages.package import open_artifact
from credit_jax.parallel.compiler import CACHE_HELP, compile_sooner, use_cache
from credit_jax.plan import plan_model

INPUT = "(batch, channel, time, lat, lon)"


class Predict(WeightsOptions, MeshOptions):
    """Run one forward pass of a trained or converted model."""

    example = "--config RUN/model.yml --checkpoint RUN --input x.npy --output y.npy"

    config: str = option(
        "the YAML file; its model section counts", metavar="FILE", short="-c"
    )
    checkpoint: str = option("folder of the run", metavar="DIR")
    input: str = option(
        f"x {INPUT}, float32; an .npz of all inputs by name, if there are several",
        metavar="NPY",
    )
    output: str = option(f"y {INPUT}, float32", metavar="NPY")
    seed: int = option("of models that draw noise: a member each", 0)
    cache: str | None = option(CACHE_HELP, None, "DIR")

    def run(self) -> int:
        """Predicts and writes the prediction; after an error no output is written."""
        refuse_existing(Path(self.output), "--output")
        section = read_model_section(self.config)
        parallelism = parse_parallelism(self.parallelism)
        if not (folder := Path(self.output).parent).is_dir():
            raise ValueError(f"--output: there is no folder {folder}")
        use_cache(self.cache)
        compile_sooner()
        devices = self.mesh_devices()
        plan = plan_model(
            section, parallelism, num_devices=len(devices), key="--parallelism"
        )
        model = plan.build(devices, mp_policy=self.policy)
        inputs = read_inputs(self.input, model.model_def)
        weights = open_artifact(
            self.checkpoint, self.step, self.weights, verify=self.verify
        )
        weights.compare({"model": section})
        draws = model.model_def.draws_noise
        noise = Noise(jax.random.key(self.seed)) if draws else None
        y = Forecaster(model, *weights.restore(model))(inputs, noise)
        with new_file(self.output) as partial, partial.open("wb") as file:
            np.save(file, y)
        print_line(
            f"{self.input} {inputs['x'].shape} -> {self.output} {y.shape}, "
            f"{weights.path} ({label_of(average=weights.average)})"
        )
        return OK


main = Predict.main


def read_inputs(path: str, model_def: ModelDef) -> dict[str, np.ndarray]:
    """Reads the model's inputs by name: x of a .npy file, or those of an .npz file."""
    try:
        # Mapped, so that a shape that the file does not hold takes no memory.
        read: Any = np.load(path, mmap_mode="r", allow_pickle=False)
        arrays = {"x": read} if isinstance(read, np.ndarray) else dict(read)
    except (ValueError, EOFError, BadZipFile):
        raise ValueError(
            f"--input: {path} is no .npy or .npz file of numbers; write it with "
            "numpy.save, or numpy.savez for several inputs"
        ) from None
    except MemoryError as error:
        raise ValueError(
            f"--input: {path} asks for more memory than this machine has ({error}); "
            "give fewer samples"
        ) from None
    specs = model_def.inputs
    if arrays.keys() != specs.keys():
        raise ValueError(
            f"--input: {path} holds {', '.join(arrays) or 'no arrays'}, expected "
            f"{', '.join(specs)}, the inputs of {model_def.config.type}"
        )
    for name, x in arrays.items():
        shape = specs[name].shape(1)
        if x.dtype.kind != "f":
            raise ValueError(
                f"--input: {path}: {name} holds {x.dtype}, expected float32"
            )
        if x.shape[1:] != shape[1:] or not x.size:
            dims = INPUT if len(shape) == 5 else "(batch, size)"
            raise ValueError(
                f"--input: {path}: {name} has shape {x.shape}, expected {dims} = "
                f"(1 or more, {', '.join(map(str, shape[1:]))})"
            )
        if not np.isfinite(x).all():
            raise ValueError(f"--input: {path}: {name} has values that are not finite")
    if len({len(x) for x in arrays.values()}) > 1:
        counts = ", ".join(f"{name} {len(x)}" for name, x in arrays.items())
        raise ValueError(f"--input: {path} has other numbers of samples: {counts}")
    return {name: np.asarray(x, np.float32) for name, x in arrays.items()}
