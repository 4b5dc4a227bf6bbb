"""One forward pass: `python -m credit_jax.predict --config F --checkpoint DIR ...`.

Evaluation mode: no dropout, spectral norm with the stored vectors. The input is what
the model sees: normalized channels in its order, on its grid.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np

from credit_jax.commands import OK, add_mesh_options, add_verify_option, run_module
from credit_jax.config.load import read_model_section
from credit_jax.config.parallelism import parse_parallelism
from credit_jax.inference import Forecaster
from credit_jax.io.atomic import new_file
from credit_jax.models.model_def import ModelDef
from credit_jax.nn.noise import Noise
from credit_jax.parallel.compiler import CACHE_HELP, compile_sooner, use_cache
from credit_jax.parallel.mesh.devices import forward_devices
from credit_jax.parallel.params.precision import default_mp_policy
from credit_jax.plan import plan_model
from credit_jax.training.restore import RunStore, open_run

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
    add("--input", required=True, metavar="NPY", help=f"x {INPUT}, float32")
    add("--output", required=True, metavar="NPY", help=f"y {INPUT}, float32")
    add_mesh_options(parser)
    add_verify_option(parser)
    add("--step", type=int, help="which checkpoint (default: the newest)")
    add("--ema", action="store_true", help="use the moving average of the weights")
    add("--seed", type=int, default=0, help="of models that draw noise: a member each")
    add("--cache", metavar="DIR", help=CACHE_HELP)


def run(args: argparse.Namespace) -> int:
    """Predicts and writes the prediction; after an error no output is written."""
    section = read_model_section(args.config)
    parallelism = parse_parallelism(args.parallelism)
    output = Path(args.output)
    if not output.parent.is_dir():
        raise ValueError(f"--output: there is no folder {output.parent}")
    use_cache(args.cache)
    compile_sooner()
    devices = forward_devices(parallelism, args.devices)
    plan = plan_model(
        section, parallelism, num_devices=len(devices), where="--parallelism"
    )
    model = plan.build(devices, mp_policy=default_mp_policy(args.precision))
    x = read_input(args.input, model.model_def)
    store, newest = open_run(args.checkpoint, verify=args.verify)
    step = newest if args.step is None else args.step
    weights = RunStore(store, model.model_def.param_specs).restore_model(
        step, model, average=args.ema
    )
    draws = model.model_def.draws_noise
    noise = Noise(jax.random.key(args.seed)) if draws else None
    y = Forecaster(model, *weights)(x, noise)
    write_output(output, y)
    print(f"{args.input} {x.shape} -> {args.output} {y.shape}, checkpoint {step}")
    return OK


def read_input(path: str, model_def: ModelDef) -> np.ndarray:
    """The model's input from a .npy file.

    Raises:
        ValueError: it is no array of numbers that the model takes.
    """
    try:
        x = np.load(path, allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise ValueError(
            f"--input: {path} is no .npy file of numbers: {error}"
        ) from None
    if not isinstance(x, np.ndarray) or x.dtype.kind != "f":
        raise ValueError(
            f"--input: {path} holds {getattr(x, 'dtype', 'several arrays')}, expected "
            "one array of float32"
        )
    grid = model_def.image_height, model_def.image_width
    shape = (model_def.input_channels, model_def.frames, *grid)
    if x.ndim != 5 or x.shape[1:] != shape or not len(x):
        raise ValueError(
            f"--input: {path} has shape {x.shape}, expected {INPUT} = "
            f"(1 or more, {', '.join(map(str, shape))})"
        )
    if not np.isfinite(x).all():
        raise ValueError(f"--input: {path} has values that are not finite")
    return np.asarray(x, np.float32)


def write_output(path: Path, y: np.ndarray) -> None:
    """Write a .npy file that appears whole or not at all."""
    with new_file(path) as partial, partial.open("wb") as file:
        np.save(file, y)


if __name__ == "__main__":
    sys.exit(main())
