"""Failure detection: all processes of a run end with an explanation if one is lost.

The connections of `connect` stay open; process 0 has one to each other process. The
connection of a killed process is closed, and a process whose host is lost sends no
heartbeats. Process 0 notifies the others, and all end within seconds. Otherwise they
would wait in a collective until JAX's coordinator ends them with a traceback.
"""

from __future__ import annotations

import os
import selectors
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from credit_jax.parallel.processes.exit_code import RESUME

_BEAT, _BYE, _FAILED = "beat", "bye", "lost"
_GRACE = 2.0  # seconds for processes with the same failure to report it themselves
_WAIT = 10.0  # seconds that a failed process waits for the others to end
_DONE = (0, RESUME)


def _end(code: int, text: str) -> None:
    """Ends this process immediately, without waiting for its threads."""
    sys.stdout.flush()
    print(f"error: {text}", file=sys.stderr, flush=True)
    os._exit(code)


@dataclass
class _Peer:
    """Connection to another process, time of its last message, and unread input."""

    number: int
    connection: socket.socket
    heard: float
    received: str = ""


@dataclass
class Watch:
    """Watches the other processes of a run in a thread.

    Attributes:
        process: index of this process.
        connections: connections by process: to process 0, or of process 0 to all
            others.
        silence: seconds without a message after which a process is considered lost.
        end: function (exit code, message) that ends this process.
    """

    process: int
    connections: Mapping[int, socket.socket]
    silence: float
    end: Callable[[int, str], None] = _end
    _peers: dict[int, _Peer] = field(default_factory=dict)
    _failed: bool = False
    _ended: tuple[int, str] | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def start(self) -> None:
        """Starts the thread."""
        now = time.monotonic()
        for number, connection in self.connections.items():
            connection.settimeout(self.silence)
            self._peers[number] = _Peer(number, connection, now)
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._thread.start()

    def leave(self, code: int) -> None:
        """Notifies the others that this process ends, with its exit code.

        After success, the process keeps watching until the others are done: JAX would
        wait for them anyway, and closing a connection with unread heartbeats discards
        the last messages sent. After failure, it waits until the others are notified
        and does not return.

        Args:
            code: exit code of this process.
        """
        self._failed = code not in _DONE
        self._send_all(f"{_BYE} {code}")
        if not self._failed:
            self._thread.join()
            return
        self._thread.join(_WAIT)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

    def end_all(self, code: int, text: str) -> None:
        """Ends this and all other processes with an exit code and a reason."""
        self._failed = True
        self._announce_and_end(code, text)

    def wait(self) -> None:
        """Waits a few seconds for the watch to end this process.

        Call it after an error of JAX's runtime, which may be a consequence of the loss
        of another process; it returns if it is not.
        """
        self._thread.join(2 * _GRACE)

    # ------------------------------------------------------------- the thread

    def _run(self) -> None:
        beaten = 0.0
        with selectors.DefaultSelector() as selector:
            for peer in self._peers.values():
                selector.register(peer.connection, selectors.EVENT_READ, peer)
            while self._peers:
                if time.monotonic() - beaten >= self.silence / 8:
                    self._send_all(_BEAT)
                    beaten = time.monotonic()
                for key, _ in selector.select(min(1.0, self.silence / 8)):
                    if not self._read(key.data):
                        selector.unregister(key.fileobj)
                        self._peers.pop(key.data.number, None)
                self._check_silence()
                if self._ended is not None:
                    self._announce_and_end(*self._ended)
                    return

    def _read(self, peer: _Peer) -> bool:
        """Reads messages of a process; returns False if it sends no more."""
        try:
            data = peer.connection.recv(4096)
        except OSError:
            data = b""
        if not data:
            self._lose(peer, "its connection was closed")
            return False
        peer.heard = time.monotonic()
        *lines, peer.received = (peer.received + data.decode()).split("\n")
        return all(self._take(peer, line) for line in lines)

    def _take(self, peer: _Peer, line: str) -> bool:
        word, _, rest = line.partition(" ")
        if word == _FAILED:
            code, _, text = rest.partition(" ")
            self._fail(int(code), text)
            return False
        if word == _BYE:
            if int(rest) not in _DONE:
                time.sleep(_GRACE)
                self._fail(
                    int(rest),
                    f"process {peer.number} ended with exit code {rest}; "
                    "see what it printed",
                )
            return False
        return True

    def _check_silence(self) -> None:
        for peer in self._peers.values():
            if time.monotonic() - peer.heard > self.silence:
                self._lose(peer, f"it was silent for {self.silence:g} s")

    def _lose(self, peer: _Peer, how: str) -> None:
        self._fail(
            RESUME,
            f"process {peer.number} is gone ({how}); the run ends here and can go on "
            f"from its newest checkpoint: --resume (exit code {RESUME})",
        )

    def _fail(self, code: int, text: str) -> None:
        if self._ended is None and not self._failed:
            self._ended = code, text

    def _announce_and_end(self, code: int, text: str) -> None:
        self._send_all(f"{_FAILED} {code} {text}")
        self.end(code, text)

    def _send_all(self, line: str) -> None:
        with self._lock:
            # Also to those that have left, as they wait for this process to leave.
            for connection in self.connections.values():
                try:
                    connection.sendall(f"{line}\n".encode())
                except OSError:
                    continue  # reading reports the failure


_watches: list[Watch] = []


def watch_others(
    process: int, connections: Mapping[int, socket.socket], silence: float
) -> None:
    """Starts a `Watch` of the other processes, until this one leaves."""
    watch = Watch(process, connections, silence)
    watch.start()
    _watches.append(watch)


def leave_others(code: int) -> None:
    """Notifies the other processes, if any, that this one ends; see `Watch.leave`."""
    while _watches:
        _watches.pop().leave(code)


def end_all(code: int, text: str) -> None:
    """Ends the processes of the run, if there are others; see `Watch.end_all`."""
    for watch in _watches:
        watch.end_all(code, text)


def wait_for_reason() -> bool:
    """Waits for the watch to end this process, if others are watched; see `Watch.wait`.

    Returns:
        Whether other processes are watched.
    """
    for watch in _watches:
        watch.wait()
    return bool(_watches)
