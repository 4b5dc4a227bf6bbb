"""Check a run without training: `python -m credit_jax.check --config FILE`."""

import argparse
import sys
from collections.abc import Sequence

from rich.console import Console

from credit_jax.check.tables import plan_tables
from credit_jax.commands import (
    FAILED,
    OK,
    add_config_options,
    print_line,
    read_config,
    run_module,
)
from credit_jax.demo.dataset import expected_files
from credit_jax.plan import RunPlan, plan_run

HELP = (
    "Report channels, geometry, divisibility, parameters and memory of a run, without "
    "training."
)
EXAMPLE = "--config configs/demo.yaml --devices 8"


def main(argv: Sequence[str] | None = None) -> int:
    """The command line `python -m credit_jax.check`; returns the exit code."""
    return run_module(__name__, argv, prog="python -m credit_jax.check")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `check`."""
    add_config_options(parser)
    parser.add_argument("--devices", type=int, help="number of devices to look at")
    parser.add_argument(
        "--no-data",
        dest="data",
        action="store_false",
        help="do not look for the data files",
    )


def run(args: argparse.Namespace) -> int:
    """Prints what a config asks for and whether it can run.

    Returns:
        0 if the run can start, 1 if not.
    """
    try:
        config = read_config(args.config, args.set)
    except (OSError, ValueError) as error:
        print_line(str(error), "bold red")
        return FAILED
    plan = plan_run(
        config,
        num_devices=args.devices,
        with_data=args.data,
        expected_files=expected_files(config.demo) if config.demo else (),
    )
    console = Console()
    for table in plan_tables(plan):
        console.print(table)
    _print_verdict(plan)
    return FAILED if plan.problems else OK


def _print_verdict(plan: RunPlan) -> None:
    for note in plan.notes:
        print_line(f"note: {note}", "yellow")
    if not plan.problems:
        print_line("OK: this run can start.", "bold green")
        return
    count = len(plan.problems)
    print_line(f"{count} problem" + ("s" if count > 1 else "") + ":", "bold red")
    for problem in plan.problems:
        print_line(f"  {problem}", "red")


if __name__ == "__main__":
    sys.exit(main())
