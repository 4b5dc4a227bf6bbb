"""A model on a mesh: `build_parallel_model` applies everything in the right order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array

from credit_jax.models.model_def import ModelDef, Weights
from credit_jax.models.registry import build
from credit_jax.nn import spectral_norm
from credit_jax.nn.batch_norm import BatchStats, fresh_state, with_running
from credit_jax.nn.context import Context
from credit_jax.nn.spectral_norm import SpectralNormState
from credit_jax.parallel.collectives import axis_index
from credit_jax.parallel.compiler import compiler_options
from credit_jax.parallel.mesh.axes import MeshAxes
from credit_jax.parallel.parallel_config import ParallelConfig
from credit_jax.parallel.params.packing import pack, packed_param_specs, unpack
from credit_jax.parallel.params.precision import Precision
from credit_jax.parallel.params.remat import Remat
from credit_jax.parallel.params.spec import (
    MIN_SHARD_SIZE,
    ShardingRules,
    matrix_specs,
)
from credit_jax.parallel.placement import batch_spec
from credit_jax.parallel.reductions import FieldReducer
from credit_jax.parallel.rows.layout import Field, block_layout


@dataclass(frozen=True)
class ParallelModel:
    """A model and the way it runs on a mesh; it holds no weights.

    Weights are as in a training state: by path, split as `specs` says, the small ones
    packed into one vector (`parallel.params.packing`).

    Attributes:
        architecture: the model.
        execution: mesh, layout of parameters, precision, rematerialization.
    """

    model_def: ModelDef
    parallel_config: ParallelConfig

    @property
    def axes(self) -> MeshAxes:
        return self.parallel_config.axes

    @cached_property
    def specs(self) -> dict[str, PartitionSpec]:
        """PartitionSpec of every parameter by path, none packed."""
        return self.parallel_config.rules.specs(self.model_def.param_specs, self.axes)

    @cached_property
    def packed_specs(self) -> dict[str, PartitionSpec]:
        """PartitionSpec of the weights."""
        param_specs = packed_param_specs(self.model_def.param_specs)
        return self.parallel_config.rules.specs(param_specs, self.axes)

    @cached_property
    def spectral_norm_specs(self) -> dict[str, dict[str, PartitionSpec]]:
        """PartitionSpec of the vectors of every matrix, and of running statistics."""
        matrices = {
            path: matrix_specs(param_spec, self.specs[path])
            for path, param_spec in self.model_def.matrices.items()
        }
        names = fresh_state(dict.fromkeys(self.model_def.norms, 1))
        return matrices | jax.tree.map(lambda _: PartitionSpec(), names)

    @cached_property
    def reducer(self) -> FieldReducer:
        """Global means of fields like the model's output."""
        rows = block_layout(
            self.model_def.image_height,
            self.axes.num_domain,
            self.axes.domain,
            dim=3,
        )
        return FieldReducer(rows, self.axes)

    def local_init(self, key: Array) -> tuple[Weights, SpectralNormState, Array]:
        """This device's shards of fresh weights and vectors, and a key for dropout.

        To be called inside `shard_map`.
        """
        degrees = dict(self.parallel_config.mesh.shape)
        weights_key, vectors_key, noise_key = jax.random.split(key, 3)
        params = self.model_def.init(weights_key, self.specs, degrees)
        spectral_norm_state = self.model_def.init_spectral_norm(
            vectors_key, self.specs, degrees
        )
        return pack(params, self.model_def.param_specs), spectral_norm_state, noise_key

    def local_forward(
        self,
        params: Weights,
        spectral_norm_state: SpectralNormState,
        x: Array,
        key: Array | None = None,
        *,
        capture_intermediates: list[Field] | None = None,
    ) -> Array:
        """Prediction of local samples and rows, inside `shard_map`.

        Args:
            params: weights, local shards.
            vectors: of spectral norm, as they are to be used; running statistics.
            x: (batch, channel, time, rows, lon).
            key: of dropout, equal on all devices; None in evaluation.
            watch: gets the output of every block, where it is given.

        Returns:
            (batch, channel_out, time_out, rows, lon), float32 or wider.
        """
        return self._forward(
            params, spectral_norm_state, x, key, capture_intermediates
        )[0]

    def local_training_forward(
        self,
        params: Weights,
        spectral_norm_state: SpectralNormState,
        x: Array,
        key: Array,
    ) -> tuple[Array, SpectralNormState]:
        """`local_forward`, and the vectors with the running statistics after it."""
        y, running = self._forward(params, spectral_norm_state, x, key, None)
        return y, with_running(spectral_norm_state, running or {})

    def _forward(
        self,
        params: Weights,
        spectral_norm_state: SpectralNormState,
        x: Array,
        key: Array | None,
        capture_intermediates: list[Field] | None,
    ) -> tuple[Array, BatchStats | None]:
        weights = self._normalized(params, spectral_norm_state)
        context = Context(
            axes=self.axes,
            rules=self.parallel_config.rules,
            precision=self.parallel_config.precision,
            remat=self.parallel_config.remat,
            key=key,
            capture_intermediates=capture_intermediates,
            running=self.model_def.running(spectral_norm_state),
            first_sample=self._data_rank(),
            sample_stride=self.axes.num_data,
        )
        prediction = self.model_def.apply(weights, x, context)
        y = self.parallel_config.precision.cast_output(prediction).astype(x.dtype)
        return y, context.running

    def _normalized(
        self, params: Weights, spectral_norm_state: SpectralNormState
    ) -> Weights:
        """Local shards of all parameters, matrices divided by their spectral norm."""
        weights = unpack(params, self.model_def.param_specs)
        matrices = self.model_def.matrices
        return spectral_norm.normalize(
            weights, spectral_norm_state, matrices, self.specs
        )

    def local_iterate(
        self, params: Weights, spectral_norm_state: SpectralNormState
    ) -> SpectralNormState:
        """The vectors after one power iteration, inside `shard_map`."""
        weights = unpack(params, self.model_def.param_specs)
        matrices = self.model_def.matrices
        return spectral_norm.iterate(weights, spectral_norm_state, matrices, self.specs)

    def _data_rank(self) -> Array | int:
        """This device's rank among the data-parallel ones, dp_replicate outermost."""
        rank: Array | int = 0
        for name in self.axes.data:
            rank = rank * self.parallel_config.mesh.shape[name] + axis_index(name)
        return rank

    def init(self, key: Array) -> tuple[Weights, SpectralNormState]:
        """Fresh weights and vectors; every device makes its own shards, nothing else.

        Args:
            key: typed PRNG key; the same key gives the same weights on every mesh.
        """
        body = jax.shard_map(
            lambda key: self.local_init(key)[:2],
            mesh=self.parallel_config.mesh,
            in_specs=PartitionSpec(),
            out_specs=(self.packed_specs, self.spectral_norm_specs),
        )
        return jax.jit(body)(key)

    @cached_property
    def apply(self) -> Callable[[Weights, SpectralNormState, Array], Array]:
        """One forward pass in evaluation mode, compiled at its first call.

        `apply(params, spectral_norm_state, x (b, c, t, lat, lon))
        -> (b, c_out, t_out, lat, lon)` on global arrays; rows keep the padding of
        `place_batch`. For many forwards with the same weights, call
        `fuse_spectral_norm` first.
        """
        spec = batch_spec(self.axes)
        return self.compile(self.local_forward, batch_specs=spec, out_specs=spec)

    def compile(
        self, body: Callable[..., Any], *, batch_specs: Any, out_specs: Any
    ) -> Callable[..., Any]:
        """`body(params, spectral_norm_state, batch)` under `shard_map` and `jit`."""

        def run(
            params: Weights, spectral_norm_state: SpectralNormState, batch: Any
        ) -> Any:
            there = {
                path: self.spectral_norm_specs[path] for path in spectral_norm_state
            }
            sharded = jax.shard_map(
                body,
                mesh=self.parallel_config.mesh,
                in_specs=(self.packed_specs, there, batch_specs),
                out_specs=out_specs,
            )
            return sharded(params, spectral_norm_state, batch)

        return jax.jit(run, compiler_options=compiler_options())

    def fuse_spectral_norm(
        self, params: Weights, spectral_norm_state: SpectralNormState
    ) -> tuple[Weights, SpectralNormState]:
        """Weights and vectors of the same forward without spectral norm in it.

        Every matrix is divided by its sigma here, once, instead of in each forward: for
        evaluation, where weights and vectors stay.

        Args:
            params, vectors: of a training state, global arrays.

        Returns:
            The weights, divided, and what is left of the vectors: running statistics.
        """
        left = {
            p: v
            for p, v in spectral_norm_state.items()
            if p not in self.model_def.matrices
        }
        if len(left) == len(spectral_norm_state):
            return params, spectral_norm_state
        return self._divided(params, spectral_norm_state), left

    @cached_property
    def _divided(self) -> Callable[[Weights, SpectralNormState], Weights]:
        def body(params: Weights, spectral_norm_state: SpectralNormState) -> Weights:
            weights = self._normalized(params, spectral_norm_state)
            return pack(weights, self.model_def.param_specs)

        sharded = jax.shard_map(
            body,
            mesh=self.parallel_config.mesh,
            in_specs=(self.packed_specs, self.spectral_norm_specs),
            out_specs=self.packed_specs,
        )
        return jax.jit(sharded, compiler_options=compiler_options())


def build_parallel_model(
    model: Mapping[str, Any] | ModelDef,
    mesh: Mesh,
    *,
    ac_mode: str = "none",
    mp_policy: Precision | None = None,
    reshard_after_forward: bool | int = True,
    min_shard_size: int = MIN_SHARD_SIZE,
    keep_whole: Sequence[str] = (),
) -> ParallelModel:
    """A model with all parallelism applied, ready for training.

    The order in which things are applied cannot be changed from outside, since each
    step relies on those before it:

    1. Tensor parallelism: `tp_plan` of a block renames dims of parameter specs.
       Layouts, spectral norm and initial values all read them.
    2. Layout: each parameter's dims are mapped to mesh axes, tp first; FSDP splits the
       longest dim that is left.
    3. Spectral norm divides the stored float32 shards, once a forward, outside of every
       block: no rematerialization can make it iterate twice, no cast comes before it.
    4. Inside a block's `jax.checkpoint`: weights are cast, then gathered, so that the
       backward pass gathers again and its transpose scatters the gradient; the
       checkpoint of attention lies within.
    5. Weights are made sharded, by one `shard_map` over the whole mesh.

    Args:
        model: the `model:` block of a config, or an architecture.
        mesh: from `build_device_mesh` or `ParallelDims.build_mesh`.
        ac_mode: activation checkpointing: "none", "full", or "selective" (attention).
        mp_policy: dtypes, `default_mp_policy()` for bfloat16; None is float32.
        reshard_after_forward: True frees gathered parameters after the forward, False
            keeps them, a number keeps those of so many blocks at most.
        min_shard_size: parameters with fewer elements stay whole.
        keep_whole: patterns of paths that stay whole, "stages/0/embed/*".

    Raises:
        ValueError: the model does not parse or does not fit the mesh; all of it.
    """
    model_def = model if isinstance(model, ModelDef) else build(model)
    if keep_whole:
        model_def = replace(model_def, keep_whole=tuple(keep_whole))
    axes = MeshAxes.from_mesh(mesh)
    problems = model_def.validate(axes.num_tensor, axes.num_domain)
    problems += model_def.unmatched()
    if problems:
        raise ValueError("; and ".join(problems))
    parallel_config = ParallelConfig(
        mesh,
        rules=ShardingRules(min_shard_size=min_shard_size),
        precision=mp_policy or Precision(),
        remat=Remat(ac_mode, reshard_after_forward),
    )
    return ParallelModel(model_def, parallel_config)
