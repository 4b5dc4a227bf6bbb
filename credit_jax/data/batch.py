"""Batches of samples, as a process provides them for one step."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Float

from credit_jax.transforms import FieldTree
from credit_jax.transforms.rollout import RAW


@dataclasses.dataclass(frozen=True)
class Batch:
    """The part of a batch that this process provides for one training step.

    Attributes:
        x: (b, channel, time, lat, lon) model input of the first step, in CREDIT's
            layout; b = batch size x local dp ranks, with the samples of one rank after
            those of another.
        y: (b, channel, step, lat, lon) target of each step.
        indices: (b,) index of each sample in the data set.
        input_times: (b,) datetime64[ns], the last input time of each sample.
        target_times: (b, step) datetime64[ns].
        fields: further named fields in physical units that the steps need,
            {source: {key: (b, level, time, lat, lon)}} each: "x_physical", the input of
            the first step; "ic_raw", its static fields before any preblock; and for
            forecasts of several steps "forcing", the forcing of the later steps, and
            "static", the input that does not change.
        replaced: one line for each bad sample that was replaced.
        further: inputs of the model other than x, by name, see `further_arrays`.
        is_raw: whether x and y are as before the preblocks that the step runs.
    """

    x: Float[np.ndarray, "b channel time lat lon"]
    y: Float[np.ndarray, "b channel_out step lat lon"]
    indices: np.ndarray
    input_times: np.ndarray
    target_times: np.ndarray
    fields: Mapping[str, FieldTree] = dataclasses.field(default_factory=dict)
    replaced: tuple[str, ...] = ()
    further: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    is_raw: bool = False

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
