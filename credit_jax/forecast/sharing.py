"""Distribution of the samples of a group of forecasts over processes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array

from credit_jax.forecast.autoregression import StepFields
from credit_jax.parallel.compiler import compile_program
from credit_jax.parallel.mesh.axes import MeshAxes
from credit_jax.parallel.mesh.credit import local_dp_ranks, writing_dp_ranks
from credit_jax.parallel.placement import batch_spec
from credit_jax.parallel.processes.coordinator import of_all


@dataclass(frozen=True, eq=False)
class Share:
    """The samples of each group that this process reads and writes.

    A process reads the samples of the data-parallel ranks that it has devices of. If a
    rank spans several processes, the first one writes its samples.

    Attributes:
        mesh: mesh of all processes.
        size: samples of a group.
        num_rows: rows of the grid, without those that pad it on the mesh.
    """

    mesh: Mesh
    size: int
    num_rows: int

    @cached_property
    def ranks(self) -> tuple[int, ...]:
        """The data-parallel ranks of this process, ascending."""
        return local_dp_ranks(self.mesh)

    @cached_property
    def positions(self) -> tuple[int, ...]:
        """Positions of its samples in a group, rank after rank."""
        return self._positions(self.ranks)

    @cached_property
    def written(self) -> frozenset[int]:
        """Positions of the samples that this process writes."""
        return frozenset(self._positions(writing_dp_ranks(self.mesh)))

    def _positions(self, ranks: tuple[int, ...]) -> tuple[int, ...]:
        each = self.size // self._axes.num_data
        return tuple(r * each + i for r in ranks for i in range(each))

    def with_all_rows(self, outputs: StepFields) -> StepFields:
        """All-gathers the rows of the fields, if they span several processes.

        A collective: every process must call it, in the same order.
        """
        if all(field.is_fully_addressable for field in outputs.values()):
            return outputs
        return self._gather(outputs)

    def non_finite(self, outputs: StepFields) -> dict[str, Array]:
        """Key -> (batch,) counts of values that are NaN or infinite, on all devices."""
        return self._count(outputs)

    def on_host(self, outputs: StepFields) -> dict[str, np.ndarray]:
        """The samples of this process in the result of `with_all_rows`.

        Returns:
            Key -> (batch, level, lat, lon) float32, without padding rows.
        """
        return {k: _local(x)[:, :, 0, : self.num_rows] for k, x in outputs.items()}

    @cached_property
    def _axes(self) -> MeshAxes:
        return MeshAxes.from_mesh(self.mesh)

    @cached_property
    def _count(self) -> Any:
        def count(outputs: StepFields) -> dict[str, Array]:
            return {
                key: jax.lax.with_sharding_constraint(
                    (~jnp.isfinite(field[..., : self.num_rows, :])).sum((1, 2, 3, 4)),
                    NamedSharding(self.mesh, PartitionSpec()),
                )
                for key, field in outputs.items()
            }

        return compile_program(count, self.mesh)

    @cached_property
    def _gather(self) -> Any:
        sharding = NamedSharding(self.mesh, PartitionSpec(batch_spec(self._axes)[0]))

        def full(outputs: StepFields) -> StepFields:
            return {
                key: jax.lax.with_sharding_constraint(field, sharding)
                for key, field in outputs.items()
            }

        return compile_program(full, self.mesh)


def _local(field: jax.Array) -> np.ndarray:
    if field.is_fully_addressable:
        return np.asarray(field, np.float32)
    parts = {
        shard.index[0].start or 0: shard.data for shard in field.addressable_shards
    }
    arrays = [np.asarray(parts[start], np.float32) for start in sorted(parts)]
    return np.concatenate(arrays)


def added_up(counts: Mapping[str, int], names: list[str]) -> dict[str, int]:
    """Sums counts over all processes; returns those above 0.

    Args:
        counts: counts of this process.
        names: names of all possible counts, the same in every process.
    """
    texts = of_all("counts", json.dumps(dict(counts)))
    total = sum((Counter(json.loads(text)) for text in texts), Counter[str]())
    return {name: total[name] for name in names if total[name]}
