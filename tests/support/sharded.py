"""Runs operations on fields split over shards, and on one device, with gradients.

A case is a function of fields and weights. Most of the time is compilation, so that
several cases with the same number of shards share a program. They are only a few, as
compile time grows faster than the size of the program. Padding rows of the inputs are
large numbers, because results must not depend on them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax
from jax.sharding import AxisType, Mesh, PartitionSpec

from credit_jax.parallel.collectives import axis_index
from credit_jax.parallel.mesh.device_mesh import DOMAIN
from credit_jax.parallel.rows.layout import Field, Layout, block_layout
from tests.support.gradients import cotangent, draw

GARBAGE = 1e6
CASES_OF_A_PROGRAM = 20

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Case:
    """An operation on fields.

    Attributes:
        op: `op(*fields, *weights) -> Field`.
        fields: global shapes (batch, lat, lon, channel).
        weights: shapes of replicated arrays.
        dim: array dim that is split.
        theirs: the same function of torch tensors.
        bound: of errors of the value and of gradients beside theirs.
    """

    op: Callable[..., Field]
    fields: tuple[Shape, ...]
    weights: tuple[Shape, ...] = ()
    dim: int = 1
    theirs: Callable[..., Any] | None = None
    bound: tuple[float, float] = (1e-6, 1e-5)

    def arrays(self, dtype: Any = np.float32) -> tuple[np.ndarray, ...]:
        """Returns whole fields and weights."""
        seeds = (*range(len(self.fields)), *range(100, 100 + len(self.weights)))
        pairs = zip((*self.fields, *self.weights), seeds, strict=True)
        return tuple(draw(shape, seed, dtype) for shape, seed in pairs)


@dataclass(frozen=True)
class Outcome:
    """Global arrays: the output, and the gradients by fields and weights."""

    value: np.ndarray
    fields: list[np.ndarray] = field(default_factory=list)
    weights: list[np.ndarray] = field(default_factory=list)


def run_cases(
    cases: Mapping[str, Case], num_shards: int, dtype: Any = np.float32
) -> dict[str, Outcome]:
    """Returns outputs and gradients of all cases on `num_shards` devices."""
    outcomes = {}
    names = list(cases)
    for start in range(0, len(names), CASES_OF_A_PROGRAM):
        few = {n: cases[n] for n in names[start : start + CASES_OF_A_PROGRAM]}
        program, arguments, layouts = build_cases(few, num_shards, dtype)
        results = jax.jit(program)(*arguments)
        for name, case in few.items():
            outcomes[name] = _collect(case, num_shards, layouts[name], *results[name])
    return outcomes


def build_cases(
    cases: Mapping[str, Case],
    num_shards: int,
    dtype: Any = np.float32,
    *,
    gradients: bool = True,
) -> tuple[Callable[..., Any], Any, dict[str, Layout]]:
    """Returns the program under `shard_map`, its arguments, and the output layouts."""
    axis = DOMAIN if num_shards > 1 else None
    layouts: dict[str, Layout] = {}

    def outcome(fields: Any, weights: Any, name: str) -> Any:
        case = cases[name]

        def output(fields: Any, weights: Any) -> Any:
            out = case.op(*_on_layouts(case, fields, num_shards), *weights)
            layouts[name] = out.layout
            return out.data

        value, pullback = jax.vjp(output, fields, weights)
        return value, *pullback(_cotangent(value, layouts[name]))

    def forward(fields: Any, weights: Any) -> Any:
        return {
            name: case.op(
                *_on_layouts(case, fields[name], num_shards), *weights[name]
            ).data
            for name, case in cases.items()
        }

    def program(fields: Any, weights: Any) -> Any:
        results = {}
        for name in cases:
            try:
                results[name] = outcome(fields[name], weights[name], name)
            except Exception as error:
                error.add_note(f"case {name} on {num_shards} shards")
                raise
        return results

    arguments = (
        {name: _split(case, num_shards, dtype) for name, case in cases.items()},
        {n: case.arrays(dtype)[len(case.fields) :] for n, case in cases.items()},
    )
    body = program if gradients else forward
    if axis is None:
        return body, arguments, layouts
    specs = {name: _spec(case) for name, case in cases.items()}
    mesh = mesh_of_shards(num_shards)
    whole = PartitionSpec()
    both = {name: (spec, spec, whole) for name, spec in specs.items()}
    sharded = jax.shard_map(
        body,
        mesh=mesh,
        in_specs=(specs, whole),
        out_specs=both if gradients else specs,
    )
    return sharded, arguments, layouts


def mesh_of_shards(num_shards: int) -> Mesh:
    """Returns a mesh that has the domain axis, also of one device."""
    return jax.make_mesh(
        (num_shards,),
        (DOMAIN,),
        axis_types=(AxisType.Auto,),
        devices=jax.devices()[:num_shards],
    )


def _spec(case: Case) -> PartitionSpec:
    return PartitionSpec(*(None,) * case.dim, DOMAIN)


def _home(case: Case, shape: Shape, num_shards: int) -> Layout:
    axis = DOMAIN if num_shards > 1 else None
    return block_layout(shape[case.dim], num_shards, axis, case.dim)


def _on_layouts(case: Case, fields: Any, num_shards: int) -> list[Field]:
    pairs = zip(fields, case.fields, strict=True)
    return [Field(x, _home(case, shape, num_shards)) for x, shape in pairs]


def _cotangent(out: jax.Array, layout: Layout) -> jax.Array:
    """Returns this shard's rows of the whole output's cotangent, with zero padding."""
    shape = list(out.shape)
    shape[layout.dim] = layout.size
    weight = np.moveaxis(cotangent(shape, np.float64), layout.dim, 0)
    rows = np.asarray(layout.rows)
    mine = weight[np.maximum(rows, 0)]
    mine[rows < 0] = 0.0
    mine = np.moveaxis(mine, 1, layout.dim + 1).astype(out.dtype)
    if layout.axis is None:
        return jnp.asarray(mine[0])
    return lax.dynamic_index_in_dim(mine, axis_index(layout.axis), keepdims=False)


def _split(case: Case, num_shards: int, dtype: Any) -> tuple[np.ndarray, ...]:
    """Splits fields into equal blocks with garbage in the padding."""
    out = []
    for shape, x in zip(case.fields, case.arrays(dtype), strict=False):
        rows_per_shard = np.asarray(_home(case, shape, num_shards).rows).reshape(-1)
        rows = np.moveaxis(x, case.dim, 0)[np.maximum(rows_per_shard, 0)]
        rows[rows_per_shard < 0] = GARBAGE
        out.append(np.moveaxis(rows, 0, case.dim))
    return tuple(out)


def _collect(
    case: Case, num_shards: int, layout: Layout, value: Any, fields: Any, weights: Any
) -> Outcome:
    pairs = zip(fields, case.fields, strict=True)
    return Outcome(
        _global(value, layout),
        [_global(x, _home(case, shape, num_shards)) for x, shape in pairs],
        [np.asarray(x) for x in weights],
    )


def _global(x: Any, layout: Layout) -> np.ndarray:
    """Returns the real rows in order, without padding."""
    rows_per_shard = np.asarray(layout.rows).reshape(-1)
    where = {row: i for i, row in enumerate(rows_per_shard) if row >= 0}
    index = [where[row] for row in range(layout.size)]
    return np.take(np.asarray(x), index, layout.dim)


def with_values(module: nnx.Module, values: Mapping[str, Any]) -> Any:
    """Returns a module whose variables have these values, by path."""
    graph, state = nnx.split(module)
    flat = [
        (path, variable.replace(values["/".join(map(str, path))]))
        for path, variable in nnx.to_flat_state(state)
    ]
    return nnx.merge(graph, nnx.from_flat_state(flat))
