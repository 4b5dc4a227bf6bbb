"""What a process waits for: reads that are tried again, and lines that say so."""

import errno
import logging
import re
import signal
import subprocess
import sys
import threading
import time
from unittest import mock

import numpy as np
import pytest
import xarray as xr

from credit_jax.data.sources.reader import Reader
from credit_jax.data.sources.stored_arrays import StoredArray
from credit_jax.io import activity as module
from credit_jax.io import retry
from credit_jax.io.activity import (
    Heartbeat,
    activity,
    answered,
    description,
    line_written,
    live_display,
    seconds_without_line,
    silence,
)
from credit_jax.io.remote import read_bytes
from credit_jax.io.retry import brief, is_transient, retried
from credit_jax.parallel.processes.watch import RESUME


@pytest.fixture
def clock(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    line_written()
    return now


def test_activities_are_named_from_the_outermost_on(clock):
    with pytest.raises(ValueError, match="no"), activity("reading"):
        raise ValueError("no")
    assert description() == ""
    with activity("epoch 1/3"):
        clock[0] += 100
        with activity("compiling step, XLA"):
            clock[0] += 75
            assert description() == "epoch 1/3: compiling step, XLA (1 min 15 s)"
        assert description() == "epoch 1/3 (2 min 55 s)"
    assert description() == ""


def test_other_threads_are_not_followed():
    seen = []

    def work():
        with activity("writing in the background"):
            seen.append(description())

    with activity("training"):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert seen == ["training (0 s)"]


def test_lines_are_missed_unless_another_process_or_a_bar_shows_them(clock):
    clock[0] += 40
    assert seconds_without_line() == 40
    with live_display():
        clock[0] += 40
        assert seconds_without_line() == 0
    assert seconds_without_line() == 0
    clock[0] += 5
    assert seconds_without_line() == 5
    silence()
    assert seconds_without_line() == 0
    silence(is_silent=False)
    line_written()
    assert seconds_without_line() == 0


# As a compilation of XLA, the hash lets other threads run, but answers no signal.
BUSY = """
import hashlib, signal, sys, time
from credit_jax.io import activity as log
from credit_jax.training.signals import StopRequests
from credit_jax.io.activity import activity, hang_limit
from credit_jax.parallel.processes.watch import RESUME, end_all

# A shell that runs the tests in the background lets them ignore it.
signal.signal(signal.SIGINT, signal.default_int_handler)
log._GRACE = 0.3
def busy():
    print("ready", flush=True)
    hashlib.pbkdf2_hmac("sha256", b"a", b"b", 10**9)

with log.Heartbeat("train"), activity("compiling step"):
    if "stop" in sys.argv:
        with StopRequests() as requests:
            requests.has_work = "idle" not in sys.argv
            busy()
    if "hang" in sys.argv:
        with hang_limit(2, lambda text: end_all(RESUME, text, alone=True)):
            for _ in range(5):
                with activity("update"):
                    time.sleep(0.5)
            busy()
    busy()
"""


@pytest.fixture
def start():
    """Starts a busy process, which ends with the test."""
    processes = []

    def start(*args):
        command = [sys.executable, "-c", BUSY, *args]
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        process = subprocess.Popen(command, **options)
        processes.append(process)
        assert process.stdout.readline() == "ready\n"
        return process

    yield start
    for process in processes:
        process.kill()
        process.stdout.close()
        process.stderr.close()
        process.wait()


@pytest.mark.parametrize(
    ("number", "line"),
    [
        (signal.SIGTERM, "ended by SIGTERM\n"),
        (signal.SIGINT, "interrupted\n"),
        (signal.SIGTERM, None),  # its reader is gone
    ],
)
def test_a_signal_ends_a_process_that_is_busy(start, number, line):
    process = start()
    if line is None:
        process.stderr.close()
        process.stdout.close()
    process.send_signal(number)
    assert line is None or process.stderr.readline() == line
    assert process.wait(timeout=60) == -number, "hashing takes minutes"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_a_run_acknowledges_the_first_signal_and_ends_with_the_second(start, number):
    process = start("stop")
    process.send_signal(number)
    line = process.stderr.readline()
    assert line.startswith(
        f"{number.name}: the run is saved and ends after the update in progress; "
        "now compiling step ("
    )
    assert line.endswith(" s). A second signal ends it at once.\n")
    assert process.poll() is None
    process.send_signal(number)
    assert process.wait(timeout=60) == -number


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("stop", "idle"), "SIGINT: the run ends at once, with nothing to save yet\n"),
        (("hang",), "error: compiling step (N s)\n"),
    ],
)
def test_a_run_ends_with_nothing_to_save_or_where_it_hangs(start, words, line):
    process = start(*words)
    if "idle" in words:
        process.send_signal(signal.SIGINT)
    assert re.sub(r"\d+ s", "N s", process.stderr.readline()) == line
    assert process.wait(timeout=60) == RESUME


def test_a_quiet_log_says_what_is_done(monkeypatch, capsys):
    monkeypatch.setattr(module, "SECONDS", 0.2)
    monkeypatch.setattr(module, "_LOOK", 0.02)
    began = time.monotonic()
    with Heartbeat("train"):
        time.sleep(0.5)
        with activity("reading a batch"):
            time.sleep(0.5)
    most = (time.monotonic() - began) / 0.2
    lines = capsys.readouterr().err.splitlines()
    assert set(lines) == {"train is running", "reading a batch (0 s)"}
    assert 2 <= len(lines) <= most, "one every 0.2 s"


@pytest.fixture
def handled():
    """`handled(number, handler)` until the end of the test."""
    before = {number: signal.getsignal(number) for number in (2, 15)}
    yield signal.signal
    for number, handler in before.items():
        signal.signal(number, handler)


def test_handlers_are_those_of_before():
    numbers = signal.SIGINT, signal.SIGTERM
    before = [signal.getsignal(number) for number in numbers]
    with Heartbeat("train"):
        assert signal.getsignal(signal.SIGTERM) is not before[1]
    assert [signal.getsignal(number) for number in numbers] == before
    assert signal.set_wakeup_fd(-1) == -1


def test_a_signal_that_the_program_handles_is_left_to_it(handled, capsys):
    seen = []
    handled(signal.SIGTERM, lambda *_: seen.append("term"))
    with Heartbeat("train"):
        signal.raise_signal(signal.SIGTERM)
        time.sleep(0.1)
    assert seen == ["term"]
    assert capsys.readouterr().err == ""


def test_an_interrupt_that_is_taken_raises(handled, capsys):
    handled(signal.SIGINT, signal.default_int_handler)
    with Heartbeat("train") as heartbeat, pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    assert heartbeat.has_answered
    assert capsys.readouterr().err == "interrupted\n"


def test_the_block_that_answers_is_the_innermost(handled, capsys):
    outer, inner = (lambda name, own=own: f"{own} {name}" for own in ("outer", "inner"))
    with Heartbeat("train"), answered(outer), answered(inner):
        handled(signal.SIGTERM, lambda *_: None)
        signal.raise_signal(signal.SIGTERM)
        time.sleep(0.2)
    assert capsys.readouterr().err == "inner SIGTERM\n"


FORKED = """
import os, signal, time
from credit_jax.io.activity import Heartbeat

with Heartbeat("train"):
    child = os.fork()
    if not child:
        time.sleep(60)
    time.sleep(0.5)
    os.kill(child, signal.SIGTERM)
    _, status = os.waitpid(child, 0)
    time.sleep(0.5)
print(os.waitstatus_to_exitcode(status))
"""


def test_signals_of_a_forked_process_are_its_own():
    """As those by which a pool ends its workers."""
    words = [sys.executable, "-W", "ignore", "-c", FORKED]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "-15\n", "")


STALE = OSError(errno.ESTALE, "Stale file handle")


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    monkeypatch.setattr(retry, "PAUSES", (0.001, 0.001, 0.001))


def failing(times, error):
    """Returns a read that fails some times, then returns a string."""
    return mock.Mock(side_effect=[error] * times + ["text"] * 9)


def test_tried_again(caplog):
    assert retried(failing(3, STALE), "a.nc") == "text"
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 3
    assert lines[1].startswith("a.nc: [Errno 116] Stale file handle; attempt 3 of 4 in")
    message = r"a.nc: cannot be read, 4 attempts in 0 s .*its storage does not answer"
    with pytest.raises(OSError, match=message):
        retried(failing(4, STALE), "a.nc")


@pytest.mark.parametrize(
    ("error", "transient"),
    [
        (STALE, True),
        (TimeoutError(), True),
        (OSError("Can't read data (errno = 5, 'Input/output error')"), True),
        (ValueError("UNAVAILABLE: server is busy"), True),
        (FileNotFoundError(errno.ENOENT, "No such file"), False),
        (PermissionError(errno.EACCES, "Permission denied"), False),
        (OSError("Unable to synchronously open file (truncated file)"), False),
        (ValueError("DATA_LOSS: chunk cannot be decoded"), False),
    ],
)
def test_what_is_tried_again(error, transient):
    assert is_transient(error) == transient
    if not transient:
        with pytest.raises(type(error)):
            retried(failing(1, error), "a.nc")


@pytest.mark.parametrize(
    ("encoding", "reader", "method"),
    [({}, StoredArray, "read"), ({"fletcher32": True}, xr.Variable, "isel")],
    ids=["by itself", "by xarray"],
)
def test_fields_of_a_file(tmp_path, monkeypatch, encoding, reader, method):
    path, values = str(tmp_path / "a.nc"), xr.Dataset({"t": ("y", np.arange(4.0))})
    values.to_netcdf(path, engine="h5netcdf", encoding={"t": encoding})
    opened, read = xr.open_dataset, getattr(reader, method)
    opening, reading = failing(2, STALE), failing(2, STALE)

    def open_later(*args, **options):
        opening()
        return opened(*args, **options)

    def read_later(self, *args):
        reading()
        return read(self, *args)

    monkeypatch.setattr(xr, "open_dataset", open_later)
    file = Reader("time", None).open(path)
    monkeypatch.setattr(reader, method, read_later)
    found = np.empty(2, np.float32)
    file.read("t", {"y": slice(1, 3)}, None, found)
    np.testing.assert_array_equal(found, [1.0, 2.0])
    assert reading.call_count == 3, "two attempts that fail, and one that does not"
    monkeypatch.setattr(reader, method, failing(9, STALE))
    message = r"a.nc: variable 't': cannot be read, 4 attempts"
    with pytest.raises(OSError, match=message):
        file.read("t", {"y": slice(1, 3)}, None, found)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_bytes(str(tmp_path / "none"))


def test_a_slow_read_is_named(monkeypatch):
    monkeypatch.setattr(retry, "SLOW_SECONDS", 0.02)
    monkeypatch.setattr(retry, "_watch", None)
    named, handler = threading.Event(), logging.Handler()

    def emit(record):
        if record.getMessage().startswith("slow.nc: still being read after"):
            named.set()

    handler.emit = emit
    logging.getLogger("credit_jax").addHandler(handler)
    try:
        assert retried(lambda: named.wait(20), "slow.nc")
    finally:
        logging.getLogger("credit_jax").removeHandler(handler)


def test_a_long_error_is_one_short_line():
    page = "Server returned 503 Service Unavailable: <!DOCTYPE HTML>\n<html>\n" * 9
    error = OSError(page + "\n\nDebug source:\nGeneric {\n}")
    assert brief(error).startswith("Server returned 503 Service Unavailable: <!DOCTYPE")
    assert "\n" not in brief(error)
    assert len(brief(error)) == 304
    assert brief(OSError("Stale\n\nDebug source:\n{}")) == "Stale"
