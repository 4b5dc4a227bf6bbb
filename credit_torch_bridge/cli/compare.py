"""`compare`: the same inputs through serial CREDIT and credit_jax."""

from __future__ import annotations

import argparse
from pathlib import Path

from credit_jax.cli.commands import FAILED, OK, CommandError, print_line
from credit_jax.cli.options import add_weights_option
from credit_jax.config.parallelism import parse_parallelism
from credit_torch_bridge.cli.options import add_config_option, config_file

HELP = "Run serial CREDIT and credit_jax side by side; exit code 1 if they differ."
EXAMPLE = "--checkpoint RUN/checkpoint.pt --parallelism tensor=2,domain=2"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `compare`."""
    add = parser.add_argument
    add_config_option(parser)
    add("--checkpoint", required=True, help="of PyTorch, or a run of credit_jax")
    add(
        "--parallelism",
        default="data=none",
        metavar="KEY=N,...",
        help="the mesh of credit_jax: tensor=2,domain=2 (default: one device)",
    )
    add_weights_option(parser)
    add("--batches", type=int, default=1, metavar="N", help="inputs to compare")
    add("--seed", type=int, default=0, help="of the inputs")


def run(args: argparse.Namespace) -> int:
    """Compares and prints the errors.

    Raises:
        CommandError: with exit code 1 if they differ by more than rounding.
    """
    # torch, which --help does not need.
    from credit_torch_bridge.compare.comparison import compare_with_credit

    path = Path(args.checkpoint)
    comparison = compare_with_credit(
        config_file(args.config, path),
        path,
        parallelism=parse_parallelism(args.parallelism),
        batches=args.batches,
        seed=args.seed,
        weights=args.weights,
    )
    for line in comparison.lines():
        print_line(line)
    if not comparison.within_tolerance:
        message = "credit_jax and CREDIT differ by more than rounding"
        raise CommandError(message, FAILED)
    return OK
