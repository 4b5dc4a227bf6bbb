"""Makes batches of x and y from samples of the data by the preblocks."""

import dataclasses
import itertools
from collections.abc import Sequence
from functools import cached_property, partial
from typing import Any

import jax
import numpy as np
from jaxtyping import Int

from credit_jax.data.batch import Batch, BatchArrays
from credit_jax.data.channel_checks import ChannelChecks, further_arrays
from credit_jax.data.dataset import Dataset, collate
from credit_jax.data.schema import ChannelSchema
from credit_jax.data.values import BadValuesError, check_fields
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
    """

    dataset: Dataset
    pipeline: Pipeline
    rows: slice | None = None

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
            ValueError, OSError: a value is NaN, infinite or a fill value, a time is
                missing, or a file cannot be read.
        """
        out = BatchArrays(len(indices), self.dataset.num_steps, self.schema)
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
        self, index: int, out: BatchArrays, number: int, *, thorough: bool
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
        self, index: int, out: BatchArrays, number: int, *, thorough: bool
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
        # The input of later steps is forcing alone, of which no x can be made here.
        targets = [{k: v for k, v in step.items() if k != "input"} for step in later]
        for step, step_tree in enumerate((first, *targets)):
            out.fill(self.pipeline, step_tree, number, step)
        times = np.stack([step["target_times"] for step in (first, *later)], axis=1)
        x, y = out.x[number : number + 1], out.y[number : number + 1]
        check_raw = partial(_check_raw, steps)
        self._checks.check(x, y, first["input_times"], check_raw)
        forcing = [self.pipeline.aligned(s, Phase.BEFORE_STEP)["input"] for s in later]
        for step, step_forcing in zip(later, forcing, strict=True):
            self._checks.check_forcing(step_forcing, step["input_times"], check_raw)
        fields = self._named_fields(raw, first, forcing)
        further = self._further(index, thorough=thorough)
        known = {"input_times": first["input_times"], "target_times": times}
        return {**known, "fields": fields, "further": further}

    @cached_property
    def _checks(self) -> ChannelChecks:
        noted = self.dataset.data.on_outlier == "note"
        row = 0 if self.rows is None else self.rows.start or 0
        return ChannelChecks(self.dataset, self.pipeline, self.schema, noted, row)

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
        self, raw: FieldTree, first: FieldTree, forcing: Sequence[FieldTree]
    ) -> dict[str, FieldTree]:
        """`Batch.fields` of one sample; `forcing` is that of the later steps."""
        if not (forcing or self.pipeline.needs("x_physical", "ic_raw")):
            return {}
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
