"""Train a model: `python -m credit_jax.train --config FILE`.

Reads CREDIT's gen2 YAML, makes the demo data it may ask for, trains on the mesh of
`trainer.parallelism`, and ends with a table of errors on held-out days and a figure.
"""

from __future__ import annotations

import argparse
import logging
import sys
import warnings
from collections.abc import Mapping, Sequence

import jax
from rich.console import Console

from credit_jax.check.job import inspect_job
from credit_jax.checkpoint import CheckpointStore
from credit_jax.config import Config, ConfigError, load_config
from credit_jax.data import Loader
from credit_jax.demo.dataset import ensure_demo_data
from credit_jax.parallel.compiler import CACHE_HELP, compile_sooner, use_cache
from credit_jax.parallel.mesh.devices import job_devices
from credit_jax.training.display import Display
from credit_jax.training.loop import EARLY, FINISHED, NonFiniteLossError
from credit_jax.training.restore import asked_by, required_step
from credit_jax.training.run import evaluate, train
from credit_jax.training.setup import Setup, check_writable, prepare

USER_ERROR, DIVERGED, INTERRUPTED = 2, 3, 130


def main(argv: Sequence[str] | None = None) -> int:
    """The command line.

    Args:
        argv: arguments without the program; None takes those of the process.

    Returns:
        0 at the end of a run, also of one that a signal ended after it had saved; 2 for
        an error of the user, 3 for a loss that is not finite.
    """
    args = _parser().parse_args(argv)
    console = Console()
    try:
        run(args, console)
    except NonFiniteLossError as error:
        return _failed(args, console, error, DIVERGED)
    except (ValueError, OSError) as error:
        return _failed(args, console, error, USER_ERROR)
    except KeyboardInterrupt:
        console.print("interrupted")
        return INTERRUPTED
    return 0


def _failed(
    args: argparse.Namespace, console: Console, error: Exception, code: int
) -> int:
    if args.debug:
        raise error
    text = f"error: {error}"
    console.print(text, style="red", markup=False, highlight=False, soft_wrap=True)
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m credit_jax.train",
        description="Train a model of CREDIT's gen2 YAML on a dp x tp x domain mesh.",
    )
    add = parser.add_argument
    add("--config", "-c", required=True, help="the YAML file")
    add(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="override a value by its dotted path: trainer.epochs=3; repeatable",
    )
    add("--devices", type=int, help="devices to use; simulated on a CPU-only machine")
    add("--resume", action="store_true", help="go on from the newest checkpoint")
    add(
        "--save-loc",
        metavar="DIR",
        help="folder of the run, instead of save_loc",
    )
    add("--cache", metavar="DIR", help=CACHE_HELP)
    add(
        "--distributed",
        action="store_true",
        help="one process of a job of several; the launcher tells JAX which",
    )
    add("--debug", action="store_true", help="show where an error comes from")
    return parser


def run(args: argparse.Namespace, console: Console) -> None:
    """Check, train, evaluate."""
    # Orbax and JAX speak of their own affairs there.
    logging.getLogger("absl").setLevel(logging.ERROR)
    compile_sooner()
    config = _read_config(args, console)
    use_cache(args.cache)
    if args.distributed:
        jax.distributed.initialize()
    devices = job_devices(config.trainer, args.devices)
    folder = check_writable(config.save_loc)
    if args.resume or config.trainer.load_weights:
        required_step(CheckpointStore(folder), asked_by(resume=args.resume))
    if config.demo is not None and jax.process_index() == 0:
        ensure_demo_data(config.demo, console)
    loaders = _check_job(config, len(devices))
    setup = prepare(config, devices, loaders)
    display = Display(console, silent=jax.process_index() > 0)
    for line in header(args.config, setup):
        display.message(line)
    outcome = train(setup, folder, display, resume=args.resume)
    if outcome.reason in (FINISHED, EARLY) and setup.valid_loader is not None:
        evaluate(setup, folder, outcome, display)


def _read_config(args: argparse.Namespace, console: Console) -> Config:
    overrides = list(args.set)
    if args.save_loc:
        overrides.append(f"save_loc={args.save_loc}")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        config = load_config(args.config, overrides)
    for warning in caught:
        console.print(f"note: {warning.message}", style="yellow", markup=False)
    return config


def _check_job(config: Config, num_devices: int) -> Mapping[str, Loader]:
    """Every problem of config, model and data at once, before anything is compiled.

    The loaders of the data that were opened for it.
    """
    job = inspect_job(config, num_devices=num_devices)
    missing = [note for note in job.notes if "does not exist" in note]
    if job.problems or missing:
        raise ConfigError(job.problems + missing, "this job cannot run")
    return job.loaders


def header(source: str, setup: Setup) -> list[str]:
    """What a run is, in a few lines."""
    model, schema, loader = setup.model_def, setup.schema, setup.train_loader
    devices = setup.mesh.devices.reshape(-1)
    axes = setup.model.axes
    precision = setup.model.parallel_config.precision.compute.name
    valid = setup.valid_loader
    held_out = "" if valid is None else f", {len(valid.dataset)} held out"
    return [
        f"credit_jax  {source} -> {setup.config.save_loc}",
        f"mesh   dp {axes.num_data} x tp {axes.num_tensor} x domain {axes.num_domain} "
        f"on {len(devices)} {devices[0].platform} device(s), {precision}",
        f"model  {setup.config.model['type']}, {model.num_parameters:,} parameters, "
        f"{schema.num_input_channels} -> {schema.num_target_channels} channels on "
        f"{model.image_height} x {model.image_width} points",
        f"data   {len(loader.dataset)} samples{held_out}; {setup.batches_per_epoch} "
        f"batches of {setup.config.trainer.train_batch_size * axes.num_data} an epoch",
    ]


if __name__ == "__main__":
    sys.exit(main())
