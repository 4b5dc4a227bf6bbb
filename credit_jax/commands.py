"""The shell around every command line: common options, errors and exit codes.

A command is a module with `HELP`, `EXAMPLE`, `add_arguments(parser)` and
`run(args) -> exit code`. Errors of the user are one red line on stderr.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import sys
import warnings
from collections.abc import Mapping, Sequence
from typing import Protocol, cast, runtime_checkable

from rich.console import Console

from credit_jax.config import Config, load_config

OK = 0
FAILED = 1  # a comparison or a check that does not pass
USER_ERROR = 2
DIVERGED = 3  # a loss that is not finite
INTERRUPTED = 130  # 128 + SIGINT, as shells have it


@runtime_checkable
class Command(Protocol):
    """What a module defines to be a command.

    Attributes:
        HELP: one sentence for `--help`.
        EXAMPLE: arguments of a typical call, without the program.
    """

    HELP: str
    EXAMPLE: str

    def add_arguments(self, parser: argparse.ArgumentParser, /) -> None:
        """Adds the options of the command."""
        ...

    def run(self, args: argparse.Namespace, /) -> int:
        """Runs the command and returns its exit code.

        Raises:
            ValueError, OSError, MemoryError: an error of the user; exit code 2.
            CommandError: with an exit code of its own.
        """
        ...


class CommandError(Exception):
    """An error that ends a command with an exit code of its own.

    Args:
        message: the line to print.
        exit_code: see the constants of this module.
    """

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def run_module(name: str, argv: Sequence[str] | None, *, prog: str) -> int:
    """Runs one command, such as `python -m credit_jax.train`.

    Args:
        name: of the imported module that is the command.
        argv: arguments without the program; None takes those of the process.
        prog: the program as a user types it.

    Returns:
        The exit code.
    """
    command = cast(Command, sys.modules[name])
    parser = argparse.ArgumentParser(prog=prog)
    _fill(parser, command)
    return _run(command, parser.parse_args(argv))


def run_group(
    commands: Mapping[str, str],
    argv: Sequence[str] | None,
    *,
    prog: str,
    description: str,
) -> int:
    """Runs one of several commands, chosen by the first argument.

    Args:
        commands: name -> module. Only the chosen one is imported.
        argv: arguments without the program; None takes those of the process.
        prog: the program as a user types it.
        description: of all commands together.

    Returns:
        The exit code.
    """
    given = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(prog=prog, description=description)
    choices = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    wanted = given[:1] if given and given[0] in commands else list(commands)
    modules = {name: load_command(commands[name]) for name in wanted}
    for name, command in modules.items():
        _fill(choices.add_parser(name, help=command.HELP), command)
    args = parser.parse_args(given)
    return _run(modules[args.command], args)


def load_command(module: str) -> Command:
    """Imports the module of a command."""
    return cast(Command, importlib.import_module(module))


def _fill(parser: argparse.ArgumentParser, command: Command) -> None:
    """Adds what a command says of itself, its options, and `--debug`."""
    parser.description = command.HELP
    parser.epilog = f"example: {parser.prog} {command.EXAMPLE}"
    command.add_arguments(parser)
    parser.add_argument(
        "--debug", action="store_true", help="show the traceback of an error"
    )


def _run(command: Command, args: argparse.Namespace) -> int:
    # Orbax and JAX log there what is no news to a user.
    logging.getLogger("absl").setLevel(logging.ERROR)
    try:
        return command.run(args)
    except (CommandError, ValueError, OSError, MemoryError) as error:
        if args.debug:
            raise
        print_line(f"error: {str(error) or type(error).__name__}", "red", stderr=True)
        return error.exit_code if isinstance(error, CommandError) else USER_ERROR
    except KeyboardInterrupt:
        print_line("interrupted", "red", stderr=True)
        return INTERRUPTED


def print_line(text: str, style: str = "", *, stderr: bool = False) -> None:
    """Prints a line as it is: no markup, no line breaks added."""
    console = Console(stderr=stderr)
    console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)


def add_config_options(parser: argparse.ArgumentParser) -> None:
    """Adds `--config` and `--set`, which `read_config` reads."""
    add = parser.add_argument
    add("--config", "-c", required=True, metavar="FILE", help="the YAML file")
    add(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="override a value by its dotted path: trainer.epochs=3; repeatable",
    )


def read_config(path: str, overrides: Sequence[str] = ()) -> Config:
    """Loads a config; its warnings become yellow notes.

    Raises:
        FileNotFoundError, ConfigError: see `load_config`.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        config = load_config(path, overrides)
    for warning in caught:
        print_line(f"note: {warning.message}", "yellow")
    return config
