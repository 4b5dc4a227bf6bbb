"""Digests of files."""

import hashlib
import os

import pytest

from credit_jax.io import digests
from credit_jax.io.digests import digests_of


def test_of_files_by_name(tmp_path, monkeypatch):
    (tmp_path / "mean.nc").write_bytes(b"one")
    monkeypatch.setenv("PLACE", str(tmp_path))
    named = {"mean": "$PLACE/mean.nc", "none": "$PLACE/b.nc", "far": "s3://a/b.zarr"}
    assert digests_of(named) == {"mean": hashlib.sha256(b"one").hexdigest()}
    (tmp_path / "mean.nc").write_bytes(b"two")
    assert digests_of(named) == {"mean": hashlib.sha256(b"two").hexdigest()}


def digest(path):
    return digests_of({"": str(path)})[""]


@pytest.fixture
def small(monkeypatch):
    """What is read of 64 MiB of more than 1 GiB, of 640 bytes of more than 1000."""
    monkeypatch.setattr(digests, "_LARGEST", 1000)
    monkeypatch.setattr(digests, "_PIECE", 10)


@pytest.mark.usefixtures("small")
def test_of_a_large_file(tmp_path):
    path, content = tmp_path / "a.nc", bytearray(os.urandom(6400))
    path.write_bytes(content)
    before = digest(path)
    # The first and last byte, and bytes of pieces; between pieces are other ones.
    step = (len(content) - 10) / 63
    for place in (0, 9, int(step), int(40 * step) + 9, 6390, 6399):
        changed = bytearray(content)
        changed[place] ^= 1
        path.write_bytes(changed)
        assert digest(path) != before, place
    path.write_bytes(content + b"0")
    assert digest(path) != before, "its size"
    between = bytearray(content)
    between[int(step) - 20] ^= 1
    path.write_bytes(between)
    assert digest(path) == before, "what docs/data.md says is not read"


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
