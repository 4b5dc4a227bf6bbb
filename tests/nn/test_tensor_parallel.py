"""`tp_plan`: pairs of layers split over tp equal the whole layers, in any block."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import PartitionSpec

from credit_jax.nn.context import Context
from credit_jax.nn.layers import Conv, GroupNorm, Linear
from credit_jax.nn.parameters import (
    Parameter,
    named_variables,
    param_spec_of,
    stack_blocks,
)
from credit_jax.nn.tensor_parallel import apply_tensor_parallel
from credit_jax.parallel.mesh.device_mesh import MeshAxes
from credit_jax.parallel.params.fsdp import ShardingRules
from credit_jax.parallel.rows.layout import Field, block_layout
from tests.messages.engine import *  # noqa: F403
from tests.messages.engine import Cases
from tests.support import assert_close, assert_trees_close, make_mesh
from tests.support.gradients import cotangent, draw
from tests.support.sharded import with_values

CHANNELS, HIDDEN = 6, 8


class Inner(nnx.Module):
    """A pair of linear layers in a list, planned by dotted paths."""

    tp_plan = (("layers.0", "layers.1"),)

    def __init__(self) -> None:
        self.layers = nnx.List([Linear(CHANNELS, HIDDEN), Linear(HIDDEN, CHANNELS)])

    def __call__(self, x: Any, context: Context) -> Any:
        return x + self.layers[1](jnp.tanh(self.layers[0](x)), context)


class Block(nnx.Module):
    """Pairs of convolutions and of linear layers; inner blocks."""

    tp_plan = (("up", "down"), ("wide", "narrow"))

    def __init__(self) -> None:
        self.inner = Inner()
        self.up = Linear(CHANNELS, HIDDEN)
        self.down = Linear(HIDDEN, CHANNELS)
        self.middle = Conv(CHANNELS, CHANNELS, 3, padding=1)
        self.wide = Conv(CHANNELS, 2 * HIDDEN, 1)
        self.narrow = Conv(2 * HIDDEN, 3, 1)

    def __call__(self, field: Field, context: Context) -> Field:
        x = self.inner(field.data, context)
        x = x + self.down(jnp.tanh(self.up(x)), context)
        wide = self.wide(self.middle(field.like(x)))
        return self.narrow(wide.like(jnp.sin(wide.data)), context=context)


@cache
def _run(num_tensor: int) -> tuple[Any, Any, Any, dict[str, PartitionSpec]]:
    """Returns prediction, gradients by parameters and the input, and the layout."""
    mesh = make_mesh(tp=num_tensor)
    axes, rules = MeshAxes.from_mesh(mesh), ShardingRules()
    block = apply_tensor_parallel(Block())
    declared = {p: param_spec_of(v) for p, v in named_variables(block, Parameter)}
    specs = rules.specs(declared, axes)
    params = {
        # Of the size of initial weights, as the sine of large numbers loses digits.
        path: draw(d.shape, seed=number)
        / np.float32(np.sqrt(np.prod(d.shape[:-1]) + 1))
        for number, (path, d) in enumerate(declared.items())
    }
    context = Context(axes=axes, rules=rules)

    def loss(params: Any, x: Any) -> Any:
        module: Any = with_values(block, params)
        out = module(Field(x, block_layout(5)), context).data
        return jnp.sum(out * cotangent(out.shape, np.float32)), out

    whole = PartitionSpec()
    body = jax.shard_map(
        jax.value_and_grad(loss, argnums=(0, 1), has_aux=True),
        mesh=mesh,
        in_specs=(specs, whole),
        out_specs=((whole, whole), (specs, whole)),
    )
    (_, out), (grads, grad_x) = jax.jit(body)(params, draw((2, 5, 4, CHANNELS)))
    return out, grads, grad_x, specs


@pytest.mark.parametrize("num_tensor", [2, 4, 8])
def test_split_pairs_are_whole_pairs(num_tensor: int) -> None:
    """Values and every gradient, also of split kernels and of the bias added once."""
    out, grads, grad_x, specs = _run(num_tensor)
    one = _run(1)
    split = {path for path, spec in specs.items() if "tp" in spec}
    assert split == {
        *("inner/layers/0/kernel", "inner/layers/0/bias", "inner/layers/1/kernel"),
        *("up/kernel", "up/bias", "down/kernel"),
        *("wide/kernel", "wide/bias", "narrow/kernel"),
    }
    assert_close(out, one[0], 1e-6, f"tp {num_tensor}: value")
    assert_trees_close(grads, one[1], 1e-5, f"tp {num_tensor}: gradient")
    assert_close(grad_x, one[2], 1e-5, f"tp {num_tensor}: gradient of the input")


def test_stacked_blocks_are_split_alike() -> None:
    stacked = apply_tensor_parallel(stack_blocks(Inner, 3))
    declared = {p: param_spec_of(v) for p, v in named_variables(stacked, Parameter)}
    assert {path: spec.dims for path, spec in declared.items()} == {
        "layers/0/kernel": ("layers", "embed", "mlp"),
        "layers/0/bias": ("layers", "mlp"),
        "layers/1/kernel": ("layers", "mlp", "embed"),
        "layers/1/bias": ("layers", "embed"),
    }


class Wrong(nnx.Module):
    def __init__(self, plan: Any) -> None:
        self.tp_plan = plan
        self.up = Linear(CHANNELS, HIDDEN)
        self.down = Linear(HIDDEN, CHANNELS)
        self.narrow = Linear(4, CHANNELS)
        self.wide_kernel = Conv(CHANNELS, HIDDEN, 3, padding=1)
        self.strided = Conv(CHANNELS, HIDDEN, 1, stride=2)
        self.norm = GroupNorm(2, CHANNELS)
        self.layers = nnx.List([Linear(CHANNELS, HIDDEN)])


CASES = Cases("tp_plan")


def plan(*pairs: Any) -> None:
    apply_tensor_parallel(Wrong(pairs))


CASES.rows(
    plan,
    *(
        ((first, second),)
        for first, second in (
            *(("up", "out"), ("layers.1", "down"), ("norm", "down")),
            *(("wide_kernel", "down"), ("strided", "down"), ("up", "narrow")),
        )
    ),
    (("up", "down"), ("up", "down")),
    ("up", "down"),
)


def credits_attributes(**names: str) -> None:
    """They would be ignored, and every tp device would compute the whole layers."""
    outer = nnx.List([Wrong(())])
    for name, path in names.items():
        setattr(outer[0], name, path)
    apply_tensor_parallel(outer)


CASES.rows(credits_attributes, {"_tp_col": "up", "_tp_row": "down"}, {"_tp_col": "up"})
