"""Command line of the bridge: `python -m credit_torch_bridge COMMAND`."""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from credit_torch_bridge.checkpoint.report import ToleranceError

# Converting needs no accelerator.
os.environ.setdefault("JAX_PLATFORMS", "cpu")

# A command is a module: HELP, add_arguments(parser), run(args) -> lines to print.
COMMANDS: Mapping[str, str] = MappingProxyType(
    {
        "convert": "credit_torch_bridge.cli.convert",
        "inspect": "credit_torch_bridge.cli.inspect",
        "compare": "credit_torch_bridge.cli.compare",
        "config": "credit_torch_bridge.cli.config",
    }
)
DIFFERENT, USER_ERROR, INTERRUPTED = 1, 2, 130


def main(argv: Sequence[str] | None = None) -> int:
    """The command line.

    Args:
        argv: arguments without the program; None takes those of the process.

    Returns:
        0; 1 if `compare` finds a difference; 2 for an error of the user or of a file:
        nothing was written then.
    """
    # Orbax and JAX speak of their own affairs there.
    logging.getLogger("absl").setLevel(logging.ERROR)
    modules = {name: importlib.import_module(path) for name, path in COMMANDS.items()}
    args = _parser(modules).parse_args(argv)
    try:
        for line in modules[args.command].run(args):
            print(line)
    except ToleranceError as error:
        print(f"error: {error}", file=sys.stderr)
        return DIFFERENT
    except (ValueError, OSError, MemoryError) as error:
        if args.debug:
            raise
        print(f"error: {error or type(error).__name__}", file=sys.stderr)
        return USER_ERROR
    except KeyboardInterrupt:
        print("interrupted; nothing was written", file=sys.stderr)
        return INTERRUPTED
    return 0


def _parser(modules: Mapping[str, object]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m credit_torch_bridge",
        description="CREDIT's PyTorch checkpoints to credit_jax and back.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, module in modules.items():
        help_text = getattr(module, "HELP", "")
        command = commands.add_parser(name, help=help_text, description=help_text)
        command.add_argument(
            "--debug", action="store_true", help="show where an error comes from"
        )
        getattr(module, "add_arguments")(command)  # noqa: B009
    return parser


if __name__ == "__main__":
    sys.exit(main())
