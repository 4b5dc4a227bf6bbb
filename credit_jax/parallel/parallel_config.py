"""Settings of execution on devices: mesh, sharding rules, precision, remat."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import Any

import jax
from jax.sharding import Mesh

from credit_jax.parallel.mesh.device_mesh import MeshAxes
from credit_jax.parallel.params.fsdp import ShardingRules
from credit_jax.parallel.params.precision import Precision
from credit_jax.parallel.params.remat import Remat

# Stages of the published WXFormer, CAMulator and Swin models have fewer blocks.
UNROLL_BLOCKS = 16


@dataclass(frozen=True)
class ParallelConfig:
    """Settings of execution, independent of the model."""

    mesh: Mesh
    rules: ShardingRules = field(default_factory=ShardingRules)
    precision: Precision = field(default_factory=Precision)
    remat: Remat = field(default_factory=Remat)
    ulysses: int = 1  # see `MeshAxes.ulysses`
    # Stages of up to this many blocks are unrolled on GPUs, because loops copy the
    # parameters and residuals of blocks; unrolled stages take longer to compile.
    unroll_blocks: int = UNROLL_BLOCKS

    def shard_map(
        self, body: Callable[..., Any], *, in_specs: Any, out_specs: Any
    ) -> Callable[..., Any]:
        """Applies `jax.shard_map`, with the precision of `precision.matmul`."""

        @wraps(body)
        def traced(*args: Any) -> Any:
            with self.precision.products():
                return body(*args)

        return jax.shard_map(
            traced, mesh=self.mesh, in_specs=in_specs, out_specs=out_specs
        )

    @property
    def axes(self) -> MeshAxes:
        return replace(MeshAxes.from_mesh(self.mesh), ulysses=self.ulysses)
