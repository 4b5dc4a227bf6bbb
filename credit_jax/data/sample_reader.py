"""Batches of x and y, made from samples of the data by the preblocks."""

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import jax
import numpy as np
from jaxtyping import Float, Int

from credit_jax import transforms
from credit_jax.data.channel_checks import ChannelChecks, further_arrays
from credit_jax.data.dataset import Dataset, collate
from credit_jax.data.preparation import ARRAYS, Preparation
from credit_jax.data.schema import ChannelSchema
from credit_jax.data.values import BadValuesError, check_fields, files_named
from credit_jax.io.buffers import BUFFERS
from credit_jax.named_fields.tree import by_key
from credit_jax.transforms import FieldTree, Phase, Pipeline
from credit_jax.transforms.rollout import RAW


@dataclasses.dataclass(frozen=True)
class Batch:
    """The part of a batch that this process provides for one training step."""

    # In CREDIT's layout, the input of the first step, and the target of each; b is
    # batch size x local dp ranks, with the samples of one rank after those of another.
    x: Float[np.ndarray, "b channel time lat lon"]
    y: Float[np.ndarray, "b channel_out step lat lon"]
    indices: np.ndarray
    input_times: np.ndarray  # (b,) datetime64[ns], the last ones
    target_times: np.ndarray  # (b, step) datetime64[ns]
    # Further named fields in physical units that the steps need: "x_physical", the
    # input of the first step; "ic_raw", its static fields before any preblock; and for
    # forecasts of several steps "forcing", the forcing of the later steps, and
    # "static", the input that does not change.
    fields: Mapping[str, FieldTree] = dataclasses.field(default_factory=dict)
    replaced: tuple[str, ...] = ()  # one line for each bad sample
    further: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    is_raw: bool = False  # before the preblocks that the step runs

    @property
    def arrays(self) -> dict[str, Any]:
        """The arrays that are placed on devices."""
        names = RAW if self.is_raw else {name: name for name in RAW}
        both = {names["x"]: self.x, names["y"]: self.y}
        return {**both, **self.further, **self.fields}

    def without_arrays(self) -> "Batch":
        """Returns which samples it has, without their values."""
        none = np.empty((0, 0, 0, 0, 0), np.float32)
        return dataclasses.replace(self, x=none, y=none, fields={}, further={})


@dataclasses.dataclass(frozen=True)
class SampleReader:
    """Reads samples and applies the preblocks."""

    dataset: Dataset  # the samples
    pipeline: Pipeline  # the transforms, whose preblocks make x and y from samples
    rows: slice | None = None  # latitude rows to read; None for all
    # What the step does of the preblocks and of the checks; None if nothing is left to
    # it.
    preparation: Preparation | None = None

    @cached_property
    def schema(self) -> ChannelSchema:
        """The variables of the channels of x and y."""
        return self.dataset.schema.after(self.pipeline)

    def read(
        self, indices: Int[np.ndarray, "b"] | Sequence[int], *, thorough: bool = False
    ) -> Batch:
        """Reads the samples of one batch and applies the preblocks."""
        num_samples = len(indices)
        history = self.schema.input[0].n_time
        times = history, self.dataset.num_steps
        channels = self.schema.num_input_channels, self.schema.num_target_channels
        arrays = [
            BUFFERS.empty((num_samples, *shape, *self._space), np.float32)
            for shape in zip(channels, times, strict=True)
        ]
        x, y = arrays[0], arrays[1]
        with files_named(self.dataset.path_of):
            samples = [
                # Otherwise only batches that look wrong are checked as they are read.
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
        """Writes x and y of one sample; returns its times and other fields."""
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

        def check_raw() -> None:
            """Checks the fields of every step, before any transform."""
            for step, part in itertools.product(steps, ("input", "target")):
                check_fields(step[part], step[f"{part}_times"])

        if thorough:
            check_raw()
        raw, aligned = steps[0], self.pipeline.aligned
        later = [aligned(step, Phase.INITIAL) for step in steps[1:]]
        if self._direct is None:
            # The input of later steps is forcing alone, of which no x can be made here.
            targets = [{k: v for k, v in t.items() if k != "input"} for t in later]
            self._write(index, (raw, *targets), x, y, check_raw)
        forcing = [aligned(step, Phase.BEFORE_STEP)["input"] for step in later]
        if self.preparation is None:
            self._checks.check(x, y, raw["input_times"], check_raw)
            for step, step_forcing in zip(later, forcing, strict=True):
                self._checks.check_forcing(step_forcing, step["input_times"], check_raw)
        fields: dict[str, FieldTree] = {}
        if forcing or self.pipeline.needs("x_physical", "ic_raw"):
            first = self.pipeline.run(Phase.INITIAL, raw)
            physical = self.pipeline.aligned(first, Phase.BEFORE_STEP)["input"]
            fields = transforms.initial_entries(self.pipeline, raw["input"], physical)
            fields |= transforms.fields_of_rollout(physical, forcing) if forcing else {}
        dataset, further = self.dataset, dict[str, np.ndarray]()
        if dataset.further_names:
            starts = [dataset.step_starts[k][index] for k in range(dataset.num_steps)]
            options = {"noted": self._checks.noted, "thorough": thorough}
            further = further_arrays(dataset, starts, self.pipeline, **options)
        return {
            "input_times": raw["input_times"],
            "target_times": np.stack([s["target_times"] for s in steps], axis=1),
            "fields": fields,
            "further": further,
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
