"""`reshard`: every row plan, bit for bit, and its gradient."""

from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec

from credit_jax.parallel.mesh.device_mesh import DOMAIN
from credit_jax.parallel.rows.exchange import reshard
from credit_jax.parallel.rows.layout import Field
from tests.parallel.rows.plans import PLANS, blocks, plan
from tests.support.sharded import GARBAGE


def on_shards(body, layout, *arrays):
    if layout.num_shards == 1:
        return body(*arrays)
    mesh = jax.make_mesh(
        (layout.num_shards,),
        (DOMAIN,),
        axis_types=(AxisType.Auto,),
        devices=jax.devices()[: layout.num_shards],
    )
    spec = PartitionSpec(None, DOMAIN)
    return jax.shard_map(body, mesh=mesh, in_specs=spec, out_specs=spec)(*arrays)


def results(name):
    inputs, outputs = results_on(PLANS[name][1])
    return inputs[name], outputs[name]


@lru_cache
def results_on(shards):
    """Returns fetched rows and gradients of all plans for a number of shards."""
    inputs, program = {}, {}
    for number, name in enumerate(PLANS):
        if PLANS[name][1] != shards:
            continue
        have, need = plan(name)
        rng = np.random.default_rng(number)
        x = rng.standard_normal((1, have.num_shards * have.length, 2), np.float32)
        x[:, np.asarray(have.rows).reshape(-1) < 0] = GARBAGE
        # Small integers, whose sums are exact in any order.
        weight = rng.integers(-8, 9, (1, need.num_shards * need.length, 2))
        inputs[name] = x, weight.astype(np.float32)

        def body(x, weight, have=have, need=need):
            out, pullback = jax.vjp(lambda x: reshard(Field(x, have), need).data, x)
            return out, pullback(weight)[0]

        program[name] = lambda x, w, body=body, have=have: on_shards(body, have, x, w)

    @jax.jit
    def run(inputs):
        return {name: program[name](*arrays) for name, arrays in inputs.items()}

    return inputs, run(inputs)


@pytest.mark.parametrize("name", PLANS)
def test_rows_arrive_bit_by_bit(name):
    have, need = plan(name)
    (x, _), (out, _) = results(name)
    out = np.asarray(out)
    where = {row: i for i, row in enumerate(np.asarray(have.rows).reshape(-1))}
    for i, row in enumerate(np.asarray(need.rows).reshape(-1)):
        expected = x[:, where[row]] if row >= 0 else np.zeros_like(x[:, 0])
        assert np.array_equal(out[:, i], expected), f"{name}: row {row} at {i}"


@pytest.mark.parametrize("name", PLANS)
def test_gradients_return_where_rows_came_from(name):
    have, need = plan(name)
    (x, weight), (_, gradient) = results(name)
    expected = np.zeros_like(x)
    where = {row: i for i, row in enumerate(np.asarray(have.rows).reshape(-1))}
    for i, row in enumerate(np.asarray(need.rows).reshape(-1)):
        if row >= 0:
            expected[:, where[row]] += weight[:, i]
    assert np.array_equal(gradient, expected), name


@pytest.mark.parametrize("shards", [1, 2, 3])
@pytest.mark.parametrize("wanted", [[5], [4, 5], [0, 9]])
def test_rows_that_do_not_exist(shards, wanted):
    have = blocks(5, shards)
    need = have.with_rows([wanted] * shards, 5)
    x = jnp.zeros((1, have.length * shards, 2))
    with pytest.raises(ValueError, match=r"rows \[\d.*on no shard; .* 0 to 4"):
        on_shards(lambda x: reshard(Field(x, have), need).data, have, x)
