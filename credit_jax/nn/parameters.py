"""Parameters of NNX modules: one parameter spec each, and stacks of equal blocks.

Modules are built without values: a parameter holds its shape and dtype and what it is.
`parallel.params.init.initialize` draws the values, shard by shard.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

import jax
from flax import nnx

from credit_jax.parallel.params.initializers import Initializer
from credit_jax.parallel.params.spec import ParamSpec

Block = TypeVar("Block", bound=nnx.Module)


class Parameter(nnx.Variable):
    """A trainable array; its metadata holds the parameter spec."""


def parameter(
    init: Initializer,
    shape: tuple[int, ...],
    dims: tuple[str | None, ...],
    *,
    matrix_out: tuple[int, ...] | None = None,
) -> Parameter:
    """Declare one parameter.

    Args:
        init: distribution of the initial values.
        shape: global shape.
        dims: dim names, see `parallel.params.spec`.
        matrix_out: the output dims if spectral norm applies to the parameter.
    """
    return from_param_spec(ParamSpec(shape, dims, init, matrix_out))


def from_param_spec(param_spec: ParamSpec) -> Parameter:
    """A parameter with this parameter spec, without a value."""
    value = jax.ShapeDtypeStruct(param_spec.shape, param_spec.dtype)
    return Parameter(value, param_spec=param_spec)


def param_spec_of(variable: nnx.Variable) -> ParamSpec:
    """The parameter spec that `parameter` attached."""
    return variable.get_metadata()["param_spec"]


def stack_blocks(make: Callable[[], Block], num: int) -> Block:
    """`num` equal blocks as one module, parameters stacked on a leading dim."""
    graph, state = nnx.split(make())
    stacked = jax.tree.map(
        lambda variable: from_param_spec(param_spec_of(variable).stack(num)),
        state,
        is_leaf=lambda leaf: isinstance(leaf, nnx.Variable),
    )
    return nnx.merge(graph, stacked)


def named_parameters(module: nnx.Module) -> Iterator[tuple[str, Parameter]]:
    """("stages/0/embed/...", variable) of every parameter, sorted by path."""
    for path, variable in nnx.to_flat_state(nnx.state(module, Parameter)):
        yield "/".join(map(str, path)), variable
