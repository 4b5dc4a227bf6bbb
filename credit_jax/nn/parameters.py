"""Parameters of NNX modules: one declaration each, and stacks of equal blocks.

Modules are built without values: a parameter holds its shape and dtype and what it is.
`parallel.initialisers.initialise` draws the values, shard by shard.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

import jax
from flax import nnx

from credit_jax.parallel.initialisers import Initialiser
from credit_jax.parallel.sharding import Declaration

Block = TypeVar("Block", bound=nnx.Module)


class Parameter(nnx.Variable):
    """A trainable array; its metadata holds the declaration."""


def parameter(
    init: Initialiser,
    shape: tuple[int, ...],
    dims: tuple[str | None, ...],
    *,
    matrix_out: tuple[int, ...] | None = None,
) -> Parameter:
    """Declare one parameter.

    Args:
        init: distribution of the initial values.
        shape: global shape.
        dims: dim names, see `parallel.sharding`.
        matrix_out: the output dims if spectral norm applies to the parameter.
    """
    return redeclare(Declaration(shape, dims, init, matrix_out))


def redeclare(declaration: Declaration) -> Parameter:
    """A parameter with this declaration, without a value."""
    value = jax.ShapeDtypeStruct(declaration.shape, declaration.dtype)
    return Parameter(value, declaration=declaration)


def declaration_of(variable: nnx.Variable) -> Declaration:
    """The declaration that `parameter` attached."""
    return variable.get_metadata()["declaration"]


def stack_blocks(make: Callable[[], Block], num: int) -> Block:
    """`num` equal blocks as one module, parameters stacked on a leading dim."""
    graph, state = nnx.split(make())
    stacked = jax.tree.map(
        lambda variable: redeclare(declaration_of(variable).stack(num)),
        state,
        is_leaf=lambda leaf: isinstance(leaf, nnx.Variable),
    )
    return nnx.merge(graph, stacked)


def named_parameters(module: nnx.Module) -> Iterator[tuple[str, Parameter]]:
    """("stages/0/embed/...", variable) of every parameter, sorted by path."""
    for path, variable in nnx.to_flat_state(nnx.state(module, Parameter)):
        yield "/".join(map(str, path)), variable
