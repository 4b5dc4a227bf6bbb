"""The work of the gradient of samples on one device, counted in the traced program.

A replica is what holds one copy of a model in training: tensor x domain devices. Its
gradient is traced, which takes seconds, and not compiled. `plan.fusions` says which
kernels XLA makes of it, and what they read and write.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import astuple, dataclass, field
from typing import Any

import jax
import jax.numpy as jnp

from credit_jax.kernels import use_implementation, use_platform
from credit_jax.models.common.array_specs import FieldSpec, InputSpec
from credit_jax.models.flops import needed_part
from credit_jax.models.model_def import ModelDef
from credit_jax.models.parallel_model import ParallelModel, build_parallel_model
from credit_jax.parallel.mesh.axes import DP_SHARD
from credit_jax.parallel.mesh.dims import ParallelDims
from credit_jax.parallel.params.fsdp import pvary_params
from credit_jax.parallel.scopes import PARTS, SPECTRAL_NORM, UPDATE
from credit_jax.plan.accelerators import Accelerator
from credit_jax.plan.fusions import TracedKernel, traced_kernels

# Kernels of spectral norm, where matrices of one shape share a kernel.
PACKED = 0.2
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
# Of these, what FSDP does to weights and gradients.
_GATHERS = ("all_gather", "all_gather_invariant", "reduce_scatter")
_PART = re.compile(rf"\b({'|'.join(PARTS)})\b")


@dataclass
class KernelWork:
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

    def plus(self, other: KernelWork, times: float = 1.0) -> KernelWork:
        """The sum with a multiple of other work."""
        pairs = zip(astuple(self), astuple(other), strict=True)
        return KernelWork(*(mine + times * theirs for mine, theirs in pairs))


@dataclass
class ReplicaWork:
    """The work of the gradient of a micro-batch.

    Attributes:
        first: the work of one sample.
        further: what each of the other samples adds: bytes and operations, but not what
            is done to weights once, and no kernels.
        stored: what is done to stored shards of weights: spectral norm.
    """

    first: KernelWork = field(default_factory=KernelWork)
    further: KernelWork = field(default_factory=KernelWork)
    stored: KernelWork = field(default_factory=KernelWork)

    def of_samples(self, samples: float) -> KernelWork:
        """The work of a micro-batch of some samples, without that on stored shards."""
        return self.first.plus(self.further, samples - 1)


def replica_work(
    model_def: ModelDef,
    dims: ParallelDims,
    accelerator: Accelerator,
    **options: Any,
) -> ReplicaWork:
    """Counts the work of the gradient of samples on one device of a replica.

    Args:
        model_def: the model.
        dims: degrees of the replica; with dp_replicate 2, what replicas send each
            other inside of the model counts, such as sums of batch norms. With dp_shard
            2 weights are gathered, and again in the backward pass, so that XLA writes
            all that the backward pass needs; the gathers do not count.
        accelerator: the device.
        **options: keyword arguments of `build_parallel_model`.
    """
    devices = jax.devices()[: dims.world_size]
    model = build_parallel_model(model_def, dims, devices=devices, **options)
    works = []
    for samples in (1, 2):
        program = _traced(model, samples, accelerator)
        work = {True: KernelWork(), False: KernelWork()}
        # On GPUs programs are compiled with `xla_gpu_exclude_nondeterministic_ops`.
        for kernel in traced_kernels(program, ordered=accelerator.platform == "cuda"):
            part = (_PART.findall(kernel.scopes) or [""])[-1]
            if part != UPDATE:
                whose = work[part == SPECTRAL_NORM]
                _count(whose, kernel, dims.axis_degrees, accelerator)
        works.append(work)
    (alone, two), stored = (work[False] for work in works), works[0][True]
    stored.kernels *= PACKED
    return ReplicaWork(alone, two.plus(alone, -1), stored)


def _traced(model: ParallelModel, samples: int, accelerator: Accelerator) -> Any:
    """The gradient as a jaxpr, without what nothing needs."""
    is_gpu = accelerator.platform == "cuda"
    platform, kind = ("gpu", "gpu") if is_gpu else (accelerator.platform, "xla")
    with use_platform(platform), use_implementation(kind):
        traced = _gradient(model).trace(*_arguments(model, samples))
    return needed_part(traced.jaxpr.jaxpr)


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
            return jnp.square(y.astype(jnp.float32)).sum()

        return jax.grad(loss)(params)

    inputs = model.model_def.network_inputs
    specs = {name: spec.partition_spec(axes) for name, spec in inputs.items()}
    return model.shard_map(body, batch_specs=specs, out_specs=model.specs)


def _arguments(model: ParallelModel, samples: int) -> tuple[Any, ...]:
    """Shapes of weights, state and inputs, of some samples on each rank."""
    definition, axes = model.model_def, model.axes
    shaped = jax.ShapeDtypeStruct
    params = {p: shaped(d.shape, d.dtype) for p, d in definition.param_specs.items()}

    def array(spec: InputSpec) -> jax.ShapeDtypeStruct:
        shape = spec.shape(samples * axes.num_data)
        if isinstance(spec, FieldSpec):
            rows = -(-spec.height // axes.num_domain) * axes.num_domain
            shape = (*shape[:-2], rows, spec.width)
        return shaped(shape, jnp.float32)

    inputs = {name: array(spec) for name, spec in definition.network_inputs.items()}
    return params, dict(definition.model_state_shapes), inputs


def _count(
    work: KernelWork,
    kernel: TracedKernel,
    degrees: Mapping[str, int],
    accelerator: Accelerator,
) -> None:
    """Adds a kernel, or a transfer, to the work of its part."""
    name, times = kernel.equation.primitive.name, kernel.times
    if name in _SENT:
        axes = _axes(kernel.equation.params)
        num = math.prod(degrees.get(axis, 1) for axis in axes)
        # What FSDP gathers and scatters depends on the mesh, not on the replica.
        gathers = axes == (DP_SHARD,) and name in _GATHERS
        if num > 1 and not gathers:
            work.messages += times
            work.sent += times * _SENT[name](num) * _bytes(kernel.equation.invars)
        return
    roofline = max(
        kernel.flops / accelerator.peak, kernel.bytes / accelerator.bandwidth
    )
    work.kernels += times
    work.seconds += times * roofline / accelerator.achieved
    work.flops += times * kernel.flops


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
