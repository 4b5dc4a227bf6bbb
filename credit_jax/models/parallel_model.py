"""A model on a mesh, as returned by `build_parallel_model`."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float

from credit_jax.config.parallelism import degree_problems
from credit_jax.data import ChannelSchema
from credit_jax.kernels import implementation, kernel_notes
from credit_jax.models.arguments import check_arrays, check_weights, on_mesh
from credit_jax.models.diffusion.process import NOISED, TIME, Noised
from credit_jax.models.model_def import ModelDef, Weights, float8_notes
from credit_jax.models.registry import build
from credit_jax.nn import spectral_norm
from credit_jax.nn.context import Context, Noise
from credit_jax.nn.low_rank import merge
from credit_jax.nn.parameters import BATCH_STATS, SPECTRAL_NORM, Collection, ModelState
from credit_jax.parallel import compiler
from credit_jax.parallel.collectives import axis_index
from credit_jax.parallel.compiler import is_outermost
from credit_jax.parallel.mesh.device_mesh import MeshAxes, all_devices, mesh_of_degrees
from credit_jax.parallel.mesh.dims import ETP, ParallelDims
from credit_jax.parallel.mesh.model_fit import ULYSSES, model_problems
from credit_jax.parallel.parallel_config import UNROLL_BLOCKS, ParallelConfig
from credit_jax.parallel.params.fsdp import (
    ShardingRules,
    gather_over_domain,
    matrix_specs,
)
from credit_jax.parallel.params.packing import Packing, pack_tree
from credit_jax.parallel.params.precision import Float8, Precision
from credit_jax.parallel.params.remat import Remat
from credit_jax.parallel.params.spec import (
    DENSE_TENSOR_DIMS,
    MIN_SHARD_SIZE,
    TENSOR_DIMS,
)
from credit_jax.parallel.reductions import FieldReducer
from credit_jax.parallel.rows.layout import Field, block_layout

# Folded into the key of a training forward pass, it gives the key of its noise.
NOISE = 1_852_798_835


@dataclass(frozen=True, eq=False)
class ParallelModel:
    """A model definition with its mesh, sharding, precision and rematerialization.

    `init`, `apply` and `fuse_spectral_norm` are functions of global arrays, which
    compose with `jax.jit`, `jax.grad`, `jax.vmap`, `lax.scan` and `jax.checkpoint`.
    Methods named `local_*` take local shards, inside of `shard_map`.

    Weights are a flat dict from path to array, sharded by `specs`.

    Attributes:
        model_def: the model.
        parallel_config: mesh, sharding rules, precision, rematerialization.
        channels: names and places of the channels; None for a model without data.

    >>> params, model_state = model.init(jax.random.key(0))
    >>> model.apply(params, model_state, {"x": batch["x"]}).shape
    (2, 6, 1, 6, 10)
    """

    model_def: ModelDef
    parallel_config: ParallelConfig
    channels: ChannelSchema | None = None

    @property
    def mesh(self) -> Mesh:
        return self.parallel_config.mesh

    @property
    def axes(self) -> MeshAxes:
        return self.parallel_config.axes

    @cached_property
    def specs(self) -> dict[str, PartitionSpec]:
        """PartitionSpec of every parameter, by path."""
        return self.parallel_config.rules.specs(self.model_def.param_specs, self.axes)

    @cached_property
    def model_state_specs(self) -> dict[str, dict[str, dict[str, PartitionSpec]]]:
        """PartitionSpec of every array of the model's state (`nn.parameters`)."""
        vectors = {
            path: matrix_specs(param_spec, self.specs[path])
            for path, param_spec in self.model_def.matrices.items()
        }
        batch_stats = {
            path: {name: PartitionSpec() for name in specs}
            for path, specs in self.model_def.batch_stats.items()
        }
        return {SPECTRAL_NORM: vectors, BATCH_STATS: batch_stats}

    def input_specs(self, *, stacked: bool = False) -> dict[str, PartitionSpec]:
        """Returns the PartitionSpec of every input, by name.

        Args:
            stacked: whether there is a leading dim of micro-batches.
        """
        inputs = self.model_def.inputs.items()
        return {k: s.partition_spec(self.axes, stacked=stacked) for k, s in inputs}

    def batch_specs(self, *, stacked: bool = False) -> dict[str, PartitionSpec]:
        """Returns the PartitionSpec of every input and of the target "y", by name."""
        target = self.model_def.output.partition_spec(self.axes, stacked=stacked)
        return {**self.input_specs(stacked=stacked), "y": target}

    @cached_property
    def reducer(self) -> FieldReducer:
        """Computes global means of fields with the grid of the model's output."""
        rows = block_layout(
            self.model_def.image_height,
            self.axes.num_domain,
            self.axes.domain,
            dim=3,
        )
        return FieldReducer(rows, self.axes)

    def init(self, key: Array) -> tuple[Weights, ModelState]:
        """Returns initial weights and state; each device draws only its own shards.

        Args:
            key: typed PRNG key; the same key gives the same weights on every mesh.

        Returns:
            The weights by path, sharded by `specs`; and the model state
            (`nn.parameters`), sharded by `model_state_specs`. `apply` of both is of
            the size of a trained model's output.
        """
        params, model_state = self._init[is_outermost(key)](key)
        to = shardings(self.specs, self.mesh)
        initial = self.model_def.initial.items()
        return params | {k: jax.device_put(x, to[k]) for k, x in initial}, model_state

    def apply(
        self,
        params: Weights,
        model_state: ModelState,
        inputs: Mapping[str, Array],
        noise: Noise | None = None,
    ) -> Array:
        """Predicts in evaluation mode: by a forward pass, or a sample of the process.

        The function is jitted. For several calls with the same weights, call
        `fuse_spectral_norm` first.

        Args:
            params: weights, global arrays.
            model_state: as returned by `init`, or that of a training state.
            inputs: the inputs of `model_def.inputs`, such as {"x": (batch, channel,
                time, lat, lon)}, with rows padded as by `place_batch`.
            noise: noise for models that draw noise; each key gives another ensemble
                member.

        Returns:
            (batch, channel_out, time_out, lat, lon), with rows padded in the same way.

        Raises:
            ValueError: the inputs do not match `model_def.inputs`, or the model draws
                noise and none is given.
        """
        self.check_weights(params, model_state)
        compute = self.parallel_config.precision.compute
        check_arrays("inputs", inputs, self.model_def.inputs, self.axes, compute)
        trees = {"params": params, "model_state": model_state, "inputs": dict(inputs)}
        with on_mesh(self.mesh, **trees):
            return self._apply(params, model_state, (dict(inputs), noise))

    def check_weights(self, params: Any, model_state: Any) -> None:
        """Checks that weights are those of this model, in names and shapes.

        Raises:
            ValueError: they are not; see `check_weights` of `models.arguments`.
        """
        shapes = {path: d.shape for path, d in self.model_def.param_specs.items()}
        check_weights(params, model_state, shapes, self.model_def.model_state_shapes)

    def fuse_spectral_norm(
        self, params: Weights, model_state: ModelState, *, compensated: bool = False
    ) -> tuple[Weights, ModelState]:
        """Divides each matrix by its spectral norm, for repeated evaluation.

        A forward pass with the result gives the same prediction as one with the
        arguments, without computing spectral norm.

        Args:
            params, model_state: as for `apply`.
            compensated: see `spectral_norm.normalize`.

        Returns:
            The divided weights, and the state with an empty collection "spectral_norm".
            Matrices are the sums with their adapters, and these are 0.
        """
        self.check_weights(params, model_state)
        if not model_state[SPECTRAL_NORM]:
            return params, model_state
        fused = self._fuse[compensated](params, model_state, None)
        return fused, {**model_state, SPECTRAL_NORM: {}}

    def shard_map(
        self, body: Callable[..., Any], *, batch_specs: Any, out_specs: Any
    ) -> Callable[..., Any]:
        """Applies `shard_map` and `jax.jit` to a function of weights and a batch.

        Args:
            body: function (params, model_state, batch) -> outputs of local shards.
            batch_specs, out_specs: PartitionSpecs of the batch and of the outputs.

        Returns:
            Function (params, model_state, batch) -> outputs of global arrays.
        """

        def run(params: Weights, model_state: ModelState, batch: Any) -> Any:
            specs = {
                name: {path: self.model_state_specs[name][path] for path in collection}
                for name, collection in model_state.items()
            }
            sharded = self.parallel_config.shard_map(
                body,
                in_specs=(self.specs, specs, batch_specs),
                out_specs=out_specs,
            )
            return sharded(params, model_state, batch)

        run.__name__ = body.__name__  # the name of the compiled program
        return jax.jit(run)

    @cached_property
    def _init(self) -> dict[bool, Callable[[Array], tuple[Weights, ModelState]]]:
        """The jitted functions, by whether a program of their own draws (`alone`)."""
        return {
            alone: jax.jit(
                self.parallel_config.shard_map(
                    lambda key, alone=alone: self.local_init(key, alone=alone)[:2],
                    in_specs=PartitionSpec(),
                    out_specs=(self.specs, self.model_state_specs),
                )
            )
            for alone in (False, True)
        }

    @cached_property
    def _apply(self) -> Callable[[Weights, ModelState, Any], Array]:
        def body(params: Weights, model_state: ModelState, inputs: Any) -> Array:
            return self.local_forward(params, model_state, *inputs)

        return self.shard_map(
            body,
            batch_specs=(self.input_specs(), PartitionSpec()),
            out_specs=self.model_def.output.partition_spec(self.axes),
        )

    @cached_property
    def _fuse(self) -> dict[bool, Callable[[Weights, ModelState, None], Weights]]:
        """The jitted functions, by whether they sum rounding errors, too."""

        def fuses(compensated: bool) -> Callable[..., Weights]:
            def body(params: Weights, model_state: ModelState, _: None) -> Weights:
                divided = self._normalized(params, model_state, compensated=compensated)
                # Adapters, which are part of the divided matrices.
                remainder = {p: x for p, x in params.items() if p not in divided}
                return divided | jax.tree.map(jnp.zeros_like, remainder)

            return self.shard_map(body, batch_specs=None, out_specs=self.specs)

        return {compensated: fuses(compensated) for compensated in (False, True)}

    def local_init(
        self, key: Array, *, alone: bool = False
    ) -> tuple[Weights, ModelState, Array]:
        """Returns local shards of initial weights and state, and a key for dropout.

        Args:
            key: typed PRNG key.
            alone: see `parallel.compiler.loops_hold_collectives`.
        """
        degrees = dict(self.mesh.shape)
        weights_key, state_key, dropout_key = jax.random.split(key, 3)
        params = self.model_def.init(weights_key, self.specs, degrees)
        model_state = self.model_def.init_model_state(
            state_key, params, self.specs, degrees, alone=alone
        )
        return params, model_state, dropout_key

    def local_forward(
        self,
        params: Weights,
        model_state: ModelState,
        inputs: Mapping[str, Array],
        noise: Noise | None = None,
        *,
        interleaved: bool = False,
        num_members: int = 1,
        capture_intermediates: list[Field] | None = None,
    ) -> Array:
        """Predicts local samples and rows in evaluation mode.

        For a model with a process, the inputs of `model_def.network_inputs` give the
        output of its network, those of `model_def.inputs` a sample.

        Args:
            params: weights, local shards.
            model_state: local shards; no power iteration is run.
            inputs, noise: see `apply`.
            interleaved: how samples are numbered for noise. True: sample i of data-
                parallel rank r has index i * num_data + r, the order in which the
                sampler assigns them. False: the samples of a rank are consecutive, as
                in a global array.
            num_members: number of ensemble members of each sample, consecutive along
                the batch dim.
            capture_intermediates: see `Context`.

        Returns:
            (batch, channel_out, time_out, rows, lon), in the dtype of the inputs.
        """
        context = self._context(
            inputs,
            num_members,
            interleaved=interleaved,
            noise=noise,
            capture_intermediates=capture_intermediates,
        )
        if inputs.keys() == self.model_def.network_inputs.keys():
            return self._forward(params, model_state, inputs, context)[0]
        # A sample of the process, applying spectral norm once.
        process, weights = self.model_def.process, self._weights(params, model_state)
        assert process is not None, "the model has a process"

        def network(noised: Array, time: Array) -> Array:
            noised_inputs = {**inputs, NOISED: noised, TIME: time}
            stats = model_state[BATCH_STATS]
            return self.model_def.apply(weights, noised_inputs, context, stats)

        batch = next(iter(inputs.values())).shape[0]
        return self._output(process.sample(network, batch, context), inputs)

    def local_noised(
        self, target: Array, key: Array, *, start: Array | int = 0
    ) -> Noised:
        """Returns training data of the network of a process: local samples and rows.

        Args:
            target: (batch, channel, 1, rows, lon), standardized.
            key, start: as for `local_training_forward`, which then needs the inputs
                "noised" and "time", too.
        """
        process = self.model_def.process
        assert process is not None, "the model has a process"
        noise = Noise(jax.random.fold_in(key, NOISE))
        context = self._context({"y": target}, start=start, noise=noise)
        return process.noised(target, context)

    def local_training_forward(
        self,
        params: Weights,
        model_state: ModelState,
        inputs: Mapping[str, Array],
        key: Array,
        *,
        num_members: int = 1,
        start: Array | int = 0,
    ) -> tuple[Array, ModelState]:
        """Predicts in training mode; also returns the state after the forward pass.

        Args:
            params, inputs: as for `local_forward`; samples are numbered as with
                `interleaved`.
            model_state: as returned by `local_iterate`.
            key: typed PRNG key of dropout and noise, equal on all devices.
            num_members: as for `local_forward`.
            start: number of local samples of the batch before these.
        """
        context = self._context(inputs, num_members, start=start, key=key)
        y, batch_stats = self._forward(params, model_state, inputs, context)
        vectors = spectral_norm.after_calls(
            model_state[SPECTRAL_NORM], self.model_def.matrices
        )
        return y, {SPECTRAL_NORM: vectors, BATCH_STATS: batch_stats}

    def local_losses(
        self,
        params: Weights,
        model_state: ModelState,
        x: Array,
        y: Array,
        key: Array,
        *,
        num_members: int = 1,
        start: Array | int = 0,
    ) -> Float[Array, " batch"]:
        """Returns the training losses of local samples by a model that has its loss.

        Args:
            params, model_state, key, num_members, start: as for
                `local_training_forward`.
            x, y: local samples of input and target.
        """
        context = self._context({"x": x}, num_members, start=start, key=key)
        module = self.model_def.bind(self._weights(params, model_state))
        return module.losses(x, y, context)

    @jax.named_scope(compiler.SPECTRAL_NORM)
    def local_iterate(self, params: Weights, model_state: ModelState) -> ModelState:
        """Returns the state for a training forward pass, after power iterations.

        The vectors of frozen matrices stay: with others such a matrix would be divided
        by another sigma.

        Args:
            params, model_state: as for `local_forward`.
        """
        vectors, definition = model_state[SPECTRAL_NORM], self.model_def
        # A frozen matrix with an adapter is not constant.
        adapted = definition.low_rank.targets if definition.low_rank else frozenset()
        constant = definition.frozen - adapted
        iterated = spectral_norm.iterate(
            self._merged(params),
            {path: pair for path, pair in vectors.items() if path not in constant},
            definition.matrices,
            self.specs,
        )
        return {**model_state, SPECTRAL_NORM: {**vectors, **iterated}}

    def _forward(
        self,
        params: Weights,
        model_state: ModelState,
        inputs: Mapping[str, Array],
        context: Context,
    ) -> tuple[Array, Collection]:
        weights = self._weights(params, model_state)
        prediction, batch_stats = self.model_def.apply_and_update(
            weights, inputs, context, model_state[BATCH_STATS]
        )
        return self._output(prediction, inputs), batch_stats

    def _output(self, prediction: Array, inputs: Mapping[str, Array]) -> Array:
        """Rounds a prediction to the output dtype, then casts to that of the inputs."""
        dtype = jnp.result_type(*inputs.values())
        y = self.parallel_config.precision.cast_output(prediction).astype(dtype)
        field = Field(y, self.reducer.rows)
        if not field.layout.has_padding:
            return y
        # The last layer may leave values there, by which a gradient of all rows of the
        # global array would not be that of one device.
        return jnp.where(field.mask(), y, jnp.zeros((), y.dtype))

    def _context(
        self,
        inputs: Mapping[str, Array],
        num_members: int = 1,
        *,
        interleaved: bool = True,
        start: Array | int = 0,
        key: Array | None = None,
        noise: Noise | None = None,
        capture_intermediates: list[Field] | None = None,
    ) -> Context:
        """Context of a forward pass, see `local_forward`; in training, with a key."""
        if key is not None:
            # In training, noise has a key that follows from that of dropout.
            noise = Noise(jax.random.fold_in(key, NOISE))
        # dp_replicate is the outermost axis of the data-parallel rank.
        rank: Array | int = 0
        for name in self.axes.data:
            rank = rank * self.mesh.shape[name] + axis_index(name)
        size = next(iter(inputs.values())).shape[0] // num_members
        return Context(
            axes=self.axes,
            rules=self.parallel_config.rules,
            precision=self.parallel_config.precision,
            remat=self.parallel_config.remat,
            unroll_blocks=self.parallel_config.unroll_blocks,
            first_sample=rank + start * self.axes.num_data
            if interleaved
            else rank * size,
            sample_stride=self.axes.num_data if interleaved else 1,
            num_members=num_members,
            key=key,
            noise=noise,
            capture_intermediates=capture_intermediates,
        )

    def _weights(self, params: Weights, model_state: ModelState) -> Weights:
        """Returns the parameters for the blocks, after spectral norm and gathering."""
        config = self.parallel_config
        normalized = self._normalized(params, model_state)
        with jax.named_scope(compiler.PARAMETERS):
            return gather_over_domain(
                normalized,
                self.model_def.param_specs,
                config.rules,
                self.axes,
                config.precision,
                num_unrolled=config.unroll_blocks if implementation() == "gpu" else 0,
            )

    @jax.named_scope(compiler.SPECTRAL_NORM)
    def _normalized(
        self, params: Weights, model_state: ModelState, *, compensated: bool = False
    ) -> Weights:
        """Returns local shards of all parameters of layers, after spectral norm."""
        return spectral_norm.normalize(
            self._merged(params),
            model_state[SPECTRAL_NORM],
            self.model_def.matrices,
            self.specs,
            compensated=compensated,
        )

    def _merged(self, params: Weights) -> Weights:
        """Returns local shards with the sums of matrices and their adapters."""
        definition = self.model_def
        return merge(params, definition.low_rank, definition.param_specs, self.specs)


def build_parallel_model(
    model: Mapping[str, Any] | ModelDef,
    mesh: Mesh | ParallelDims,
    *,
    devices: Sequence[Any] | None = None,
    ac_mode: str = "none",
    mp_policy: Precision | None = None,
    fp8: bool | Float8 = False,
    ulysses_degree: int | None = None,
    etp: int | None = None,
    reshard_after_forward: bool | int = True,
    min_shard_size: int = MIN_SHARD_SIZE,
    keep_whole: Sequence[str] = (),
    over_domain: bool = False,
    unroll_blocks: int = UNROLL_BLOCKS,
) -> ParallelModel:
    """Returns a model with all parallelism applied, ready for training.

    The order of the steps is fixed, as each depends on those before it:

    1. Tensor parallelism: `tp_plan` of a block renames dims of parameter specs, which
       sharding, spectral norm and initialization read.
    2. Sharding: dims of each parameter are mapped to mesh axes, tp first; FSDP shards
       the first remaining dim that its degree divides.
    3. Spectral norm divides the stored float32 shards once in a forward pass, outside
       of the blocks: rematerialization does not repeat it, and no cast precedes it.
    4. Inside of each block's `jax.checkpoint`, parameters are cast, then gathered: the
       backward pass gathers again, and the transpose reduce-scatters the gradient. The
       checkpoint of attention is nested in it. Float8 rounds gathered parameters.
    5. A `shard_map` over the mesh initializes the weights as shards.

    Args:
        model: the `model:` section of a config, or a model definition.
        mesh: the degrees, with ulysses_degree and etp; or a mesh of
            `build_device_mesh` or `ParallelDims.build_mesh`.
        devices: devices of the mesh of degrees, in rank order; None for the first
            devices of all processes.
        ac_mode: activation checkpointing: "none", "full", or "selective" (attention).
        mp_policy: dtypes, such as `default_mp_policy()` for bfloat16; None for float32.
        fp8: whether to multiply large dense layers in float8 (`ops.dense`), or which
            layers; True for `Float8()`. Not with float16.
        ulysses_degree: number of neighboring domain shards that exchange heads for rows
            around attention (`parallel.domain.attention`); None moves complete windows
            instead, or leaves it to the degrees.
        etp: number of tensor-parallel devices that shard the hidden units of an expert,
            all or 1; None for all, or as the degrees say.
        reshard_after_forward: see `Remat`.
        min_shard_size: parameters with fewer elements are not sharded.
        keep_whole: patterns of parameter paths that are not sharded by FSDP, such as
            "stages/0/embed/*".
        over_domain: whether to store large parameters sharded over the domain axis,
            too; see `ShardingRules`.
        unroll_blocks: see `ParallelConfig`.

    Raises:
        ValueError: the model section is invalid or does not fit the mesh, with all
            errors listed; or degrees or devices are given twice.

    Warns:
        UserWarning: float8 is requested, but no layer or no device benefits from it.

    >>> dims = credit_jax.ParallelDims(world_size=1)
    >>> credit_jax.build_parallel_model(section, dims).model_def.output_channels
    6
    """
    model_def = model if isinstance(model, ModelDef) else build(model)
    if keep_whole:
        model_def = replace(model_def, keep_whole=tuple(keep_whole))
    if isinstance(mesh, ParallelDims):
        _check_absent(mesh, {ULYSSES: ulysses_degree, ETP: etp})
        ulysses_degree, etp = mesh.ulysses_degree, mesh.etp
        if devices is None:
            devices = all_devices()[: mesh.world_size]
        mesh = mesh_of_degrees(mesh.axis_degrees, devices)
    else:
        _check_absent(mesh, {"devices": devices})
    axes = MeshAxes.from_mesh(mesh)
    degrees = {**mesh.shape, ULYSSES: ulysses_degree}
    problems = model_problems(model_def, degrees)
    problems = problems or model_def.validate(axes.num_tensor)
    problems += degree_problems(
        tp=axes.num_tensor,
        domain=axes.num_domain,
        etp=etp,
        ulysses_degree=ulysses_degree,
    )
    problems = [*dict.fromkeys(problems), *model_def.unmatched()]
    if problems:
        raise ValueError("; and ".join(problems))
    precision = mp_policy or Precision()
    if fp8:
        precision = precision.with_float8(Float8() if fp8 is True else fp8)
    notes = kernel_notes(mesh.devices.flat)
    for note in notes + float8_notes(model_def, precision, mesh.devices.flat):
        warnings.warn(note, stacklevel=2)
    splits = etp is None or etp == axes.num_tensor
    rules = ShardingRules(TENSOR_DIMS if splits else DENSE_TENSOR_DIMS)
    parallel_config = ParallelConfig(
        mesh,
        rules=replace(rules, min_shard_size=min_shard_size, over_domain=over_domain),
        precision=precision,
        remat=Remat(ac_mode, reshard_after_forward),
        ulysses=ulysses_degree or 1,
        unroll_blocks=unroll_blocks,
    )
    return ParallelModel(model_def, parallel_config)


def _check_absent(mesh: Mesh | ParallelDims, options: Mapping[str, Any]) -> None:
    """Raises ValueError for options of `build_parallel_model` that the mesh has."""
    conflicting = [name for name, value in options.items() if value is not None]
    if conflicting:
        kind = type(mesh).__name__
        raise ValueError(
            f"{' and '.join(conflicting)} given beside a {kind}, which has its own; "
            f"expected one of both: change the {kind}"
        )


def packing_of(model: ParallelModel) -> Packing:
    """The layout of the packed parameters of a model."""
    return Packing.of(model.model_def.param_specs)


def packed_specs(model: ParallelModel) -> dict[str, PartitionSpec]:
    """PartitionSpec of the parameters of a model in a training state, by path."""
    param_specs = packing_of(model).param_specs(model.model_def.param_specs)
    return model.parallel_config.rules.specs(param_specs, model.axes)


def shardings(specs: Any, mesh: Mesh) -> Any:
    """NamedSharding of every leaf of a tree of specs, for placing it on `mesh`."""
    return jax.tree.map(
        lambda spec: NamedSharding(mesh, spec),
        specs,
        is_leaf=lambda leaf: isinstance(leaf, PartitionSpec),
    )


def weight_targets(model: ParallelModel) -> tuple[Any, Any]:
    """Shapes, dtypes and shardings of the weights of a model, small ones packed."""
    param_specs = packing_of(model).param_specs(model.model_def.param_specs)
    params = {
        path: jax.ShapeDtypeStruct(d.shape, d.dtype) for path, d in param_specs.items()
    }
    shapes = params, model.model_def.model_state_shapes
    specs = (packed_specs(model), model.model_state_specs)
    return jax.tree.map(
        lambda leaf, index: jax.ShapeDtypeStruct(
            leaf.shape, leaf.dtype, sharding=index
        ),
        shapes,
        shardings(specs, model.parallel_config.mesh),
    )


def place_weights(
    model: ParallelModel, params: Mapping[str, Any], model_state: Mapping[str, Any]
) -> tuple[Weights, ModelState]:
    """Puts whole host arrays on the mesh of a model."""
    # As one vector, the small parameters are one transfer.
    like, packing = weight_targets(model), packing_of(model)
    packed = pack_tree((params, model_state), like, packing)
    placed = jax.tree.map(lambda x, to: jax.device_put(x, to.sharding), packed, like)
    return packing.unpack(placed[0]), placed[1]
