"""Sums and collectives over axes of a mesh."""

import re
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec
from jaxtyping import Array

from credit_jax.ops.custom_vjp import varying_axes
from credit_jax.parallel.collectives import psum_varying, pvary_each
from credit_jax.parallel.domain.windows import group_layout, window_layout
from credit_jax.parallel.mesh.device_mesh import MeshAxes
from credit_jax.parallel.reductions import FieldReducer
from credit_jax.parallel.rows.exchange import reshard
from credit_jax.parallel.rows.layout import Field, block_layout
from tests.parallel.domain.cases import conv, norm, padding, resizing, scales, windows
from tests.support import assert_close, make_mesh
from tests.support.gradients import draw
from tests.support.sharded import GARBAGE, Case, build_cases

KINDS = ("collective-permute", "all-to-all", "all-gather", "all-reduce")


def sent(case: Case, num_shards: int = 4) -> dict[str, int]:
    """Returns the collectives of one compiled forward, by kind."""
    program, (fields, weights), _ = build_cases(
        {"case": case}, num_shards, gradients=False
    )
    text = jax.jit(program).lower(fields, weights).compile().as_text()
    counts = {kind: len(re.findall(rf" {kind}(?:-start)?\(", text)) for kind in KINDS}
    return {kind: count for kind, count in counts.items() if count}


def pads(rows, columns=(0, 0)):
    return {"padding": (rows, columns)}


CASES = {
    "3x3 convolution": (conv(48, (3, 3), **pads((1, 1))), {"collective-permute": 2}),
    "3x3, uneven": (conv(45, (3, 3), **pads((1, 1))), {"collective-permute": 2}),
    "1x1 convolution": (conv(48, (1, 1)), {}),
    "patches": (conv(48, (4, 4), stride=(4, 4)), {}),
    "patches, uneven": (
        # 12 output rows on 4 shards: 12 input rows each, and 45 are in blocks of 12.
        conv(45, (4, 1), stride=(4, 4), **pads((0, 3))),
        {},
    ),
    "stride 2, kernel 4": (
        conv(48, (4, 4), stride=(2, 2), **pads((1, 1))),
        {"collective-permute": 2},
    ),
    "row below only": (conv(48, (2, 1), **pads((0, 1))), {"collective-permute": 1}),
    "kernel that reaches most shards": (
        conv(16, (13, 1), **pads((6, 6))),
        {"all-to-all": 1},
    ),
    "longitude split": (
        conv(48, (3, 3), dim=2, padding=((0, 0), (1, 1))),
        {"collective-permute": 2},
    ),
    "embed, all scales at once": (
        scales(64, (4, 8, 16, 32), 4, 4),
        {"collective-permute": 2},
    ),
    "group norm": (norm(48, 6, 2), {"all-gather": 1}),
    # Both poles in one permutation, as they are on different shards.
    "earth padding": (padding(48, "earth", (2, 2), (2, 2)), {"collective-permute": 1}),
    "resize up": (resizing(24, 48), {"collective-permute": 2}),
    "resize columns only": (resizing(48, 48, 4, 8), {}),
    "short windows": (windows(48, 8, "short", 4), {}),
    "long windows, there and back": (windows(48, 8, "long", 4), {"all-to-all": 2}),
    "long windows, uneven": (windows(45, 6, "long", 3), {"all-to-all": 2}),
}


@pytest.mark.parametrize("name", CASES)
def test_collectives_of_an_operation(name):
    case, expected = CASES[name]
    counts = sent(case)
    print(f"{name}: {counts}")
    assert counts == expected


def test_long_windows_send_a_quarter_to_each_of_four_shards():
    def op(field: Field) -> Field:
        return reshard(field, group_layout(field.layout, 48, 4))

    program, (fields, _), _ = build_cases(
        {"case": Case(op, ((1, 48, 5, 3),))}, 4, gradients=False
    )
    text = jax.jit(program).lower(fields, {"case": ()}).compile().as_text()
    shapes = re.findall(r"f32\[([\d,]+)\][^\n]* all-to-all\(", text)
    sizes = [np.prod([int(n) for n in shape.split(",")]) for shape in shapes]
    print(f"all-to-all of {shapes}")
    # 12 rows of 5 points and 3 channels in total, or one of four parts of them.
    assert sizes in ([12 * 5 * 3], [3 * 5 * 3])


def test_layouts_that_agree_share_one_move():
    def op(field: Field) -> Field:
        field = reshard(field, window_layout(field.layout, 48, 4))
        field = reshard(field, window_layout(field.layout, 48, 4))
        return reshard(field, field.layout.to_blocks())

    assert sent(Case(op, ((1, 48, 2, 1),))) == {}


@pytest.mark.slow
def test_the_gradients_of_arrays_that_vary_together_are_one_sum() -> None:
    mesh = make_mesh(domain=4)
    arrays = [jnp.float32(2.0), jnp.arange(3.0), jnp.ones((2, 2)), jnp.ones(5)]
    axes = [("domain",), ("domain",), ("domain",), ()]

    @partial(
        jax.shard_map, mesh=mesh, in_specs=PartitionSpec(), out_specs=PartitionSpec()
    )
    def gradient(arrays: list[Array]) -> Any:
        def loss(arrays: list[Array]) -> Array:
            factor = lax.axis_index("domain") + 1.0
            varying = pvary_each(arrays, axes)
            assert [bool(varying_axes(x)) for x in varying] == [True, True, True, False]
            return psum_varying(sum(jnp.sum(x * factor) for x in varying[:3]))

        return jax.value_and_grad(loss)(arrays)

    value, found = gradient(arrays)
    assert float(value) == 10.0 * (2.0 + 3.0 + 4.0)
    for x, by_x, number in zip(arrays, found, (10.0, 10.0, 10.0, 0.0), strict=True):
        np.testing.assert_array_equal(by_x, np.full(x.shape, number))
    text = jax.jit(gradient).lower(arrays).as_text()
    assert text.count("stablehlo.all_reduce") == 2, "of the loss and of all gradients"


MESHES = {
    "one device": {},
    "dp 2": {"dp": 2},
    "domain 3": {"domain": 3},
    "domain 8": {"domain": 8},
    "dp 2, tp 2, domain 2": {"dp": 2, "tp": 2, "domain": 2},
    "dp 4, domain 2": {"dp": 4, "domain": 2},
}


def run(mesh, values, weights):
    """Returns mean, channel means, sample means, and the gradient of the mean."""
    axes = MeshAxes.from_mesh(mesh)
    rows = block_layout(values.shape[3], axes.num_domain, axes.domain, dim=3)
    padding = rows.num_shards * rows.length - rows.size
    widths = [(0, 0)] * 3 + [(0, padding), (0, 0)]
    x = np.pad(values, widths, constant_values=GARBAGE)
    reducer = FieldReducer(rows, axes)

    def body(x):
        mean, gradient = jax.value_and_grad(partial(reducer.mean, row_weights=weights))(
            x
        )
        return (
            mean,
            gradient,
            reducer.channel_mean(x, weights),
            reducer.sample_mean(x, weights),
        )

    spec = PartitionSpec(axes.data or None, None, None, axes.domain)
    whole = PartitionSpec()
    sharded = jax.shard_map(
        body,
        mesh=mesh,
        in_specs=spec,
        out_specs=(whole, spec, whole, PartitionSpec(axes.data or None)),
    )
    mean, gradient, channels, samples = jax.jit(sharded)(x)
    assert not np.asarray(gradient)[:, :, :, rows.size :].any(), (
        "padding has a gradient"
    )
    return mean, np.asarray(gradient)[:, :, :, : rows.size], channels, samples


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", MESHES)
def test_means_on_every_mesh(name, weighted):
    values = draw((4, 3, 2, 13, 5)) + 1
    weights = draw((13,), seed=1) ** 2 if weighted else None
    w = np.ones(13) if weights is None else weights.astype(np.float64)
    product = values.astype(np.float64) * w[:, None]
    mean, gradient, channels, samples = run(make_mesh(**MESHES[name]), values, weights)
    assert_close(mean, product.mean(), 1e-6, f"{name}, mean")
    assert_close(channels, product.mean((0, 2, 3, 4)), 1e-6, f"{name}, channels")
    assert_close(samples, product.mean((3, 4)), 1e-6, f"{name}, samples")
    expected = np.broadcast_to(w[:, None], values.shape) / values.size
    assert_close(gradient, expected, 1e-6, f"{name}, gradient")


def test_bfloat16_is_summed_in_float32():
    values = jnp.ones((1, 1, 1, 300, 3), jnp.bfloat16)
    mean = FieldReducer(block_layout(300, dim=3), MeshAxes()).mean(values)
    assert mean.dtype == jnp.float32
    assert mean == 1.0
