"""A model as pure functions of a flat dict of arrays: specs, `init`, `apply`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jax.sharding import PartitionSpec
from jaxtyping import Array

from credit_jax.config.messages import divisors
from credit_jax.kernels import is_amd
from credit_jax.models.arguments import check_arrays
from credit_jax.models.common import config as common
from credit_jax.models.diffusion.process import Process
from credit_jax.nn import spectral_norm
from credit_jax.nn.context import BlockCount, Context, Noise
from credit_jax.nn.layers import BatchNorm
from credit_jax.nn.low_rank import LowRank
from credit_jax.nn.parameters import (
    BATCH_STATS,
    SPECTRAL_NORM,
    Collection,
    ModelState,
    Parameter,
    named_variables,
    param_spec_of,
)
from credit_jax.nn.tensor_parallel import apply_tensor_parallel
from credit_jax.parallel.params.init import initialize
from credit_jax.parallel.params.precision import Precision
from credit_jax.parallel.params.spec import EXPERTS, TENSOR_DIMS, ParamSpec, trainable

Weights = dict[str, Array]


@dataclass(frozen=True)
class ModelDef:
    """Definition of a model: its config and its module, without weights.

    Parameters are a flat dict from path ("stages/0/embed/convs/0/kernel") to array;
    those of the blocks of a stage are stacked on a leading dim.

    Attributes:
        config: the validated `model:` section.
        make: function (config) -> NNX module; each takes its class of config.
        keep_whole: patterns (fnmatch) of parameter paths that FSDP does not shard.
        frozen: paths of parameters that are not trained, besides those that the model
            itself freezes. Their matrices are divided by the stored sigma of spectral
            norm in training, too, without power iterations.
        low_rank: matrices with adapters, which are parameters, too; None for none.

    >>> model.model_def.input_channels, model.model_def.num_parameters
    (7, 42)
    """

    config: common.ModelConfig
    make: Callable[[Any], nnx.Module]
    keep_whole: tuple[str, ...] = ()
    frozen: frozenset[str] = frozenset()
    low_rank: LowRank | None = None

    @cached_property
    def _abstract(self) -> nnx.Module:
        module = apply_tensor_parallel(self.make(self.config))
        for path, variable in named_variables(module, Parameter):
            spec = param_spec_of(variable)
            full = any(fnmatch(path, pattern) for pattern in self.keep_whole)
            marked = replace(
                spec,
                keep_whole=spec.keep_whole or full,
                frozen=spec.frozen or path in self.frozen,
            )
            variable.set_metadata(param_spec=marked)
        return module

    @cached_property
    def _split(self) -> Any:
        return nnx.split(self._abstract, Parameter, nnx.BatchStat)

    @cached_property
    def param_specs(self) -> dict[str, ParamSpec]:
        """`ParamSpec` of every parameter, by path."""
        named = named_variables(self._abstract, Parameter)
        specs = {path: param_spec_of(variable) for path, variable in named}
        return specs | (self.low_rank.param_specs(specs) if self.low_rank else {})

    @property
    def input_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the inputs of one sample, by name."""
        return {name: spec.shape(1) for name, spec in self.inputs.items()}

    @property
    def matrices(self) -> dict[str, ParamSpec]:
        """Specs of the parameters with spectral norm, by path; empty if it is off."""
        if not getattr(self.config, "use_spectral_norm", False):
            return {}
        named = self.param_specs.items()
        return {path: d for path, d in named if d.matrix_out is not None}

    @cached_property
    def batch_stats(self) -> dict[str, dict[str, ParamSpec]]:
        """Specs of the running statistics, by path of the layer and name."""
        specs: dict[str, dict[str, ParamSpec]] = {}
        for path, variable in named_variables(self._abstract, nnx.BatchStat):
            norm, _, name = path.rpartition("/")
            specs.setdefault(norm, {})[name] = param_spec_of(variable)
        return specs

    @cached_property
    def model_state_shapes(self) -> dict[str, dict[str, dict[str, Any]]]:
        """Shapes and dtypes of the collections of `nn.parameters`, as in them."""
        shaped = jax.ShapeDtypeStruct
        vectors = {
            path: {
                side: shaped(shape, jnp.float32)
                for side, shape in spectral_norm.spectral_norm_shapes(spec).items()
            }
            for path, spec in self.matrices.items()
        }
        batch_stats = {
            path: {name: shaped(spec.shape, spec.dtype) for name, spec in specs.items()}
            for path, specs in self.batch_stats.items()
        }
        return {SPECTRAL_NORM: vectors, BATCH_STATS: batch_stats}

    @property
    def trainable(self) -> dict[str, ParamSpec]:
        """Specs of the parameters that are not frozen."""
        return trainable(self.param_specs, self.param_specs)

    @property
    def num_parameters(self) -> int:
        return sum(d.size for d in self.param_specs.values())

    @property
    def num_active_parameters(self) -> int:
        """Number of parameters used for a token: of experts only those it chooses."""
        routing = self.config.routing
        return sum(
            d.size * routing.top_k // routing.num_experts
            if routing is not None and EXPERTS in d.dims
            else d.size
            for d in self.param_specs.values()
        )

    @property
    def inputs(self) -> Mapping[str, common.InputSpec]:
        """Specs of the inputs of a prediction, by name."""
        return self.config.inputs

    @property
    def network_inputs(self) -> Mapping[str, common.InputSpec]:
        """Specs of the inputs of `apply`: `inputs`, and those that a process adds."""
        return self.config.network_inputs

    @property
    def process(self) -> Process | None:
        """The process that samples a prediction by several forward passes, or None."""
        return self.config.process

    @property
    def output(self) -> common.FieldSpec:
        """Spec of the output of `apply`."""
        return self.config.output

    @property
    def draws_noise(self) -> bool:
        """Whether a forward pass draws noise, in training and in evaluation."""
        return self.config.draws_noise

    @property
    def input_channels(self) -> int:
        """Number of channels of a frame of the input "x"."""
        return self.config.x.channels

    @property
    def output_channels(self) -> int:
        """Number of channels of an output frame."""
        return self.output.channels

    @property
    def frames(self) -> int:
        """Number of frames of the input "x"."""
        return self.config.x.frames

    @property
    def output_frames(self) -> int:
        return self.output.frames

    @property
    def image_height(self) -> int:
        """Number of rows of the output."""
        return self.output.height

    @property
    def image_width(self) -> int:
        """Number of columns of the output."""
        return self.output.width

    def validate(self, tensor: int = 1) -> list[str]:
        """Returns errors of the model with a tensor-parallel degree, one line each."""
        if problems := [*self.config.problems()]:
            return problems
        if self.config.only_data_parallel:
            try:
                _ = self.num_blocks  # traces the function, once
            except ValueError as error:
                return [str(error)]
        indivisible = {
            (length, name): path
            for path, param_spec in reversed(self.param_specs.items())
            for length, name in zip(param_spec.shape, param_spec.dims, strict=True)
            if name in TENSOR_DIMS and length % tensor
        }
        return [
            f"{path}: {length} {name} are not divisible by tensor {tensor}; would fit: "
            f"{divisors(length)}"
            for (length, name), path in reversed(indivisible.items())
        ]

    def unmatched(self) -> list[str]:
        """Returns errors of patterns of `keep_whole` that match no parameter."""
        return [
            f"keep_whole has {pattern!r}, which matches no parameter; there are "
            f"{', '.join(sorted(self.param_specs)[:3])}, ..."
            for pattern in self.keep_whole
            if not any(fnmatch(path, pattern) for path in self.param_specs)
        ]

    @cached_property
    def num_blocks(self) -> int:
        """Number of blocks of a forward pass, counted by abstract evaluation."""
        blocks = BlockCount()
        self._trace(Context(blocks=blocks))
        return blocks.counted

    def float8_matrices(self, precision: Precision) -> list[tuple[int, int]]:
        """Returns (input, output) channels of the matrices multiplied in float8.

        They are sorted and unique, found by abstract evaluation of a forward pass.
        """
        shapes: list[tuple[int, int]] = []
        if precision.float8 is not None:
            self._trace(Context(precision=precision, float8_matrices=shapes))
        return sorted(set(shapes))

    def _trace(self, context: Context) -> None:
        """Traces a forward pass of one sample, by abstract evaluation."""
        shaped = jax.ShapeDtypeStruct
        specs = self.network_inputs.items()
        inputs = {k: shaped(s.shape(1), jnp.float32) for k, s in specs}
        weights = {p: shaped(d.shape, d.dtype) for p, d in self.param_specs.items()}

        def forward(weights: Any, inputs: Any, key: Array) -> Array:
            noisy, stats = replace(context, noise=Noise(key)), self._fresh_batch_stats()
            y = self.apply(weights, inputs, noisy, stats)
            if self.has_loss:
                training = replace(noisy, key=key)
                self.bind(weights).losses(inputs["x"], y, training)
            return y

        jax.eval_shape(forward, weights, inputs, jax.random.key(0))

    def auxiliary_losses(self, batch_stats: Collection) -> dict[str, Array]:
        """Returns the terms that the model adds to the training loss, by name.

        Args:
            batch_stats: the collection after the forward pass.
        """
        return self.config.auxiliary_losses(batch_stats) if batch_stats else {}

    @property
    def has_loss(self) -> bool:
        """Whether the model gives its training loss itself, by `losses`."""
        function = getattr(self._abstract, "function", None)
        return getattr(function, "loss", None) is not None

    @property
    def initial(self) -> Weights:
        """Values that parameters begin with instead of draws, by path, on the host."""
        return getattr(self._abstract, "initial", {})

    def tree(self, weights: Mapping[str, Array]) -> Any:
        """Returns weights as the tree of parameters that `wrap` was given.

        Args:
            weights: all parameters by path, whole arrays or shards.
        """
        return self._abstract.function.tree(weights)  # type: ignore[attr-defined]

    def init(
        self,
        key: Array,
        specs: Mapping[str, PartitionSpec] | None = None,
        degrees: Mapping[str, int] | None = None,
    ) -> Weights:
        """Draws initial parameters: local shards inside of `shard_map`.

        Args:
            key: typed PRNG key.
            specs: PartitionSpec of each parameter; None for global arrays.
            degrees: size of every mesh axis that `specs` names.
        """
        return initialize(self.param_specs, key, specs, degrees)

    def init_model_state(
        self,
        key: Array,
        weights: Weights,
        specs: Mapping[str, PartitionSpec] | None = None,
        degrees: Mapping[str, int] | None = None,
        *,
        alone: bool = False,
    ) -> ModelState:
        """Returns the initial collections of `nn.parameters`.

        Args:
            key, specs, degrees: as for `init`.
            weights: the initial parameters, as returned by `init`.
            alone: see `parallel.compiler.loops_hold_collectives`.
        """
        vectors = spectral_norm.init_spectral_norm(
            key, weights, self.matrices, specs, degrees, alone=alone
        )
        return {SPECTRAL_NORM: vectors, BATCH_STATS: self._fresh_batch_stats()}

    def _fresh_batch_stats(self) -> Collection:
        return {
            path: {
                name: jnp.full(spec.shape, spec.init.scale, spec.dtype)
                for name, spec in specs.items()
            }
            for path, specs in self.batch_stats.items()
        }

    def apply(
        self,
        weights: Mapping[str, Array],
        inputs: Mapping[str, Array],
        context: Context,
        batch_stats: Collection | None = None,
    ) -> common.Prediction:
        """Runs a forward pass on local arrays.

        Args:
            weights: local shards of all parameters, after spectral norm.
            inputs: the inputs of `network_inputs`: local samples, and for fields local
                rows, in equal blocks with padding at the end.
            context: mesh axes, precision, remat; training mode if it has a key.
            batch_stats: the collection of `nn.parameters`; required if the model has
                running statistics.

        Returns:
            Local prediction (batch, channel, time, rows, lon), rows in equal blocks.

        Raises:
            ValueError: the inputs do not match `network_inputs`; running statistics are
                missing; or the model draws noise and the context has none.
        """
        return self.apply_and_update(weights, inputs, context, batch_stats)[0]

    def apply_and_update(
        self,
        weights: Mapping[str, Array],
        inputs: Mapping[str, Array],
        context: Context,
        batch_stats: Collection | None = None,
    ) -> tuple[common.Prediction, Collection]:
        """Runs `apply`, and also returns `batch_stats`, updated in training mode.

        Args:
            weights, inputs, context, batch_stats: as for `apply`.

        Raises:
            ValueError: as for `apply`.
        """
        check_arrays("inputs", inputs, self.network_inputs)
        if self.batch_stats and not batch_stats:
            nodes = [node for _, node in nnx.iter_modules(self._abstract)]
            num = sum(isinstance(node, BatchNorm) for node in nodes)
            subject = f"{num} batch norms" if num else "layers of experts"
            raise ValueError(
                f"the model has {subject}; give their running statistics: "
                'apply(..., batch_stats=model_state["batch_stats"])'
            )
        module = self.bind(weights, batch_stats)
        if not isinstance(context.remat.reshard_after_forward, bool):
            context = replace(context, blocks=BlockCount(self.num_blocks))
        prediction = module(inputs, context)
        after: Collection = {path: {} for path in self.batch_stats}
        for path, variable in named_variables(module, nnx.BatchStat):
            norm, _, name = path.rpartition("/")
            after[norm][name] = variable[...]
        return prediction, after

    def bind(
        self, weights: Mapping[str, Array], batch_stats: Collection | None = None
    ) -> Any:
        """Returns the NNX module with these arrays, without gradient of frozen ones.

        A frozen matrix that has an adapter is given as their sum, which has one.
        """
        graph, params, stats = self._split
        stored = {
            f"{path}/{name}": array
            for path, arrays in (batch_stats or {}).items()
            for name, array in arrays.items()
        }
        sums = self.low_rank.targets if self.low_rank else frozenset()
        values = {
            path: lax.stop_gradient(w)
            if self.param_specs[path].frozen and path not in sums
            else w
            for path, w in weights.items()
        }
        stats = _filled(stats, stored) if stored else stats
        return nnx.merge(graph, _filled(params, values), stats)


def _filled(state: Any, values: Mapping[str, Array]) -> Any:
    """Returns the state with the values of its variables, by path."""
    filled = [
        (path, variable.replace(values["/".join(map(str, path))]))
        for path, variable in nnx.to_flat_state(state)
    ]
    return nnx.from_flat_state(filled)


def parameter_count(model_def: ModelDef) -> dict[str, int]:
    """Returns the number of parameters below each first path component."""
    counts: dict[str, int] = {}
    for path, param_spec in model_def.param_specs.items():
        head = path.split("/")[0]
        counts[head] = counts.get(head, 0) + param_spec.size
    return counts


# Lowest compute capability of NVIDIA GPUs with float8 matrix products.
_FIRST_CAPABILITY = (8, 9)


def float8_notes(
    model_def: ModelDef, precision: Precision, devices: Iterable[Any] = ()
) -> list[str]:
    """Returns the reasons why a model gains nothing from float8, one line each."""
    if precision.float8 is None:
        return []
    if not model_def.float8_matrices(precision):
        least = precision.float8.min_channels
        return [
            f"float8: no dense layer of the model has {least} input and output "
            "channels (in multiples of 16), so none is multiplied in float8; "
            "trainer.float8.min_channels sets the least"
        ]
    without = [device for device in devices if not multiplies_float8(device)]
    if not without:
        return []
    return [
        f"float8: {without[0].device_kind} has no float8 products; values are rounded "
        "to float8 and multiplied in a wider dtype, with the same result but slower "
        "than without float8"
    ]


def multiplies_float8(device: Any) -> bool:
    """Whether a device has float8 (e4m3) products: NVIDIA GPUs since Ada and Hopper."""
    if device.platform not in ("gpu", "cuda") or is_amd(device):
        return False
    capability = str(getattr(device, "compute_capability", "0"))
    return tuple(map(int, capability.split("."))) >= _FIRST_CAPABILITY
