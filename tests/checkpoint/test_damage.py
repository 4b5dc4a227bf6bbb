"""Damaged checkpoints are detected and named, and no run resumes from them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from credit_jax.checkpoint import CheckpointStore, Progress
from credit_jax.checkpoint.store import DIGESTS
from credit_jax.cli.checkpoint import main
from credit_jax.io.digests import record_files, write_records
from credit_jax.training.restore import required_step

TREE = {"params": {"head/bias": jnp.arange(8.0)}}
TARGET = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), TREE)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run with checkpoints 1, 2 and 3."""
    store = CheckpointStore(tmp_path, keep_all=True)
    for step in (1, 2, 3):
        store.save(step, {"weights": TREE}, Progress(epoch=step))
    store.close()
    return tmp_path


def largest_file(folder: Path, step: int) -> Path:
    files = (folder / "checkpoints" / str(step) / "weights").rglob("*")
    return max((f for f in files if f.is_file()), key=lambda f: f.stat().st_size)


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def restored(store: CheckpointStore, step: int) -> Any:
    return store.restore(step, {"weights": TARGET})["weights"]


def test_every_checkpoint_has_digests_and_is_whole(folder: Path) -> None:
    store = CheckpointStore(folder)
    assert store.steps() == [1, 2, 3]
    for step in store.steps():
        assert (store.path(step) / DIGESTS).is_file()
        assert store.damage(step) == []
        assert store.item_names(step) == ["weights"]
        assert jnp.array_equal(
            restored(store, step)["params"]["head/bias"], jnp.arange(8.0)
        )
    assert store.newest_whole_step() == 3
    store.close()


def test_a_changed_bit_is_found_and_an_earlier_checkpoint_taken(folder: Path) -> None:
    damaged = largest_file(folder, 3)
    flip_a_bit(damaged)
    store = CheckpointStore(folder)
    assert required_step(store, "--resume") == 2
    assert store.damaged() == [f"{damaged}: damaged, its bytes were changed"]
    with pytest.raises(ValueError, match=r"checkpoint 3 was damaged(?s:.*)--no-verify"):
        restored(store, 3)
    store.close()


def test_truncated_and_missing_files(folder: Path) -> None:
    short, gone = largest_file(folder, 3), largest_file(folder, 2)
    short.write_bytes(short.read_bytes()[:-7])
    gone.unlink()
    store = CheckpointStore(folder)
    assert store.newest_whole_step() == 1
    assert f"{short}: damaged, {short.stat().st_size} of " in store.damage(3)[0]
    assert store.damage(2) == [f"{gone}: No such file or directory"]
    flip_a_bit(largest_file(folder, 1))
    store.close()
    store = CheckpointStore(folder)
    with pytest.raises(ValueError, match=r"all in .*checkpoints are damaged"):
        required_step(store, "--resume")
    store.close()


def test_unreadable_digests_are_damage(folder: Path) -> None:
    path = folder / "checkpoints" / "3" / DIGESTS
    path.write_text("{")
    store = CheckpointStore(folder)
    assert "not readable" in store.damage(3)[0]
    store.close()


def test_without_digests_or_verification_nothing_is_known(folder: Path) -> None:
    (folder / "checkpoints" / "3" / DIGESTS).unlink()
    flip_a_bit(largest_file(folder, 2))
    store = CheckpointStore(folder)
    assert store.newest_whole_step() == 3
    assert store.damage(2) != []
    store.close()
    careless = CheckpointStore(folder, verify=False)
    assert careless.damage(2) == []
    careless.close()


@pytest.mark.parametrize("name", ["d/*", "_METADATA"])
def test_what_cannot_be_decoded_is_one_error(folder: Path, name: str) -> None:
    """The digests fit, as the files were damaged before the digests were made."""
    item = folder / "checkpoints" / "3" / "weights"
    for path in item.rglob(name):
        path.write_bytes(bytes(path.stat().st_size))
    digests = item.parent / DIGESTS
    digests.unlink()
    write_records(digests, record_files(digests.parent))
    store = CheckpointStore(folder)
    match = r"checkpoint .*/3 cannot be read: (?s:.*)damaged or incomplete"
    with pytest.raises(ValueError, match=match):
        restored(store, 3)
    store.close()


def test_verify_prints_each_checkpoint(folder: Path, capsys: Any) -> None:
    assert main(["verify", str(folder)]) == 0
    assert "checkpoint 3: whole" in capsys.readouterr().out
    flip_a_bit(largest_file(folder, 1))
    (folder / "checkpoints" / "2" / DIGESTS).unlink()
    assert main(["verify", str(folder)]) == 1
    text = capsys.readouterr().out
    assert "checkpoint 1: damaged" in text
    assert str(largest_file(folder, 1)) in text
    assert "checkpoint 2: no digests were written for it" in text
    assert main(["verify", str(folder / "checkpoints")]) == 1
    assert main(["verify", str(folder / "checkpoints" / "1")]) == 1
    assert main(["verify", str(folder / "checkpoints" / "3")]) == 0
    capsys.readouterr()
    assert main(["verify", str(folder / "nothing")]) == 2
    error = capsys.readouterr().err
    assert (
        f"error: {folder / 'nothing'} is no folder of a run with checkpoints" in error
    )
    assert not (folder / "nothing").exists()
