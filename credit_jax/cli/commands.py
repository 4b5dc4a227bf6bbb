"""Common parts of all command lines: running them, errors and exit codes.

A command is a module with `HELP`, `EXAMPLE`, `add_arguments(parser)` and
`run(args) -> exit code`. Errors of the user are one red line on stderr.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol, cast, runtime_checkable

import shtab
from jaxlib import utils as jaxlib_utils  # type: ignore[attr-defined]
from rich.console import Console

from credit_jax.config import not_available
from credit_jax.config.messages import counted, printable
from credit_jax.io.activity import Heartbeat, line_written
from credit_jax.parallel.compiler import report_stages
from credit_jax.parallel.joint import failed_collective
from credit_jax.parallel.processes.exit_code import RESUME
from credit_jax.parallel.processes.watch import end_all, leave_others, wait_for_reason

OK = 0
FAILED = 1  # a comparison or a check that does not pass
USER_ERROR = 2
DIVERGED = 3  # a loss or a forecast that is not finite
# 75, `parallel.processes.exit_code.RESUME`: not finished, to be resumed
INTERRUPTED = 130  # 128 + SIGINT, as shells have it

_FATAL = 3  # absl's severity of what ends a process

_MAX_LINES = 24  # of an error, such as of a checkpoint of another model
_LAST_LINES = 3

# Coroutines of Orbax, several of which fail at once.
_READS = ("_read_array_index_and_device_put",)

# Completion in a shell, by the metavar of an option.
COMPLETED = {"FILE": shtab.FILE, "NPY": shtab.FILE, "DIR": shtab.DIRECTORY}


@runtime_checkable
class Command(Protocol):
    """The interface of a module that is a command.

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
            CommandError: an error with another exit code.
        """
        ...


@dataclass(frozen=True)
class CommandEntry:
    """Module and summary of a command, known without importing it.

    Attributes:
        module: name of the module that is the command.
        summary: summary for the list of all commands.
        extra: optional dependencies of this project that the module imports.
        platforms: default of JAX_PLATFORMS; "" leaves the choice to JAX.
    """

    module: str
    summary: str
    extra: str = ""
    platforms: str = ""


class CommandError(Exception):
    """An error that ends a command with a given exit code.

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
        name: name of the imported module that is the command.
        argv: arguments without the program; None takes those of the process.
        prog: the program as a user types it.

    Returns:
        The exit code.
    """
    return _parse_and_run(cast(Command, sys.modules[name]), argv, prog)


def run_group(
    commands: Mapping[str, CommandEntry],
    argv: Sequence[str] | None,
    *,
    prog: str,
    description: str,
) -> int:
    """Runs one of several commands, chosen by the first argument.

    Only the module of the chosen command is imported.
    `--print-completion SHELL` prints a shell-completion script for all of them.

    Args:
        commands: commands by name.
        argv: arguments without the program; None takes those of the process.
        prog: the program as a user types it.
        description: description of all commands together.

    Returns:
        The exit code.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments and arguments[0] in commands:
        entry = commands[arguments[0]]
        try:
            with _needed(entry):
                command = load_command(entry)
                return _parse_and_run(command, arguments[1:], f"{prog} {arguments[0]}")
        except CommandError as error:
            return _failed(error)
    if arguments and not arguments[0].startswith("-"):
        return _failed(not_available("command", arguments[0], commands))
    parser = argparse.ArgumentParser(
        prog=prog,
        description=description,
        epilog=f"{prog} COMMAND --help describes a command and gives an example.",
    )
    shtab.add_argument_to(parser, help="print the completion script of a shell")
    parser.add_argument("--version", action="version", version=_version())
    _list_commands(parser, commands, options="--print-completion" in arguments)
    parser.parse_args(arguments)
    parser.error("the command comes first, its options behind it")


def _list_commands(
    parser: argparse.ArgumentParser,
    commands: Mapping[str, CommandEntry],
    *,
    options: bool,
) -> None:
    """Adds the commands; `options` also adds the options of importable ones."""
    choices = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, entry in commands.items():
        command = choices.add_parser(name, help=entry.summary)
        if options:
            _fill(command, load_command(entry))


def load_command(entry: CommandEntry) -> Command:
    """Imports the module of a command."""
    if entry.platforms:
        os.environ.setdefault("JAX_PLATFORMS", entry.platforms)
    return cast(Command, importlib.import_module(entry.module))


@contextmanager
def _needed(entry: CommandEntry) -> Iterator[None]:
    """Turns a missing package that the entry's extra installs into a CommandError."""
    try:
        yield
    except ModuleNotFoundError as error:
        ours = (error.name or "").partition(".")[0] == entry.module.partition(".")[0]
        if ours or not entry.extra:
            raise
        raise CommandError(
            f"this command needs {error.name}, which is not installed; install it "
            f"with: pip install 'credit-jax[{entry.extra}]'",
            USER_ERROR,
        ) from error


def _version() -> str:
    """The versions of this package and of JAX."""
    versions = [f"{name} {version(name)}" for name in ("credit-jax", "jax", "jaxlib")]
    return f"{', '.join(versions)}, Python {sys.version.split()[0]}"


def _parse_and_run(command: Command, argv: Sequence[str] | None, prog: str) -> int:
    parser = argparse.ArgumentParser(prog=prog)
    _fill(parser, command)
    return _run(command, _at_home(parser, parser.parse_args(argv)), prog)


def _at_home(
    parser: argparse.ArgumentParser, args: argparse.Namespace
) -> argparse.Namespace:
    """The arguments with paths below the home folder written out.

    A shell leaves the tilde of `--out=~/runs` as it is.
    """
    for action in parser._actions:
        value = getattr(args, action.dest, None)
        if action.metavar in COMPLETED and isinstance(value, str | Path):
            home = os.path.expanduser(value)
            setattr(args, action.dest, type(value)(home))
    return args


def _fill(parser: argparse.ArgumentParser, command: Command) -> None:
    """Sets description and example of a command; adds its options and `--debug`."""
    parser.description = command.HELP
    parser.epilog = f"example: {parser.prog} {command.EXAMPLE}"
    command.add_arguments(parser)
    parser.add_argument(
        "--debug", action="store_true", help="show the traceback of an error"
    )
    for action in parser._actions:
        if action.metavar in COMPLETED:
            action.complete = COMPLETED[action.metavar]  # type: ignore[attr-defined]


def _run(command: Command, args: argparse.Namespace, prog: str) -> int:
    code = FAILED
    try:
        _silence(debug=args.debug)
        report_stages()
        code = _run_alone(command, args, prog)
    except Exception as error:
        # In a run of several processes, the loss of another one may be the cause.
        if wait_for_reason():
            if args.debug or not (cause := failed_collective(error)):
                traceback.print_exc()
            else:
                end_all(RESUME, cause)
        raise
    finally:
        leave_others(code)
    return code


def _run_alone(command: Command, args: argparse.Namespace, prog: str) -> int:
    heartbeat = Heartbeat(prog)
    try:
        with heartbeat:
            return command.run(args)
    except (CommandError, ValueError, OSError, MemoryError) as error:
        if args.debug:
            raise
        # What fails because another process is gone, within a save or a read, looks
        # like an error of the user.
        wait_for_reason()
        return _failed(error)
    except RuntimeError as error:
        # Of JAX_PLATFORMS=cuda where there is no GPU.
        if args.debug or "initialize backend" not in str(error):
            raise
        platforms = os.environ.get("JAX_PLATFORMS", "")
        reason = str(error).partition("\n")[0]
        return _failed(
            ValueError(
                f"JAX_PLATFORMS={platforms}: {reason}; unset it, or set it to cpu or "
                "to what this machine has"
            )
        )
    except KeyboardInterrupt:
        # If it came as a signal, the heartbeat has answered already.
        if not heartbeat.has_answered:
            print_line("interrupted", "red", stderr=True)
        return INTERRUPTED


def _silence(*, debug: bool) -> None:
    """Silences what libraries log and print about errors that they also raise.

    XLA's alarms, such as "Very slow compile?", are logged as errors, too. (JAX's option
    `jax_logging_level` would also silence its own warnings.)
    """
    if not debug:
        jaxlib_utils.absl_set_min_log_level(_FATAL)
    level = logging.ERROR if debug else logging.CRITICAL
    for name in ("absl", "asyncio"):
        logging.getLogger(name).setLevel(level)
    hook = sys.unraisablehook
    if not (debug or isinstance(hook, _WithoutLateCallbacks)):
        sys.unraisablehook = _WithoutLateCallbacks(hook)


class _WithoutLateCallbacks:
    """An unraisable hook that drops errors of callbacks after a failed save or read.

    TensorStore calls back when the event loop of a failed save is closed, and goes on
    with other reads after one of them has failed, also while the process ends.
    """

    def __init__(self, hook: Callable[[Any], None]) -> None:
        self.hook = hook

    def __call__(self, unraisable: Any) -> None:
        name = getattr(unraisable.object, "__qualname__", "")
        if str(unraisable.exc_value) != "Event loop is closed" and name not in _READS:
            self.hook(unraisable)


def _failed(error: Exception) -> int:
    lines = (str(error) or type(error).__name__).split("\n")
    if (more := len(lines) - _MAX_LINES) > 0:
        # The last lines say what to do.
        cut = f"  and {counted(more, 'more line')}; --debug shows all"
        lines[_MAX_LINES - _LAST_LINES : -_LAST_LINES] = [cut]
    print_line("error: " + "\n".join(lines), "red", stderr=True)
    return error.exit_code if isinstance(error, CommandError) else USER_ERROR


def print_line(text: str, style: str = "", *, stderr: bool = False) -> None:
    """Prints a line verbatim: no markup, no added line breaks, no terminal escapes."""
    console = Console(stderr=stderr)
    text = printable(text)
    console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)
    line_written()
