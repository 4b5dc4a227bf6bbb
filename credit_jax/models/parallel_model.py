"""A model on a mesh: `build_parallel_model` applies everything in the right order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array

from credit_jax.models.architecture import Architecture, Weights
from credit_jax.models.registry import build
from credit_jax.nn import spectral_norm
from credit_jax.nn.batch_norm import Running, fresh_state, with_running
from credit_jax.nn.context import Context
from credit_jax.nn.spectral_norm import Vectors
from credit_jax.parallel.axes import MeshAxes
from credit_jax.parallel.collectives import axis_index
from credit_jax.parallel.compiler import compiler_options
from credit_jax.parallel.execution import Execution
from credit_jax.parallel.layouts import Field, home_layout
from credit_jax.parallel.packing import pack, packed_declarations, unpack
from credit_jax.parallel.placement import batch_spec
from credit_jax.parallel.precision import Precision
from credit_jax.parallel.reductions import FieldReducer
from credit_jax.parallel.remat import Remat
from credit_jax.parallel.sharding import (
    MIN_SHARD_SIZE,
    ShardingRules,
    matrix_specs,
)


@dataclass(frozen=True)
class ParallelModel:
    """A model and the way it runs on a mesh; it holds no weights.

    Weights are as in a training state: by path, split as `specs` says, the small ones
    packed into one vector (`parallel.packing`).

    Attributes:
        architecture: the model.
        execution: mesh, layout of parameters, precision, rematerialisation.
    """

    architecture: Architecture
    execution: Execution

    @property
    def axes(self) -> MeshAxes:
        return self.execution.axes

    @cached_property
    def specs(self) -> dict[str, PartitionSpec]:
        """PartitionSpec of every parameter by path, none packed."""
        return self.execution.rules.specs(self.architecture.declarations, self.axes)

    @cached_property
    def packed_specs(self) -> dict[str, PartitionSpec]:
        """PartitionSpec of the weights."""
        declarations = packed_declarations(self.architecture.declarations)
        return self.execution.rules.specs(declarations, self.axes)

    @cached_property
    def vector_specs(self) -> dict[str, dict[str, PartitionSpec]]:
        """PartitionSpec of the vectors of every matrix, and of running statistics."""
        matrices = {
            path: matrix_specs(declaration, self.specs[path])
            for path, declaration in self.architecture.matrices.items()
        }
        names = fresh_state(dict.fromkeys(self.architecture.norms, 1))
        return matrices | jax.tree.map(lambda _: PartitionSpec(), names)

    @cached_property
    def reducer(self) -> FieldReducer:
        """Global means of fields like the model's output."""
        rows = home_layout(
            self.architecture.image_height,
            self.axes.num_domain,
            self.axes.domain,
            dim=3,
        )
        return FieldReducer(rows, self.axes)

    def local_init(self, key: Array) -> tuple[Weights, Vectors, Array]:
        """This device's shards of fresh weights and vectors, and a key for dropout.

        To be called inside `shard_map`.
        """
        degrees = dict(self.execution.mesh.shape)
        weights_key, vectors_key, noise_key = jax.random.split(key, 3)
        params = self.architecture.init(weights_key, self.specs, degrees)
        vectors = self.architecture.init_vectors(vectors_key, self.specs, degrees)
        return pack(params, self.architecture.declarations), vectors, noise_key

    def local_forward(
        self,
        params: Weights,
        vectors: Vectors,
        x: Array,
        key: Array | None = None,
        *,
        watch: list[Field] | None = None,
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
        return self._forward(params, vectors, x, key, watch)[0]

    def local_training_forward(
        self, params: Weights, vectors: Vectors, x: Array, key: Array
    ) -> tuple[Array, Vectors]:
        """`local_forward`, and the vectors with the running statistics after it."""
        y, running = self._forward(params, vectors, x, key, None)
        return y, with_running(vectors, running or {})

    def _forward(
        self,
        params: Weights,
        vectors: Vectors,
        x: Array,
        key: Array | None,
        watch: list[Field] | None,
    ) -> tuple[Array, Running | None]:
        weights = self._normalised(params, vectors)
        context = Context(
            axes=self.axes,
            rules=self.execution.rules,
            precision=self.execution.precision,
            remat=self.execution.remat,
            key=key,
            watch=watch,
            running=self.architecture.running(vectors),
            first_sample=self._data_rank(),
            sample_stride=self.axes.num_data,
        )
        prediction = self.architecture.apply(weights, x, context)
        y = self.execution.precision.cast_output(prediction).astype(x.dtype)
        return y, context.running

    def _normalised(self, params: Weights, vectors: Vectors) -> Weights:
        """Local shards of all parameters, matrices divided by their spectral norm."""
        weights = unpack(params, self.architecture.declarations)
        matrices = self.architecture.matrices
        return spectral_norm.normalise(weights, vectors, matrices, self.specs)

    def local_iterate(self, params: Weights, vectors: Vectors) -> Vectors:
        """The vectors after one power iteration, inside `shard_map`."""
        weights = unpack(params, self.architecture.declarations)
        matrices = self.architecture.matrices
        return spectral_norm.iterate(weights, vectors, matrices, self.specs)

    def _data_rank(self) -> Array | int:
        """This device's rank among the data-parallel ones, dp_replicate outermost."""
        rank: Array | int = 0
        for name in self.axes.data:
            rank = rank * self.execution.mesh.shape[name] + axis_index(name)
        return rank

    def init(self, key: Array) -> tuple[Weights, Vectors]:
        """Fresh weights and vectors; every device makes its own shards, nothing else.

        Args:
            key: typed PRNG key; the same key gives the same weights on every mesh.
        """
        body = jax.shard_map(
            lambda key: self.local_init(key)[:2],
            mesh=self.execution.mesh,
            in_specs=PartitionSpec(),
            out_specs=(self.packed_specs, self.vector_specs),
        )
        return jax.jit(body)(key)

    @cached_property
    def apply(self) -> Callable[[Weights, Vectors, Array], Array]:
        """One forward pass in evaluation mode, compiled at its first call.

        `apply(params, vectors, x (b, c, t, lat, lon)) -> (b, c_out, t_out, lat, lon)`
        on global arrays; rows keep the filler of `place_batch`. Many forwards with the
        same weights take what `fold` makes of them.
        """
        spec = batch_spec(self.axes)
        return self.compile(self.local_forward, batch_specs=spec, out_specs=spec)

    def compile(
        self, body: Callable[..., Any], *, batch_specs: Any, out_specs: Any
    ) -> Callable[..., Any]:
        """`body(params, vectors, batch)` under `shard_map` and `jit`."""

        def run(params: Weights, vectors: Vectors, batch: Any) -> Any:
            there = {path: self.vector_specs[path] for path in vectors}
            sharded = jax.shard_map(
                body,
                mesh=self.execution.mesh,
                in_specs=(self.packed_specs, there, batch_specs),
                out_specs=out_specs,
            )
            return sharded(params, vectors, batch)

        return jax.jit(run, compiler_options=compiler_options())

    def fold(self, params: Weights, vectors: Vectors) -> tuple[Weights, Vectors]:
        """Weights and vectors of the same forward without spectral norm in it.

        Every matrix is divided by its sigma here, once, instead of in each forward: for
        evaluation, where weights and vectors stay.

        Args:
            params, vectors: of a training state, global arrays.

        Returns:
            The weights, divided, and what is left of the vectors: running statistics.
        """
        left = {p: v for p, v in vectors.items() if p not in self.architecture.matrices}
        if len(left) == len(vectors):
            return params, vectors
        return self._divided(params, vectors), left

    @cached_property
    def _divided(self) -> Callable[[Weights, Vectors], Weights]:
        def body(params: Weights, vectors: Vectors) -> Weights:
            weights = self._normalised(params, vectors)
            return pack(weights, self.architecture.declarations)

        sharded = jax.shard_map(
            body,
            mesh=self.execution.mesh,
            in_specs=(self.packed_specs, self.vector_specs),
            out_specs=self.packed_specs,
        )
        return jax.jit(sharded, compiler_options=compiler_options())


def build_parallel_model(
    model: Mapping[str, Any] | Architecture,
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

    1. Tensor parallelism: blocks' `tp_plan` renames dims of the declarations. Layouts,
       spectral norm and initial values all read them.
    2. Layout: each parameter's dims are mapped to mesh axes, tp first; FSDP splits the
       longest dim that is left.
    3. Spectral norm divides the stored float32 shards, once a forward, outside of every
       block: no rematerialisation can make it iterate twice, no cast comes before it.
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
    architecture = model if isinstance(model, Architecture) else build(model)
    if keep_whole:
        architecture = replace(architecture, keep_whole=tuple(keep_whole))
    axes = MeshAxes.from_mesh(mesh)
    problems = architecture.validate(axes.num_tensor, axes.num_domain)
    problems += architecture.unmatched()
    if problems:
        raise ValueError("; and ".join(problems))
    execution = Execution(
        mesh,
        rules=ShardingRules(min_shard_size=min_shard_size),
        precision=mp_policy or Precision(),
        remat=Remat(ac_mode, reshard_after_forward),
    )
    return ParallelModel(architecture, execution)
