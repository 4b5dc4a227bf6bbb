"""The work of the gradient of a sample on one device, counted in the traced program.

A replica is what holds one copy of a model in training: tensor x domain devices. Its
gradient is traced, which takes seconds, and not compiled. Each product, convolution,
reduction, concatenation and padding is a kernel, which reads its operands and writes
its results; elementwise operations are part of a neighboring kernel. `BYTES` and
`PACKED` fit these counts to programs that XLA compiled for the H100.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp

from credit_jax.kernels import use_platform
from credit_jax.models.common.array_specs import FieldSpec, InputSpec
from credit_jax.models.flops import equation_flops, inner_jaxprs, needed_part
from credit_jax.models.model_def import ModelDef
from credit_jax.models.parallel_model import ParallelModel, build_parallel_model
from credit_jax.parallel.mesh.dims import ParallelDims
from credit_jax.parallel.params.fsdp import pvary_params
from credit_jax.parallel.scopes import (
    PARAMETERS,
    PARTS,
    POSITION_BIAS,
    SPECTRAL_NORM,
    UPDATE,
)
from credit_jax.plan.accelerators import Accelerator

# Bytes that a compiled program moves relative to those counted here: 0.68 to 0.81 for
# the five programs of configs/wxformer_025deg.yaml for the H100, whose kernels are 0.95
# to 1.1 times as many as counted (benchmarks/reports/accelerator_025deg.md).
BYTES = 0.75
# Kernels of spectral norm, where matrices of one shape share a kernel.
PACKED = 0.2
# Operations that are kernels by themselves.
_KERNELS = (
    "argmax",
    "concatenate",
    "conv_general_dilated",
    "cumsum",
    "dot_general",
    "dynamic_update_slice",
    "fft",
    "gather",
    "pad",
    "pallas_call",
    "ragged_dot_general",
    "reduce_max",
    "reduce_min",
    "reduce_sum",
    "scatter",
    "scatter-add",
    "sort",
)
# Operations that are part of a kernel, whose operands it reads beside its own.
_READS = ("select_n",)
# Bytes that a device of an axis of n sends, as a multiple of the bytes of its operand.
_SENT = {
    "psum": lambda n: 2 * (n - 1) / n,
    "psum_invariant": lambda n: 2 * (n - 1) / n,
    "pmax": lambda n: 2 * (n - 1) / n,
    "all_gather": lambda n: n - 1,
    "all_gather_invariant": lambda n: n - 1,
    "reduce_scatter": lambda n: (n - 1) / n,
    "ppermute": lambda n: 1.0,
    "all_to_all": lambda n: (n - 1) / n,
}
_PART = re.compile(rf"\b({'|'.join(PARTS)})\b")


@dataclass
class Work:
    """Kernels and transfers of a part of a program, on one device.

    Attributes:
        kernels: number of kernel launches.
        seconds: time of the kernels, without launches: at the roofline, or as slower as
            a step was measured to be.
        flops: operations of products and convolutions.
        messages: number of transfers to other devices, without sums of gradients.
        sent: bytes of these transfers.
    """

    kernels: float = 0.0
    seconds: float = 0.0
    flops: float = 0.0
    messages: float = 0.0
    sent: float = 0.0


@dataclass
class ReplicaWork:
    """The work of the gradient of one sample.

    Attributes:
        samples: what grows with the samples of a micro-batch.
        weights: what each micro-batch does once, such as casts of the weights.
        stored: what is done to stored shards of weights: spectral norm.
    """

    samples: Work = field(default_factory=Work)
    weights: Work = field(default_factory=Work)
    stored: Work = field(default_factory=Work)

    @property
    def kernels(self) -> float:
        """Kernel launches of a micro-batch."""
        return self.samples.kernels + self.weights.kernels + self.stored.kernels

    def of_part(self, part: str) -> Work | None:
        """The work that a named scope belongs to; None for the update, not counted."""
        if part == UPDATE:
            return None
        if part == SPECTRAL_NORM:
            return self.stored
        return self.weights if part in (PARAMETERS, POSITION_BIAS) else self.samples


def replica_work(
    model_def: ModelDef,
    dims: ParallelDims,
    accelerator: Accelerator,
    **options: Any,
) -> ReplicaWork:
    """Counts the work of the gradient of one sample on one device of a replica.

    Args:
        model_def: the model.
        dims: degrees of the replica; with dp_replicate 2, what replicas send each
            other inside of the model counts, such as sums of batch norms.
        accelerator: the device.
        **options: keyword arguments of `build_parallel_model`.
    """
    devices = jax.devices()[: dims.world_size]
    model = build_parallel_model(model_def, dims, devices=devices, **options)
    platform = "gpu" if accelerator.platform == "cuda" else accelerator.platform
    with use_platform(platform):
        traced = _gradient(model).trace(*_arguments(model))
    work = ReplicaWork()
    degrees = dims.axis_degrees
    for equation, scopes, times in _equations(needed_part(traced.jaxpr.jaxpr)):
        parts = _PART.findall(scopes)
        part = work.of_part(parts[-1] if parts else "")
        if part is not None:
            _count(part, equation, times, degrees, accelerator)
    work.stored.kernels *= PACKED
    return work


def _gradient(model: ParallelModel) -> Any:
    """The jitted gradient of a prediction by the weights, with power iterations."""
    axes = model.axes
    varying = (*axes.data, *([axes.domain] if axes.domain else []))
    precision = model.parallel_config.precision

    def body(params: Any, model_state: Any, inputs: Mapping[str, Any]) -> Any:
        state = model.local_iterate(params, model_state)

        def loss(params: Any) -> Any:
            with jax.named_scope(UPDATE):
                varied = pvary_params(params, varying, precision)
            key = jax.random.key(0)
            y, _ = model.local_training_forward(varied, state, inputs, key)
            return y.astype(jnp.float32).sum()

        return jax.grad(loss)(params)

    inputs = model.model_def.network_inputs
    specs = {name: spec.partition_spec(axes) for name, spec in inputs.items()}
    return model.shard_map(body, batch_specs=specs, out_specs=model.specs)


def _arguments(model: ParallelModel) -> tuple[Any, ...]:
    """Shapes of weights, state and inputs of one sample on each rank."""
    definition, axes = model.model_def, model.axes
    shaped = jax.ShapeDtypeStruct
    params = {p: shaped(d.shape, d.dtype) for p, d in definition.param_specs.items()}

    def array(spec: InputSpec) -> jax.ShapeDtypeStruct:
        shape = spec.shape(axes.num_data)
        if isinstance(spec, FieldSpec):
            rows = -(-spec.height // axes.num_domain) * axes.num_domain
            shape = (*shape[:-2], rows, spec.width)
        return shaped(shape, jnp.float32)

    inputs = {name: array(spec) for name, spec in definition.network_inputs.items()}
    return params, dict(definition.model_state_shapes), inputs


def _equations(
    jaxpr: Any, scopes: str = "", times: int = 1
) -> Iterator[tuple[Any, str, int]]:
    """Yields the innermost equations, their named scopes, and how often they run."""
    for equation in jaxpr.eqns:
        inside = f"{scopes}/{equation.source_info.name_stack}"
        params = equation.params
        inner = (
            () if equation.primitive.name in _KERNELS else tuple(inner_jaxprs(params))
        )
        if not inner:
            yield equation, inside, times
        runs = times * (params["length"] if equation.primitive.name == "scan" else 1)
        for program in inner:
            yield from _equations(program, inside, runs)


def _count(
    work: Work,
    equation: Any,
    times: int,
    degrees: Mapping[str, int],
    accelerator: Accelerator,
) -> None:
    """Adds an equation to the work of its part."""
    name = equation.primitive.name
    operands = _bytes(equation.invars)
    if name in _SENT:
        num = math.prod(degrees.get(axis, 1) for axis in _axes(equation.params))
        if num == 1:
            return
        work.messages += times
        work.sent += times * _SENT[name](num) * operands
    elif name not in (*_KERNELS, *_READS):
        return
    flops = equation_flops(equation) if name in _KERNELS else 0.0
    moved = BYTES * (operands + _bytes(equation.outvars))
    roofline = max(flops / accelerator.peak, moved / accelerator.bandwidth)
    seconds = roofline / accelerator.achieved
    work.kernels += times if name in _KERNELS else 0
    work.seconds += times * seconds
    work.flops += times * flops


def _axes(params: Mapping[str, Any]) -> tuple[Any, ...]:
    """The mesh axes of a collective."""
    axes = params.get("axes", params.get("axis_name", ()))
    return tuple(axes) if isinstance(axes, tuple | list) else (axes,)


def _bytes(variables: Any) -> float:
    return float(
        sum(
            variable.aval.size * variable.aval.dtype.itemsize
            for variable in variables
            if hasattr(variable.aval, "size")
        )
    )
