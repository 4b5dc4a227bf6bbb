"""Files and folders appear complete or not at all, without leftovers."""

import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from credit_jax.io.atomic import new_file, new_folder


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_file_replaces_the_one_before(tmp_path):
    path = tmp_path / "made" / "log.csv"
    for text in ("first", "second"):
        with new_file(path) as partial:
            assert partial.suffix == ".csv", "formats are chosen by the suffix"
            partial.write_text(text)
    assert path.read_text() == "second"
    assert names(path.parent) == ["log.csv"]


def fail_halfway(path):
    with new_file(path) as partial:
        partial.write_text("half")
        raise KeyboardInterrupt


@pytest.mark.parametrize("path", ["gs://b/run", Path("https://b/run"), "file:///run"])
@pytest.mark.parametrize("new", [new_file, new_folder])
def test_an_address_is_no_path(new, path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="is an address, expected a path"), new(path):
        pass
    assert not [*tmp_path.iterdir()]


def test_an_error_leaves_the_file_before(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("whole")
    with pytest.raises(KeyboardInterrupt):
        fail_halfway(path)
    assert path.read_text() == "whole"
    assert names(tmp_path) == ["log.csv"]


def test_modes_are_those_of_any_new_file(tmp_path):
    plain = tmp_path / "plain"
    plain.write_text("")
    with new_file(tmp_path / "file") as partial:
        partial.write_text("")
    mode = lambda path: stat.S_IMODE(path.stat().st_mode)  # noqa: E731
    assert mode(tmp_path / "file") == mode(plain)
    (tmp_path / "plain_folder").mkdir()
    with new_folder(tmp_path / "folder"):
        pass
    assert mode(tmp_path / "folder") == mode(tmp_path / "plain_folder")


def test_a_folder_may_be_there_if_it_is_empty(tmp_path):
    target = tmp_path / "run"
    target.mkdir()
    with new_folder(target) as folder:
        (folder / "a").write_text("1")
    assert names(target) == ["a"]
    with pytest.raises(OSError), new_folder(target) as folder:  # noqa: PT011
        (folder / "b").write_text("2")
    assert names(target) == ["a"]
    assert names(tmp_path) == ["run"]


def test_leftovers_of_a_killed_process_are_removed(tmp_path):
    """The folder of a killed run has a unique name, and is removed by the next run."""
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    killed = tmp_path / f".t21.partial-{socket.gethostname()}-{done.pid}"
    running = tmp_path / f".t21.partial-{socket.gethostname()}-{os.getppid()}"
    for folder in (killed, running):
        folder.mkdir()
    with new_folder(tmp_path / "t21"):
        pass
    assert not killed.exists()
    assert running.exists()
    log = tmp_path / f".log.partial-{socket.gethostname()}-{done.pid}.csv"
    log.write_text("half")
    with new_file(tmp_path / "log.csv") as partial:
        partial.write_text("whole")
    assert not log.exists()
