"""Connects the processes of a run, or ends them with an explanation."""

from __future__ import annotations

import errno
import os
import re
import socket
import time
from contextlib import ExitStack, suppress

import jax
from jax.experimental import multihost_utils

from credit_jax.parallel.processes.coordinator import wait_for_all
from credit_jax.parallel.processes.launch import Launch, local_devices
from credit_jax.parallel.processes.watch import watch_others

_PAUSE, _LONGEST = 0.2, 5.0  # seconds between attempts, and limit of one attempt
_GO, _STOP = b"+", b"-"
_LINE, _REASON = 64, 4096  # longest introduction and reason, in bytes
_unannounced: list[Launch] = []
_LATER = 30  # seconds by which JAX's own failure detection is later than the watch


class ProcessesMissingError(ConnectionError):
    """Raised if processes of a run do not connect in time."""


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
        connections = _meet(launch, timeout)
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


def _meet(launch: Launch, timeout: float) -> dict[int, socket.socket]:
    """Waits until all processes have connected to process 0.

    Returns:
        Open connections by process: of process 0 to all others, of others to process 0.
    """
    assert launch.coordinator is not None
    host, _, port = launch.coordinator.rpartition(":")
    address = (host.strip("[]"), int(port))
    deadline = time.monotonic() + timeout
    if launch.process == 0:
        return _gather(launch, address[1], deadline, timeout)
    return {0: _join(launch, address, deadline, timeout)}


def _gather(
    launch: Launch, port: int, deadline: float, timeout: float
) -> dict[int, socket.socket]:
    """In process 0: waits for all others, then releases them together."""
    connections: dict[int, socket.socket] = {}
    with ExitStack() as stack:
        server = _listen(port)
        stack.callback(server.close)
        while len(connections) < launch.num_processes - 1:
            server.settimeout(max(0.01, deadline - time.monotonic()))
            try:
                connection, _ = server.accept()
            except TimeoutError as error:
                raise _missing(launch, connections, timeout) from error
            stack.enter_context(connection)
            _admit(connection, connections, launch)
        for connection in connections.values():
            connection.sendall(_GO)
        stack.pop_all()
        server.close()
    return connections


def _missing(
    launch: Launch, connections: dict[int, socket.socket], timeout: float
) -> ProcessesMissingError:
    """The error of process 0 that lists the processes that have not connected."""
    missing = {*range(1, launch.num_processes)} - {*connections}
    return ProcessesMissingError(
        f"{len(missing)} of {launch.num_processes} processes did not come to "
        f"{launch.coordinator} within {timeout:g} s: {_listed(missing)}; see what they "
        "printed and whether their hosts reach this one, or give them more time: "
        "--connect-timeout"
    )


def _admit(
    connection: socket.socket, connections: dict[int, socket.socket], launch: Launch
) -> None:
    """In process 0: adds a new connection by its process, or closes it.

    Raises:
        ValueError: it is of a process that cannot belong to this run. The others are
            told so, too.
    """
    introduction = _introduction(connection)
    if introduction is None:
        connection.close()
        return
    process, count = introduction
    if error := _refusal(process, count, connections, launch):
        for other in (connection, *connections.values()):
            with suppress(OSError):
                other.sendall(_STOP + error.encode())
        raise ValueError(error)
    if process in connections:
        connections[process].close()
    connections[process] = connection


def _listen(port: int) -> socket.socket:
    try:
        return socket.create_server(
            ("::", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=1024
        )
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise OSError(
                f"port {port} of {socket.gethostname()}, where the processes of this "
                "run meet, is in use: by another run on this host, or by one that has "
                "not ended; give --coordinator HOST:PORT or JAX_COORDINATOR_ADDRESS"
            ) from error
        return socket.create_server(("", port), backlog=1024)  # no IPv6 here


def _introduction(connection: socket.socket) -> tuple[int, int] | None:
    """Returns number and count that a process has sent; None for anybody else.

    Whoever scans or probes the port sends nothing, or something else.
    """
    connection.settimeout(_LONGEST)
    try:
        line = connection.recv(_LINE).decode("ascii", "replace")
    except OSError:
        return None
    match = re.fullmatch(r"(\d+)/(\d+)\n", line)
    return (int(match[1]), int(match[2])) if match else None


def _refusal(
    process: int, count: int, connections: dict[int, socket.socket], launch: Launch
) -> str | None:
    """Returns why a process cannot belong to this run; None if it can."""
    if count != launch.num_processes:
        return (
            f"a process came to {launch.coordinator} as {process} of {count}, but this "
            f"run has {launch.num_processes} processes; another run uses this port, or "
            "the processes were started with different numbers"
        )
    earlier = connections.get(process)
    if process == 0 or (earlier is not None and _is_open(earlier)):
        return (
            f"two processes came to {launch.coordinator} as {process} of {count}; each "
            f"process needs a number of its own, 0 to {count - 1}: see --process, or "
            "the variables of the launcher"
        )
    return None


def _is_open(connection: socket.socket) -> bool:
    """Whether the process at the other end, which sends nothing more, still waits."""
    connection.setblocking(False)
    try:
        return connection.recv(1, socket.MSG_PEEK) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        connection.settimeout(_LONGEST)


def _join(
    launch: Launch, address: tuple[str, int], deadline: float, timeout: float
) -> socket.socket:
    """In other processes: connects to process 0 and waits until it releases them."""
    cause: OSError | None = None
    while (rest := deadline - time.monotonic()) > 0:
        try:
            with ExitStack() as stack:
                connection = stack.enter_context(
                    socket.create_connection(address, min(_LONGEST, rest))
                )
                connection.sendall(
                    f"{launch.process}/{launch.num_processes}\n".encode()
                )
                connection.settimeout(rest)
                answer = connection.recv(1)
                if answer == _GO:
                    stack.pop_all()
                    return connection
                if answer == _STOP:
                    raise ValueError(connection.recv(_REASON).decode())
                cause = ConnectionError("it ended before all processes had come")
        except OSError as error:
            cause = error
        time.sleep(min(_PAUSE, max(0.0, deadline - time.monotonic())))
    raise ProcessesMissingError(
        f"process {launch.process} of {launch.num_processes} on "
        f"{socket.gethostname()} got no answer from process 0 at {launch.coordinator} "
        f"within {timeout:g} s ({cause}); see what process 0 printed and whether this "
        "host reaches it, or give more time: --connect-timeout"
    ) from cause


def _listed(numbers: set[int]) -> str:
    """Formats the first eight of some numbers."""
    first = ", ".join(str(number) for number in sorted(numbers)[:8])
    return first + (", ..." if len(numbers) > 8 else "")
