"""One forward pass: `python -m credit_jax.predict --config F --checkpoint DIR ...`.

Evaluation mode: no dropout, spectral norm with the stored vectors. The input is that of
the model: normalized channels in its order, on its grid.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import jax
import numpy as np

from credit_jax.checkpoint.store import label_of
from credit_jax.cli.commands import OK, print_line, run_module
from credit_jax.cli.options import (
    add_mesh_options,
    add_verify_option,
    add_weights_option,
)
from credit_jax.config.load import read_model_section
from credit_jax.config.parallelism import parse_parallelism
from credit_jax.forecast import Forecaster
from credit_jax.io.atomic import new_file, refuse_existing
from credit_jax.models.model_def import ModelDef
from credit_jax.nn.noise import Noise
from credit_jax.parallel.compiler import CACHE_HELP, compile_sooner, use_cache
from credit_jax.parallel.mesh.devices import forward_devices
from credit_jax.parallel.params.precision import default_mp_policy
from credit_jax.plan import plan_model
from credit_jax.training.run_weights import open_weights

HELP = "Run one forward pass of a trained or converted model."
EXAMPLE = "--config RUN/model.yml --checkpoint RUN --input x.npy --output y.npy"
INPUT = "(batch, channel, time, lat, lon)"


def main(argv: Sequence[str] | None = None) -> int:
    """The command line `python -m credit_jax.predict`; returns the exit code."""
    return run_module(__name__, argv, prog="python -m credit_jax.predict")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `predict`."""
    add = parser.add_argument
    add("--config", "-c", required=True, help="the YAML file; its model section counts")
    add("--checkpoint", required=True, metavar="DIR", help="folder of the run")
    add(
        "--input",
        required=True,
        metavar="NPY",
        help=f"x {INPUT}, float32; an .npz of all inputs by name, if there are several",
    )
    add("--output", required=True, metavar="NPY", help=f"y {INPUT}, float32")
    add_mesh_options(parser)
    add_verify_option(parser)
    add("--step", type=int, help="which checkpoint (default: the newest)")
    add_weights_option(parser)
    add("--seed", type=int, default=0, help="of models that draw noise: a member each")
    add("--cache", metavar="DIR", help=CACHE_HELP)


def run(args: argparse.Namespace) -> int:
    """Predicts and writes the prediction; after an error no output is written.

    Raises:
        ValueError, OSError: an option, the input or the checkpoint is invalid.
    """
    output = Path(args.output)
    refuse_existing(output, "--output")
    section = read_model_section(args.config)
    parallelism = parse_parallelism(args.parallelism)
    if not output.parent.is_dir():
        raise ValueError(f"--output: there is no folder {output.parent}")
    use_cache(args.cache)
    compile_sooner()
    devices = forward_devices(parallelism, args.devices)
    plan = plan_model(
        section, parallelism, num_devices=len(devices), where="--parallelism"
    )
    policy = default_mp_policy(args.precision, matmul_precision=args.matmul_precision)
    model = plan.build(devices, mp_policy=policy)
    inputs = read_inputs(args.input, model.model_def)
    weights = open_weights(args.checkpoint, args.step, args.weights, verify=args.verify)
    weights.compare({"model": section})
    draws = model.model_def.draws_noise
    noise = Noise(jax.random.key(args.seed)) if draws else None
    y = Forecaster(model, *weights.restore(model))(inputs, noise)
    write_output(output, y)
    shape = inputs["x"].shape
    print_line(
        f"{args.input} {shape} -> {args.output} {y.shape}, {weights.path} "
        f"({label_of(average=weights.average)})"
    )
    return OK


def read_inputs(path: str, model_def: ModelDef) -> dict[str, np.ndarray]:
    """Reads the model's inputs by name: x of a .npy file, or those of an .npz file.

    Raises:
        ValueError: names, shapes or dtypes are not those of the model, or values are
            not finite.
    """
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
    inputs = {k: _checked(x, specs[k].shape(1), k, path) for k, x in arrays.items()}
    if len({len(x) for x in inputs.values()}) > 1:
        counts = ", ".join(f"{k} {len(x)}" for k, x in inputs.items())
        raise ValueError(f"--input: {path} has other numbers of samples: {counts}")
    return inputs


def _checked(x: np.ndarray, shape: tuple[int, ...], name: str, path: str) -> np.ndarray:
    """An input as float32, of any number of samples."""
    if x.dtype.kind != "f":
        raise ValueError(
            f"--input: {path}: {name} holds {x.dtype}, expected an array of float32"
        )
    if x.shape[1:] != shape[1:] or not x.size:
        dims = INPUT if len(shape) == 5 else "(batch, size)"
        raise ValueError(
            f"--input: {path}: {name} has shape {x.shape}, expected {dims} = "
            f"(1 or more, {', '.join(map(str, shape[1:]))})"
        )
    if not np.isfinite(x).all():
        raise ValueError(f"--input: {path}: {name} has values that are not finite")
    return np.asarray(x, np.float32)


def write_output(path: Path, y: np.ndarray) -> None:
    """Writes a .npy file atomically."""
    with new_file(path) as partial, partial.open("wb") as file:
        np.save(file, y)


if __name__ == "__main__":
    sys.exit(main())
