"""Train a model: `python -m credit_jax.train --config FILE`.

Reads CREDIT's gen2 YAML, makes the demo data it may ask for, trains on the mesh of
`trainer.parallelism`, and ends with forecasts from held-out days and their scores.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

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
from credit_jax.io.errors import WriteError
from credit_jax.parallel.compiler import CACHE_HELP, compile_sooner, use_cache
from credit_jax.parallel.processes.exit_code import RESUME
from credit_jax.training.loop import NonFiniteLossError
from credit_jax.training.profile import parse_updates
from credit_jax.training.run import IF_ANY, train_model

HELP = "Train a model of CREDIT's gen2 YAML on a dp x tp x domain mesh."
EXAMPLE = "--config configs/demo.yaml --set trainer.epochs=3"


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
        outcome = train_model(config, **options, source=args.config)
    except NonFiniteLossError as error:
        raise CommandError(str(error), DIVERGED) from error
    except WriteError as error:
        raise CommandError(str(error), FAILED) from error
    return OK if outcome.is_complete else RESUME


if __name__ == "__main__":
    sys.exit(main())
