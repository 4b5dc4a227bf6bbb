"""Train a model: `python -m credit_jax.train --config FILE`.

Reads CREDIT's gen2 YAML, makes the demo data it may ask for, trains on the mesh of
`trainer.parallelism`, and ends with forecasts from held-out days and their scores.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Final, Literal

import jax
from rich.console import Console

from credit_jax.checkpoint import CheckpointStore
from credit_jax.cli.commands import DIVERGED, FAILED, OK, CommandError, run_module
from credit_jax.cli.options import (
    add_config_options,
    add_process_options,
    add_stop_option,
    add_verify_option,
    join_processes,
    read_config,
    stop_time,
)
from credit_jax.config import Config
from credit_jax.config.messages import counted
from credit_jax.demo.dataset import ensure_demo_data
from credit_jax.io.folder_lock import folder_lock
from credit_jax.io.write_errors import WriteError, writable_folder
from credit_jax.parallel.compiler import CACHE_HELP, compile_sooner, use_cache
from credit_jax.parallel.mesh.devices import training_devices
from credit_jax.parallel.processes.coordinator import wait_for_all
from credit_jax.parallel.processes.exit_code import RESUME
from credit_jax.plan import plan_run
from credit_jax.training.display import Display
from credit_jax.training.earlier_run import end_interrupted_move, refuse_earlier_run
from credit_jax.training.loop import Outcome
from credit_jax.training.non_finite import NonFiniteLossError
from credit_jax.training.profile import parse_updates
from credit_jax.training.report import report_scores
from credit_jax.training.restore import coordinates_at, no_coordinates
from credit_jax.training.run import train as run_training
from credit_jax.training.setup import Setup, prepare
from credit_jax.training.start import asked_by, required_step

HELP = "Train a model of CREDIT's gen2 YAML on a dp x tp x domain mesh."
EXAMPLE = "--config configs/demo.yaml --set trainer.epochs=3"
IF_ANY: Final = "if-any"


def main(argv: Sequence[str] | None = None) -> int:
    """The command line `python -m credit_jax.train`; returns the exit code."""
    return run_module(__name__, argv, prog="python -m credit_jax.train")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `train`."""
    add_config_options(parser)
    add = parser.add_argument
    add(
        "--devices",
        type=int,
        help="devices of all processes; simulated on a CPU-only machine",
    )
    add(
        "--resume",
        nargs="?",
        const=True,
        default=False,
        choices=(IF_ANY,),
        metavar=IF_ANY,
        help="go on from the newest checkpoint; if-any: begin where there is none",
    )
    add(
        "--fresh",
        action="store_true",
        help="begin anew; an earlier run in there is moved to a dated folder",
    )
    add(
        "--save-loc",
        metavar="DIR",
        help="folder of the run, instead of save_loc",
    )
    add("--cache", metavar="DIR", help=CACHE_HELP)
    add_verify_option(parser)
    add_stop_option(parser)
    add(
        "--profile",
        metavar="FIRST:LAST",
        help="trace these updates of this command, counted from 1, for xprof",
    )
    add_process_options(parser)


def run(args: argparse.Namespace) -> int:
    """Trains the model and scores its forecasts.

    Returns:
        0 at the end of a run, `RESUME` if a signal or `--stop-after` ended it after a
        save.

    Raises:
        CommandError: with exit code 3 for a loss that is not finite, 1 if writing
            fails.
        ValueError, OSError: the run cannot start.
    """
    stop_at = stop_time(args)
    if args.fresh and args.resume:
        raise ValueError("--fresh begins anew and --resume goes on; give one of them")
    compile_sooner()
    overrides = [*args.set, *([f"save_loc={args.save_loc}"] if args.save_loc else [])]
    config = read_config(args.config, overrides)
    use_cache(args.cache)
    join_processes(args)
    options = {
        "num_devices": args.devices,
        "resume": args.resume,
        "fresh": args.fresh,
        "verify": args.verify,
        "stop_at": stop_at,
        "profile": parse_updates(args.profile) if args.profile else None,
    }
    try:
        outcome = train(config, **options, source=args.config)
    except NonFiniteLossError as error:
        raise CommandError(str(error), DIVERGED) from error
    except WriteError as error:
        raise CommandError(str(error), FAILED) from error
    return OK if outcome.is_complete else RESUME


def train(
    config: Config,
    *,
    num_devices: int | None = None,
    resume: bool | Literal["if-any"] = False,
    fresh: bool = False,
    verify: bool = True,
    stop_at: float | None = None,
    profile: tuple[int, int] | None = None,
    source: str = "config",
) -> Outcome:
    """Trains the model of a config, as the command does, and scores its forecasts.

    Args:
        config: of `load_config`.
        num_devices: devices to use; None takes as many as `trainer` asks for.
        resume: whether to go on from the newest checkpoint of `save_loc`; "if-any"
            begins where there is none.
        fresh: whether to begin anew where there is an earlier run, which is moved to a
            dated folder in `save_loc`.
        verify: whether to compare its files with their digests first.
        stop_at: when to save and stop, by `time.monotonic`; None for no limit.
        profile: first and last update to trace, counted from 1; None for none.
        source: name of the config in the header of the run.

    Raises:
        ConfigError: the run cannot start; lists all that is wrong.
        NonFiniteLossError: the loss is not finite.
        ValueError: another run uses the folder, it holds an earlier run and neither
            `resume` nor `fresh` is set, or all checkpoints are damaged.
        FileNotFoundError: there is no checkpoint to continue from.
        WriteError: a log or a checkpoint cannot be written.

    >>> options = ["trainer.epochs=1", "trainer.batches_per_epoch=1", "save_loc=NEW"]
    >>> config = credit_jax.load_config("RUN/model.yml", options)
    >>> outcome = credit_jax.train(config, num_devices=1)  # doctest: +ELLIPSIS
    credit_jax  config -> NEW
    ...
    >>> outcome.reason
    'finished'
    """
    if num_devices is None:
        num_devices = config.trainer.num_devices
    devices = training_devices(config.trainer.parallelism, num_devices)
    leads = jax.process_index() == 0
    with (
        writable_folder(config.save_loc, "save_loc (--save-loc)") as folder,
        folder_lock(folder) if leads else nullcontext(),
    ):
        if leads:
            end_interrupted_move(folder)
        if leads and not (resume or fresh or config.trainer.load_weights):
            refuse_earlier_run(folder)
        return _train_in(
            folder,
            config,
            devices,
            resume=resume,
            fresh=fresh,
            verify=verify,
            stop_at=stop_at,
            profile=profile,
            source=source,
        )


def _train_in(
    folder: Path,
    config: Config,
    devices: Sequence[Any],
    *,
    resume: bool | Literal["if-any"],
    fresh: bool,
    verify: bool,
    stop_at: float | None,
    profile: tuple[int, int] | None,
    source: str,
) -> Outcome:
    """`train` in a folder that no other run uses."""
    console = Console()
    if resume == IF_ANY:
        resume = CheckpointStore(folder, verify=False).latest_step() is not None
    like, notes = None, list[str]()
    if resume or config.trainer.load_weights:
        store = CheckpointStore(folder, verify=False)
        step = required_step(store, asked_by(resume=resume))
        like = coordinates_at(store, step)
        notes = [no_coordinates(store.path(step))] if like is None else []
    if config.demo is not None and jax.process_index() == 0:
        ensure_demo_data(config.demo, console)
    wait_for_all("the demo data")
    plan = plan_run(config, num_devices=len(devices), like=like)
    setup = prepare(plan, devices)
    display = Display(console, silent=jax.process_index() > 0)
    for line in header(source, setup):
        display.message(line)
    for note in (*plan.notes, *notes):
        display.message(f"note: {note}")
    outcome = run_training(
        setup,
        folder,
        display,
        resume=resume,
        fresh=fresh,
        verify=verify,
        stop_at=stop_at,
        profile=profile,
    )
    if outcome.is_complete and setup.valid_loader is not None:
        report_scores(setup, folder, outcome, display)
    return outcome


def header(source: str, setup: Setup) -> list[str]:
    """Lines printed before a run: mesh, model, data."""
    model, schema, loader = setup.model_def, setup.schema, setup.train_loader
    devices = setup.mesh.devices.reshape(-1)
    axes = setup.model.axes
    precision = setup.model.parallel_config.precision.compute.name
    valid = setup.valid_loader
    ranks = 1 if setup.config.shares_batches else axes.num_data
    held_out = ""
    if valid is not None:
        seen = valid.seen_in(setup.config.data)
        what = "for validation, not held out" if seen else "held out"
        held_out = f", {len(valid.dataset)} {what}"
    return [
        f"credit_jax  {source} -> {setup.config.save_loc}",
        f"mesh   {axes.summary} on "
        f"{counted(len(devices), f'{devices[0].platform} device')}, {precision}",
        f"model  {setup.config.model['type']}, {model.num_parameters:,} parameters, "
        f"{schema.num_input_channels} -> {schema.num_target_channels} channels on "
        f"{model.image_height} x {model.image_width} points",
        f"data   {counted(len(loader.dataset), 'sample')}{held_out}; "
        f"{setup.batches_per_epoch} batches of "
        f"{setup.config.trainer.train_batch_size * ranks} an epoch",
    ]


if __name__ == "__main__":
    sys.exit(main())
