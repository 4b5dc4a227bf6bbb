"""Initial values: distributions, equality on every mesh, creation by shards."""

import math
import re

import jax
import numpy as np
import pytest

from credit_jax.parallel.mesh.device_mesh import MeshAxes
from credit_jax.parallel.params import init
from credit_jax.parallel.params.fsdp import ShardingRules
from credit_jax.parallel.params.init import initialize
from credit_jax.parallel.params.spec import (
    ParamSpec,
    constant,
    icnr,
    torch_uniform,
    xavier_normal,
)
from tests.support import make_mesh

KEY = jax.random.key(7)
DECLARATIONS = {
    "uniform": ParamSpec((128, 256), ("embed", "mlp"), torch_uniform(128)),
    "bias": ParamSpec((256,), ("mlp",), torch_uniform(128)),
    "normal": ParamSpec(
        (3, 3, 64, 64), (None, None, "conv_in", "conv_out"), xavier_normal(576, 576)
    ),
    "icnr": ParamSpec(
        (3, 3, 32, 64), (None, None, "conv_in", "conv_out"), icnr(288, 2)
    ),
    "stacked": ParamSpec(
        (64, 3, 4, 8), ("embed", None, "heads", "head_dim"), torch_uniform(64)
    ).stack(3),
    "ones": ParamSpec((64,), ("embed",), constant(1.0)),
}


def sharded(**degrees):
    """Returns the compiled initialization on a mesh."""
    mesh = make_mesh(**degrees)
    specs = ShardingRules().specs(DECLARATIONS, MeshAxes.from_mesh(mesh))
    degrees = dict(mesh.shape)

    def body(key):
        return initialize(DECLARATIONS, key, specs, degrees)

    run = jax.shard_map(
        body, mesh=mesh, in_specs=jax.sharding.PartitionSpec(), out_specs=specs
    )
    return jax.jit(run).lower(KEY).compile()


@pytest.fixture(scope="module")
def whole():
    values = jax.jit(lambda key: initialize(DECLARATIONS, key))(KEY)
    return {path: np.asarray(value) for path, value in values.items()}


@pytest.mark.parametrize(
    "degrees",
    [
        {"dp": 2},
        {"dp": 8},
        {"tp": 4},
        {"domain": 3},
        {"dp": 2, "tp": 2, "domain": 2},
    ],
)
def test_values_are_the_same_on_every_mesh(whole, degrees):
    values = sharded(**degrees)(KEY)
    assert set(values) == set(whole)
    for path, value in values.items():
        assert np.array_equal(value, whole[path]), f"{path} on {degrees}"


@pytest.mark.parametrize("degrees", [{"dp": 8}, {"dp": 2, "tp": 2}])
def test_no_array_is_larger_than_the_local_shards(monkeypatch, degrees):
    monkeypatch.setattr(init, "CHUNK", 4096)
    program = sharded(**degrees)
    mesh = make_mesh(**degrees)
    specs = ShardingRules().specs(DECLARATIONS, MeshAxes.from_mesh(mesh))
    local = 0
    for path, param_spec in DECLARATIONS.items():
        names = [name for name in specs[path] if name]
        local += param_spec.size // math.prod(mesh.shape[name] for name in names)
    shapes = re.findall(r"[a-z]+\d+\[([\d,]+)\]", program.as_text())
    largest = max(math.prod(map(int, shape.split(","))) for shape in shapes)
    total = sum(d.size for d in DECLARATIONS.values())
    print(f"{degrees}: {total} elements, {local} local, largest array {largest}")
    assert largest <= local + 4096
    assert "all-gather" not in program.as_text()


def test_uniform(whole):
    values, bound = whole["uniform"], 1 / math.sqrt(128)
    assert np.abs(values).max() < bound
    assert np.abs(values).max() > 0.999 * bound
    assert values.mean() == pytest.approx(0, abs=4 * bound / math.sqrt(3 * values.size))
    assert values.std() == pytest.approx(bound / math.sqrt(3), rel=0.02)


def test_normal(whole):
    values, std = whole["normal"] / math.sqrt(2 / 1152), 1.0
    assert values.std() == pytest.approx(std, rel=0.02)
    assert values.mean() == pytest.approx(0, abs=4 / math.sqrt(values.size))
    assert (values**4).mean() == pytest.approx(3, rel=0.1), "the tails are not normal"
    assert np.isfinite(values).all()


def test_icnr_repeats_one_draw_for_every_subpixel(whole):
    values = whole["icnr"].reshape(3, 3, 32, 16, 4)
    assert (values == values[..., :1]).all()
    assert len(np.unique(values[..., 0])) > 0.99 * values[..., 0].size
    assert values.std() == pytest.approx(math.sqrt(2 / 288), rel=0.05)


def test_no_two_parameters_or_blocks_are_alike(whole):
    flat = np.concatenate([whole["uniform"].ravel(), whole["bias"]])
    assert len(np.unique(flat)) > 0.99 * flat.size
    blocks = whole["stacked"]
    assert not (blocks[0] == blocks[1]).any()
    other = initialize(DECLARATIONS, jax.random.key(8))
    assert not (np.asarray(other["uniform"]) == whole["uniform"]).any()
    assert (whole["ones"] == 1).all()
