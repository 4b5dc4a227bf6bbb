"""Settings of execution on devices: mesh, sharding rules, precision, remat."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from jax.sharding import Mesh

from credit_jax.parallel.mesh.axes import MeshAxes
from credit_jax.parallel.params.precision import Precision
from credit_jax.parallel.params.remat import Remat
from credit_jax.parallel.params.sharding import ShardingRules

# Stages of the published WXFormer, CAMulator and Swin models have fewer blocks.
UNROLL_BLOCKS = 16


@dataclass(frozen=True)
class ParallelConfig:
    """Settings of execution, independent of the model.

    Attributes:
        mesh: the device mesh.
        rules: how parameters are sharded over the mesh.
        precision: dtypes of the forward pass and of gradient sums.
        remat: the rematerialization policy of blocks.
        ulysses: see `MeshAxes.ulysses`.
        unroll_blocks: on GPUs, stages of at most this many blocks are unrolled, because
            loops copy the parameters and residuals of blocks. Unrolled stages take
            longer to compile.
    """

    mesh: Mesh
    rules: ShardingRules = field(default_factory=ShardingRules)
    precision: Precision = field(default_factory=Precision)
    remat: Remat = field(default_factory=Remat)
    ulysses: int = 1
    unroll_blocks: int = UNROLL_BLOCKS

    @property
    def axes(self) -> MeshAxes:
        return replace(MeshAxes.from_mesh(self.mesh), ulysses=self.ulysses)
