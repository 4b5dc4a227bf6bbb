"""`tp_plan`: pairs of layers split over tp equal the whole layers, in any block."""

from __future__ import annotations

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


class NoBias(nnx.Module):
    """Pairs without bias, which need nothing else."""

    tp_plan = (("up", "down"), ("wide", "narrow"))

    def __init__(self) -> None:
        self.up = Linear(CHANNELS, HIDDEN, use_bias=False)
        self.down = Linear(HIDDEN, CHANNELS, use_bias=False)
        self.wide = Conv(CHANNELS, HIDDEN, 1, use_bias=False)
        self.narrow = Conv(HIDDEN, CHANNELS, 1, use_bias=False)

    def __call__(self, field: Field, context: Context) -> Field:
        field = field.like(self.down(jnp.tanh(self.up(field.data)), context))
        wide = self.wide(field)
        return self.narrow(wide.like(jnp.sin(wide.data)), context=context)


class Block(nnx.Module):
    """A pair of 1 x 1 convolutions, an unsplit layer and inner blocks."""

    tp_plan = (("up", "down"),)

    def __init__(self) -> None:
        self.inner = Inner()
        self.no_bias = NoBias()
        self.middle = Conv(CHANNELS, CHANNELS, 3, padding=1)
        self.up = Conv(CHANNELS, 2 * HIDDEN, 1)
        self.down = Conv(2 * HIDDEN, 3, 1)

    def __call__(self, field: Field, context: Context) -> Field:
        field = field.like(self.inner(field.data, context))
        field = self.middle(field.like(field.data + self.no_bias(field, context).data))
        up = self.up(field)
        return self.down(up.like(jnp.sin(up.data)), context=context)


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

    step = jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)
    whole = PartitionSpec()
    body = jax.shard_map(
        step,
        mesh=mesh,
        in_specs=(specs, whole),
        out_specs=((whole, whole), (specs, whole)),
    )
    (_, out), (grads, grad_x) = jax.jit(body)(params, draw((2, 5, 4, CHANNELS)))
    return out, grads, grad_x, specs


@pytest.fixture(scope="module")
def one_device() -> Any:
    return _run(1)


@pytest.mark.parametrize("num_tensor", [2, 4, 8])
def test_split_pairs_are_whole_pairs(one_device: Any, num_tensor: int) -> None:
    """Values and every gradient, also of split kernels and of the bias added once."""
    out, grads, grad_x, specs = _run(num_tensor)
    split = {path for path, spec in specs.items() if "tp" in spec}
    assert split == {
        "inner/layers/0/kernel",
        "inner/layers/0/bias",
        "inner/layers/1/kernel",
        *(f"no_bias/{name}/kernel" for name in ("up", "down", "wide", "narrow")),
        "up/kernel",
        "up/bias",
        "down/kernel",
    }
    assert_close(out, one_device[0], 1e-6, f"tp {num_tensor}: value")
    assert_trees_close(grads, one_device[1], 1e-5, f"tp {num_tensor}: gradient")
    assert_close(grad_x, one_device[2], 1e-5, f"tp {num_tensor}: gradient of the input")


def test_stacked_blocks_are_split_alike() -> None:
    stacked = apply_tensor_parallel(stack_blocks(Inner, 3))
    declared = {p: param_spec_of(v) for p, v in named_variables(stacked, Parameter)}
    assert declared["layers/0/kernel"].dims == ("layers", "embed", "mlp")
    assert declared["layers/0/bias"].dims == ("layers", "mlp")
    assert declared["layers/1/kernel"].dims == ("layers", "mlp", "embed")
    assert declared["layers/1/bias"].dims == ("layers", "embed")


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


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        ((("up", "out"),), "'out', but Wrong has no 'out'; there are: up, down"),
        ((("layers.1", "down"),), "'layers.1', but List has no '1'; there are: 0"),
        ((("norm", "down"),), "'norm', which is a GroupNorm; expected a Linear"),
        ((("wide_kernel", "down"),), "a Conv of kernel [3, 3], stride [1, 1]"),
        ((("strided", "down"),), "a Conv of kernel [1, 1], stride [2, 2]"),
        ((("up", "narrow"),), "'up' makes 8 channels, but 'narrow' takes 4"),
        ((("up", "down"), ("up", "down")), "which is split by columns already"),
        (("up", "down"), "has the entry 'up'; expected a pair of dotted paths"),
    ],
)
def test_plans_that_cannot_be(plan: Any, words: str) -> None:
    with pytest.raises(ValueError, match=r"Wrong\.tp_plan") as error:
        apply_tensor_parallel(Wrong(plan))
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("names", "plan"),
    [
        ({"_tp_col": "up", "_tp_row": "down"}, "(('up', 'down'),)"),
        ({"_tp_col": "up"}, "(('up', '...'),)"),
    ],
)
def test_credits_attributes_name_tp_plan(names: dict[str, str], plan: str) -> None:
    """They would be ignored, and every tp device would compute the whole layers."""
    outer = nnx.List([Wrong(())])
    for name, path in names.items():
        setattr(outer[0], name, path)
    with pytest.raises(ValueError, match=r"Wrong has _tp_col = 'up', _tp_row") as error:
        apply_tensor_parallel(outer)
    assert f"write tp_plan = {plan}" in str(error.value)
