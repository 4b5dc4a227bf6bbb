"""How a model runs on devices: mesh, layout of parameters, precision, memory."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from jax.sharding import Mesh

from credit_jax.parallel.mesh.axes import MeshAxes
from credit_jax.parallel.params.precision import Precision
from credit_jax.parallel.params.remat import Remat
from credit_jax.parallel.params.sharding import ShardingRules

# Of the published models, WXFormer, CAMulator and Swin have fewer blocks in a stage.
UNROLL_BLOCKS = 16


@dataclass(frozen=True)
class ParallelConfig:
    """How steps run: where, in what precision, keeping what.

    Attributes:
        mesh: the device mesh.
        rules: how parameters are laid out on it.
        precision: dtypes of the forward and of gradient sums.
        remat: what blocks keep for the backward pass.
        ulysses: see `MeshAxes.ulysses`.
        unroll_blocks: stages of at most so many blocks are no loop on GPUs, whose
            loops copy what blocks read and keep; more blocks compile longer.
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
