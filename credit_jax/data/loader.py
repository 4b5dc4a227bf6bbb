"""The loader: batches of x and y, prefetched by threads, restartable at any batch.

`build_loader` makes that of a split of a config, and checks its data.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Literal, get_args

import grain
import jax
import numpy as np
from jaxtyping import Int

from credit_jax import transforms
from credit_jax.config import Config
from credit_jax.config.data import DataConfig, in_training
from credit_jax.config.dates import duration
from credit_jax.data.channel_checks import names_outliers
from credit_jax.data.dataset import Dataset, open_dataset, regridded_axes
from credit_jax.data.preparation import Preparation
from credit_jax.data.sample_reader import Batch, SampleReader
from credit_jax.data.sampler import Sampler
from credit_jax.data.schema import ChannelSchema
from credit_jax.data.values import OutlierError, scale_notes
from credit_jax.io.open_files import OpenFiles
from credit_jax.named_fields.coordinates import Coordinates
from credit_jax.transforms import Pipeline, Units
from credit_jax.transforms.rollout import RAW

# Errors of samples that cannot be used.
BAD = (ValueError, OSError)


@dataclasses.dataclass(frozen=True)
class Loader:
    """Reads the batches of one split."""

    dataset: Dataset
    sampler: Sampler
    pipeline: Pipeline
    num_threads: int
    # Number of batches, raised to the number of threads if smaller; with 0 threads
    # batches are read on demand.
    prefetch: int
    notes: tuple[str, ...] = ()  # about the data, for the user
    # Indices of samples that are unusable, with the reason; usable ones, if in doubt.
    bad: dict[int, str] = dataclasses.field(default_factory=dict)
    good: set[int] = dataclasses.field(default_factory=set)
    rows: slice | None = None  # latitude rows of the batches; None for all
    # Whether what a step can do of the preblocks, and of the checks, is left to it.
    is_raw: bool = False
    shapes: Mapping[str, Any] | None = None  # of one sample, after the first is read

    @cached_property
    def samples(self) -> SampleReader:
        """Reads the samples, as the batches have them."""
        return SampleReader(self.dataset, self.pipeline, self.rows, self.preparation)

    @cached_property
    def _checked(self) -> SampleReader:
        """Reads the samples, applies all preblocks, and checks the result."""
        rows = None if self.pipeline.needs_grid else self.rows
        return SampleReader(self.dataset, self.pipeline, rows)

    @cached_property
    def preparation(self) -> Preparation | None:
        """What is left to the step; None if nothing is."""
        return Preparation.of(self.dataset, self.pipeline) if self.is_raw else None

    @property
    def schema(self) -> ChannelSchema:
        """The variables of the channels of x and y."""
        return self.samples.schema

    @cached_property
    def units(self) -> Units:
        return transforms.channel_units(self.pipeline, self.dataset.schema.target)

    @property
    def latitude(self) -> np.ndarray:
        """(lat,) degrees north of the rows of x and y; a ValueError if unknown."""
        if self.pipeline.grid is None:
            return self.dataset.degrees("latitude")
        return regridded_axes(self.pipeline.grid)[0]

    def coordinates(self) -> Coordinates:
        """The coordinates of x and y, of the sources, and the calendar."""
        return self.dataset.coordinates().regridded(self.pipeline.grid)

    def seen_in(self, training: DataConfig) -> str:
        """How many dates of the samples are in a training period; "" if none is."""
        steps = range(self.dataset.num_steps)
        starts = [self.dataset.step_starts[step] for step in steps]
        targets = self.dataset.shifted(starts[-1], 1)
        return in_training(
            np.unique(np.concatenate([*starts, targets])), training.ranges
        )

    def for_ranks(
        self, local_dp_ranks: tuple[int, ...], dp_size: int, batch_ranks: int = 0
    ) -> "Loader":
        """Returns a loader for other dp ranks, without opening files again."""
        sampler = dataclasses.replace(
            self.sampler,
            local_dp_ranks=tuple(local_dp_ranks),
            dp_size=dp_size,
            batch_ranks=batch_ranks,
        )
        return dataclasses.replace(self, sampler=sampler)

    def for_step(self) -> "Loader":
        """Returns a loader of raw batches, if a step's `preparation` can take them."""
        raw = dataclasses.replace(self, is_raw=True)
        if raw.preparation is None:
            return self
        shapes = {RAW.get(name, name): x for name, x in (self.shapes or {}).items()}
        return dataclasses.replace(raw, shapes=shapes or None)

    def for_rows(self, rows: slice | None) -> "Loader":
        """Returns a loader for some latitude rows, if preblocks work on single rows."""
        host = self.preparation.host if self.preparation else self.pipeline
        if host.needs_grid or self.dataset.further_names:
            # The grids of other inputs may differ.
            return self
        return dataclasses.replace(self, rows=rows)

    def epoch(self, epoch: int, done: int = 0) -> Iterator[Batch]:
        """Iterates over the batches of an epoch."""
        # A batch depends only on the seed, the epoch and the samples before it, not on
        # the number of threads.
        chosen = self.sampler.batches(epoch, done)
        if not chosen:
            return iter(())
        batches = grain.MapDataset.source(chosen).map(self.read)
        options = grain.ReadOptions(
            num_threads=self.num_threads,
            prefetch_buffer_size=max(self.prefetch, self.num_threads),
        )
        return iter(batches.to_iter_dataset(options))

    def read(self, indices: Int[np.ndarray, "b"] | Sequence[int]) -> Batch:
        """Reads the samples of one batch and applies the preblocks."""
        numbers = [int(index) for index in indices]
        try:
            if self.bad.keys().isdisjoint(numbers):
                return self.samples.read(numbers)
        except BAD as error:
            if not self._skips(error):
                raise
        # Each bad sample is replaced by the next good one in time, which is the same in
        # every epoch and for any number of threads.
        return self._replaced(numbers)

    def _replaced(self, indices: Sequence[int]) -> Batch:
        """Reads samples, each bad one replaced by the next good one in time."""
        pairs = [(index, self._good(index)) for index in indices]
        lines = [self._replacement(*pair) for pair in pairs if pair[0] != pair[1]]
        batch = self.samples.read([good for _, good in pairs])
        return dataclasses.replace(batch, replaced=tuple(lines))

    def again(self, batch: Batch, *, is_suspect: bool) -> Batch:
        """Reads a batch again; of one that a step suspects it looks at each sample."""
        indices = batch.indices.tolist()
        new = self._replaced(indices) if is_suspect else self.read(indices)
        return dataclasses.replace(new, replaced=batch.replaced + new.replaced)

    def note(self, batch: Batch) -> None:
        """Names the outliers of a raw batch in the log, until many were named."""
        if names_outliers():
            for index in batch.indices.tolist():
                self.fault(index)

    def fault(self, index: int) -> str | None:
        """Why a sample cannot be used; None if it can. It is read to find out."""
        if index not in self.bad and index not in self.good:
            try:
                self._checked.read([index])
                self.good.add(index)
            except BAD as error:
                if not self._skips(error):
                    raise
                self.bad[index] = str(error)
        return self.bad.get(index)

    def _skips(self, error: Exception) -> bool:
        """Whether a sample with an error is replaced by another."""
        if isinstance(error, OutlierError):
            return self.dataset.data.on_outlier == "skip"
        return self.dataset.data.on_bad_sample == "skip"

    def _good(self, index: int) -> int:
        """The index of the sample itself, or of the next good one in time."""
        for other in np.roll(np.arange(len(self.dataset)), -index).tolist():
            if self.fault(other) is None:
                return other
        raise ValueError(
            f"none of the {len(self.dataset)} samples can be used; the first: "
            f"{self.bad[index]}"
        )

    def _replacement(self, index: int, other: int) -> str:
        times = [str(self.dataset.starts[i])[:16] for i in (index, other)]
        return (
            f"the sample at {times[0]} is replaced by that at {times[1]}: "
            f"{self.bad[index]}"
        )

    def probe(self) -> "Loader":
        """Checks the first, middle, last sample; has notes about data, and `shapes`."""
        notes, last, shapes = list(self.notes), len(self.dataset) - 1, None
        for index in sorted({0, last // 2, last}):
            try:
                batch = self._checked.read([index], thorough=True)
            except BAD as error:
                if not self._skips(error):
                    raise
                self.bad[index] = str(error)
                notes.append(self._replacement(index, self._good(index)))
                continue
            shapes = jax.tree.map(
                lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), batch.arrays
            )
            if self.pipeline.normalizes and index == 0:
                times = batch.input_times
                texts = scale_notes(batch.x, batch.y, times, self.schema)
                for key, text in texts.items():
                    path = self.dataset.path_of(key, times[0])
                    notes.append(text if path is None else f"{path}: {text}")
        return dataclasses.replace(self, notes=tuple(notes), shapes=shapes)


Split = Literal["train", "valid"]


def splits(config: Config) -> tuple[Split, ...]:
    """The splits of a run: without "valid" if `skip_validation` is set."""
    return ("train",) if config.trainer.skip_validation else get_args(Split)


def build_loader(
    config: Config,
    *,
    split: Split,
    local_dp_ranks: tuple[int, ...] = (0,),
    dp_size: int = 1,
    keep_partial: bool | None = None,
    pipeline: Pipeline | None = None,
    open_files: OpenFiles | None = None,
    grid: tuple[int, int] | None = None,
    like: Coordinates | None = None,
) -> Loader:
    """Builds the loader of a split; checks its files, times, grids and some samples."""
    train = split == "train"
    if pipeline is None:
        pipeline = transforms.build_pipeline(config.preblocks, config.postblocks)
    shared_grid = pipeline.grid is None
    dataset = open_dataset(
        config.data if train else config.validation_data,
        open_files,
        like=like,
        shared_grid=shared_grid,
    )
    lines = dataset.check(grid, shared_grid=shared_grid)
    if (new := pipeline.grid) is not None and grid is not None and new.shape != grid:
        raise ValueError(
            f"preblocks: regrid makes fields of {new.shape[0]} x {new.shape[1]} "
            f"(latitude x longitude), the model has image_height {grid[0]} x "
            f"image_width {grid[1]}; take other weights, or set them to {new.shape[0]} "
            f"and {new.shape[1]}"
        )
    pipeline = pipeline.at(dataset.schema.as_read(), dataset.coordinates().grid)
    for schema in dataset.further.values():
        pipeline.check(schema.as_read())
    transforms.check_units(pipeline, dataset.units())
    trainer = config.trainer
    size = trainer.train_batch_size if train else trainer.valid_batch_size
    workers = trainer.thread_workers if train else trainer.valid_thread_workers
    length = duration(trainer.shuffle.window) if trainer.shuffle.window else None
    if train and length is not None:
        dataset = dataset.keeping(length)
    sampler = Sampler(
        num_samples=len(dataset),
        batch_size=size,
        local_dp_ranks=tuple(local_dp_ranks),
        dp_size=dp_size,
        seed=config.seed,
        shuffle=train,
        # Differs from CREDIT: training drops samples that do not fill a batch, so that
        # it compiles one program; CREDIT ends the epoch with a smaller one.
        keep_partial=not train if keep_partial is None else keep_partial,
        window=length.to_timedelta64() if train and length is not None else None,
        starts=dataset.starts,
    )
    ahead = trainer.prefetch_factor
    return Loader(dataset, sampler, pipeline, workers, ahead, tuple(lines)).probe()
