"""Makes batches of x and y from samples of the data by the preblocks."""

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import jax
import numpy as np
from jaxtyping import Int

from credit_jax.data.batch import Batch
from credit_jax.data.channel_checks import ChannelChecks, further_arrays
from credit_jax.data.dataset import Dataset, collate
from credit_jax.data.preparation import ARRAYS, Preparation
from credit_jax.data.schema import ChannelSchema
from credit_jax.data.values import BadValuesError, check_fields
from credit_jax.io.buffers import BUFFERS
from credit_jax.named_fields.tree import by_key
from credit_jax.transforms import (
    FieldTree,
    Phase,
    Pipeline,
    fields_of_rollout,
    initial_entries,
)


@dataclasses.dataclass(frozen=True)
class SampleReader:
    """Reads samples and applies the preblocks.

    Attributes:
        dataset: the samples.
        pipeline: the transforms, whose preblocks make x and y from samples.
        rows: latitude rows to read; None for all.
        preparation: what the step does of the preblocks and of the checks; None if
            nothing is left to it.
    """

    dataset: Dataset
    pipeline: Pipeline
    rows: slice | None = None
    preparation: Preparation | None = None

    @cached_property
    def schema(self) -> ChannelSchema:
        """The variables of the channels of x and y."""
        return self.dataset.schema.after(self.pipeline)

    def read(
        self, indices: Int[np.ndarray, "b"] | Sequence[int], *, thorough: bool = False
    ) -> Batch:
        """Reads the samples of one batch and applies the preblocks.

        Args:
            indices: indices of the samples.
            thorough: whether to check all values as they are read; otherwise only those
                of batches that look wrong.

        Raises:
            ValueError, OSError: a value is NaN, infinite or a fill value, unless the
                step checks it; a time is missing, or a file cannot be read.
        """
        num_samples = len(indices)
        history = self.schema.input[0].n_time
        times = history, self.dataset.num_steps
        channels = self.schema.num_input_channels, self.schema.num_target_channels
        arrays = [
            BUFFERS.empty((num_samples, *shape, *self._space), np.float32)
            for shape in zip(channels, times, strict=True)
        ]
        x, y = arrays[0], arrays[1]
        samples = [
            self._sample(int(i), x[n : n + 1], y[n : n + 1], thorough=thorough)
            for n, i in enumerate(indices)
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
        return Batch(
            x,
            y,
            np.array(indices),
            input_times,
            target_times,
            fields,
            further=further,
            is_raw=self.preparation is not None,
        )

    @cached_property
    def _space(self) -> tuple[int, ...]:
        """Shape of the rows and columns of x."""
        grid = self.pipeline.grid
        shape = next(self.dataset.grids()).shape if grid is None else grid.shape
        if self.rows is None:
            return shape
        return len(range(shape[0])[self.rows]), *shape[1:]

    @cached_property
    def _direct(self) -> Mapping[str, Mapping[str, slice]] | None:
        """Channels of x and y that fields are read to; None if blocks change them."""
        if self.preparation is None:
            return None
        return self.preparation.direct(self.dataset.schema.as_read())

    def _sample(
        self, index: int, x: np.ndarray, y: np.ndarray, *, thorough: bool
    ) -> dict[str, Any]:
        """Writes x and y of one sample; returns its times and other fields.

        Raises:
            ValueError, OSError: see `read`.
        """
        try:
            return self._filled(index, x, y, thorough=thorough)
        except BadValuesError as error:
            raise error.in_file(self.dataset.path_of) from error

    def _filled(
        self, index: int, x: np.ndarray, y: np.ndarray, *, thorough: bool
    ) -> dict[str, Any]:
        steps = []
        for step in range(self.dataset.num_steps):
            out = None
            if self._direct is not None:
                arrays = {"input": x[0], "target": y[0, :, step : step + 1]}
                out = {
                    entry: {k: array[part] for k, part in self._direct[entry].items()}
                    for entry, array in arrays.items()
                    if step == 0 or entry == "target"
                }
            steps.append(collate([self.dataset.step(index, step, self.rows, out)]))
        if thorough:
            _check_raw(steps)
        raw, aligned = steps[0], self.pipeline.aligned
        later = [aligned(step, Phase.INITIAL) for step in steps[1:]]
        check_raw = partial(_check_raw, steps)
        if self._direct is None:
            # The input of later steps is forcing alone, of which no x can be made here.
            targets = [{k: v for k, v in t.items() if k != "input"} for t in later]
            self._write(index, (raw, *targets), x, y, check_raw)
        forcing = [aligned(step, Phase.BEFORE_STEP)["input"] for step in later]
        if self.preparation is None:
            self._checks.check(x, y, raw["input_times"], check_raw)
            for step, step_forcing in zip(later, forcing, strict=True):
                self._checks.check_forcing(step_forcing, step["input_times"], check_raw)
        return {
            "input_times": raw["input_times"],
            "target_times": np.stack([s["target_times"] for s in steps], axis=1),
            "fields": self._named_fields(raw, forcing),
            "further": self._further(index, thorough=thorough),
        }

    def _write(
        self,
        index: int,
        steps: Sequence[FieldTree],
        x: np.ndarray,
        y: np.ndarray,
        check_raw: Callable[[], None],
    ) -> None:
        """Writes what the preblocks of the host make of the steps of a sample."""
        host = self.pipeline if self.preparation is None else self.preparation.host
        for step, tree in enumerate(steps):
            done = host.run(
                Phase.BEFORE_STEP, tree if step else host.run(Phase.INITIAL, tree)
            )
            arrays = {"input": x, "target": y[:, :, step : step + 1]}
            for entry, array in arrays.items():
                if self.preparation is None:
                    if ARRAYS[entry] in done:
                        array[...] = done[ARRAYS[entry]]
                    continue
                for key, field in by_key(done.get(entry, {})).items():
                    array[:, self.preparation.parts[entry][key]] = field
        if self.preparation is not None:
            # Blocks of the host have mixed fill values with others.
            try:
                check_raw()
            except BadValuesError:
                dataclasses.replace(self, preparation=None).read([index])

    @cached_property
    def _checks(self) -> ChannelChecks:
        noted = self.dataset.data.on_outlier == "note"
        row = 0 if self.rows is None else self.rows.start or 0
        data, read = self.dataset, self.dataset.schema
        return ChannelChecks(data, self.pipeline, self.schema, read, noted, row)

    def _further(self, index: int, *, thorough: bool) -> dict[str, np.ndarray]:
        """The inputs of the model other than x."""
        dataset = self.dataset
        if dataset.further is None:
            return {}
        starts = [dataset.starts_at(k)[index] for k in range(dataset.num_steps)]
        return further_arrays(
            dataset.further,
            starts,
            self.pipeline,
            noted=self._checks.noted,
            thorough=thorough,
        )

    def _named_fields(
        self, raw: FieldTree, forcing: Sequence[FieldTree]
    ) -> dict[str, FieldTree]:
        """`Batch.fields` of one sample; `forcing` is that of the later steps."""
        if not (forcing or self.pipeline.needs("x_physical", "ic_raw")):
            return {}
        first = self.pipeline.run(Phase.INITIAL, raw)
        physical = self.pipeline.aligned(first, Phase.BEFORE_STEP)["input"]
        fields = initial_entries(self.pipeline, raw["input"], physical)
        return fields | (fields_of_rollout(physical, forcing) if forcing else {})


def _check_raw(steps: Sequence[FieldTree]) -> None:
    """Checks the fields of every step and sample, before any transform."""
    for step, part in itertools.product(steps, ("input", "target")):
        for sample, time in enumerate(step[f"{part}_times"]):
            sample_fields = {
                source: {key: field[sample] for key, field in fields.items()}
                for source, fields in step[part].items()
            }
            check_fields(sample_fields, time)
