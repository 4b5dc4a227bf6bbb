"""Batches: restartable, the same for any number of threads, split over dp only."""

import numpy as np
import pytest

from credit_jax.data import build_loader
from tests.data.damaged import refused
from tests.data.world import parsed, raw_config


def load(world, split="train", ranks=(0,), dp_size=1, **changes):
    config = parsed(raw_config(world, **changes))
    return build_loader(config, split=split, local_dp_ranks=ranks, dp_size=dp_size)


def same(ours, theirs):
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        for name in ("x", "y", "input_times", "target_times"):
            assert np.array_equal(getattr(a, name), getattr(b, name)), name


def test_shapes(world):
    loader = load(world, ranks=(0, 1), dp_size=2)
    batches = list(loader.epoch(0))
    assert len(batches) == loader.num_batches == 16 // 3
    assert batches[0].x.shape == (6, 7, 1, 6, 10)
    assert batches[0].y.shape == (6, 6, 1, 6, 10)
    step = np.timedelta64(6, "h")
    assert (batches[0].target_times[:, 0] - batches[0].input_times == step).all()


@pytest.mark.parametrize("threads", [1, 3])
def test_threads_do_not_change_the_order(world, threads):
    plain = list(load(world).epoch(2))
    same(list(load(world, trainer__thread_workers=threads).epoch(2)), plain)


@pytest.mark.parametrize("start", [0, 1, 9, 10])
def test_restart(world, start):
    loader = load(world, trainer__thread_workers=2)
    same(list(loader.epoch(1, start)), list(loader.epoch(1))[start:])


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


def test_the_ranks_of_an_open_loader_can_change(world):
    found = load(world).for_ranks((1, 2), 3)
    same(list(found.epoch(1)), list(load(world, ranks=(1, 2), dp_size=3).epoch(1)))
    with pytest.raises(ValueError, match="no full batch"):
        found.for_ranks((0,), 40)


def test_validation_is_in_order_and_complete(world):
    loader = load(
        world,
        "valid",
        validation_data={
            "start_datetime": "2000-01-02",
            "end_datetime": "2000-01-03T06",
        },
    )
    times = np.concatenate([batch.input_times for batch in loader.epoch(0)])
    assert [str(t)[:13] for t in times] == [
        f"2000-01-02T{hour}" for hour in ("00", "06", "12", "18")
    ] + ["2000-01-03T00"]


def test_units(world):
    loader = load(world)
    batch = loader.read([0, 1])
    sample = loader.dataset[1].target["ERA5"]["ERA5/prognostic/2d/SP"]
    physical = loader.units.denormalize(batch.y)
    assert np.allclose(physical[1, 4], sample[0], rtol=1e-6)
    assert np.allclose(loader.units.normalize(physical), batch.y, atol=1e-4)


def test_batch_larger_than_the_data(folder):
    refused(folder, "no full batch: 32 samples", trainer__train_batch_size=40)
