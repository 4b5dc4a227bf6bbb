"""Processes of a run notice when one of them is gone, and end with a reason.

The connections over which they met stay open. Process 0 has one to each other process.
A process that is killed closes its own; one whose host is lost falls silent. Process 0
tells the others, and all end within seconds of that. Without it they would wait in a
collective until JAX's coordinator ends them with a traceback.
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

_BEAT, _BYE, _LOST = "beat", "bye", "lost"
_GRACE = 2.0  # seconds in which processes that fail alike say so themselves
_WAIT = 10.0  # seconds that a process which failed waits for the others to end
_DONE = (0, RESUME)


def _end(code: int, text: str) -> None:
    """Ends this process whatever its threads wait for."""
    sys.stdout.flush()
    print(f"error: {text}", file=sys.stderr, flush=True)
    os._exit(code)


@dataclass
class _Peer:
    """Another process, and what is known of it."""

    number: int
    connection: socket.socket
    heard: float
    received: str = ""


@dataclass
class Watch:
    """Watches the other processes of a run in a thread.

    Attributes:
        process: number of this process.
        connections: to process 0, or of process 0 to all others.
        silence: seconds without a word after which a process is lost.
        end: ends this process with a code and a reason.
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
        """Begins to watch."""
        now = time.monotonic()
        for number, connection in self.connections.items():
            connection.settimeout(self.silence)
            self._peers[number] = _Peer(number, connection, now)
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._thread.start()

    def leave(self, code: int) -> None:
        """Tells the others that this process ends, and how.

        A process that is done goes on watching until the others are, too: JAX would
        wait for them in any case, and a connection that is closed with beats unread
        loses what was sent last. One that failed waits until the others know, then
        ends.

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

    def wait(self) -> None:
        """Waits for the watch to end this process because another one is gone.

        To be called at an error of JAX's runtime, which may be a consequence of that;
        returns if it is not.
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
        """Reads what a process says; false if it says no more."""
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
        if word == _LOST:
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
        self._send_all(f"{_LOST} {code} {text}")
        self.end(code, text)

    def _send_all(self, line: str) -> None:
        with self._lock:
            # Also to those that said goodbye: they wait for ours.
            for connection in self.connections.values():
                try:
                    connection.sendall(f"{line}\n".encode())
                except OSError:
                    continue  # reading says so, too


_watches: list[Watch] = []


def watch_others(
    process: int, connections: Mapping[int, socket.socket], silence: float
) -> None:
    """Watches the other processes until this one leaves; see `Watch`."""
    watch = Watch(process, connections, silence)
    watch.start()
    _watches.append(watch)


def leave_others(code: int) -> None:
    """Tells the other processes of the run, if there are any; see `Watch.leave`."""
    while _watches:
        _watches.pop().leave(code)


def wait_for_reason() -> bool:
    """Gives the watch time to say that another process is gone; see `Watch.wait`.

    Returns:
        Whether other processes are watched.
    """
    for watch in _watches:
        watch.wait()
    return bool(_watches)
