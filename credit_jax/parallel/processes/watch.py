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
from contextlib import suppress
from dataclasses import dataclass, field

# EX_TEMPFAIL of sysexits.h: the run did not fail by itself; start it with --resume.
RESUME = 75


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
    """Watches the other processes of a run in a thread."""

    # Of process 0 to all others, of others to process 0, by number.
    connections: Mapping[int, socket.socket]
    silence: float  # seconds without a message after which a process is lost
    end: Callable[[int, str], None] = _end
    _failed: bool = False
    _ended: tuple[int, str] | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def start(self) -> None:
        """Starts the thread."""
        for connection in self.connections.values():
            connection.settimeout(self.silence)
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._thread.start()

    def leave(self, code: int) -> None:
        """Notifies the others that this process ends, with its exit code."""
        self._failed = code not in _DONE
        self._send_all(f"{_BYE} {code}")
        # JAX would wait for the others anyway, and closing a connection with unread
        # heartbeats discards the last messages sent.
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
        self._send_all(f"{_FAILED} {code} {text}")
        self.end(code, text)

    def wait(self) -> None:
        """Waits a few seconds for the watch to end this process."""
        # An error of JAX's runtime may be a consequence of the loss of another process.
        self._thread.join(2 * _GRACE)

    def _run(self) -> None:
        beaten = -self.silence
        with selectors.DefaultSelector() as selector:
            for number, connection in self.connections.items():
                peer = _Peer(number, connection, time.monotonic())
                selector.register(connection, selectors.EVENT_READ, peer)
            while selector.get_map():
                if time.monotonic() - beaten >= self.silence / 8:
                    self._send_all(_BEAT)
                    beaten = time.monotonic()
                for key, _ in selector.select(min(1.0, self.silence / 8)):
                    if not self._read(key.data):
                        selector.unregister(key.fileobj)
                for key in selector.get_map().values():
                    if time.monotonic() - key.data.heard > self.silence:
                        self._lose(key.data, f"it was silent for {self.silence:g} s")
                if self._ended is not None:
                    self.end_all(*self._ended)
                    return

    def _read(self, peer: _Peer) -> bool:
        """Reads messages of a process; returns False if it sends no more."""
        data = b""
        with suppress(OSError):
            data = peer.connection.recv(4096)
        if not data:
            self._lose(peer, "its connection was closed")
            return False
        peer.heard = time.monotonic()
        *lines, peer.received = (peer.received + data.decode()).split("\n")
        for line in lines:
            word, _, remainder = line.partition(" ")
            code, _, text = remainder.partition(" ")
            if word == _BYE and int(code) not in _DONE:
                time.sleep(_GRACE)
                ended = f"process {peer.number} ended with exit code {code}"
                self._fail(int(code), f"{ended}; see what it printed")
            elif word == _FAILED:
                self._fail(int(code), text)
            if word != _BEAT:
                return False
        return True

    def _lose(self, peer: _Peer, how: str) -> None:
        self._fail(
            RESUME,
            f"process {peer.number} is gone ({how}); the run ends here and can go on "
            f"from its newest checkpoint: --resume (exit code {RESUME})",
        )

    def _fail(self, code: int, text: str) -> None:
        if self._ended is None and not self._failed:
            self._ended = code, text

    def _send_all(self, line: str) -> None:
        with self._lock:
            # Also to those that have left, as they wait for this process to leave.
            for connection in self.connections.values():
                with suppress(OSError):  # reading reports the failure
                    connection.sendall(f"{line}\n".encode())


_watches: list[Watch] = []


def watch_others(connections: Mapping[int, socket.socket], silence: float) -> None:
    """Starts a `Watch` of the other processes, until this one leaves."""
    _watches.append(Watch(connections, silence))
    _watches[-1].start()


def leave_others(code: int) -> None:
    """Notifies the other processes, if any, that this one ends; see `Watch.leave`."""
    while _watches:
        _watches.pop().leave(code)


def end_all(code: int, text: str, *, alone: bool = False) -> None:
    """Ends the processes of the run, if there are others; see `Watch.end_all`."""
    for watch in _watches:
        watch.end_all(code, text)
    if alone:  # also a process without others
        _end(code, text)


def wait_for_reason() -> bool:
    """Waits for the watch to end this process; returns whether others are watched."""
    for watch in _watches:
        watch.wait()
    return bool(_watches)
