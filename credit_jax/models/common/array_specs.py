"""Specs of a model's inputs and output: fields on grids, vectors of samples."""

from __future__ import annotations

from dataclasses import dataclass

from jax.sharding import PartitionSpec

from credit_jax.parallel.mesh.axes import MeshAxes
from credit_jax.parallel.placement import batch_spec, vector_spec


@dataclass(frozen=True)
class FieldSpec:
    """Spec of a field (batch, channel, time, lat, lon).

    Attributes:
        channels: number of channels of a frame.
        frames: number of time steps.
        height, width: number of latitudes and of longitudes.
    """

    channels: int
    frames: int
    height: int
    width: int

    def shape(self, batch: int) -> tuple[int, ...]:
        """Returns the shape of a global array of `batch` samples."""
        return batch, self.channels, self.frames, self.height, self.width

    def partition_spec(self, axes: MeshAxes, *, stacked: bool = False) -> PartitionSpec:
        """Returns the PartitionSpec: samples over dp, rows over domain.

        With `stacked`, there is a leading dim of micro-batches.
        """
        return batch_spec(axes, stacked=stacked)


@dataclass(frozen=True)
class VectorSpec:
    """Spec of vectors (batch, size), one for each sample.

    Attributes:
        size: length of a vector.
    """

    size: int

    def shape(self, batch: int) -> tuple[int, ...]:
        """Returns the shape of a global array of `batch` samples."""
        return batch, self.size

    def partition_spec(self, axes: MeshAxes, *, stacked: bool = False) -> PartitionSpec:
        """Returns the PartitionSpec: samples over dp.

        With `stacked`, there is a leading dim of micro-batches.
        """
        return vector_spec(axes, stacked=stacked)


InputSpec = FieldSpec | VectorSpec
