"""Variables of NNX modules with parameter specs, and the state besides parameters.

Modules are built without values: a variable contains a `jax.ShapeDtypeStruct` and, as
metadata, its `ParamSpec`. `parallel.params.init.initialize` draws the values.

A collection maps the path of a parameter or layer to its arrays:

    {"spectral_norm": {path of a matrix: {"u", "v"}},
     "batch_stats": {path of a batch norm: {"mean", "variance", "count"},
                     path of an expert layer: {"load", "probability", "router_z"}}}

Both collections are always present; one that a model does not use is empty.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jax.typing import DTypeLike
from jaxtyping import Array

from credit_jax.parallel.params.spec import Initializer, ParamSpec

ModuleType = TypeVar("ModuleType", bound=nnx.Module)
VariableType = TypeVar("VariableType", bound=nnx.Variable)


class Parameter(nnx.Variable):
    """A model parameter; its metadata contains the `ParamSpec`."""


def parameter(
    init: Initializer,
    shape: tuple[int, ...],
    dims: tuple[str | None, ...],
    *,
    matrix_out: tuple[int, ...] | None = None,
    calls: int = 1,
    frozen: bool = False,
) -> Parameter:
    """Declares a parameter; the arguments are those of `ParamSpec`."""
    spec = ParamSpec(shape, dims, init, matrix_out, calls=calls, frozen=frozen)
    return from_param_spec(spec)


def batch_stat(
    init: Initializer, shape: tuple[int, ...], dtype: DTypeLike = jnp.float32
) -> nnx.BatchStat:
    """Declares an array of running statistics, replicated on all devices."""
    dims = (None,) * len(shape)
    return from_param_spec(ParamSpec(shape, dims, init, dtype=dtype), nnx.BatchStat)


def from_param_spec(
    param_spec: ParamSpec, kind: type[VariableType] = Parameter
) -> VariableType:
    """Returns a variable of type `kind` with this spec and without a value."""
    value = jax.ShapeDtypeStruct(param_spec.shape, param_spec.dtype)
    return kind(value, param_spec=param_spec)


def param_spec_of(variable: nnx.Variable) -> ParamSpec:
    """Returns the spec that `parameter` or `batch_stat` attached to the variable."""
    return variable.get_metadata()["param_spec"]


def of_call(array: Array, ndim: int, call: Array | int) -> Array:
    """Returns the parameter for one call of its layer."""
    # In training, that of a layer that is called several times has a dim of calls.
    if array.ndim == ndim:
        return array
    return lax.dynamic_index_in_dim(array, call, keepdims=False)


def stack_blocks(make: Callable[[], ModuleType], num: int) -> ModuleType:
    """Returns `num` equal blocks as one module, variables stacked on a leading dim."""
    graph, state = nnx.split(make())
    stacked = jax.tree.map(
        lambda variable: from_param_spec(
            param_spec_of(variable).stack(num), type(variable)
        ),
        state,
        is_leaf=lambda leaf: isinstance(leaf, nnx.Variable),
    )
    return nnx.merge(graph, stacked)


def named_variables(
    module: nnx.Module, kind: type[VariableType]
) -> Iterator[tuple[str, VariableType]]:
    """Yields (path, variable) of every variable of a kind, sorted by path."""
    for path, variable in nnx.to_flat_state(nnx.state(module, kind)):
        yield "/".join(map(str, path)), variable


SPECTRAL_NORM = "spectral_norm"
BATCH_STATS = "batch_stats"
COLLECTIONS = (SPECTRAL_NORM, BATCH_STATS)

Collection = dict[str, dict[str, Array]]
ModelState = dict[str, Collection]


def wide_statistics(model_state: Any) -> Any:
    """Copies of the batch-norm statistics in float32, to begin their average."""
    # The training loop donates its state, which may have an array once. Counts of
    # batches are averaged like the other statistics, as in CREDIT; nothing reads them.
    return jax.tree.map(
        lambda x: (
            x.update(dtype="float32")
            if isinstance(x, jax.ShapeDtypeStruct)
            else x.astype("float32", copy=True)
        ),
        model_state[BATCH_STATS],
    )


def with_averaged_statistics(model_state: Any, averaged: Any) -> Any:
    """Returns the model state with averaged batch-norm statistics, if given."""
    if averaged is None:
        return model_state
    batch_stats = model_state[BATCH_STATS]
    taken = jax.tree.map(lambda x, mean: mean.astype(x.dtype), batch_stats, averaged)
    return {**model_state, BATCH_STATS: taken}
