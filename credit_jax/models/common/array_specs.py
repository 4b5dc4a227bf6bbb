"""Specs of a model's inputs and output: fields on grids, vectors of samples."""

from __future__ import annotations

from dataclasses import dataclass

from jax.sharding import PartitionSpec

from credit_jax.parallel.mesh.axes import MeshAxes
from credit_jax.parallel.placement import batch_spec, vector_spec


@dataclass(frozen=True)
class FieldSpec:
    """An array (batch, channel, time, lat, lon).

    Attributes:
        channels: of one frame.
        frames: time steps.
        height, width: points of the grid, lat and lon.
    """

    channels: int
    frames: int
    height: int
    width: int

    def shape(self, batch: int) -> tuple[int, ...]:
        """Shape of a whole array of `batch` samples."""
        return batch, self.channels, self.frames, self.height, self.width

    def partition_spec(self, axes: MeshAxes, *, stacked: bool = False) -> PartitionSpec:
        """Samples over dp, rows over domain; `stacked` has micro-batches in front."""
        return batch_spec(axes, stacked=stacked)


@dataclass(frozen=True)
class VectorSpec:
    """An array (batch, size): a vector per sample, not located on the grid.

    Attributes:
        size: length of the vector.
    """

    size: int

    def shape(self, batch: int) -> tuple[int, ...]:
        """Shape of a whole array of `batch` samples."""
        return batch, self.size

    def partition_spec(self, axes: MeshAxes, *, stacked: bool = False) -> PartitionSpec:
        """Samples over dp; `stacked` has micro-batches in front."""
        return vector_spec(axes, stacked=stacked)


InputSpec = FieldSpec | VectorSpec
