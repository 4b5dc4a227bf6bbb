"""Batches: restartable, the same for any number of threads, split over dp."""

import collections

import jax
import numpy as np
import pytest

from credit_jax.config.config import section_conflicts
from credit_jax.data import build_loader
from credit_jax.data.sources.reader import OpenFile
from tests.data.bytes_read import bytes_read
from tests.data.world import parsed, raw_config, write_chunked


def load(world, ranks=(0,), dp_size=1, **changes):
    config = parsed(raw_config(world, **changes))
    return build_loader(config, split="train", local_dp_ranks=ranks, dp_size=dp_size)


def same(ours, theirs):
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        for name in ("x", "y", "input_times", "target_times"):
            assert np.array_equal(getattr(a, name), getattr(b, name)), name


def test_shapes(world):
    loader = load(world, ranks=(0, 1), dp_size=2)
    batches = list(loader.epoch(0))
    assert len(batches) == loader.sampler.num_batches == 16 // 3
    assert batches[0].x.shape == (6, 7, 1, 6, 10)
    assert batches[0].y.shape == (6, 6, 1, 6, 10)
    step = np.timedelta64(6, "h")
    assert (batches[0].target_times[:, 0] - batches[0].input_times == step).all()


@pytest.mark.slow(but=["3"])
@pytest.mark.parametrize("threads", [1, 3])
def test_threads_do_not_change_the_order(world, threads):
    plain = list(load(world).epoch(2))
    same(list(load(world, trainer__thread_workers=threads).epoch(2)), plain)


@pytest.mark.slow(but=["9"])
@pytest.mark.parametrize("start", [0, 1, 9, 10])
def test_restart(world, start):
    loader = load(world, trainer__thread_workers=2)
    done = start * loader.sampler.samples_per_batch
    same(list(loader.epoch(1, done)), list(loader.epoch(1))[start:])


def test_a_step_holds_the_same_samples_on_any_number_of_ranks(world):
    one = load(world, trainer__train_batch_size=4)
    two = [
        load(world, ranks=(r,), dp_size=2, trainer__train_batch_size=2) for r in (0, 1)
    ]
    steps = zip(one.epoch(0), two[0].epoch(0), two[1].epoch(0), strict=True)
    for whole, *parts in steps:
        times = np.concatenate([part.input_times for part in parts])
        order, there = np.argsort(times), np.argsort(whole.input_times)
        assert np.array_equal(times[order], whole.input_times[there])
        x = np.concatenate([part.x for part in parts])
        assert np.array_equal(x[order], whole.x[there])


@pytest.mark.slow
def test_the_ranks_of_an_open_loader_can_change(world):
    found = load(world).for_ranks((1, 2), 3)
    same(list(found.epoch(1)), list(load(world, ranks=(1, 2), dp_size=3).epoch(1)))
    with pytest.raises(ValueError, match="no full batch"):
        found.for_ranks((0,), 40)


def test_units(world):
    loader = load(world)
    batch = loader.read([0, 1])
    sample = loader.dataset[1].target["ERA5"]["ERA5/prognostic/2d/SP"]
    physical = loader.units.denormalize(batch.y)
    assert np.allclose(physical[1, 4], sample[0], rtol=1e-6)
    assert np.allclose(loader.units.normalize(physical), batch.y, atol=1e-4)


@pytest.mark.slow(but=["per_step"])
@pytest.mark.parametrize("where", ["ic_only", "per_step"])
def test_later_steps_go_through_the_same_chain(world, where):
    """A block before a rename refers to the variable by its old name."""
    old, new = "ERA5/prognostic/2d/SP", "ERA5/prognostic/2d/PS"
    rename = {"type": "rename", "args": {"mapping": {old: new}}}
    changes = {"data__forecast_len": 2, "preblocks__per_step__norm": None}
    loaders = []
    for renames in (True, False):
        raw = raw_config(world, **changes)
        name = new if renames and where == "ic_only" else old
        log = {"type": "log_transform", "args": {"variables": [name]}}
        steps = {"log": log, "concat": raw["preblocks"]["per_step"]["concat"]}
        raw["preblocks"] = {"ic_only": {}, "per_step": steps}
        if renames and where == "ic_only":
            raw["preblocks"]["ic_only"] = {"names": rename}
        elif renames:
            steps["names"] = rename
            steps["concat"] = steps.pop("concat")
        loaders.append(build_loader(parsed(raw), split="train"))
    assert new in loaders[0].schema.target_slices()
    ours, plain = (loader.read([0, 3]) for loader in loaders)
    assert ours.y.shape[2] == 2
    assert np.array_equal(ours.y, plain.y)
    assert np.array_equal(ours.x, plain.x)


@pytest.mark.parametrize("forecast_len", [1, 2])
def test_some_rows_are_those_of_the_batch(world, forecast_len):
    loader = load(world, data__forecast_len=forecast_len)
    whole, part = loader.read([3, 1]), loader.for_rows(slice(2, 5)).read([3, 1])
    assert np.array_equal(part.x, whole.x[..., 2:5, :])
    assert np.array_equal(part.y, whole.y[..., 2:5, :])
    assert part.fields.keys() == whole.fields.keys()
    for own, every in zip(
        jax.tree.leaves(part.fields), jax.tree.leaves(whole.fields), strict=True
    ):
        assert np.array_equal(own, every[..., 2:5, :])


def test_a_process_reads_the_bytes_of_its_rows(tmp_path):
    """Of chunks of two rows."""
    write_chunked(tmp_path)
    loader = build_loader(parsed(raw_config(tmp_path, "zarr")), split="train")
    read = {}
    for rows in (None, slice(2, 4), slice(4, 6)):
        part = loader.for_rows(rows)
        part.read([9])  # the metadata, too
        with bytes_read() as counts:
            part.read([12])
        read[rows and rows.start] = sum(counts)
    print("bytes read of all rows and of a third of them:", read)
    assert read[2] == read[4] == read[None] / 3 > 0


@pytest.mark.parametrize(
    ("history", "window", "most"), [(1, "12d", 1.0), (3, "12d", 1.0), (1, "1d", 1.1)]
)
def test_windows_read_each_field_once(world, monkeypatch, history, window, most):
    """Within a run of windows; without them it is read for each sample."""
    changes = {"data__history_len": history, "trainer__thread_workers": 3}
    windows = {"trainer__shuffle": {"window": window}, **changes}
    default, loader = (load(world, **own) for own in (changes, windows))
    counts, read = collections.Counter(), OpenFile.read

    def counted(file, name, chosen, index, out):
        counts[file.path, name, index] += 1
        return read(file, name, chosen, index, out)

    monkeypatch.setattr(OpenFile, "read", counted)
    batches = [*loader.epoch(0)]
    assert sum(counts.values()) <= most * len(counts)
    expected = {
        str(time): (x, y)
        for batch in default.epoch(0)
        for time, x, y in zip(batch.input_times, batch.x, batch.y, strict=True)
    }
    assert len(batches) == default.sampler.num_batches
    for batch in batches:
        for time, x, y in zip(batch.input_times, batch.x, batch.y, strict=True):
            if str(time) in expected:
                assert np.array_equal(x, expected[str(time)][0])
                assert np.array_equal(y, expected[str(time)][1])


def test_a_window_of_less_than_two_steps(world):
    raw = raw_config(world, trainer__shuffle={"window": "11h"})
    (line,) = section_conflicts(parsed(raw))
    assert "trainer.shuffle.window: 11h is shorter than two time steps" in line
