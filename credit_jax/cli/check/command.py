"""Check a run without training: `python -m credit_jax.check --config FILE`."""

import argparse
import json
import sys
from collections.abc import Sequence

from credit_jax.cli.check.document import document
from credit_jax.cli.check.report import CheckReport, check_config
from credit_jax.cli.check.tables import channel_table, plan_tables
from credit_jax.cli.commands import FAILED, OK, print_line, run_module
from credit_jax.cli.options import add_config_options
from credit_jax.io.tables import print_table
from credit_jax.plan.roofline import DEVICES

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
        "--device",
        choices=DEVICES,
        help="state the least time of a step on this accelerator (docs/checking.md)",
    )
    parser.add_argument(
        "--no-data",
        dest="data",
        action="store_false",
        help="do not look for the data files",
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="print one JSON document instead of tables (docs/checking.md)",
    )


def run(args: argparse.Namespace) -> int:
    """Prints the plan of a config and its problems.

    Returns:
        0 if the run can start, 1 if not.
    """
    report = check_config(
        args.config,
        args.set,
        num_devices=args.devices,
        with_data=args.data,
        device=args.device,
    )
    if args.json:
        print(json.dumps(document(report), indent=1))
    else:
        _print(report, with_data=args.data)
    return FAILED if report.problems else OK


def _print(report: CheckReport, *, with_data: bool) -> None:
    if report.plan is not None and report.trains:
        for table in plan_tables(report.plan, report.bound):
            print_table(table)
    elif report.schema is not None:
        print_table(channel_table(report.schema))
    for key, why in report.ignored.items():
        print_line(f"ignored: {key}: {why}", "yellow")
    for note in report.notes:
        print_line(f"note: {note}", "yellow")
    if report.bound is not None:
        print_line(report.bound.explanation)
    if not report.problems:
        print_line(_verdict(report, with_data=with_data), "bold green")
        return
    count = len(report.problems)
    print_line(f"{count} problem" + ("s" if count > 1 else "") + ":", "bold red")
    for problem in report.problems:
        print_line(f"  {problem}", "red")


def _verdict(report: CheckReport, *, with_data: bool) -> str:
    """The last line of a report without problems."""
    if not report.trains:
        return (
            "OK so far: for forecasts, which need neither loss nor trainer; their data "
            "are looked for by `forecast`, from its start dates."
        )
    if with_data:
        return "OK: this run can start."
    return "OK so far: data and other files have not been looked at (--no-data)."


if __name__ == "__main__":
    sys.exit(main())
