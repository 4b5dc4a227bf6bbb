"""Checkpoints of a run, and damaged ones."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from credit_jax.checkpoint import CheckpointStore, Progress
from credit_jax.checkpoint.store import DIGESTS
from credit_jax.cli.checkpoint import main
from credit_jax.io.digests import record_files, write_records
from credit_jax.training.restore import required_step


def weights(value=1.0):
    kernel = value * jnp.arange(64, dtype=jnp.float32).reshape(8, 8)
    return {
        "params": {"stages/0/blocks/to_q/kernel": kernel, "head/bias": jnp.ones(8)},
        "spectral_norm": {"stages/0/blocks/to_q/kernel": {"u": jnp.ones(8)}},
    }


def items(value=1.0):
    params = weights(value)["params"]
    state = optax.ScaleByAdamState(jnp.int32(3), params, params)
    key = jax.random.key(int(value))
    return {
        "weights": weights(value),
        "ema": params,
        "optimizer": {"opt_state": state, "micro_step": jnp.int32(7), "key": key},
    }


def onto(mesh, tree, spec):
    sharded, whole = NamedSharding(mesh, spec), NamedSharding(mesh, P())
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(
            x.shape, x.dtype, sharding=sharded if x.ndim == 2 else whole
        ),
        tree,
    )


@pytest.fixture
def open_store(tmp_path):
    stores = []

    def open_it(**settings):
        stores.append(CheckpointStore(tmp_path, **settings))
        return stores[-1]

    yield open_it
    for store in stores:
        store.close()


def test_round_trip_onto_another_mesh(open_store, make_mesh):
    saved = items(2.0)
    mesh = make_mesh(dp=2, tp=2, domain=2)
    spec = NamedSharding(mesh, P("dp_shard", "tp"))
    place = lambda x: jax.device_put(x, spec) if x.ndim == 2 else x  # noqa: E731
    progress = Progress(epoch=1, batches=2, epoch_losses=(0.5, 0.25), best_metric=0.1)
    progress = replace(progress, channels={"input": ("T", "U"), "target": ("T",)})
    store = open_store()
    store.save(7, jax.tree.map(place, saved), progress)
    store.close()

    other = make_mesh(dp=4, domain=2)
    again = open_store()
    back = again.restore(7, onto(other, saved, P(None, "dp_shard")))
    assert again.progress(7) == progress
    assert jax.tree.structure(back) == jax.tree.structure(saved)
    kernel = back["weights"]["params"]["stages/0/blocks/to_q/kernel"]
    assert kernel.sharding.spec == P(None, "dp_shard")
    for a, b in zip(jax.tree.leaves(back), jax.tree.leaves(saved), strict=True):
        if jnp.issubdtype(b.dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        assert np.array_equal(a, b), "a restored array differs"


def test_parts_of_an_optimizer_without_arrays_leave_no_trace(open_store):
    """A run that clips gradients resumes from one that did not."""
    adam = items()["optimizer"]["opt_state"]
    store = open_store()
    plain = {"adam": {"count": adam.count, "mu": adam.mu, "nu": adam.nu}}
    store.save(1, {"optimizer": {"opt_state": plain}}, Progress())
    store.wait()
    chain = {"clip": optax.EmptyState(), "adam": adam, "rest": (optax.EmptyState(),)}
    back = store.restore(1, {"optimizer": {"opt_state": chain}})["optimizer"]
    chex.assert_trees_all_equal(back, {"opt_state": chain})


def test_last_backup_and_best_are_kept(open_store):
    store = open_store()
    for step, best in [(1, 1), (2, 2), (3, 2), (4, 2), (5, 2)]:
        store.save(step, {"weights": weights()}, Progress(best_step=best))
    store.wait()
    assert store.steps() == [2, 4, 5]
    assert (store.latest_step(), store.best_step()) == (5, 2)
    store.close()
    again = open_store(num_latest=1)
    again.save(6, {"weights": weights()}, Progress(best_step=2))
    again.wait()
    assert again.steps() == [2, 6], "the best is remembered by a new process"
    again.save(7, {"weights": weights()}, Progress(best_step=7))
    again.wait()
    assert again.steps() == [7]


def test_all_or_no_best(open_store, tmp_path):
    store = open_store(keep_all=True)
    for step in range(4):
        store.save(step, {"weights": weights()}, Progress())
    store.wait()
    assert store.steps() == [0, 1, 2, 3]
    store.close()
    last_only = open_store(num_latest=1, keep_best=False)
    last_only.save(4, {"weights": weights()}, Progress(best_step=2))
    last_only.wait()
    assert last_only.steps() == [4]
    assert last_only.best_step() is None


def test_saving_a_step_again_replaces_it(open_store):
    store = open_store()
    store.save(1, {"weights": weights(1.0)}, Progress())
    store.save(1, {"weights": weights(5.0)}, Progress(epoch=1))
    store.wait()
    assert store.progress(1).epoch == 1
    back = store.restore(1, {"weights": weights()})
    assert back["weights"]["params"]["stages/0/blocks/to_q/kernel"][0, 1] == 5.0


def test_a_run_killed_while_saving_loses_nothing(tmp_path, open_store):
    """The process is killed while it writes the second checkpoint, of 400 MB."""
    program = f"""
        import os, signal
        import jax.numpy as jnp
        from credit_jax.checkpoint import CheckpointStore, Progress
        store = CheckpointStore({str(tmp_path)!r}, num_latest=1)
        store.save(1, {{"weights": {{"a": jnp.arange(10.0)}}}}, Progress(epoch=1))
        store.wait()
        big = {{"a": jnp.arange(1e8)}}
        store.save(2, {{"weights": big}}, Progress(epoch=2))
        os.kill(os.getpid(), signal.SIGKILL)
    """
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    names = sorted(p.name for p in (tmp_path / "checkpoints").iterdir())
    assert names == ["1", "2.orbax-checkpoint-tmp"], "killed too early or too late"
    assert open_store().steps() == [1]
    left = sorted(p.name for p in (tmp_path / "checkpoints").iterdir())
    assert left == names, "another run may be writing it"
    store = open_store(num_latest=1, clean=True)
    assert store.steps() == [1]
    assert store.progress(1).epoch == 1
    back = store.restore(1, {"weights": {"a": jnp.zeros(10)}})
    assert np.array_equal(back["weights"]["a"], np.arange(10.0))
    store.save(2, {"weights": {"a": jnp.zeros(3)}}, Progress(epoch=2))
    store.close()
    assert [p.name for p in (tmp_path / "checkpoints").iterdir()] == ["2"]


def test_a_run_killed_while_removing_a_checkpoint(tmp_path, open_store):
    """The remains do not count as a checkpoint."""
    program = f"""
        import os, signal, sys
        import jax.numpy as jnp
        from credit_jax.checkpoint import CheckpointStore, Progress
        def kill(event, args):
            if event == "os.rmdir":
                os.kill(os.getpid(), signal.SIGKILL)
        sys.addaudithook(kill)
        store = CheckpointStore({str(tmp_path)!r}, num_latest=1)
        for step in (1, 2):
            weights = {{"a": jnp.full(10, step)}}
            store.save(step, {{"weights": weights}}, Progress(epoch=step))
        store.close()
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert len([*(tmp_path / "checkpoints").iterdir()]) == 2, "killed at another time"
    store = open_store(num_latest=1, clean=True)
    assert store.steps() == [2]
    assert store.damage(2) == []
    assert [p.name for p in (tmp_path / "checkpoints").iterdir()] == ["2"]


def test_a_checkpoint_with_unreadable_progress_is_no_obstacle(tmp_path, open_store):
    store = open_store()
    for step in (1, 2):
        store.save(step, {"weights": weights()}, Progress(epoch=step, best_step=1))
    store.close()
    for path in (tmp_path / "checkpoints" / "2" / "progress").iterdir():
        path.write_bytes(b"")
    store = open_store()
    assert store.newest_whole_step() == 1
    assert store.best_step() == 1
    store.save(3, {"weights": weights()}, Progress(epoch=3))
    store.wait()
    assert store.newest_whole_step() == 3


def test_errors(open_store, tmp_path):
    store = open_store()
    assert store.latest_step() is None
    assert store.best_step() is None
    with pytest.raises(FileNotFoundError, match=r"no checkpoint 3 in .*: none"):
        store.restore(3, {"weights": weights()})
    store.save(3, {"weights": weights()}, Progress())
    store.wait()
    with pytest.raises(FileNotFoundError, match=r"no checkpoint 4 in .*: \[3\]"):
        store.progress(4)
    with pytest.raises(FileNotFoundError, match=r"has no ema, optimizer; it has w"):
        store.restore(3, items())
    other = weights()
    other["params"]["head/bias"] = jnp.ones(9)
    other["params"]["new"] = jnp.ones(2)
    del other["params"]["stages/0/blocks/to_q/kernel"]
    with pytest.raises(ValueError, match=r"does not fit this run") as error:
        store.restore(3, {"weights": other})
    text = str(error.value)
    assert "params.head/bias: got (8,), expected (9,)" in text
    assert "params.new: missing, expected (2,)" in text
    assert "params.stages/0/blocks/to_q/kernel: (8, 8) is not in the model" in text
    assert "model.yml" in text


def test_progress_ignores_keys_of_later_versions():
    progress = Progress(epoch=2, best_epoch=1)
    assert Progress.from_json(progress.to_json() | {"more": 1}) == progress


def saved(store, *steps):
    for step in steps:
        store.save(step, items(), Progress(epoch=step))
    store.wait()


def test_a_checkpoint_that_is_read_stays(open_store):
    """The run removes it at a later save, when the reader is done with it."""
    writer = open_store(num_latest=1, keep_best=False)
    saved(writer, 1)
    reader = open_store(pins=True)
    assert reader.newest_whole_step() == 1
    saved(writer, 2, 3)
    assert writer.steps() == [1, 3]
    assert reader.progress(1).epoch == 1
    reader.close()
    saved(writer, 4, 5)
    assert writer.steps() == [5]


def test_a_reader_chooses_again_where_the_newest_is_gone(open_store):
    writer = open_store(num_latest=1, keep_best=False)
    saved(writer, 1)
    readers = [open_store(pins=True) for _ in range(3)]
    saved(writer, 2, 3)
    assert readers[0].newest_whole_step() == 3
    assert readers[1].latest_step() == 3
    with pytest.raises(FileNotFoundError, match=r"no checkpoint 1 in .* there are"):
        readers[2].progress(1)


@pytest.mark.slow
def test_readers_of_a_run_that_saves_all_the_time(open_store, tmp_path):
    """Each chooses, reads and closes while others are removed."""
    program = f"""
        import itertools
        from credit_jax.checkpoint import CheckpointStore, Progress
        from tests.checkpoint.test_store import items
        store = CheckpointStore({str(tmp_path)!r}, num_latest=1, keep_best=False)
        for step in itertools.count(1):
            store.save(step, items(), Progress(epoch=step))
            store.wait()
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    with subprocess.Popen(command) as process:
        try:
            while not list((tmp_path / "checkpoints").glob("[0-9]")):
                assert process.poll() is None
            chosen = set()
            for _ in range(10):
                store = CheckpointStore(tmp_path, pins=True)
                step = store.newest_whole_step()
                assert step is not None
                assert store.progress(step).epoch == step
                store.restore(step, {"weights": weights()})
                store.close()
                chosen.add(step)
            assert process.poll() is None
            assert len(chosen) > 1
        finally:
            process.kill()


def test_a_listing_that_misses_all_checkpoints_is_repeated(open_store, monkeypatch):
    """One appears and another goes while the folder is read."""
    store = open_store()
    store.save(3, items(), Progress(epoch=1))
    store.wait()
    reader = open_store(pins=True)
    listings = iter([[], [], [3]])
    monkeypatch.setattr(reader, "steps", lambda: next(listings))
    assert reader.newest_whole_step() == 3
    reader.close()
    monkeypatch.setattr(store, "steps", lambda: [])
    assert store.newest_whole_step() is None


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
    assert required_step(store, resume=True) == 2
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
        required_step(store, resume=True)
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
