"""Make the demo data set: `python -m credit_jax.demo --out DIR --days N`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from rich.console import Console

from credit_jax.cli.commands import OK, print_line, run_module
from credit_jax.config import parse
from credit_jax.config.demo import DemoConfig, ForcingConfig
from credit_jax.demo.dataset import ensure_demo_data

HELP = "Make the demo data set with the dynamical core of dinosaur."
EXAMPLE = "--out demo_data/T21 --days 365"


def main(argv: Sequence[str] | None = None) -> int:
    """The command line `python -m credit_jax.demo`; returns the exit code."""
    return run_module(__name__, argv, prog="python -m credit_jax.demo")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `demo`."""
    add = parser.add_argument
    add("--out", required=True, metavar="DIR", help="folder to make")
    add("--truncation", default="T21", help="T21 (32 x 64 points), T42 (64 x 128)")
    defaults = DemoConfig(out="")
    for name in ("days", "spinup_days", "held_out_days", "seed"):
        value = getattr(defaults, name)
        flag = "--" + name.replace("_", "-")
        add(flag, type=int, default=value, help=f"default {value}")
    for name, value in ForcingConfig().model_dump().items():
        flag = "--" + name.replace("_", "-")
        add(flag, type=float, default=value, help=f"of the forcing, default {value}")


def run(args: argparse.Namespace) -> int:
    """Generates the data set, unless the folder already has it."""
    console = Console(stderr=True)
    forcing = {name: getattr(args, name) for name in ForcingConfig.model_fields}
    names = DemoConfig.model_fields.keys() - {"forcing"}
    values = {name: getattr(args, name) for name in names} | {"forcing": forcing}
    folder = ensure_demo_data(parse(DemoConfig, values, source="demo"), console)
    print_line(f"{folder} is complete.", stderr=True)
    return OK


if __name__ == "__main__":
    sys.exit(main())
