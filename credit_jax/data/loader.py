"""The loader: batches of x and y, prefetched by threads, restartable at any batch."""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Literal, get_args

import grain
import jax
import numpy as np
from jaxtyping import Float, Int

from credit_jax.config import Config
from credit_jax.data.channels import ChannelSchema
from credit_jax.data.checks import check_dataset
from credit_jax.data.dataset import Dataset, collate, open_dataset
from credit_jax.data.further_arrays import further_arrays
from credit_jax.data.sampler import Sampler
from credit_jax.data.values import (
    BadValuesError,
    check_fields,
    check_finite,
    scale_notes,
)
from credit_jax.io.buffers import BUFFERS
from credit_jax.io.open_files import OpenFiles
from credit_jax.transforms import (
    Destination,
    FieldTree,
    Grid,
    Phase,
    Pipeline,
    Units,
    build_pipeline,
    channel_units,
    fields_of_rollout,
    initial_entries,
    without_input,
)

Split = Literal["train", "valid"]
# Errors of samples that cannot be used.
BAD = (ValueError, OSError)


@dataclasses.dataclass(frozen=True)
class Batch:
    """The part of a batch that this process provides for one training step.

    Attributes:
        x: (b, channel, time, lat, lon) model input of the first step, in CREDIT's
            layout; b = batch size x local dp ranks, with the samples of one rank after
            those of another.
        y: (b, channel, step, lat, lon) target of each step.
        input_times: (b,) datetime64[ns], the last input time of each sample.
        target_times: (b, step) datetime64[ns].
        fields: further named fields in physical units that the steps need,
            {source: {key: (b, level, time, lat, lon)}} each: "x_physical", the input of
            the first step; "ic_raw", its static fields before any preblock; and for
            forecasts of several steps "forcing", the forcing of the later steps, and
            "static", the input that does not change.
        replaced: one line for each bad sample that was replaced.
        further: inputs of the model other than x, by name, see `further_arrays`.
    """

    x: Float[np.ndarray, "b channel time lat lon"]
    y: Float[np.ndarray, "b channel_out step lat lon"]
    input_times: np.ndarray
    target_times: np.ndarray
    fields: Mapping[str, FieldTree] = dataclasses.field(default_factory=dict)
    replaced: tuple[str, ...] = ()
    further: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)

    @property
    def arrays(self) -> dict[str, Any]:
        """The arrays that are placed on devices."""
        return {"x": self.x, "y": self.y, **self.further, **self.fields}


@dataclasses.dataclass(frozen=True)
class Loader:
    """Reads the batches of one split.

    Attributes:
        dataset: the samples.
        sampler: selects the samples of each batch.
        pipeline: the transforms, whose preblocks make x and y from samples.
        num_threads: number of threads that prefetch; 0 reads on demand.
        prefetch: number of batches to prefetch, raised to `num_threads` if smaller.
        notes: notes about the data for the user, one line each.
        bad: index of each sample found to be unusable -> the reason.
        rows: latitude rows of the batches; None for all.
        shapes: shapes and dtypes of the arrays of a batch of one sample; None if no
            sample was read yet.
    """

    dataset: Dataset
    sampler: Sampler
    pipeline: Pipeline
    num_threads: int
    prefetch: int
    notes: tuple[str, ...] = ()
    bad: dict[int, str] = dataclasses.field(default_factory=dict)
    rows: slice | None = None
    shapes: Mapping[str, Any] | None = None

    @property
    def num_batches(self) -> int:
        """Number of batches of an epoch."""
        return self.sampler.num_batches

    @cached_property
    def schema(self) -> ChannelSchema:
        """The variables of the channels of x and y."""
        return self.dataset.schema.after(self.pipeline)

    @cached_property
    def units(self) -> Units:
        """Converts between channels of y and physical units."""
        return channel_units(self.pipeline, self.dataset.schema.target)

    @property
    def latitude(self) -> np.ndarray:
        """(lat,) degrees north of the rows of x and y.

        Raises:
            ValueError: no file has latitudes.
        """
        grid = self.pipeline.grid
        return self.dataset.latitude if grid is None else _known(grid.latitude)

    @property
    def longitude(self) -> np.ndarray:
        """(lon,) degrees east of the columns of x and y.

        Raises:
            ValueError: no file has longitudes.
        """
        grid = self.pipeline.grid
        return self.dataset.longitude if grid is None else _known(grid.longitude)

    def for_ranks(self, local_dp_ranks: tuple[int, ...], dp_size: int) -> "Loader":
        """Returns a loader for other dp ranks, without opening or checking files again.

        Raises:
            ValueError: see `Sampler`.
        """
        ranks = {"local_dp_ranks": tuple(local_dp_ranks), "dp_size": dp_size}
        return dataclasses.replace(
            self, sampler=dataclasses.replace(self.sampler, **ranks)
        )

    def for_rows(self, rows: slice | None) -> "Loader":
        """Returns a loader for some latitude rows, if preblocks work on single rows.

        If a preblock needs the whole grid, or there are inputs other than x, whose grid
        may differ, it reads all rows.
        """
        if self.pipeline.needs_grid or self.dataset.further is not None:
            return self
        return dataclasses.replace(self, rows=rows)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """Iterates over the batches of an epoch.

        A batch depends only on the seed, the epoch and its position, not on `start` or
        the number of threads.

        Args:
            epoch: index of the epoch, from 0.
            start: number of batches of this epoch to skip.
        """
        chosen = self.sampler.batches(epoch)[start:]
        if not chosen:
            return iter(())
        batches = grain.MapDataset.source(chosen).map(self.read)
        options = grain.ReadOptions(
            num_threads=self.num_threads,
            prefetch_buffer_size=max(self.prefetch, self.num_threads),
        )
        return iter(batches.to_iter_dataset(options))

    def read(self, indices: Int[np.ndarray, "b"] | Sequence[int]) -> Batch:
        """Reads the samples of one batch and applies the preblocks.

        If the data set skips bad samples, each is replaced by the next good one in
        time, which is the same in every epoch and for any number of threads.

        Raises:
            ValueError, OSError: a value is NaN, infinite or a fill value, a time is
                missing, or a file cannot be read; for a data set that skips bad
                samples, all samples are bad.
        """
        if not self.dataset.skips_bad:
            return self._read(indices)
        try:
            return self._read(indices)
        except BAD:
            pairs = [(int(i), self._good(int(i))) for i in indices]
        lines = [self._replacement(*pair) for pair in pairs if pair[0] != pair[1]]
        batch = self._read([good for _, good in pairs])
        return dataclasses.replace(batch, replaced=tuple(lines))

    def _good(self, index: int) -> int:
        """The index of the sample itself, or of the next good one in time."""
        for other in np.roll(np.arange(len(self.dataset)), -index).tolist():
            if other in self.bad:
                continue
            try:
                self._read([other])
            except BAD as error:
                self.bad[other] = str(error)
            else:
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

    def _read(
        self, indices: Int[np.ndarray, "b"] | Sequence[int], *, thorough: bool = False
    ) -> Batch:
        """Reads one batch; `thorough` always checks for fill values."""
        out = _Arrays(len(indices), self.dataset.num_steps, self.schema)
        samples = [
            self._sample(int(index), out, number, thorough=thorough)
            for number, index in enumerate(indices)
        ]
        input_times, target_times = (
            np.concatenate([sample[name] for sample in samples])
            for name in ("input_times", "target_times")
        )
        fields, further = (
            jax.tree.map(
                lambda *parts: parts[0] if len(parts) == 1 else np.concatenate(parts),
                *(sample[name] for sample in samples),
            )
            for name in ("fields", "further")
        )
        times = input_times, target_times
        return Batch(out.x, out.y, *times, fields, further=further)

    def _sample(
        self, index: int, out: "_Arrays", number: int, *, thorough: bool
    ) -> dict[str, Any]:
        """Writes x and y of one sample to `out`; returns its times and other fields.

        Raises:
            ValueError, OSError: see `read`.
        """
        try:
            return self._filled(index, out, number, thorough=thorough)
        except BadValuesError as error:
            raise error.in_file(self.dataset.path_of) from error

    def _filled(
        self, index: int, out: "_Arrays", number: int, *, thorough: bool
    ) -> dict[str, Any]:
        steps = [
            collate([self.dataset.step(index, k, self.rows)])
            for k in range(self.dataset.num_steps)
        ]
        if thorough:
            _check_raw(steps)
        raw = steps[0]
        first = self.pipeline.initial(raw)
        later = [self.pipeline.aligned(step, Phase.INITIAL) for step in steps[1:]]
        for step, own in enumerate((first, *map(without_input, later))):
            out.fill(self.pipeline, own, number, step)
        times = np.stack([step["target_times"] for step in (first, *later)], axis=1)
        x, y = out.x[number : number + 1], out.y[number : number + 1]
        try:
            plateau = check_finite(x, y, first["input_times"], self.schema)
        except ValueError:
            _check_raw(steps)  # raises a more specific error, if it finds the cause
            raise
        if plateau:
            _check_raw(steps)
        fields = self._named_fields(raw, first, later)
        further = self._further(index, thorough=thorough)
        known = {"input_times": first["input_times"], "target_times": times}
        return {**known, "fields": fields, "further": further}

    def _further(self, index: int, *, thorough: bool) -> dict[str, np.ndarray]:
        """The inputs of the model other than x."""
        dataset = self.dataset
        if dataset.further is None:
            return {}
        starts = [dataset.starts_at(k)[index] for k in range(dataset.num_steps)]
        return further_arrays(dataset.further, starts, self.pipeline, thorough=thorough)

    def _named_fields(
        self, raw: FieldTree, first: FieldTree, later: Sequence[FieldTree]
    ) -> dict[str, FieldTree]:
        """`Batch.fields` of one sample."""
        if not (later or self.pipeline.needs("x_physical", "ic_raw")):
            return {}
        physical = self.pipeline.aligned(first, Phase.BEFORE_STEP)["input"]
        fields = initial_entries(self.pipeline, raw["input"], physical)
        if later:
            aligned = [self.pipeline.aligned(s, Phase.BEFORE_STEP) for s in later]
            fields |= fields_of_rollout(physical, [s["input"] for s in aligned])
        return fields

    def probe(self) -> "Loader":
        """Checks the first, the middle and the last sample.

        Returns:
            The loader with notes about the data, and with `shapes`.

        Raises:
            ValueError, OSError: see `read`.
        """
        notes, last, shapes = list(self.notes), len(self.dataset) - 1, None
        for index in sorted({0, last // 2, last}):
            try:
                batch = self._read([index], thorough=True)
            except BAD as error:
                if not self.dataset.skips_bad:
                    raise
                self.bad[index] = str(error)
                notes.append(self._replacement(index, self._good(index)))
                continue
            shapes = jax.tree.map(_shape_of, batch.arrays)
            if self.pipeline.normalizes and index == 0:
                times = batch.input_times
                for key, text in scale_notes(
                    batch.x, batch.y, times, self.schema
                ).items():
                    path = self.dataset.path_of(key, times[0])
                    notes.append(text if path is None else f"{path}: {text}")
        return dataclasses.replace(self, notes=tuple(notes), shapes=shapes)


class _Arrays:
    """The arrays x and y of a batch, written sample by sample and step by step.

    Args:
        num_samples: number of samples of the batch.
        num_steps: number of steps of y.
        schema: channels of x and y.
    """

    x: np.ndarray
    y: np.ndarray

    def __init__(self, num_samples: int, num_steps: int, schema: ChannelSchema) -> None:
        self._num_samples, self._num_steps = num_samples, num_steps
        self._channels = {
            "input": schema.input_slices(),
            "target": schema.target_slices(),
        }

    def fill(self, pipeline: Pipeline, tree: FieldTree, sample: int, step: int) -> None:
        """Applies the preblocks of a step, which write to views of x and y."""
        if not hasattr(self, "x"):
            self.x, self.y = self._allocated(pipeline, tree)
        places = {
            "input": self.x[sample : sample + 1],
            "target": self.y[sample : sample + 1, :, step : step + 1],
        }
        given = {
            part: Destination(place, self._channels[part])
            for part, place in places.items()
        }
        done = pipeline.before_step({**tree, "destination": given})
        for name, part in (("x", "input"), ("y", "target")):
            if name in done and done[name] is not places[part]:
                places[part][...] = done[name]

    def _allocated(
        self, pipeline: Pipeline, tree: FieldTree
    ) -> tuple[np.ndarray, np.ndarray]:
        field = next(x for own in tree["input"].values() for x in own.values())
        history, *space = field.shape[2:]
        if pipeline.grid is not None:
            space = pipeline.grid.shape
        channels = [
            max(place.stop for place in self._channels[part].values())
            for part in ("input", "target")
        ]
        shapes = zip(channels, (history, self._num_steps), strict=True)
        made = [
            BUFFERS.empty((self._num_samples, *shape, *space), np.float32)
            for shape in shapes
        ]
        return made[0], made[1]


def _check_raw(steps: Sequence[FieldTree]) -> None:
    """Checks the fields of every step and sample, before any transform."""
    for step, part in itertools.product(steps, ("input", "target")):
        for sample, time in enumerate(step[f"{part}_times"]):
            own = {
                source: {key: field[sample] for key, field in fields.items()}
                for source, fields in step[part].items()
            }
            check_fields(own, time)


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
) -> Loader:
    """Builds the loader of a split; checks its files, times, grids and some samples.

    Args:
        config: the whole config; its model section is not read.
        split: "train" (shuffled) or "valid" (in order of time).
        local_dp_ranks: dp ranks whose devices belong to this process, increasing. Peers
            along tp and domain are one dp rank and get the same samples.
        dp_size: number of dp ranks of the whole mesh.
        keep_partial: whether an epoch ends with a smaller batch if samples are left
            over; by default only in validation, so that training compiles one program.
        pipeline: transforms of `build_pipeline`; None builds those of the config.
        open_files: cache of open files, shared with other loaders.
        grid: (latitudes, longitudes) of the model; None skips the comparison.

    Raises:
        FileNotFoundError: files are missing.
        ValueError: the data or the transforms have problems, see `check_dataset`,
            `Sampler`, `build_pipeline`.

    Differs from CREDIT: training drops samples that do not fill a batch; CREDIT ends
    the epoch with a smaller one.
    """
    train = split == "train"
    dataset = open_dataset(config.data if train else config.validation_data, open_files)
    if pipeline is None:
        pipeline = build_pipeline(config.preblocks, config.postblocks)
    lines = check_dataset(dataset, grid, same_grid=pipeline.grid is None)
    _check_new_grid(pipeline.grid, grid)
    pipeline.check(dataset.schema.as_read())
    if dataset.further is not None:
        for schema in dataset.further.schemas.values():
            pipeline.check(schema.as_read())
    pipeline.check_units(dataset.units())
    trainer = config.trainer
    size = trainer.train_batch_size if train else trainer.valid_batch_size
    workers = trainer.thread_workers if train else trainer.valid_thread_workers
    sampler = Sampler(
        num_samples=len(dataset),
        batch_size=size,
        local_dp_ranks=tuple(local_dp_ranks),
        dp_size=dp_size,
        seed=config.seed,
        shuffle=train,
        keep_partial=not train if keep_partial is None else keep_partial,
    )
    ahead = trainer.prefetch_factor
    return Loader(dataset, sampler, pipeline, workers, ahead, tuple(lines)).probe()


def _shape_of(array: np.ndarray) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(array.shape, array.dtype)


def _known(coordinate: np.ndarray | None) -> np.ndarray:
    if coordinate is None:
        raise ValueError(
            "the weight file of the regrid block gives no latitudes and longitudes of "
            "rows and columns"
        )
    return coordinate


def _check_new_grid(made: Grid | None, grid: tuple[int, int] | None) -> None:
    """Checks that preblocks that regrid make the model's grid."""
    if made is not None and grid is not None and made.shape != grid:
        raise ValueError(
            f"preblocks: regrid makes fields of {made.shape[0]} x {made.shape[1]} "
            f"(latitude x longitude), the model has image_height {grid[0]} x "
            f"image_width {grid[1]}; take other weights, or set them to "
            f"{made.shape[0]} and {made.shape[1]}"
        )
