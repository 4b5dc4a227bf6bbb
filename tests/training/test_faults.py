"""Faults in a run: a full disk, a second run in the folder, a stale lock."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from credit_jax.checkpoint import CheckpointStore
from credit_jax.cli.commands import FAILED, USER_ERROR
from credit_jax.io.folder_lock import NAME, folder_lock
from tests.support.processes import PROGRAM, ROOT
from tests.training.tiny import tiny_config, write_yaml

# From the second checkpoint on, no file can grow.
FULL_DISK = """
import resource
from credit_jax.checkpoint import CheckpointStore
save, steps = CheckpointStore.save, []
def save_on_full_disk(store, step, *rest):
    steps.append(step)
    if len(steps) == 2:
        store.wait()
        resource.setrlimit(resource.RLIMIT_FSIZE, (16, resource.RLIM_INFINITY))
    save(store, step, *rest)
CheckpointStore.save = save_on_full_disk
"""
# The system answers every lock of a file with "no locks available".
NO_LOCKS = """
import ctypes, errno, fcntl, platform, struct
flock, control = {"x86_64": (73, 72), "aarch64": (32, 25)}[platform.machine()]
LOAD, EQUAL, RETURN = 0x20, 0x15, 0x06  # BPF: of a call's number and second argument
commands = (5, 6, 7, 36, 37, 38)  # F_GETLK to F_SETLKW, and F_OFD_GETLK to ...
more = len(commands)
program = [(LOAD, 0, 0, 0), (EQUAL, more + 3, 0, flock), (EQUAL, 0, more + 1, control)]
program += [(LOAD, 0, 0, 24)]
program += [(EQUAL, more - n, 0, command) for n, command in enumerate(commands)]
program += [(RETURN, 0, 0, 0x7FFF0000), (RETURN, 0, 0, 0x00050000 | errno.ENOLCK)]
code = b"".join(struct.pack("HBBI", *line) for line in program)
text = ctypes.create_string_buffer(code)
filters = struct.pack("HP", len(program), ctypes.addressof(text))
libc = ctypes.CDLL(None)
assert libc.prctl(38, 1, 0, 0, 0) == 0  # PR_SET_NO_NEW_PRIVS
assert libc.prctl(22, 2, filters, 0, 0) == 0  # PR_SET_SECCOMP
"""


def train(config: str, *flags: str, fault: str = "") -> tuple[int, str]:
    """Runs `train` in a subprocess; returns its exit code and output."""
    options = ["--config", config, "--cache", "none", "--devices", "1", *flags]
    done = subprocess.run(
        [sys.executable, "-c", fault + PROGRAM, "credit_jax.cli.train", *options],
        cwd=ROOT,
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout


@pytest.mark.slow
def test_a_full_disk_and_a_second_run(world: Path, tmp_path: Path) -> None:
    """Each gives one error; afterwards the run resumes from the previous checkpoint."""
    folder = tmp_path / "run"
    mapping = tiny_config(world, folder, trainer__epochs=3)
    config = write_yaml(tmp_path / "config.yml", mapping)
    code, text = train(config, fault=FULL_DISK)
    print(text)
    assert code == FAILED
    assert text.count("error: ") == 1
    assert "could not be written: File too large" in text.replace("\n", " ")
    assert "Traceback" not in text
    store = CheckpointStore(folder)
    assert store.steps() == [6]
    assert store.damage(6) == []
    store.close()
    with folder_lock(folder):
        code, text = train(config, "--resume")
    assert code == USER_ERROR
    held = f"a run is going on in this folder (process {os.getpid()} on "
    assert held in text.replace("\n", " ")
    code, text = train(config, "--resume")
    assert code == 0, text
    assert "epoch 2, batch 1" in text
    store = CheckpointStore(folder)
    assert store.latest_step() == 18
    store.close()
    assert not (folder / NAME).exists()


HOLD = """
import os, signal, sys
from pathlib import Path
from credit_jax.io.folder_lock import folder_lock
with folder_lock(Path(sys.argv[1])):
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_process_holds_no_folder(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", HOLD, str(tmp_path)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert (tmp_path / NAME).exists()
    with folder_lock(tmp_path):
        assert f"process {os.getpid()} on " in (tmp_path / NAME).read_text()
        with (
            pytest.raises(ValueError, match="a run is going on"),
            folder_lock(tmp_path),
        ):
            pass
    assert not (tmp_path / NAME).exists()


def test_a_lock_that_cannot_be_removed_hides_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "unlink", denied)
    with pytest.raises(RuntimeError, match="the reason"), folder_lock(tmp_path):
        raise RuntimeError("the reason")
    with folder_lock(tmp_path):
        pass


def test_a_file_system_without_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsupported(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr("fcntl.flock", unsupported)
    with folder_lock(tmp_path) as first, folder_lock(tmp_path) as second:
        assert not first
        assert not second


def test_a_run_without_locks_saves_and_warns(world: Path, tmp_path: Path) -> None:
    mapping = tiny_config(world, tmp_path / "run", trainer__epochs=2)
    config = write_yaml(tmp_path / "config.yml", mapping)
    code, text = train(config, fault=NO_LOCKS)
    print(text)
    assert code == 0
    assert 0 < text.index("has no locks") < text.index("epoch 1/2")
    store = CheckpointStore(tmp_path / "run")
    assert len(store.steps()) == 2
    assert not store.damage(store.steps()[-1])
    store.close()
