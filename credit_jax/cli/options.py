"""Options that several commands have, and what they give."""

from __future__ import annotations

import argparse
import math
import os
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, get_args

from credit_jax.checkpoint.store import CHOICES
from credit_jax.cli.commands import print_line
from credit_jax.config import Config, load_config
from credit_jax.config.dates import duration
from credit_jax.config.trainer import MatmulPrecision
from credit_jax.io.activity import silence
from credit_jax.parallel.processes.connect import connect
from credit_jax.parallel.processes.launch import find_launch, launch_by_hand


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
    """Adds the options of forward passes: the mesh, and the precision."""
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
    add(
        "--matmul-precision",
        default="highest",
        choices=get_args(MatmulPrecision),
        help="of products of float32 arrays; other than highest is TF32 on GPUs",
    )


def add_verify_option(parser: argparse.ArgumentParser) -> None:
    """Adds `--no-verify`, for commands that read checkpoints."""
    parser.add_argument(
        "--no-verify",
        dest="verify",
        action="store_false",
        help="read checkpoints without comparing their files with their digests",
    )


def add_weights_option(parser: argparse.ArgumentParser) -> None:
    """Adds `--weights`, for commands that take the weights of a checkpoint."""
    parser.add_argument(
        "--weights",
        choices=CHOICES,
        help="the moving average, if there is one (default), or the last weights",
    )


def add_checkpoint_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options that choose weights: the folder of a run, a step, and which."""
    add = parser.add_argument
    add("--checkpoint", metavar="DIR", help="folder of the run (default: save_loc)")
    add("--step", type=int, help="which checkpoint (default: the newest)")
    add_weights_option(parser)


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
        silence(is_silent=launch.process > 0)
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
