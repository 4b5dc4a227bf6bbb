"""Command line of `credit_jax.check`; ends with 1 if a job cannot run."""

import argparse
import sys
from collections.abc import Sequence

from rich.console import Console

from credit_jax.check.job import Job, inspect_job
from credit_jax.check.tables import job_tables
from credit_jax.config.load import load_config


def main(argv: Sequence[str] | None = None) -> int:
    """Print what a config asks for and whether it can run.

    Args:
        argv: the command line without the program; None takes that of the process.

    Returns:
        0 if the job can run, 1 if not.
    """
    args = _parser().parse_args(argv)
    console = Console()
    try:
        config = load_config(args.config, args.set)
    except (OSError, ValueError) as error:
        _say(console, str(error), "bold red")
        return 1
    job = inspect_job(config, num_devices=args.devices, with_data=args.data)
    for table in job_tables(job):
        console.print(table)
    _print_verdict(console, job)
    return 1 if job.problems else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m credit_jax.check",
        description="Report channels, geometry, divisibility, parameters and memory of "
        "a training job, without training.",
    )
    parser.add_argument("--config", "-c", required=True, help="the YAML file")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="override a value by its dotted path (repeatable)",
    )
    parser.add_argument("--devices", type=int, help="number of devices to look at")
    parser.add_argument(
        "--no-data",
        dest="data",
        action="store_false",
        help="do not look for the data files",
    )
    return parser


def _print_verdict(console: Console, job: Job) -> None:
    for note in job.notes:
        _say(console, f"note: {note}", "yellow")
    if not job.problems:
        _say(console, "OK: this job can run.", "bold green")
        return
    count = len(job.problems)
    _say(console, f"{count} problem" + ("s" if count > 1 else "") + ":", "bold red")
    for problem in job.problems:
        _say(console, f"  {problem}", "red")


def _say(console: Console, text: str, style: str) -> None:
    """Print a line as it is: no markup, no line breaks."""
    console.print(text, style=style, highlight=False, markup=False, soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())
