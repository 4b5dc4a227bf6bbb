"""Icechunk repositories as data: branches, tags, snapshots."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import icechunk
import numpy as np
import pytest
import xarray as xr

from credit_jax.config import build_config
from credit_jax.io.icechunk import session_at
from credit_jax.plan.run import build_loader
from credit_jax.plan.run_record import RunRecord
from tests.data.world import raw_config


@pytest.fixture(scope="module")
def repository(world: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The files of the world in one repository, and a commit that doubles T."""
    folder = tmp_path_factory.mktemp("repository") / "data"
    storage = icechunk.local_filesystem_storage(str(folder))
    repo = icechunk.Repository.create(storage)
    data = xr.concat(
        [xr.open_dataset(path) for path in sorted(world.glob("w_*.nc"))], "time"
    ).drop_encoding()
    snapshots = []
    for factor in (1, 2):
        session = repo.writable_session("main")
        changed = data.assign(T=factor * data["T"])
        changed.to_zarr(session.store, mode="w", consolidated=False, zarr_format=3)
        snapshots.append(session.commit(f"T times {factor}"))
        if factor == 1:
            repo.create_tag("v1", snapshot_id=snapshots[0])
    return folder, snapshots


def config(world: Path, address: str) -> Any:
    mapping = raw_config(world)
    for kind in ("prognostic", "dynamic_forcing", "diagnostic"):
        section = mapping["data"]["source"]["ERA5"]["variables"][kind]
        section["path"] = address
    return build_config(mapping)


def test_samples_of_a_snapshot(world: Path, repository: Any) -> None:
    folder, snapshots = repository
    address = f"icechunk+file://{folder}"
    files = build_loader(build_config(raw_config(world)), split="train")
    expected = files.read([0, 3, 5])
    for ref, factor, snapshot in (
        ("?tag=v1", 1, snapshots[0]),
        (f"?snapshot={snapshots[0]}", 1, snapshots[0]),
        ("?branch=main", 2, snapshots[1]),
        ("", 2, snapshots[1]),
    ):
        chosen = config(world, address + ref)
        batch = build_loader(chosen, split="train").read([0, 3, 5])
        same = [np.array_equal(batch.x[:, c], expected.x[:, c]) for c in range(5)]
        # U, T, SP: T at both levels.
        assert same == ([True] * 5 if factor == 1 else [True, True, False, False, True])
        digests = RunRecord.of(chosen).digests
        assert digests["data.source.ERA5.variables.prognostic.path"] == snapshot


WRONG = {
    "?branch=other": r"no branch 'other' .*; its branches are main, its tags v1",
    "?snapshot=ABC": r"no snapshot 'ABC'",
    "?tag=v1&branch=main": r"expected icechunk\+file:///FOLDER",
    "?version=1": r"expected icechunk\+file:///FOLDER",
    "/nothing": r"no Icechunk repository can be read there",
}


@pytest.mark.parametrize("ref", WRONG)
def test_wrong_addresses(ref: str, world: Path, repository: Any) -> None:
    with pytest.raises(ValueError, match=WRONG[ref]):
        session_at(f"icechunk+file://{repository[0]}{ref}")


def test_several_processes_read_no_branch(
    repository: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jax.distributed.is_initialized", lambda: True)
    folder, snapshots = repository
    with pytest.raises(ValueError, match=rf"write \?snapshot={snapshots[1]}"):
        session_at(f"icechunk+file://{folder}/")
    assert session_at(f"icechunk+file://{folder}/?tag=v1")
