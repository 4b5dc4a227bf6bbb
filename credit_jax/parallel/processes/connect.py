"""Connects the processes of a run, or ends them with an explanation."""

from __future__ import annotations

import os
import socket
import time

import jax
from jax.experimental import multihost_utils

from credit_jax.parallel.processes.coordinator import wait_for_all
from credit_jax.parallel.processes.launch import Launch, local_devices
from credit_jax.parallel.processes.meeting import meet
from credit_jax.parallel.processes.watch import watch_others

_unannounced: list[Launch] = []
_LATER = 30  # seconds by which JAX's own failure detection is later than the watch


def connect(
    launch: Launch,
    *,
    timeout: float = 600,
    heartbeat: float = 100,
) -> None:
    """Connects this process to the others of a run, before the first use of JAX.

    The processes first connect without JAX, whose runtime would end a process that
    waits in vain with its own traceback. `announce` prints a line about this process
    when its devices are known.

    Args:
        launch: as returned by `find_launch` or `launch_by_hand`.
        timeout: seconds to wait for the other processes.
        heartbeat: seconds of silence after which a process is considered lost and all
            processes end (`credit_jax.parallel.processes.watch`).

    Raises:
        ProcessesMissingError: processes did not connect in time; the message lists
            them.
        ValueError: a process of another run connected, or two with the same number.
        OSError: the port of the coordinator is in use.
    """
    if launch.coordinator is None:
        jax.distributed.initialize(
            initialization_timeout=round(timeout),
            heartbeat_timeout_seconds=round(heartbeat),
        )
    else:
        began = time.monotonic()
        connections = meet(launch, timeout)
        watch_others(launch.process, connections, heartbeat)
        rest = timeout - (time.monotonic() - began)
        jax.distributed.initialize(
            launch.coordinator,
            launch.num_processes,
            launch.process,
            local_device_ids=local_devices(launch, os.environ),
            cluster_detection_method="deactivate",
            initialization_timeout=max(30, round(rest)),
            heartbeat_timeout_seconds=round(heartbeat) + _LATER,
        )
    _unannounced.append(launch)


def announce() -> None:
    """Prints one line about this process, once after `connect`.

    It starts JAX's backend, as the line contains the number of devices. On CPUs the
    processes open their connections here, where none lags (`parallel.joint`): Orbax
    synchronizes by a collective over one device of each process.
    """
    while _unannounced:
        line = described(_unannounced.pop(), jax.local_device_count())
        print(line, flush=True)
        if jax.process_count() > 1 and jax.default_backend() == "cpu":
            wait_for_all("devices")
            multihost_utils.sync_global_devices("devices")


def described(launch: Launch, num_devices: int) -> str:
    """Returns one line with the number, host, devices and launcher of this process.

    Args:
        launch: launch of this process.
        num_devices: number of its devices.
    """
    where = f", coordinator {launch.coordinator}" if launch.coordinator else ""
    devices = f"{num_devices} device{'' if num_devices == 1 else 's'}"
    return (
        f"process {launch.process} of {launch.num_processes} on "
        f"{socket.gethostname()}, {devices}, started by {launch.launcher}{where}"
    )
