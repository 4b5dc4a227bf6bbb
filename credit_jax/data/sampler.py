"""Sample indices of every batch, sharded over the data-parallel ranks.

Samples are split over the data-parallel (dp) axes only. All devices of a dp rank, its
peers along tp and domain, have the same samples: tensor-parallel peers sum parts of one
output, domain peers exchange rows of one field. All ranks index one permutation. If
each rank had its own, samples would be repeated and skipped without an error.
"""

import dataclasses

import numpy as np
from jaxtyping import Int, Shaped

# Number of neighboring windows that are visited in order of time.
_RUN = 4


def epoch_order(
    num_samples: int, *, dp_size: int, seed: int, epoch: int, shuffle: bool
) -> Int[np.ndarray, "padded"]:
    """Returns sample indices of an epoch for all dp ranks; rank r has [r::dp_size]."""
    # As torch's DistributedSampler: a permutation from seed + epoch, extended from its
    # own start to a multiple of dp_size.
    if shuffle:
        order = torch_randperm(num_samples, seed + epoch)
    else:
        order = np.arange(num_samples)
    return np.resize(order, -(-num_samples // dp_size) * dp_size)


def window_order(
    starts: Shaped[np.ndarray, " sample"],
    window: np.timedelta64,
    *,
    seed: int,
    epoch: int,
) -> Int[np.ndarray, " sample"]:
    """Returns sample indices of an epoch, permuted within windows of time."""
    sequence = np.random.SeedSequence([seed & 0xFFFFFFFF, epoch])
    rng = np.random.RandomState(np.random.MT19937(sequence))
    length = window.astype("timedelta64[s]").astype(np.int64)
    since = (starts - starts.min()).astype("timedelta64[s]").astype(np.int64)
    numbers = (since + rng.randint(length, dtype=np.int64)) // length
    in_time = np.argsort(numbers, kind="stable")
    ends = np.flatnonzero(np.diff(numbers[in_time])) + 1
    windows = np.split(in_time, ends)
    # Runs of neighboring windows are permuted, and windows of a run in order of time,
    # so that both samples that have a field are near each other, also across windows.
    runs = (numbers[[w[0] for w in windows]] + rng.randint(_RUN)) // _RUN
    return np.concatenate(
        [
            rng.permutation(windows[n])
            for run in rng.permutation(np.unique(runs))
            for n in np.flatnonzero(runs == run)
        ]
    )


@dataclasses.dataclass(frozen=True)
class Sampler:
    """The batches of every epoch, for the dp ranks of this process."""

    num_samples: int
    batch_size: int  # of one dp rank
    local_dp_ranks: tuple[int, ...]  # of this process's devices, increasing
    dp_size: int  # of the whole mesh
    seed: int  # the same in all processes
    # Differs from CREDIT, which is meant to reshuffle in every epoch (seed + epoch),
    # but sets the epoch of the loader's `sampler` instead of its `batch_sampler`: every
    # epoch has the order of epoch 0.
    shuffle: bool
    keep_partial: bool  # an epoch may end with a smaller batch
    # Number of dp ranks whose samples make a batch, which those of the mesh share; 0
    # for `dp_size`. A run that goes on keeps that of its start.
    batch_ranks: int = 0
    window: np.timedelta64 | None = None  # of time, to permute within
    starts: np.ndarray | None = dataclasses.field(default=None, compare=False)

    def __post_init__(self) -> None:
        ranks = list(self.local_dp_ranks)
        if not ranks or sorted(set(ranks)) != ranks or not 0 <= ranks[0] <= ranks[-1]:
            raise ValueError(
                f"local_dp_ranks must be increasing dp ranks, got {tuple(ranks)}; "
                "peers along tp and domain share a dp rank, which is named once"
            )
        if ranks[-1] >= self.dp_size:
            raise ValueError(
                f"local_dp_ranks {tuple(ranks)} do not fit dp_size {self.dp_size}: the "
                f"largest dp rank is {self.dp_size - 1}. Ranks count the data-parallel "
                "axes only, not all devices"
            )
        if self.num_batches < 1:
            per_rank = -(-self.num_samples // self._ranks)
            raise ValueError(
                f"no full batch: {self.num_samples} samples over {self._ranks} dp "
                f"ranks are {per_rank} per rank, and a batch takes "
                f"{self.batch_size} per rank; use a batch size of at most "
                f"{per_rank} or more dates"
            )

    @property
    def num_batches(self) -> int:
        """Number of batches of an epoch, including the partial one if it is kept."""
        return self.batches_left(0)

    @property
    def samples_per_batch(self) -> int:
        """Samples of a full batch of all dp ranks."""
        return self.batch_size * self._ranks

    @property
    def _ranks(self) -> int:
        return self.batch_ranks or self.dp_size

    def batches_left(self, done: int) -> int:
        """Number of batches of an epoch after some of its samples."""
        per_rank = -(-max(self.num_samples - done, 0) // self._ranks)
        full, left = divmod(per_rank, self.batch_size)
        return full + (1 if left and self.keep_partial else 0)

    def batches(self, epoch: int, done: int = 0) -> list[Int[np.ndarray, "batch"]]:
        """Returns the sample indices of the batches of local ranks, in rank order."""
        # A batch of all ranks is the next part of the order of the epoch, whatever the
        # batch size and the number of ranks, so that an epoch can go on with others.
        seeds = {"seed": self.seed, "epoch": epoch}
        if self.window is None:
            shuffle = self.shuffle
            order = epoch_order(self.num_samples, dp_size=1, shuffle=shuffle, **seeds)
        else:
            assert self.starts is not None
            order = window_order(self.starts, self.window, **seeds)
        # Extended from its start, so that all ranks have equally many.
        left = -(-max(self.num_samples - done, 0) // self._ranks) * self._ranks
        order = np.resize(order, done + left)[done:]
        num, size = self.dp_size, self.samples_per_batch
        starts = range(0, self.batches_left(done) * size, size)
        batches = [order[start : start + size] for start in starts]
        # A part of a batch may be smaller; it is extended likewise.
        padded = [np.resize(each, -(-len(each) // num) * num) for each in batches]
        ranks = list(self.local_dp_ranks)
        return [each.reshape(-1, num).T[ranks].reshape(-1) for each in padded]


def torch_randperm(num_items: int, seed: int) -> np.ndarray:
    """Returns the permutation of torch.randperm on the CPU for a `manual_seed`."""
    if not 0 <= num_items < (2**32 - 1) // 20:
        raise ValueError(
            f"num_items must be from 0 to {(2**32 - 1) // 20 - 1}, got {num_items}"
        )
    # torch draws 32-bit numbers r_0, r_1, ... from the Mersenne Twister mt19937 (from
    # 2^32 / 20 items 64-bit ones), seeded with the low 32 bits of the seed, and
    # shuffles forward: for i = 0 .. n - 2, it swaps items i and i + r_i mod (n - i)
    # (aten/src/ATen/native/TensorFactories.cpp, randperm_cpu). numpy's RandomState is
    # the same generator with the same seeding.
    draws = np.random.RandomState(seed & 0xFFFFFFFF).bytes(4 * max(num_items - 1, 0))
    left = num_items - np.arange(max(num_items - 1, 0))
    jumps = (np.frombuffer(draws, "<u4") % left).tolist()
    items = list(range(num_items))
    for i, jump in enumerate(jumps):
        items[i], items[i + jump] = items[i + jump], items[i]
    return np.array(items, dtype=np.int64)
