"""Parameters that are stored sharded over the domain axis, gathered for a forward."""

from __future__ import annotations

import math
import re
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec

from credit_jax.parallel.mesh.device_mesh import DOMAIN, MeshAxes
from credit_jax.parallel.params import fsdp
from credit_jax.parallel.params.fsdp import ShardingRules, gather_over_domain
from credit_jax.parallel.params.precision import Precision
from credit_jax.parallel.params.spec import ParamSpec
from tests.support import make_mesh
from tests.support.errors import relative_error

# Of 2**17 elements, which are gathered block by block, and of few.
LARGE = ParamSpec((256, 512), ("embed", "mlp"), matrix_out=(1,))
SMALL = ParamSpec((64, 32), ("embed", "mlp"), matrix_out=(1,))
# Sharded over dp and domain along the same dim, and along two.
ONE_DIM = ParamSpec((192, 32), ("embed", "mlp"), matrix_out=(1,))
TWO_DIMS = ParamSpec((3, 3, 64, 30), (None, None, None, None), matrix_out=(3,))
PARAM_SPECS = {"large": LARGE.stack(3), "small": SMALL.stack(3), "alone": LARGE}
RULES = ShardingRules(over_domain=True)


def draw(rng: np.random.Generator, calls: int) -> dict[str, np.ndarray]:
    """Returns whole parameters; with `calls`, with a dim of calls before the matrix."""
    shapes = {path: spec.shape for path, spec in PARAM_SPECS.items()}
    dims = (calls,) if calls else ()
    return {
        path: rng.normal(size=(*shape[:-2], *dims, *shape[-2:])).astype(np.float32)
        for path, shape in shapes.items()
    }


def gather(
    whole: dict[str, np.ndarray], precision: Precision, num_unrolled: int
) -> tuple[Any, Any, str]:
    """Returns what shards gather, the gradients of a function of it, and the trace."""
    mesh = make_mesh(domain=4)
    axes = MeshAxes.from_mesh(mesh)
    specs = {
        path: PartitionSpec(*[None] * (array.ndim - 2), DOMAIN)
        for path, array in whole.items()
    }

    @jax.jit
    @partial(
        jax.shard_map,
        mesh=mesh,
        in_specs=(specs,),
        out_specs=(PartitionSpec(DOMAIN), specs),
    )
    def run(local: Any) -> Any:
        def loss(local: Any) -> Any:
            gathered = gather_over_domain(
                local, PARAM_SPECS, RULES, axes, precision, num_unrolled=num_unrolled
            )
            factor = lax.axis_index(DOMAIN) + 1.0
            terms = [
                jnp.sin(factor * array.astype(jnp.float32)).sum()
                for array in gathered.values()
            ]
            return lax.psum(sum(terms), DOMAIN), gathered

        gradient, gathered = jax.grad(loss, has_aux=True)(local)
        return gathered, gradient

    gathered, gradient = jax.device_get(run(whole))
    return gathered, gradient, str(jax.make_jaxpr(run)(whole))


@pytest.mark.parametrize("calls", [0, 2])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_block_by_block_or_at_once(
    dtype: str, calls: int, rng: np.random.Generator
) -> None:
    whole, precision = draw(rng, calls), Precision.of(dtype)
    at_once, gradient, trace = gather(whole, precision, 0)
    blocks, same_gradient, longer = gather(whole, precision, 3)
    for path, array in whole.items():
        expected = np.concatenate([array.astype(at_once[path].dtype)] * 4)
        np.testing.assert_array_equal(at_once[path], expected, path)
        np.testing.assert_array_equal(blocks[path], expected, path)
        np.testing.assert_array_equal(same_gradient[path], gradient[path], path)
    rounded = at_once["large"][: len(whole["large"])].astype(np.float64)
    exact = sum(n * np.cos(n * rounded) for n in (1, 2, 3, 4))
    error = relative_error(gradient["large"], exact)
    print(f"{dtype}, {calls} calls: gradient {error:.1e} from its formula")
    # Gradients of values in bfloat16 are in bfloat16 before they are summed.
    assert error < {"float32": 2e-7, "bfloat16": 3e-3}[dtype]
    gathers = [text.count("= all_gather[") for text in (trace, longer)]
    assert gathers == [3, 5], "one for each of the three large blocks"


def test_longer_stages_are_gathered_at_once(rng: np.random.Generator) -> None:
    *_, trace = gather(draw(rng, 0), Precision(), 2)
    assert trace.count("= all_gather[") == 3


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("param_spec", [ONE_DIM, TWO_DIMS], ids=["one dim", "two dims"])
def test_over_dp_and_then_over_domain(
    param_spec: ParamSpec, dtype: str, rng: np.random.Generator
) -> None:
    """The gathers over dp are of the shards of domain, the sums of gradients, too."""
    mesh, precision = make_mesh(dp=2, domain=3), Precision.of(dtype)
    axes, spec = (
        MeshAxes.from_mesh(mesh),
        RULES.spec(param_spec, MeshAxes.from_mesh(mesh)),
    )
    whole = rng.normal(size=param_spec.shape).astype(np.float32)

    @jax.jit
    @partial(
        jax.shard_map,
        mesh=mesh,
        in_specs=spec,
        out_specs=(PartitionSpec(("dp_shard", DOMAIN)), spec),
    )
    def run(local: Any) -> Any:
        before = gather_over_domain(
            {"w": local}, {"w": param_spec}, RULES, axes, precision
        )

        def loss(local: Any) -> Any:
            gathered = fsdp.gather(local, param_spec, RULES, axes, precision)
            factor = 3 * lax.axis_index("dp_shard") + lax.axis_index(DOMAIN) + 1.0
            terms = jnp.sin(factor * gathered.astype(jnp.float32)).sum()
            return lax.psum(terms, ("dp_shard", DOMAIN)), gathered

        gradient, gathered = jax.grad(loss, has_aux=True)(before["w"])
        return gathered, gradient

    gathered, gradient = jax.device_get(run(whole))
    rounded = whole.astype(gathered.dtype)
    np.testing.assert_array_equal(gathered, np.concatenate([rounded] * 6))
    wide = rounded.astype(np.float64)
    exact = sum(n * np.cos(n * wide) for n in range(1, 7))
    error = relative_error(gradient, exact)
    print(f"{dtype}: gradient {error:.1e} from its formula")
    assert error < {"float32": 3e-7, "bfloat16": 3e-3}[dtype]
    text = str(jax.make_jaxpr(run)(whole))
    moved = re.findall(
        r"\w+\[([\d,]+)\][^=\n]* = (all_gather|reduce_scatter)\[.*?"
        r"axis_name=\('(\w+)',\)",
        text,
        re.S,
    )
    sizes = [
        (kind, axis, math.prod(map(int, dims.split(",")))) for dims, kind, axis in moved
    ]
    size = whole.size
    assert sizes == [
        ("all_gather", "dp_shard", size // 3),
        ("all_gather", DOMAIN, size),
        ("reduce_scatter", DOMAIN, size // 3),
        ("reduce_scatter", "dp_shard", size // 6),
    ]
