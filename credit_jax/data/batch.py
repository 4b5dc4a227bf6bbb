"""Batches: what they hold, and the arrays that they are written to."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Float

from credit_jax.data.schema import ChannelSchema
from credit_jax.io.buffers import BUFFERS
from credit_jax.transforms import Destination, FieldTree, Pipeline


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


class BatchArrays:
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
        destination = {
            part: Destination(place, self._channels[part])
            for part, place in places.items()
        }
        done = pipeline.before_step({**tree, "destination": destination})
        for name, part in (("x", "input"), ("y", "target")):
            if name in done and done[name] is not places[part]:
                places[part][...] = done[name]

    def _allocated(
        self, pipeline: Pipeline, tree: FieldTree
    ) -> tuple[np.ndarray, np.ndarray]:
        field = next(x for fields in tree["input"].values() for x in fields.values())
        history, *space = field.shape[2:]
        if pipeline.grid is not None:
            space = pipeline.grid.shape
        channels = [
            max(place.stop for place in self._channels[part].values())
            for part in ("input", "target")
        ]
        shapes = zip(channels, (history, self._num_steps), strict=True)
        arrays = [
            BUFFERS.empty((self._num_samples, *shape, *space), np.float32)
            for shape in shapes
        ]
        return arrays[0], arrays[1]
