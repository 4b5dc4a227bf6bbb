"""Files: written as one, with digests; errors of the system; memory that is reused."""

import gc
import hashlib
import os
import socket
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.errors import JaxRuntimeError

from credit_jax.io import buffers, digests
from credit_jax.io.atomic import new_file, new_folder
from credit_jax.io.buffers import Buffers
from credit_jax.io.digests import digests_of
from credit_jax.io.errors import WriteError, errors_of, write_errors


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ValueError("3 levels"), ValueError),
        (UnicodeError("3 levels"), ValueError),
        (FileNotFoundError("3 levels"), FileNotFoundError),
        (PermissionError("3 levels"), OSError),
    ],
)
def test_the_place_stands_before_the_message(error, kind):
    with pytest.raises(kind, match=r"^a\.nc: 3 levels$") as raised, errors_of("a.nc"):
        raise error
    assert type(raised.value) is kind
    located = errors_of("a.nc", "T", "U", "T")
    with pytest.raises(kind, match=r"^a\.nc: T, U: 3 levels$"), located:
        raise error


def test_other_errors_pass():
    with pytest.raises(KeyError, match="T"), errors_of("a.nc"):
        raise KeyError("T")
    # The peer of this process has died, which is no write error.
    with pytest.raises(JaxRuntimeError), write_errors("a.nc"):
        raise JaxRuntimeError("UNKNOWN: Gloo AllGather failed: Connection closed")


@pytest.mark.parametrize(
    ("error", "remedy", "text"),
    [
        (OSError(28, os.strerror(28)), "", "written: No space left on device$"),
        (
            ValueError("ABORTED [os_error_code='27' key='d']"),
            "make room",
            "File too large; make room",
        ),
        (
            RuntimeError("Can't close file (time = Wed, errno = 27, buf = 0x7)"),
            "",
            "written: File too large$",
        ),
    ],
)
def test_errors_of_writing_say_what_and_why(tmp_path, error, remedy, text):
    words = [remedy] if remedy else []
    path = tmp_path / "log.csv"
    with (
        pytest.raises(WriteError, match=f"log.csv.*{text}"),
        write_errors(path, *words),
    ):
        raise error


# Reuse of the memory of large arrays.


SHAPE = (3, 1 << 18)


def address(array):
    return array.__array_interface__["data"][0]


def test_memory_is_used_again_when_nothing_refers_to_it():
    made = Buffers()
    first = made.empty(SHAPE, np.float32)
    assert first.shape == SHAPE
    assert first.dtype == np.float32
    first[...] = 0.0
    assert first.flags.c_contiguous
    place = address(first)
    view = first.reshape(-1)[5:].view(np.int32)[None]
    del first
    other = made.empty(SHAPE, np.float32)
    assert address(other) != place, "a view refers to it"
    del view
    assert address(made.empty((SHAPE[1], 3), np.int32)) == place, "of the same size"
    assert address(other) != place


def test_an_array_on_a_device_keeps_its_memory():
    """JAX on CPU may share the memory of the host array."""
    made = Buffers()
    host = made.empty(SHAPE, np.float32)
    host[...] = 1.0
    placed = jax.device_put(host)
    del host
    for _ in range(3):
        made.empty(SHAPE, np.float32)[...] = 2.0
    assert np.all(np.asarray(placed) == 1.0)


def test_no_more_is_held_than_was_used_at_once(monkeypatch):
    sizes = []
    allocate = np.empty

    def empty(shape, dtype):
        sizes.append(shape)
        return allocate(shape, dtype)

    monkeypatch.setattr(buffers.np, "empty", empty)
    size = 4 * SHAPE[0] * SHAPE[1]
    made = Buffers()
    for _ in range(3):
        arrays = [made.empty(SHAPE, np.float32) for _ in range(4)]
        assert sizes == [size] * 4, "all of them are used again"
        del arrays
        gc.collect()
    large = made.empty((3, *SHAPE), np.float32)
    assert made._used + sum(m.nbytes for m in made._free) == 4 * size
    assert len(made._free) == 1, "three made way for an array of their size"
    del large


def test_threads_never_share_memory():
    made = Buffers()

    def work(number):
        for _ in range(30):
            array = made.empty(SHAPE, np.float32)
            array[...] = number
            if not (array[::2, ::4096] == number).all():
                return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(16)))


# Files and folders appear complete or not at all, without leftovers.


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_file_replaces_the_one_before(tmp_path):
    path = tmp_path / "made" / "log.csv"
    for text in ("first", "second"):
        with new_file(path) as partial:
            assert partial.suffix == ".csv", "formats are chosen by the suffix"
            partial.write_text(text)
    with pytest.raises(KeyboardInterrupt), new_file(path) as partial:  # noqa: PT012
        partial.write_text("half")
        raise KeyboardInterrupt
    assert path.read_text() == "second"
    assert names(path.parent) == ["log.csv"]


@pytest.mark.parametrize("new", [new_file, new_folder])
def test_an_address_is_no_path(new, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for path in ("ftp://b/run", Path("hdfs://b/run"), "file:///run"):
        text = "is an address of an unknown kind"
        with pytest.raises(ValueError, match=text), new(path):
            pass
    assert not [*tmp_path.iterdir()]


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


# Digests of files.


def test_of_files_by_name(tmp_path, monkeypatch):
    (tmp_path / "mean.nc").write_bytes(b"one")
    monkeypatch.setenv("PLACE", str(tmp_path))
    named = {"mean": "$PLACE/mean.nc", "none": "$PLACE/b.nc", "far": "s3://a/b.zarr"}
    assert digests_of(named) == {"mean": hashlib.sha256(b"one").hexdigest()}
    (tmp_path / "mean.nc").write_bytes(b"two")
    assert digests_of(named) == {"mean": hashlib.sha256(b"two").hexdigest()}


def digest(path):
    return digests_of({"": str(path)})[""]


def test_of_a_large_file(tmp_path, monkeypatch):
    """What is read of 64 MiB of more than 1 GiB, of 640 bytes of more than 1000."""
    monkeypatch.setattr(digests, "_LARGEST", 1000)
    monkeypatch.setattr(digests, "_PIECE", 10)
    path, content = tmp_path / "a.nc", os.urandom(6400)

    def changed(*places):
        new = bytearray(content)
        for at in places:
            new[at] ^= 1
        path.write_bytes(new)
        return digest(path)

    before = changed()
    # The first and last byte, and bytes of pieces; between pieces are other ones.
    step = (len(content) - 10) / 63
    for at in (0, 9, int(step), int(40 * step) + 9, 6390, 6399):
        assert changed(at) != before, at
    assert changed(int(step) - 20) == before, "what docs/data.md says is not read"
    path.write_bytes(content + b"0")
    assert digest(path) != before, "its size"


@pytest.fixture
def store(tmp_path):
    """A folder like a Zarr store, whose array B is linked from elsewhere."""
    for name in ("a.zarr/A", "b.zarr/B"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "zarr.json").write_text("{}")
        for chunk in range(3):
            (tmp_path / name / str(chunk)).write_bytes(bytes([chunk]) * 200)
    (tmp_path / "a.zarr" / "B").symlink_to(tmp_path / "b.zarr" / "B")
    (tmp_path / "a.zarr" / "up").symlink_to(tmp_path)
    os.mkfifo(tmp_path / "a.zarr" / "pipe")
    return tmp_path / "a.zarr"


def change_byte(path):
    content = path.read_bytes()
    path.write_bytes(content[:100] + b"x" + content[101:])


CHANGES = {
    "a byte": lambda own: change_byte(own / "A" / "1"),
    "metadata": lambda own: (own / "A" / "zarr.json").write_text("[]"),
    "a byte of a linked array": lambda own: change_byte(own / "B" / "2"),
    "a chunk less": lambda own: (own / "A" / "2").unlink(),
    "a chunk more": lambda own: (own / "A" / "3").write_bytes(b""),
    "another name": lambda own: (own / "A" / "0").rename(own / "A" / "4"),
    "bytes elsewhere": lambda own: [
        (own / "A" / "0").write_bytes(b"\0" * 199),
        (own / "A" / "1").write_bytes(b"\0" + b"\1" * 200),
    ],
}


@pytest.mark.parametrize("largest", [10**6, 1000])
@pytest.mark.parametrize("change", CHANGES)
def test_of_a_folder(store, change, largest, monkeypatch):
    monkeypatch.setattr(digests, "_LARGEST", largest)
    monkeypatch.setattr(digests, "_PIECE", 20)
    before = digest(store)
    assert digest(store) == before
    CHANGES[change](store)
    assert digest(store) != before


def test_of_a_folder_of_very_many_files(store, monkeypatch):
    monkeypatch.setattr(digests, "_MOST_FILES", 5)
    before = digest(store)
    CHANGES["a byte"](store)
    assert digest(store) == before
    CHANGES["metadata"](store)
    assert digest(store) != before
