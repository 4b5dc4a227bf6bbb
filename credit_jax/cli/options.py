"""Options that several commands have, and what they give."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax

from credit_jax.checkpoint.store import CHOICES
from credit_jax.cli.commands import Command, option, print_line
from credit_jax.config import Config, load_config
from credit_jax.config.dates import Timestep, duration
from credit_jax.config.parallelism import parse_parallelism
from credit_jax.config.trainer import MatmulPrecision
from credit_jax.io.activity import silence
from credit_jax.parallel.compiler import CACHE_HELP, use_cache
from credit_jax.parallel.mesh.devices import forward_devices
from credit_jax.parallel.params.precision import Precision, default_mp_policy
from credit_jax.parallel.processes.connect import connect
from credit_jax.parallel.processes.launch import find_launch, launch_by_hand

OVERRIDES = "override a value by its dotted path: trainer.epochs=3; repeatable"
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
    verify: bool = option(
        "read checkpoints without comparing their files with their digests", True
    )


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
    """Parses "I/N" into the number of the part, from 1, and the number of parts.

    >>> parse_shard("2/8")
    (2, 8)
    """
    number, _, count = text.partition("/")
    if number.isdigit() and count.isdigit() and 1 <= int(number) <= int(count):
        return int(number), int(count)
    raise ValueError(
        f"--shard must be I/N with I from 1 to N, such as 2/8, got {text!r}"
    )
