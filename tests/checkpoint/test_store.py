"""Checkpoints of a run, and damaged ones."""

import os
import signal
import subprocess
import sys
import textwrap

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
from tests.messages.engine import *  # noqa: F403
from tests.messages.engine import Cases

CASES = Cases("checkpoints")
KERNEL, BIAS = "stages/0/blocks/to_q/kernel", "head/bias"


def weights(value=1.0):
    kernel = value * jnp.arange(64, dtype=jnp.float32).reshape(8, 8)
    return {
        "params": {KERNEL: kernel, BIAS: jnp.ones(8)},
        "spectral_norm": {KERNEL: {"u": jnp.ones(8)}},
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


def saved(store, *steps, best=None):
    for step in steps:
        store.save(step, {"weights": weights()}, Progress(epoch=step, best_step=best))
    store.wait()
    return store


@pytest.fixture
def open_store(tmp_path):
    stores = []

    def open_it(**settings):
        stores.append(CheckpointStore(tmp_path, **settings))
        return stores[-1]

    yield open_it
    for store in stores:
        store.close()


@pytest.fixture
def three(open_store, tmp_path):
    """The folder of checkpoints 1, 2 and 3."""
    saved(open_store(keep_all=True), 1, 2, 3).close()
    return tmp_path / "checkpoints"


def largest_file(folder, step):
    files = (folder / str(step) / "weights").rglob("*")
    return max((f for f in files if f.is_file()), key=lambda f: f.stat().st_size)


def flip_a_bit(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def killed(program, folder):
    """Runs a program whose store is in a folder, and which kills itself."""
    text = textwrap.dedent(program).replace("FOLDER", repr(str(folder)))
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, "-c", text], env=environment, check=False)
    assert done.returncode == -signal.SIGKILL
    return sorted(p.name for p in (folder / "checkpoints").iterdir())


def test_round_trip_onto_another_mesh(open_store, make_mesh):
    tree, spec = items(2.0), P("dp_shard", "tp")
    split = NamedSharding(make_mesh(dp=2, tp=2, domain=2), spec)
    placed = jax.tree.map(
        lambda x: jax.device_put(x, split) if x.ndim == 2 else x, tree
    )
    channels = {"input": ("T", "U"), "target": ("T",)}
    progress = Progress(epoch=1, batches=2, epoch_losses=(0.5, 0.25), channels=channels)
    store = open_store()
    store.save(7, placed, progress)
    store.close()

    mesh, spec = make_mesh(dp=4, domain=2), P(None, "dp_shard")
    like = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(
            *(x.shape, x.dtype),
            sharding=NamedSharding(mesh, spec if x.ndim == 2 else P()),
        ),
        tree,
    )
    again = open_store()
    back = again.restore(7, like)
    assert again.progress(7) == progress
    assert back["weights"]["params"][KERNEL].sharding.spec == spec
    keys = (each["optimizer"].pop("key") for each in (back, tree))
    assert np.array_equal(*map(jax.random.key_data, keys))
    chex.assert_trees_all_equal(back, tree)


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
    store = saved(open_store(), 1, best=1)
    saved(store, 2, 3, 4, 5, best=2)
    assert store.steps() == [2, 4, 5]
    assert (store.latest_step(), store.best_step()) == (5, 2)
    store.close()
    again = saved(open_store(num_latest=1), 6, best=2)
    assert again.steps() == [2, 6], "the best is remembered by a new process"
    assert saved(again, 7, best=7).steps() == [7]
    again.close()
    every = saved(open_store(keep_all=True), 8, 9, 10)
    assert every.steps() == [7, 8, 9, 10]
    every.close()
    last_only = saved(open_store(num_latest=1, keep_best=False), 11, best=8)
    assert (last_only.steps(), last_only.best_step()) == ([11], None)


def test_saving_a_step_again_replaces_it(open_store):
    store = saved(open_store(), 1)
    store.save(1, {"weights": weights(5.0)}, Progress(epoch=2))
    store.wait()
    assert store.progress(1).epoch == 2
    back = store.restore(1, {"weights": weights()})
    assert back["weights"]["params"][KERNEL][0, 1] == 5.0


def test_a_run_killed_while_saving_loses_nothing(tmp_path, open_store):
    """The process is killed while it writes the second checkpoint, of 400 MB."""
    program = """
        import os, signal
        import jax.numpy as jnp
        from credit_jax.checkpoint import CheckpointStore, Progress
        store = CheckpointStore(FOLDER, num_latest=1)
        store.save(1, {"weights": {"a": jnp.arange(10.0)}}, Progress(epoch=1))
        store.wait()
        big = {"a": jnp.arange(1e8)}
        store.save(2, {"weights": big}, Progress(epoch=2))
        os.kill(os.getpid(), signal.SIGKILL)
    """
    names = killed(program, tmp_path)
    assert names == ["1", "2.orbax-checkpoint-tmp"], "killed too early or too late"
    assert open_store().steps() == [1]
    left = sorted(p.name for p in (tmp_path / "checkpoints").iterdir())
    assert left == names, "another run may be writing it"
    store = open_store(num_latest=1, clean=True)
    assert store.steps() == [1]
    assert store.progress(1).epoch == 1
    back = store.restore(1, {"weights": {"a": jnp.zeros(10)}})
    assert np.array_equal(back["weights"]["a"], np.arange(10.0))
    saved(store, 2).close()
    assert [p.name for p in (tmp_path / "checkpoints").iterdir()] == ["2"]


def test_a_run_killed_while_removing_a_checkpoint(tmp_path, open_store):
    """The remains do not count as a checkpoint."""
    program = """
        import os, signal, sys
        import jax.numpy as jnp
        from credit_jax.checkpoint import CheckpointStore, Progress
        def kill(event, args):
            if event == "os.rmdir":
                os.kill(os.getpid(), signal.SIGKILL)
        sys.addaudithook(kill)
        store = CheckpointStore(FOLDER, num_latest=1)
        for step in (1, 2):
            store.save(step, {"weights": {"a": jnp.full(10, step)}}, Progress())
        store.close()
    """
    assert len(killed(program, tmp_path)) == 2, "killed at another time"
    store = open_store(num_latest=1, clean=True)
    assert (store.steps(), store.damage(2)) == ([2], [])
    assert [p.name for p in (tmp_path / "checkpoints").iterdir()] == ["2"]


def test_a_checkpoint_with_unreadable_progress_is_no_obstacle(tmp_path, open_store):
    saved(open_store(), 1, 2, best=1).close()
    for path in (tmp_path / "checkpoints" / "2" / "progress").iterdir():
        path.write_bytes(b"")
    store = open_store()
    assert (store.newest_whole_step(), store.best_step()) == (1, 1)
    assert saved(store, 3).newest_whole_step() == 3


def test_progress_ignores_keys_of_later_versions():
    progress = Progress(epoch=2, best_epoch=1)
    assert Progress.from_json(progress.to_json() | {"more": 1}) == progress


def test_a_checkpoint_that_is_read_stays(open_store):
    """The run removes it at a later save, when the reader is done with it."""
    writer = saved(open_store(num_latest=1, keep_best=False), 1)
    readers = [open_store(pins=True) for _ in range(4)]
    assert readers[0].newest_whole_step() == 1
    saved(writer, 2, 3)
    assert writer.steps() == [1, 3]
    assert readers[0].progress(1).epoch == 1
    readers[0].close()
    assert saved(writer, 4, 5).steps() == [5]
    # A reader chooses again where the newest is gone.
    assert readers[1].newest_whole_step() == 5
    assert readers[2].latest_step() == 5
    with pytest.raises(FileNotFoundError, match=r"no checkpoint 1 in .* there are"):
        readers[3].progress(1)


@pytest.mark.slow
def test_readers_of_a_run_that_saves_all_the_time(open_store, tmp_path):
    """Each chooses, reads and closes while others are removed."""
    program = f"""
        import itertools
        from credit_jax.checkpoint import CheckpointStore
        from tests.checkpoint.test_store import saved
        store = CheckpointStore({str(tmp_path)!r}, num_latest=1, keep_best=False)
        for step in itertools.count(1):
            saved(store, step)
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
    store = saved(open_store(), 3)
    reader = open_store(pins=True)
    listings = iter([[], [], [3]])
    monkeypatch.setattr(reader, "steps", lambda: next(listings))
    assert reader.newest_whole_step() == 3
    monkeypatch.setattr(store, "steps", lambda: [])
    assert store.newest_whole_step() is None


def test_every_checkpoint_has_digests_and_is_whole(three, open_store):
    store = open_store()
    assert store.steps() == [1, 2, 3]
    for step in store.steps():
        assert (three / str(step) / DIGESTS).is_file()
        assert (store.damage(step), store.item_names(step)) == ([], ["weights"])
        chex.assert_trees_all_equal(
            store.restore(step, {"weights": weights(0.0)})["weights"], weights()
        )
    assert store.newest_whole_step() == 3


def test_damaged_checkpoints_are_passed_over(three, open_store):
    """By a changed bit, a missing end, a missing file, and unreadable digests."""
    changed, gone = largest_file(three, 3), largest_file(three, 2)
    flip_a_bit(changed)
    store = open_store()
    assert required_step(store, resume=True) == 2
    assert store.damaged() == [f"{changed}: damaged, its bytes were changed"]
    with pytest.raises(ValueError, match=r"checkpoint 3 was damaged(?s:.*)--no-verify"):
        store.restore(3, {"weights": weights()})
    store.close()
    changed.write_bytes(changed.read_bytes()[:-7])
    gone.unlink()
    store = open_store()
    assert store.newest_whole_step() == 1
    assert f"{changed}: damaged, {changed.stat().st_size} of " in store.damage(3)[0]
    assert store.damage(2) == [f"{gone}: No such file or directory"]
    assert open_store(verify=False).damage(2) == []
    (three / "1" / DIGESTS).write_text("{")
    store.close()
    store = open_store()
    assert "not readable" in store.damage(1)[0]
    with pytest.raises(ValueError, match=r"all in .*checkpoints are damaged"):
        required_step(store, resume=True)


@pytest.mark.parametrize("name", ["d/*", "_METADATA"])
def test_what_cannot_be_decoded_is_one_error(tmp_path, open_store, name):
    """The digests fit, as the files were damaged before the digests were made."""
    # Of several arrays, none is still read after the error: that would warn.
    arrays = {f"a{i}": jnp.arange(8.0) for i in range(40)}
    tree, store = {"weights": arrays}, open_store()
    store.save(3, tree, Progress())
    store.close()
    digests = tmp_path / "checkpoints" / "3" / DIGESTS
    for path in (digests.parent / "weights").rglob(name):
        path.write_bytes(bytes(path.stat().st_size))
    digests.unlink()
    write_records(digests, record_files(digests.parent))
    match = r"checkpoint .*/3 cannot be read: (?s:.*)damaged or incomplete"
    with pytest.raises(ValueError, match=match):
        open_store().restore(3, tree)


def test_verify_prints_each_checkpoint(three, open_store, capsys):
    """Without digests nothing is known of a checkpoint."""
    assert main(["verify", str(three.parent)]) == 0
    assert "checkpoint 3: whole" in capsys.readouterr().out
    flip_a_bit(largest_file(three, 1))
    (three / "3" / DIGESTS).unlink()
    flip_a_bit(largest_file(three, 3))
    assert open_store().newest_whole_step() == 3
    assert main(["verify", str(three.parent)]) == 1
    text = capsys.readouterr().out
    assert "checkpoint 1: damaged" in text
    assert str(largest_file(three, 1)) in text
    assert "checkpoint 3: no digests were written for it" in text
    codes = {".": 1, "1": 1, "2": 0}
    assert {name: main(["verify", str(three / name)]) for name in codes} == codes


def call(edit):
    """A call of a store with one checkpoint, of the step 3."""

    def case(open_store):
        store = saved(open_store(), 3)
        return lambda: edit(store)

    return case


def other_arrays(store):
    other = weights()
    other["params"] |= {BIAS: jnp.ones(9), "new": jnp.ones(2)}
    del other["params"][KERNEL]
    store.restore(3, {"weights": other})


CASES.call("a step that is not there", call(lambda store: store.progress(4)))
CASES.call("items that are not there", call(lambda store: store.restore(3, items())))
CASES.call("other arrays", call(other_arrays))
CASES.call("no checkpoints", lambda open_store: open_store().restore(3, {}))
CASES.call(
    "verify nothing", lambda tmp_path: lambda: main(["verify", f"{tmp_path}/nothing"])
)
