"""Common parts of all command lines: options, errors and exit codes.

A command is a module with `HELP`, `EXAMPLE`, `add_arguments(parser)` and
`run(args) -> exit code`. Errors of the user are one red line on stderr.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import math
import os
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Protocol, cast, runtime_checkable

import shtab
from rich.console import Console

from credit_jax.config import Config, load_config
from credit_jax.config.base import not_available
from credit_jax.config.dates import duration
from credit_jax.parallel.joint import failed_collective
from credit_jax.parallel.processes.connect import connect
from credit_jax.parallel.processes.exit_code import RESUME
from credit_jax.parallel.processes.launch import find_launch, launch_by_hand
from credit_jax.parallel.processes.watch import end_all, leave_others, wait_for_reason

OK = 0
FAILED = 1  # a comparison or a check that does not pass
USER_ERROR = 2
DIVERGED = 3  # a loss or a forecast that is not finite
# 75, `parallel.processes.exit_code.RESUME`: not finished, to be resumed
INTERRUPTED = 130  # 128 + SIGINT, as shells have it

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
class Entry:
    """Module and summary of a command, known without importing it.

    Attributes:
        module: name of the module that is the command.
        summary: for the list of all commands.
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
        name: of the imported module that is the command.
        argv: arguments without the program; None takes those of the process.
        prog: the program as a user types it.

    Returns:
        The exit code.
    """
    return _parse_and_run(cast(Command, sys.modules[name]), argv, prog)


def run_group(
    commands: Mapping[str, Entry],
    argv: Sequence[str] | None,
    *,
    prog: str,
    description: str,
) -> int:
    """Runs one of several commands, chosen by the first argument.

    Only the module of the chosen command is imported.
    `--print-completion SHELL` prints a shell-completion script for all of them.

    Args:
        commands: by name.
        argv: arguments without the program; None takes those of the process.
        prog: the program as a user types it.
        description: of all commands together.

    Returns:
        The exit code.
    """
    given = list(sys.argv[1:] if argv is None else argv)
    if given and given[0] in commands:
        try:
            command = load_command(commands[given[0]])
        except CommandError as error:
            return _failed(error)
        return _parse_and_run(command, given[1:], f"{prog} {given[0]}")
    if given and not given[0].startswith("-"):
        return _failed(not_available("command", given[0], commands))
    parser = argparse.ArgumentParser(
        prog=prog,
        description=description,
        epilog=f"{prog} COMMAND --help describes a command and gives an example.",
    )
    shtab.add_argument_to(parser, help="print the completion script of a shell")
    _list_commands(parser, commands, options="--print-completion" in given)
    parser.parse_args(given)
    parser.error("the command comes first, its options behind it")


def _list_commands(
    parser: argparse.ArgumentParser, commands: Mapping[str, Entry], *, options: bool
) -> None:
    """Adds the commands; `options` also adds the options of importable ones."""
    choices = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, entry in commands.items():
        command = choices.add_parser(name, help=entry.summary)
        if options:
            with suppress(CommandError):
                _fill(command, load_command(entry))


def load_command(entry: Entry) -> Command:
    """Imports the module of a command.

    Raises:
        CommandError: a package that the entry's extra installs is missing.
    """
    if entry.platforms:
        os.environ.setdefault("JAX_PLATFORMS", entry.platforms)
    try:
        return cast(Command, importlib.import_module(entry.module))
    except ModuleNotFoundError as error:
        ours = (error.name or "").partition(".")[0] == entry.module.partition(".")[0]
        if ours or not entry.extra:
            raise
        raise CommandError(
            f"this command needs {error.name}, which is not installed; install it "
            f"with: pip install 'credit-jax[{entry.extra}]'",
            USER_ERROR,
        ) from error


def _parse_and_run(command: Command, argv: Sequence[str] | None, prog: str) -> int:
    parser = argparse.ArgumentParser(prog=prog)
    _fill(parser, command)
    return _run(command, parser.parse_args(argv))


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


def _run(command: Command, args: argparse.Namespace) -> int:
    code = FAILED
    try:
        _silence(debug=args.debug)
        code = _run_alone(command, args)
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


def _run_alone(command: Command, args: argparse.Namespace) -> int:
    try:
        return command.run(args)
    except (CommandError, ValueError, OSError, MemoryError) as error:
        if args.debug:
            raise
        return _failed(error)
    except KeyboardInterrupt:
        print_line("interrupted", "red", stderr=True)
        return INTERRUPTED


def _silence(*, debug: bool) -> None:
    """Silences what libraries log and print about errors that they also raise."""
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

    def __call__(self, found: Any) -> None:
        name = getattr(found.object, "__qualname__", "")
        if str(found.exc_value) != "Event loop is closed" and name not in _READS:
            self.hook(found)


def _failed(error: Exception) -> int:
    print_line(f"error: {str(error) or type(error).__name__}", "red", stderr=True)
    return error.exit_code if isinstance(error, CommandError) else USER_ERROR


def print_line(text: str, style: str = "", *, stderr: bool = False) -> None:
    """Prints a line verbatim: no markup, no added line breaks."""
    console = Console(stderr=stderr)
    console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)


def add_config_options(
    parser: argparse.ArgumentParser, *, required: bool = True
) -> None:
    """Adds `--config` and `--set`, which `read_config` reads."""
    add = parser.add_argument
    add("--config", "-c", required=required, metavar="FILE", help="the YAML file")
    add(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="override a value by its dotted path: trainer.epochs=3; repeatable",
    )


def add_mesh_options(parser: argparse.ArgumentParser) -> None:
    """Adds `--parallelism`, `--devices` and `--precision`, for forward passes."""
    add = parser.add_argument
    add(
        "--parallelism",
        default="data=none",
        metavar="KEY=N,...",
        help="the mesh: data=none,tensor=2,domain=2 (default: one device)",
    )
    add("--devices", type=int, help="devices to use; simulated on a CPU-only machine")
    add(
        "--precision",
        default="float32",
        help="float32 (default), bfloat16 or float16",
    )


def add_verify_option(parser: argparse.ArgumentParser) -> None:
    """Adds `--no-verify`, for commands that read checkpoints."""
    parser.add_argument(
        "--no-verify",
        dest="verify",
        action="store_false",
        help="read checkpoints without comparing their files with their digests",
    )


def add_stop_option(parser: argparse.ArgumentParser) -> None:
    """Adds `--stop-after`, which `stop_time` reads."""
    parser.add_argument(
        "--stop-after",
        metavar="DURATION",
        help="save and end with exit code 75 after so long, such as 11h50m, before "
        "the scheduler ends the job",
    )


def stop_time(args: argparse.Namespace) -> float | None:
    """Returns the time at which `--stop-after` ends the command, or None.

    Raises:
        ValueError: the value is not a positive duration.
    """
    if args.stop_after is None:
        return None
    try:
        seconds = duration(args.stop_after).total_seconds()
    except ValueError:
        seconds = 0.0
    if not seconds > 0:
        raise ValueError(
            f"--stop-after must be a duration such as 11h50m, got {args.stop_after!r}"
        )
    return time.monotonic() + seconds


def add_process_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of runs of several processes, which `join_processes` reads."""
    add = parser.add_argument
    add(
        "--distributed",
        action=argparse.BooleanOptionalAction,
        help="one process of several, as SLURM, MPI, torchrun, Kubernetes or a TPU pod "
        "say (default: if one of them says so)",
    )
    add("--coordinator", metavar="HOST:PORT", help="where process 0 listens, by hand")
    add("--process", type=int, metavar="I", help="number of this process, by hand")
    add("--processes", type=int, metavar="N", help="how many there are, by hand")
    add(
        "--connect-timeout",
        type=_seconds,
        default=600,
        metavar="SECONDS",
        help="how long processes wait for each other (default: 600)",
    )
    add(
        "--heartbeat-timeout",
        type=_seconds,
        default=100,
        metavar="SECONDS",
        help="silence after which a process is lost and the others end (default: 100)",
    )


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"must be seconds above zero, got {text!r}")
    return seconds


def join_processes(args: argparse.Namespace) -> None:
    """Connects to the other processes of a run, if there are any.

    To be called before JAX is used. Each process prints one line when its devices are
    known (`parallel.processes.connect.announce`).

    Raises:
        ValueError: options or variables of a launcher do not fit together.
        OSError: the processes did not find each other.
    """
    launch = launch_by_hand(args.coordinator, args.process, args.processes)
    if launch is None and args.distributed is not False:
        launch = find_launch(os.environ)
    if launch is not None:
        connect(
            launch,
            timeout=args.connect_timeout,
            heartbeat=args.heartbeat_timeout,
        )
    elif args.distributed:
        raise ValueError(
            "--distributed: no launcher says which process this is; start it by srun, "
            "mpiexec or torchrun, or give --coordinator HOST:PORT --process I "
            "--processes N"
        )


def read_config(path: str, overrides: Sequence[str] = (), **options: Any) -> Config:
    """Loads a config (`load_config`); its warnings become yellow notes.

    Raises:
        FileNotFoundError, ConfigError: see `load_config`.
    """
    with warnings_as_notes():
        return load_config(path, overrides, **options)


@contextmanager
def warnings_as_notes() -> Iterator[None]:
    """Prints the warnings of the block as yellow notes, unless it raises."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        yield
    for warning in caught:
        print_line(f"note: {warning.message}", "yellow")
