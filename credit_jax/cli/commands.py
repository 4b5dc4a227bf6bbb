"""Command lines: `credit-jax` and its subcommands, options, errors, exit codes.

A command is a subclass of `Command`. Errors of the user are one red line on stderr.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import logging
import os
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from types import NoneType, UnionType
from typing import Any, ClassVar, Literal, Union, get_args, get_origin

import jax
import shtab
from jaxlib import utils as jaxlib_utils  # type: ignore[attr-defined]
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from pydantic.fields import FieldInfo
from rich.console import Console

from credit_jax.checkpoint.store import CHOICES
from credit_jax.config import Config, load_config, not_available
from credit_jax.config.dates import Timestep, duration
from credit_jax.config.messages import counted, describe, printable
from credit_jax.config.parallelism import parse_parallelism
from credit_jax.config.trainer import MatmulPrecision
from credit_jax.io.activity import Heartbeat, line_written, silence
from credit_jax.io.icechunk import is_repository
from credit_jax.io.mirror import local_path, upload_all
from credit_jax.parallel.compiler import CACHE_HELP, report_stages, use_cache
from credit_jax.parallel.joint import failed_collective
from credit_jax.parallel.mesh.devices import forward_devices
from credit_jax.parallel.params.precision import Precision, default_mp_policy
from credit_jax.parallel.processes import watch
from credit_jax.parallel.processes.connect import connect
from credit_jax.parallel.processes.launch import find_launch, launch_by_hand

OK = 0
FAILED = 1  # a comparison or a check that does not pass
USER_ERROR = 2
DIVERGED = 3  # a loss or a forecast that is not finite
# 75, `parallel.processes.watch.RESUME`: not finished, to be resumed
INTERRUPTED = 130  # 128 + SIGINT, as shells have it

_FATAL = 3  # absl's severity of what ends a process

_MAX_LINES = 24  # of an error, such as of a checkpoint of another model
_LAST_LINES = 3

# Coroutines of Orbax, several of which fail at once.
_READS = ("_read_array_index_and_device_put",)

# Completion in a shell, by the metavar of an option; data may be at an address.
COMPLETED = dict.fromkeys(("FILE", "NPY", "DATA"), shtab.FILE) | {
    "DIR": shtab.DIRECTORY
}


def option(
    text: str, default: Any = ..., metavar: str | None = None, **rules: Any
) -> Any:
    """An option of a command, or its argument: a field of a `Command`."""
    # argparse's; others are pydantic's, such as `ge`. A metavar of `COMPLETED` is a
    # path, in which `~` is the home folder; only DATA may be an address.
    names = ("short", "choices", "nargs", "positional")
    extra = {name: rules.pop(name) for name in names if name in rules}
    return Field(
        default, description=text, title=metavar, json_schema_extra=extra, **rules
    )


class Command(BaseModel):
    """A command: its docstring is the text of `--help`, its fields are its options.

    Names have dashes for underscores. A field that is False by default is a flag; one
    that is True becomes `--no-NAME`. Tuples are options that may be repeated.

    Attributes:
        example: arguments of a typical call, without the program.
        exclusive: names of options of which at most one is allowed.
        one_of: names of options of which exactly one is required.
        repositories: names of options that may be Icechunk repositories.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())
    example: ClassVar[str] = ""
    exclusive: ClassVar[Sequence[str]] = ()
    one_of: ClassVar[Sequence[str]] = ()
    repositories: ClassVar[Sequence[str]] = ()

    debug: bool = option("show the traceback of an error", False)

    @field_validator("*")
    @classmethod
    def _is_local(cls, value: Any, info: Any) -> Any:
        metavar = cls.model_fields[info.field_name].title
        is_path = value and metavar != "DATA" and metavar in COMPLETED
        if info.field_name in cls.repositories and is_repository(value or ""):
            return value
        return local_path(value) if is_path else value

    def run(self) -> int:
        """Runs the command and returns its exit code."""
        # ValueError, OSError and MemoryError are errors of the user, `CommandError` one
        # with another exit code.
        raise NotImplementedError

    @classmethod
    def main(
        cls, argv: Sequence[str] | None = None, *, prog: str = "credit-jax"
    ) -> int:
        """Parses a command line and runs the command."""
        parser = argparse.ArgumentParser(prog=prog)
        cls.fill(parser)
        values = vars(parser.parse_args(argv))
        try:
            return _run(cls.model_validate(values), prog)
        except ValidationError as error:
            lines = [
                ": ".join(
                    [*(f"--{loc}".replace("_", "-") for loc in each["loc"][:1]), text]
                )
                for each in error.errors(include_url=False)
                for text in [describe(each["type"], each["input"], each)]
            ]
            return _failed(ValueError("\n".join(lines)))

    @classmethod
    def fill(cls, parser: argparse.ArgumentParser) -> None:
        """Sets description and example of a parser, and adds the options."""
        parser.description = inspect.getdoc(cls)
        parser.epilog = f"example: {parser.prog} {cls.example}"
        groups: dict[str, Any] = {}
        for names, required in ((cls.exclusive, False), (cls.one_of, True)):
            if names:
                group = parser.add_mutually_exclusive_group(required=required)
                groups |= dict.fromkeys(names, group)
        # Those of the command come before those that it shares.
        for name in dict.fromkeys(
            name for base in cls.__mro__ for name in inspect.get_annotations(base)
        ):
            if name in cls.model_fields:
                _add(groups.get(name, parser), name, cls.model_fields[name])


def _add(parser: Any, name: str, field: FieldInfo) -> None:
    """Adds the option of a field to a parser or a group."""
    key, metavar = field.alias or name, field.title
    union = get_origin(field.annotation) in (Union, UnionType)
    kinds = get_args(field.annotation) if union else (field.annotation,)
    kinds = [kind for kind in kinds if kind is not NoneType]
    values = [v for k in kinds if get_origin(k) is Literal for v in get_args(k)]
    extra: dict[str, Any] = dict(field.json_schema_extra or {})  # type: ignore
    dashed = key.replace("_", "-")
    flags = [f"--{dashed}", *filter(None, [extra.pop("short", None)])]
    keywords: dict[str, Any] = {"dest": key, "default": argparse.SUPPRESS}
    if extra.pop("positional", False):
        flags = [key]
        del keywords["dest"], keywords["default"]
    elif field.is_required():
        keywords["required"] = True
    if kinds == [bool]:
        is_choice = NoneType in get_args(field.annotation)
        keywords["action"] = "store_false" if field.default else "store_true"
        if is_choice:
            keywords["action"] = argparse.BooleanOptionalAction
        elif field.default:
            flags = [f"--no-{dashed}"]
    else:
        keywords["metavar"] = metavar
        if bool in kinds:
            keywords |= {"nargs": "?", "const": True}
        elif get_origin(kinds[0]) is tuple and "nargs" not in extra:
            keywords["action"] = "append"
        if values or extra.get("choices"):
            keywords["choices"] = values or [*extra.pop("choices")]
        if number := {int, float} & {*kinds, *map(type, values)}:
            keywords["type"] = number.pop()
        elif metavar in COMPLETED:
            keywords["type"] = os.path.expanduser
    text = field.description or ""
    if not (field.is_required() or isinstance(field.default, bool | tuple | None)):
        text += f" (default: {field.default})"
    text = text.replace("%", "%%")
    action = parser.add_argument(*flags, help=text, **keywords, **extra)
    if metavar in COMPLETED:
        action.complete = COMPLETED[metavar]


@dataclass(frozen=True)
class CommandEntry:
    """A command, known without importing it."""

    name: str  # class of the command after its module, such as "a.b:Train"
    summary: str  # summary for the list of all commands
    extra: str = ""  # optional dependencies of this project that the module imports
    platforms: str = ""  # default of JAX_PLATFORMS; "" leaves the choice to JAX

    def load(self) -> type[Command]:
        """Imports the command."""
        if self.platforms:
            os.environ.setdefault("JAX_PLATFORMS", self.platforms)
        module, _, name = self.name.partition(":")
        return getattr(importlib.import_module(module), name)


class CommandError(Exception):
    """An error that ends a command with an exit code of its own."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def run_group(
    commands: Mapping[str, CommandEntry],
    argv: Sequence[str] | None,
    *,
    prog: str,
    description: str,
) -> int:
    """Runs one of several commands, chosen by the first argument."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    name = arguments[0] if arguments else "--help"
    if entry := commands.get(name):
        try:
            # Only the module of the chosen command is imported.
            return entry.load().main(arguments[1:], prog=f"{prog} {name}")
        except ModuleNotFoundError as error:
            package = (error.name or "").partition(".")[0]
            if package == entry.name.partition(".")[0] or not entry.extra:
                raise
            return _failed(
                ValueError(
                    f"this command needs {error.name}, which is not installed; install "
                    f"it with: pip install 'credit-jax[{entry.extra}]'"
                )
            )
    if not name.startswith("-"):
        return _failed(not_available("command", name, commands))
    parser = argparse.ArgumentParser(
        prog=prog,
        description=description,
        epilog=f"{prog} COMMAND --help describes a command and gives an example.",
    )
    shtab.add_argument_to(parser, help="print the completion script of a shell")
    versions = [f"{name} {version(name)}" for name in ("credit-jax", "jax", "jaxlib")]
    text = f"{', '.join(versions)}, Python {sys.version.split()[0]}"
    parser.add_argument("--version", action="version", version=text)
    choices = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, entry in commands.items():
        command = choices.add_parser(name, help=entry.summary)
        if "--print-completion" in arguments:
            entry.load().fill(command)
    parser.parse_args(arguments)
    parser.error("the command comes first, its options behind it")


def _run(command: Command, prog: str) -> int:
    code, heartbeat = FAILED, Heartbeat(prog)
    try:
        _silence(debug=command.debug)
        report_stages()
        with heartbeat:
            code = command.run()
    except (CommandError, ValueError, OSError, MemoryError) as error:
        if command.debug:
            raise
        # What fails because another process is gone, within a save or a read, looks
        # like an error of the user.
        watch.wait_for_reason()
        code = _failed(error)
    except KeyboardInterrupt:
        # If it came as a signal, the heartbeat has answered already.
        if not heartbeat.has_answered:
            print_line("interrupted", "red", stderr=True)
        code = INTERRUPTED
    except Exception as error:
        # Of JAX_PLATFORMS=cuda where there is no GPU.
        if command.debug or "initialize backend" not in str(error):
            # In a run of several processes, the loss of another may be the cause.
            if watch.wait_for_reason():
                if command.debug or not (cause := failed_collective(error)):
                    traceback.print_exc()
                else:
                    watch.end_all(watch.RESUME, cause)
            raise
        platforms = os.environ.get("JAX_PLATFORMS", "")
        code = _failed(
            ValueError(
                f"JAX_PLATFORMS={platforms}: {str(error).partition(chr(10))[0]}; unset "
                "it, or set it to cpu or to what this machine has"
            )
        )
    finally:
        try:
            upload_all()
        except (ValueError, OSError) as error:
            code = code or _failed(error)
        watch.leave_others(code)
    return code


def _silence(*, debug: bool) -> None:
    """Silences what libraries log and print about errors that they also raise."""
    # XLA's alarms, such as "Very slow compile?", are logged as errors, too. (JAX's
    # option `jax_logging_level` would also silence its own warnings.)
    if not debug:
        jaxlib_utils.absl_set_min_log_level(_FATAL)
    level = logging.ERROR if debug else logging.CRITICAL
    for name in ("absl", "asyncio"):
        logging.getLogger(name).setLevel(level)
    hook = sys.unraisablehook
    if not (debug or isinstance(hook, partial)):
        sys.unraisablehook = partial(_without_late_callbacks, hook)


def _without_late_callbacks(hook: Callable[[Any], None], unraisable: Any) -> None:
    """An unraisable hook that drops errors of callbacks after an interrupted save."""
    # TensorStore calls back when the event loop of a save or a read that Ctrl-C ended
    # is closed, and goes on with other reads, also while the process ends.
    name = getattr(unraisable.object, "__qualname__", "")
    if str(unraisable.exc_value) != "Event loop is closed" and name not in _READS:
        hook(unraisable)


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


OVERRIDES = "override a value by its dotted path: trainer.epochs=3; repeatable"
VERIFY = "read checkpoints without comparing their files with their digests"
WEIGHTS = "the moving average, if there is one (default), or the last weights"


class ConfigOptions(Command):
    """A config."""

    config: str = option("the YAML file", metavar="FILE", short="-c")
    set: tuple[str, ...] = option(OVERRIDES, (), "KEY=VALUE")

    def read_config(self, *overrides: str, **options: Any) -> Config:
        """Loads the config (`load_config`); its warnings become yellow notes."""
        with warnings_as_notes():
            return load_config(self.config, [*self.set, *overrides], **options)


class WeightsOptions(Command):
    """The weights of a checkpoint of a run."""

    step: int | None = option("which checkpoint (default: the newest)", None)
    weights: str | None = option(WEIGHTS, None, choices=CHOICES)
    verify: bool = option(VERIFY, True)


class MeshOptions(Command):
    """The mesh and the precision of forward passes."""

    parallelism: str = option("the mesh: data=none,tensor=2", "data=none", "KEY=N,...")
    devices: int | None = option(
        "devices to use; simulated on a CPU-only machine", None
    )
    precision: str = option("float32, bfloat16 or float16", "float32")
    matmul_precision: MatmulPrecision = option(
        "of products of float32 arrays; other than highest is TF32 on GPUs", "highest"
    )

    def mesh_devices(self) -> Sequence[Any]:
        """The devices of the mesh."""
        return forward_devices(parse_parallelism(self.parallelism), self.devices)

    @property
    def policy(self) -> Precision:
        """The dtypes of a forward pass."""
        return default_mp_policy(self.precision, matmul_precision=self.matmul_precision)


class StopOption(Command):
    """An end before that of the job."""

    stop_after: Timestep | None = option(
        "save and end with exit code 75 after so long, such as 11h50m, before the "
        "scheduler ends the job",
        None,
        "DURATION",
    )

    def stop_time(self) -> float | None:
        """The time at which `--stop-after` ends the command, or None."""
        if self.stop_after is None:
            return None
        return time.monotonic() + duration(self.stop_after).total_seconds()


class ProcessOptions(Command):
    """The cache of compiled programs, and the processes of a run."""

    cache: str | None = option(CACHE_HELP, None, "DIR")
    distributed: bool | None = option(
        "one process of several, as SLURM, MPI, torchrun, Kubernetes or a TPU pod say "
        "(default: if one of them says so)",
        None,
    )
    coordinator: str | None = option(
        "where process 0 listens, by hand", None, "HOST:PORT"
    )
    process: int | None = option("number of this process, by hand", None, "I")
    processes: int | None = option("how many there are, by hand", None, "N")
    connect_timeout: float = option(
        "how long processes wait for each other", 600, "SECONDS", gt=0, lt=1e9
    )
    heartbeat_timeout: float = option(
        "silence after which a process is lost and the others end",
        100,
        "SECONDS",
        gt=0,
        lt=1e9,
    )

    def join(self) -> None:
        """Takes the cache, and connects to the other processes, if there are any."""
        use_cache(self.cache)
        launch = launch_by_hand(self.coordinator, self.process, self.processes)
        if launch is None and self.distributed is not False:
            launch = find_launch(os.environ)
        if launch is not None:
            silence(is_silent=launch.process > 0)
            timeout, heartbeat = self.connect_timeout, self.heartbeat_timeout
            connect(launch, timeout=timeout, heartbeat=heartbeat)
        elif self.distributed:
            raise ValueError(
                "--distributed: no launcher says which process this is; start it by "
                "srun, mpiexec or torchrun, or give --coordinator HOST:PORT --process "
                "I --processes N"
            )


def print_lines(lines: Iterable[str], style: str = "") -> None:
    """Prints lines, in the first process."""
    for line in lines if jax.process_index() == 0 else ():
        print_line(line, style)


@contextmanager
def warnings_as_notes() -> Iterator[None]:
    """Prints the warnings of the block as yellow notes, unless it raises."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        yield
    for warning in caught:
        print_line(f"note: {warning.message}", "yellow")


def parse_shard(text: str) -> tuple[int, int]:
    """Parses "I/N" into the number of the part, from 1, and the number of parts."""
    number, _, count = text.partition("/")
    if number.isdigit() and count.isdigit() and 1 <= int(number) <= int(count):
        return int(number), int(count)
    raise ValueError(
        f"--shard must be I/N with I from 1 to N, such as 2/8, got {text!r}"
    )
