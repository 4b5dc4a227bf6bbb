"""The sampler contract: which rank gets which samples, in the order of torch."""

import numpy as np
import pytest

from credit_jax.data import Sampler
from credit_jax.data.sampler import epoch_order, torch_randperm, window_order

SEEDS = (0, 1, 42, 1000, 2**31, 2**32 - 1, 2**32 + 5, 2**40 + 3, -1)


def sampler(**changes):
    settings = {
        "num_samples": 23,
        "batch_size": 2,
        "local_dp_ranks": (0,),
        "dp_size": 1,
        "seed": 5,
        "shuffle": True,
        "keep_partial": True,
    }
    return Sampler(**{**settings, **changes})


@pytest.mark.parametrize("num_samples", [1, 7, 24])
@pytest.mark.parametrize("dp_size", [1, 2, 3, 8])
@pytest.mark.parametrize("shuffle", [True, False])
def test_order_is_torchs_distributed_sampler(torch, num_samples, dp_size, shuffle):
    data = torch.utils.data
    for epoch in (0, 1, 9):
        order = epoch_order(
            num_samples, dp_size=dp_size, seed=5, epoch=epoch, shuffle=shuffle
        )
        for rank in range(dp_size):
            theirs = data.DistributedSampler(
                range(num_samples), dp_size, rank, shuffle, seed=5
            )
            theirs.set_epoch(epoch)
            assert order[rank::dp_size].tolist() == list(theirs), f"rank {rank}"


def test_process_with_several_ranks_concatenates_them_in_order():
    both = sampler(local_dp_ranks=(1, 3), dp_size=4).batches(0)
    apart = [sampler(local_dp_ranks=(r,), dp_size=4).batches(0) for r in (1, 3)]
    for step, batch in enumerate(both):
        parts = [batches[step].tolist() for batches in apart]
        assert batch.tolist() == parts[0] + parts[1]


@pytest.mark.parametrize(("keep", "sizes"), [(True, [2] * 11 + [1]), (False, [2] * 11)])
def test_partial_batch(keep, sizes):
    chosen = sampler(keep_partial=keep)
    assert [len(batch) for batch in chosen.batches(0)] == sizes
    assert chosen.num_batches == len(sizes)


@pytest.mark.parametrize(("size", "ranks"), [(2, 1), (5, 1), (3, 2), (1, 4)])
@pytest.mark.parametrize(("new_size", "new_ranks"), [(2, 1), (4, 1), (7, 1), (3, 3)])
def test_an_epoch_goes_on_with_another_batch_size(size, ranks, new_size, new_ranks):
    """Every sample is seen once, but those of a last part that fills no batch."""

    def batches(size, ranks, done):
        options = {"num_samples": 103, "keep_partial": False, "batch_size": size}
        own = [
            sampler(local_dp_ranks=(rank,), dp_size=ranks, **options).batches(3, done)
            for rank in range(ranks)
        ]
        return [np.concatenate(parts) for parts in zip(*own, strict=True)]

    before = batches(size, ranks, 0)[:6]
    done = sum(map(len, before))
    after = batches(new_size, new_ranks, done)
    seen = np.concatenate([*before, *after])
    left = 103 - len(seen)
    assert len(np.unique(seen)) == len(seen) or -new_ranks < left < 0
    assert left < new_size * new_ranks
    if (size, ranks) == (new_size, new_ranks):
        whole = batches(size, ranks, 0)
        for own, expected in zip(after, whole[6:], strict=True):
            np.testing.assert_array_equal(own, expected)


@pytest.mark.parametrize("num_items", [0, 1, 2, 57, 623, 624, 625, 20001])
def test_randperm_equals_torch(torch, num_items):
    for seed in SEEDS:
        generator = torch.Generator()
        generator.manual_seed(seed)
        expected = torch.randperm(num_items, generator=generator).numpy()
        actual = torch_randperm(num_items, seed)
        assert np.array_equal(actual, expected), f"seed {seed}"


STARTS = np.datetime64("2000-01-01", "ns") + np.arange(1000) * np.timedelta64(6, "h")
WINDOW = np.timedelta64(4, "D")


def windowed(**changes):
    settings = {"num_samples": len(STARTS), "window": WINDOW, "starts": STARTS}
    return sampler(**{**settings, "batch_size": 4, **changes})


@pytest.mark.parametrize("epoch", [0, 1, 7])
def test_windows(epoch):
    """Each sample once, and of a field both samples within two windows."""
    order = np.concatenate(windowed().batches(epoch))
    assert sorted(order) == list(range(len(STARTS)))
    place = np.argsort(order)
    apart = np.abs(np.diff(place))
    assert (apart >= 2 * 16).mean() < 1 / (4 * 16 - 16), "but at ends of runs"
    assert (np.diff(order) != 1).mean() > 0.8, "samples of a window are permuted"
    assert np.abs(np.diff(order)).max() > 300, "and so are runs of windows"
    # Fields that are read with those of the last two windows kept.
    kept, reads = {}, 0
    for number, sample in enumerate(order):
        for time in (sample, sample + 1):
            reads += time not in kept
            kept.pop(time, None)
            kept[time] = number
            if len(kept) > 2 * 16 + 2:
                del kept[next(iter(kept))]
    assert reads / (2 * len(order)) < 0.52


def test_windows_are_the_same_on_every_mesh():
    one = [np.sort(batch) for batch in windowed(batch_size=8).batches(3)]
    other = windowed(batch_size=8).batches(4)
    assert any((a != b).any() for a, b in zip(one, other, strict=True))
    for dp_size in (2, 4):
        ranks = [
            windowed(batch_size=8 // dp_size, local_dp_ranks=(r,), dp_size=dp_size)
            for r in range(dp_size)
        ]
        steps = zip(*(rank.batches(3) for rank in ranks), strict=True)
        for whole, parts in zip(one, steps, strict=True):
            assert (np.sort(np.concatenate(parts)) == whole).all()
    # Another batch size and other ranks go on with the same order.
    order = np.concatenate(windowed().batches(3))
    rest = windowed(batch_size=3, local_dp_ranks=(0, 1), dp_size=2).batches(3, done=100)
    assert sorted(np.concatenate(rest)) == sorted(order[100:])


def test_windows_depend_on_times_alone():
    """With other times beside them, and gaps, each sample is drawn once."""
    gaps = np.concatenate([STARTS[:100], STARTS[500:541]])
    for starts in (gaps, STARTS[:1], STARTS[:7]):
        order = window_order(starts, WINDOW, seed=-1, epoch=2)
        assert sorted(order) == list(range(len(starts)))
    again = window_order(STARTS.astype("M8[s]"), WINDOW, seed=5, epoch=3)
    assert (again == np.concatenate(windowed().batches(3))).all()
