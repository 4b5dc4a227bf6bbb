"""Digests of files."""

import hashlib

from credit_jax.io import digests
from credit_jax.io.digests import digests_of


def test_of_files_by_name(tmp_path, monkeypatch):
    (tmp_path / "a.zarr").mkdir()
    (tmp_path / "mean.nc").write_bytes(b"one")
    monkeypatch.setenv("PLACE", str(tmp_path))
    named = {"mean": "$PLACE/mean.nc", "none": "$PLACE/b.nc", "store": "$PLACE/a.zarr"}
    assert digests_of(named) == {"mean": hashlib.sha256(b"one").hexdigest()}
    (tmp_path / "mean.nc").write_bytes(b"two")
    assert digests_of(named) == {"mean": hashlib.sha256(b"two").hexdigest()}
    monkeypatch.setattr(digests, "_LARGEST", 2)
    assert digests_of(named) == {}
