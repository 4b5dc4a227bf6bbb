"""`inspect`: the contents of a checkpoint, and what each key is converted to."""

from __future__ import annotations

import argparse
from pathlib import Path

from credit_jax.cli.commands import OK, print_line
from credit_torch_bridge.cli.options import add_config_option, config_file

HELP = "List what a checkpoint holds, and what a conversion does to each key."
EXAMPLE = "--checkpoint RUN/checkpoint.pt"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `inspect`."""
    add = parser.add_argument
    add("--checkpoint", required=True, help="file or folder to look at")
    add_config_option(parser)


def run(args: argparse.Namespace) -> int:
    """Prints the contents of a checkpoint."""
    # torch, which --help does not need.
    from credit_torch_bridge.checkpoint.contents import contents

    path = Path(args.checkpoint)
    for line in contents(path, lambda: config_file(args.config, path)):
        print_line(line)
    return OK
