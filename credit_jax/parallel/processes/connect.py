"""Connects the processes of a run, or ends them with an explanation.

Each sends "PROCESS/COUNT" to process 0 and waits. Process 0 answers all of them with
`_GO` when all have come, or with a reason when the run cannot start. JAX's coordinator
listens on the same port afterwards; it would end a process that waits in vain without
saying which one is missing.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import select
import socket
import time
from collections.abc import Iterable
from contextlib import ExitStack, suppress

import jax
from jax.experimental import multihost_utils

from credit_jax.parallel.processes.coordinator import wait_for_all
from credit_jax.parallel.processes.launch import Launch, local_devices
from credit_jax.parallel.processes.watch import watch_others

_PAUSE, _LONGEST = 0.2, 5.0  # seconds between attempts, and limit of one attempt
_REST = 30.0  # seconds in which a run that is refused is told to its last processes
_LATER = 30  # seconds by which JAX's own failure detection is later than the watch
_GO, _REFUSED = b"+", b"-"
_LOG = logging.getLogger("credit_jax")
_unannounced: list[Launch] = []


class ProcessesMissingError(ConnectionError):
    """Raised if processes of a run do not connect in time."""


def connect(launch: Launch, *, timeout: float = 600, heartbeat: float = 100) -> None:
    """Connects this process to the others of a run, before the first use of JAX."""
    if launch.coordinator is None:
        # JAX finds the coordinator of a TPU pod itself, and there is no watch.
        jax.distributed.initialize(
            initialization_timeout=round(timeout),
            heartbeat_timeout_seconds=round(heartbeat),
        )
    else:
        began = time.monotonic()
        watch_others(meet(launch, timeout), heartbeat)
        jax.distributed.initialize(
            launch.coordinator,
            launch.num_processes,
            launch.process,
            local_device_ids=local_devices(launch, os.environ),
            cluster_detection_method="deactivate",
            initialization_timeout=max(30, round(timeout - time.monotonic() + began)),
            heartbeat_timeout_seconds=round(heartbeat) + _LATER,
        )
    _unannounced.append(launch)


def announce() -> None:
    """Prints one line about this process, once after `connect`; starts a backend."""
    while _unannounced:
        launch, devices = _unannounced.pop(), jax.local_device_count()
        address = launch.coordinator
        print(
            f"process {launch.process} of {launch.num_processes} on "
            f"{socket.gethostname()}, {devices} device{'s' * (devices != 1)}, started "
            f"by {launch.launcher}{f', coordinator {address}' if address else ''}",
            flush=True,
        )
        # Opens the connections here, where none lags (`parallel.joint`): Orbax
        # synchronizes by a collective over one device of each process.
        if jax.process_count() > 1 and jax.default_backend() == "cpu":
            wait_for_all("devices")
            multihost_utils.sync_global_devices("devices")


def meet(launch: Launch, timeout: float) -> dict[int, socket.socket]:
    """Returns connections: of process 0 to all others, of others to process 0."""
    if launch.process == 0:
        return _gather(launch, timeout)
    return {0: _join(launch, timeout)}


def _gather(launch: Launch, timeout: float) -> dict[int, socket.socket]:
    """In process 0: waits for all others, then releases them together."""
    deadline = time.monotonic() + timeout
    count, address = launch.num_processes, launch.coordinator
    others = {*range(1, count)}
    come: list[socket.socket] = []
    connections: dict[int, socket.socket] = {}
    with ExitStack() as stack:
        server = stack.enter_context(_listen(_port(launch)[1]))
        while len(connections) < len(others):
            server.settimeout(max(0.01, deadline - time.monotonic()))
            try:
                come.append(stack.enter_context(server.accept()[0]))
                process = _number_of(come[-1], launch, connections)
            except TimeoutError as error:
                missing = sorted(others - {*connections})
                listed = ", ".join(map(str, missing[:8])) + ", ..." * (len(missing) > 8)
                reason = (
                    f"{len(missing)} of {count} processes did not come to {address} "
                    f"within {timeout:g} s: {listed}; see what they printed and "
                    "whether their hosts reach this one, or give them more time: "
                    "--connect-timeout"
                )
                _refuse(come, reason)
                raise ProcessesMissingError(reason) from error
            except ValueError as error:
                _refuse(come, str(error))
                # Those that have not come yet are told, too, as far as they come soon.
                deadline = time.monotonic() + _REST
                with suppress(TimeoutError):
                    for _ in range(len(others) - len(come)):
                        server.settimeout(max(0.01, deadline - time.monotonic()))
                        with server.accept()[0] as connection:
                            _refuse([connection], str(error))
                            _first_line(connection)
                raise
            if process is not None:
                connections[process] = come[-1]
            # Others have ended, and may be started anew.
            connections = {n: one for n, one in connections.items() if _is_open(one)}
        for connection in connections.values():
            connection.sendall(_GO)
        for connection in {server, *come} - {*connections.values()}:
            connection.close()
        stack.pop_all()
    return connections


def _port(launch: Launch) -> tuple[str, int]:
    host, _, port = (launch.coordinator or "").rpartition(":")
    return host.strip("[]"), int(port)


def _listen(port: int) -> socket.socket:
    try:
        return socket.create_server(
            ("::", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=1024
        )
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise OSError(
                f"port {port} of {socket.gethostname()}, where the processes of this "
                "run meet, is in use: by another process 0 or another run on this "
                "host, or by one that has not ended; give each process a --process of "
                "its own, or another --coordinator HOST:PORT (JAX_COORDINATOR_ADDRESS)"
            ) from error
        return socket.create_server(("", port), backlog=1024)  # no IPv6 here


def _number_of(
    connection: socket.socket, launch: Launch, connections: dict[int, socket.socket]
) -> int | None:
    """Returns the number of a process that has connected, None for anything else."""
    # Probes and scanners of a cluster connect, too, and send nothing or something else.
    match = re.fullmatch(r"(\d+)/(\d+)\n", _first_line(connection))
    address = launch.coordinator
    if match is None:
        _LOG.warning(
            "ignored a connection from %s to %s that is not of a process of a run",
            _host(connection),
            address,
        )
        connection.close()
        return None
    process, count = int(match[1]), int(match[2])
    if count != launch.num_processes or not 0 < process < count:
        raise ValueError(
            f"a process came to {address} as {process} of {count}, but this run has "
            f"{launch.num_processes} processes; another run uses this port, or the "
            "processes were started with different numbers"
        )
    if process in connections and _is_open(connections[process]):
        raise ValueError(
            f"two processes came to {address} as process {process} of {count}, from "
            f"{_host(connections[process])} and {_host(connection)}; start each with "
            f"a number of its own, 0 to {count - 1}: --process"
        )
    return process


def _first_line(connection: socket.socket) -> str:
    """Returns what a connection sends first, "" if nothing comes in time."""
    connection.settimeout(_LONGEST)
    try:
        return connection.recv(64).decode("ascii", "replace")
    except OSError:
        return ""


def _is_open(connection: socket.socket) -> bool:
    # A process that waits sends nothing until its connection ends.
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    return not poll.poll(0)


def _host(connection: socket.socket) -> str:
    try:
        return connection.getpeername()[0].removeprefix("::ffff:")
    except OSError:
        return "an unknown host"


def _refuse(connections: Iterable[socket.socket], reason: str) -> None:
    """Tells processes that wait why the run does not start."""
    for connection in connections:
        with suppress(OSError):
            connection.sendall(_REFUSED + reason.encode())


def _join(launch: Launch, timeout: float) -> socket.socket:
    """In other processes: connects to process 0 and waits until it releases them."""
    deadline = time.monotonic() + timeout
    who = f"process {launch.process} of {launch.num_processes}"
    cause: OSError | None = None
    while (remainder := deadline - time.monotonic()) > 0:
        try:
            with ExitStack() as stack:
                connection = stack.enter_context(
                    socket.create_connection(_port(launch), min(_LONGEST, remainder))
                )
                number = f"{launch.process}/{launch.num_processes}\n"
                connection.sendall(number.encode())
                connection.settimeout(remainder)
                answer = connection.recv(1)
                if answer == _GO:
                    stack.pop_all()
                    return connection
                if answer == _REFUSED:
                    with connection.makefile(encoding="utf-8") as reason:
                        raise ValueError(f"the run does not start: {reason.read()}")
                if not answer:
                    raise ConnectionError("it ended before all processes had come")
                # JAX's coordinator, on the same port: its run may be about to end.
                raise _OccupiedError(
                    "a run that has begun answers there, or another program; if it is "
                    "this run, another process has this number: each needs a "
                    "--process of its own"
                )
        except OSError as error:
            if isinstance(error, _OccupiedError) and not isinstance(cause, type(error)):
                _LOG.warning("%s waits at %s: %s", who, launch.coordinator, error)
            cause = error
        time.sleep(min(_PAUSE, max(0.0, deadline - time.monotonic())))
    raise ProcessesMissingError(
        f"{who} on {socket.gethostname()} got no answer from process 0 at "
        f"{launch.coordinator} within {timeout:g} s ({cause}); see what process 0 "
        "printed and whether this host reaches it, or give more time: --connect-timeout"
    ) from cause


class _OccupiedError(ConnectionError):
    """Raised if something other than a waiting process 0 answers at its address."""
