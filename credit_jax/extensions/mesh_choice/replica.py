"""The work of the gradient of samples on one device, counted in the traced program.

A replica is what holds one copy of a model in training: tensor x domain devices. Its
gradient is traced, which takes seconds, and not compiled. Products, convolutions, sorts
and Pallas kernels read their operands and write their results. The depth of a value is
the number of these, and of reductions, that it depends on: elementwise values of one
depth are computed together, which reads once what has another depth, and writes what
other depths or products use. Values of as many elements are a kernel.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax.extend.core import Literal

from credit_jax.extensions.mesh_choice.accelerators import Accelerator
from credit_jax.kernels import use_implementation, use_platform
from credit_jax.models.common.config import FieldSpec, InputSpec
from credit_jax.models.flops import equation_flops, inner_jaxprs, needed_part
from credit_jax.models.model_def import ModelDef
from credit_jax.models.parallel_model import ParallelModel, build_parallel_model
from credit_jax.parallel.compiler import PARTS, SPECTRAL_NORM, UPDATE
from credit_jax.parallel.mesh.device_mesh import DP_SHARD
from credit_jax.parallel.mesh.dims import ParallelDims
from credit_jax.parallel.params.fsdp import pvary_params

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
# What reads and writes memory.
_OPAQUE = {
    *_SENT,
    "conv_general_dilated",
    "cumlogsumexp",
    "cummax",
    "cumsum",
    "dot_general",
    "fft",
    "pallas_call",
    "ragged_dot_general",
    "sort",
    "top_k",
}
# What computes its operands, and writes its results.
_REDUCTIONS = re.compile(
    "arg(max|min)|reduce_(and|max|min|or|prod|sum|window)|scatter.*|"
    "select_and_scatter_add|dynamic_update_slice"
)
# Other names of the same array.
_VIEWS = re.compile("copy|expand_dims|layout_constraint|pcast|pvary|reshape|squeeze")
_LOOPS = ("scan", "while", "cond")
_PART = re.compile(rf"\b({'|'.join(PARTS)})\b")


class Work(NamedTuple):
    """Kernels and transfers of a part of a program, on one device."""

    kernels: float = 0.0  # launches
    seconds: float = 0.0  # without launches, at the roofline or as slow as measured
    messages: float = 0.0  # transfers to other devices, but sums of gradients
    sent: float = 0.0  # bytes

    def plus(self, other: Work, times: float = 1.0) -> Work:
        """The sum with a multiple of other work."""
        return Work(*(a + times * b for a, b in zip(self, other, strict=True)))


class ReplicaWork(NamedTuple):
    """The work of the gradient of a micro-batch."""

    # Of one and of two samples: work on weights does not grow with samples.
    one: Work
    two: Work
    stored: Work  # on stored shards of weights besides: spectral norm

    def of_samples(self, samples: float) -> Work:
        """The work of a micro-batch of some samples, without that on stored shards."""
        work = self.one.plus(self.two.plus(self.one, -1), samples - 1)
        return work._replace(kernels=self.one.kernels)


def replica_work(
    model_def: ModelDef,
    dims: ParallelDims,
    accelerator: Accelerator,
    **options: Any,
) -> ReplicaWork:
    """Counts the work of the gradient of samples on one device of a replica."""
    # With dp_replicate 2, what replicas send each other inside of the model counts,
    # such as sums of batch norms. With dp_shard 2 weights are gathered, and again in
    # the backward pass, so that XLA writes all that this needs; gathers do not count.
    devices = jax.devices()[: dims.world_size]
    model = build_parallel_model(model_def, dims, devices=devices, **options)
    is_gpu = accelerator.platform == "cuda"
    platform, kind = ("gpu", "gpu") if is_gpu else (accelerator.platform, "xla")
    works = []
    for samples in (1, 2):
        with use_platform(platform), use_implementation(kind):
            traced = _gradient(model).trace(*_arguments(model, samples))
        works.append(traced_work(traced.jaxpr.jaxpr, dims.axis_degrees, accelerator))
    (one, stored), (two, _) = works
    return ReplicaWork(one, two, stored._replace(kernels=PACKED * stored.kernels))


def _gradient(model: ParallelModel) -> Any:
    """The jitted gradient of a prediction by the weights, with power iterations."""
    axes, precision = model.axes, model.parallel_config.precision
    varying = (*axes.data, *([axes.domain] if axes.domain else []))

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


def traced_work(
    jaxpr: Any, degrees: Mapping[str, int], accelerator: Accelerator
) -> tuple[Work, Work]:
    """Returns the work of a program, and that on stored shards of weights."""
    program = _Program(degrees, accelerator)
    program.read_body(needed_part(jaxpr), "", 1)
    return program.work()


# Depth of the operands of an equation, how often it runs, and its part of a step.
_Group: TypeAlias = tuple[int, int, str]


@dataclass(eq=False)
class _Array:
    """An array of a program."""

    elements: int
    bytes: float
    depth: int = 0  # products and reductions that it depends on
    # Its elementwise equation or reduction; None if another one wrote it.
    group: _Group | None = None
    stored: bool = False  # in memory


class _Program:
    """Counts the work of a program, equation by equation."""

    def __init__(self, degrees: Mapping[str, int], accelerator: Accelerator) -> None:
        self._degrees, self._accelerator = degrees, accelerator
        self._works = defaultdict[str, Work](Work)  # by part of a step
        self._arrays = list[_Array]()
        self._reads = set[tuple[_Array, _Group]]()

    def read_body(self, jaxpr: Any, scopes: str, times: int) -> None:
        """Counts a jaxpr whose inputs and results are in memory."""
        arrays = self._added((*jaxpr.invars, *jaxpr.constvars))
        self._read(jaxpr, arrays, scopes, times)
        for result in _of(arrays, jaxpr.outvars):
            result.stored = True

    def _added(
        self, variables: Sequence[Any], depth: int = 0, group: _Group | None = None
    ) -> dict[Any, _Array]:
        """New arrays of variables."""
        arrays = dict[Any, _Array]()
        for variable in variables:
            aval = variable.aval
            elements = math.prod(getattr(aval, "shape", ()))
            size = float(elements * getattr(aval.dtype, "itemsize", 4))
            arrays[variable] = _Array(elements, size, depth, group)
        self._arrays += arrays.values()
        return arrays

    def _read(
        self, jaxpr: Any, arrays: dict[Any, _Array], scopes: str, times: int
    ) -> None:
        """Counts a jaxpr, whose inputs are in `arrays`."""
        for equation in jaxpr.eqns:
            name, params = equation.primitive.name, equation.params
            inside = f"{scopes}/{equation.source_info.name_stack}"
            operands, outvars = _of(arrays, equation.invars), equation.outvars
            is_opaque, reduces = name in _OPAQUE, bool(_REDUCTIONS.fullmatch(name))
            bodies = [] if is_opaque or reduces else [*inner_jaxprs(params)]
            body = bodies[0] if bodies and name not in _LOOPS else None
            if body is not None and len(body.invars) == len(equation.invars):
                within = self._added((*body.invars, *body.constvars))
                pairs = zip(body.invars, equation.invars, strict=True)
                within |= {v: arrays[a] for v, a in pairs if not isinstance(a, Literal)}
                if params.get("differentiated"):
                    # The inputs of a rematerialized program pass a barrier, so that XLA
                    # does not keep what it recomputes.
                    for variable in body.invars:
                        within[variable].stored = True
                self._read(body, within, inside, times)
                arrays |= self._added(outvars)
                pairs = zip(outvars, body.outvars, strict=True)
                arrays |= {v: within[a] for v, a in pairs if not isinstance(a, Literal)}
                continue
            is_matrix = name == "transpose" and outvars[0].aval.ndim < 3
            if operands and (is_matrix or _VIEWS.fullmatch(name)):
                arrays[outvars[0]] = operands[0]
                continue
            depth = max((operand.depth for operand in operands), default=0)
            group = depth, times, (_PART.findall(inside) or [""])[-1]
            in_group = None if is_opaque or bodies else group
            results = self._added(outvars, depth + (is_opaque or reduces), in_group)
            arrays |= results
            for result in results.values():
                result.stored = in_group is None or reduces
                if not operands:
                    result.bytes = 0.0  # a constant
            if in_group is None:
                for operand in operands:
                    operand.stored = True
                for body in bodies:
                    self.read_body(body, inside, times * params.get("length", 1))
                if not bodies:
                    self._count(equation, group, operands, results.values())
                continue
            for operand in operands:
                if operand.group is None or operand.group[0] < depth:
                    operand.stored = True
                    self._reads.add((operand, group))

    def _count(
        self,
        equation: Any,
        group: _Group,
        operands: Iterable[_Array],
        results: Iterable[_Array],
    ) -> None:
        """Adds a transfer, or the kernel of a product and the like."""
        (_, times, part), name, params = group, equation.primitive.name, equation.params
        moved = sum(operand.bytes for operand in {*operands})
        if name not in _SENT:
            moved += sum(result.bytes for result in results)
            device, flops = self._accelerator, equation_flops(equation)
            seconds = max(flops / device.peak, moved / device.bandwidth)
            one = Work(1, seconds / device.achieved)
            self._works[part] = self._works[part].plus(one, times)
            return
        axes = params.get("axes", params.get("axis_name", ()))
        axes = tuple(axes) if isinstance(axes, tuple | list) else (axes,)
        num = math.prod(self._degrees.get(axis, 1) for axis in axes)
        # What FSDP gathers and scatters depends on the mesh, not on the replica.
        if num > 1 and not (axes == (DP_SHARD,) and name in _GATHERS):
            sent = Work(messages=1, sent=_SENT[name](num) * moved)
            self._works[part] = self._works[part].plus(sent, times)

    def work(self) -> tuple[Work, Work]:
        """The work without that on stored shards of weights, and that."""
        moved = defaultdict[_Group, float](float)
        kernels = set[tuple[_Group, int]]()
        for array, group in self._reads:
            moved[group] += array.bytes
        for array in self._arrays:
            if array.stored and array.group is not None:
                moved[array.group] += array.bytes
                kernels.add((array.group, array.elements))
        for (_, times, part), size in moved.items():
            seconds = size / self._accelerator.bandwidth / self._accelerator.achieved
            self._works[part] = self._works[part].plus(Work(seconds=seconds), times)
        for (_, times, part), _ in kernels:
            self._works[part] = self._works[part].plus(Work(1), times)
        stored = self._works.pop(SPECTRAL_NORM, Work())
        self._works.pop(UPDATE, None)
        total = Work()
        for work in self._works.values():
            total = total.plus(work)
        return total, stored


def _of(arrays: Mapping[Any, _Array], variables: Iterable[Any]) -> list[_Array]:
    return [arrays[v] for v in variables if not isinstance(v, Literal)]
