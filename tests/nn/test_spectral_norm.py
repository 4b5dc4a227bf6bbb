"""Spectral norm against torch.nn.utils.spectral_norm, and on split matrices."""

import warnings
from dataclasses import replace
from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from credit_jax.kernels import use_implementation
from credit_jax.nn.spectral_norm import (
    after_calls,
    init_spectral_norm,
    iterate,
    normalize,
    spectral_norm_shapes,
)
from credit_jax.parallel.mesh.device_mesh import MeshAxes
from credit_jax.parallel.params.fsdp import ShardingRules, matrix_specs
from credit_jax.parallel.params.spec import ParamSpec
from tests.support import assert_close, make_mesh
from tests.support.gradients import cotangent, draw

LINEAR = ParamSpec((32, 48), ("embed", "mlp"), matrix_out=(1,))
CONV = ParamSpec((3, 3, 8, 16), (None, None, "conv_in", "conv_out"), matrix_out=(3,))
QKV = ParamSpec(
    (16, 3, 4, 8), ("embed", None, "heads", "head_dim"), matrix_out=(1, 2, 3)
)
OUT = ParamSpec((4, 16, 24), ("heads", "head_dim", "embed"), matrix_out=(2,))
DECLARATIONS = {
    "linear": LINEAR,
    "conv": CONV,
    "qkv": QKV,
    "out": OUT,
    "stacked": QKV.stack(3),
}


def weights(dtype=np.float32):
    return {
        path: jnp.asarray(draw(d.shape, seed=i, dtype=dtype))
        for i, (path, d) in enumerate(DECLARATIONS.items())
    }


def initial(params, param_specs=None):
    init = jax.jit(
        lambda params: init_spectral_norm(
            jax.random.key(0), params, param_specs or DECLARATIONS
        )
    )
    return init(params)


def step(params, vectors, param_specs=None, specs=None):
    """Runs a training forward: new vectors, normalized weights and the pullback."""
    param_specs = param_specs or DECLARATIONS
    new = iterate(params, vectors, param_specs, specs)
    normal, pullback = jax.vjp(lambda w: normalize(w, new, param_specs, specs), params)
    return new, normal, pullback


def to_torch(param_spec, value):
    """Returns our kernel as torch's (out, in) matrix."""
    order = (*param_spec.matrix_out, *param_spec.matrix_in)
    out = np.prod([param_spec.shape[d] for d in param_spec.matrix_out])
    return np.asarray(value).transpose(order).reshape(out, -1)


@pytest.mark.parametrize("path", ["linear", "conv", "qkv", "out"])
def test_one_training_forward_is_that_of_torch(torch, path):
    param_spec = DECLARATIONS[path]
    matrix = to_torch(param_spec, weights()[path])
    vectors = initial(weights())
    layer = torch.nn.Linear(*matrix.shape[::-1], bias=False)
    layer.weight.data = torch.from_numpy(matrix.copy())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        layer = torch.nn.utils.spectral_norm(layer)
    for name, buffer in (("u", layer.weight_u), ("v", layer.weight_v)):
        buffer.copy_(torch.tensor(np.asarray(vectors[path][name]).ravel()))
    layer(torch.zeros(1, matrix.shape[1]))
    weight = cotangent(param_spec.shape)
    (layer.weight * torch.from_numpy(to_torch(param_spec, weight))).sum().backward()

    def run(params):
        new, normal, pullback = step(params, vectors)
        cotangents = {p: jnp.zeros_like(w) for p, w in normal.items()}
        return new[path], normal[path], pullback({**cotangents, path: weight})[0][path]

    new, normal, gradient = jax.jit(run)(weights())
    assert_close(new["u"].ravel(), layer.weight_u, 1e-6, f"{path}, u")
    assert_close(new["v"].ravel(), layer.weight_v, 1e-6, f"{path}, v")
    expected = layer.weight.detach()
    assert_close(to_torch(param_spec, normal), expected, 1e-6, f"{path}, weight")
    expected = layer.weight_orig.grad
    assert_close(to_torch(param_spec, gradient), expected, 1e-5, f"{path}, gradient")


@pytest.mark.slow(but=["{'dp': 2, 'tp': 2}-xla"])
@pytest.mark.parametrize(
    ("degrees", "kernels"),
    [({}, "xla"), ({"dp": 2, "tp": 2}, "xla"), ({}, "gpu")],
    ids=str,
)
def test_each_of_several_calls_is_that_of_torch(torch, degrees, kernels):
    """Kernels, gradients and the final vectors, also of stacked blocks."""
    declarations = {"one": replace(LINEAR, calls=3), "twice": replace(LINEAR, calls=2)}
    declarations["stacked"] = declarations["one"].stack(2)
    params = {p: jnp.asarray(draw(d.shape, seed=3)) for p, d in declarations.items()}
    mesh = make_mesh(**degrees)
    specs = ShardingRules().specs(declarations, MeshAxes.from_mesh(mesh))
    vector_specs = {p: matrix_specs(d, specs[p]) for p, d in declarations.items()}
    vectors = initial(params, declarations)
    shapes = {path: (d.calls, *LINEAR.shape) for path, d in declarations.items()}
    shapes["stacked"] = (2, *shapes["one"])
    weight = {path: jnp.asarray(cotangent(shape)) for path, shape in shapes.items()}
    by_call = {path: P(None, *specs[path]) for path in ("one", "twice")}
    by_call["stacked"] = P(None, None, *specs["one"])

    def body(params, vectors, weight):
        new = iterate(params, vectors, declarations, specs)
        normal, pullback = jax.vjp(
            lambda w: normalize(w, new, declarations, specs), params
        )
        return normal, pullback(weight)[0], after_calls(new, declarations)

    run = jax.shard_map(
        body,
        mesh=mesh,
        in_specs=(specs, vector_specs, by_call),
        out_specs=(by_call, specs, vector_specs),
    )
    with use_implementation(kernels):
        normal, gradient, after = jax.jit(run)(params, vectors, weight)

    def check(what, matrix, pair, weight, normal, gradient, after):
        layer = torch.nn.Linear(*matrix.shape, bias=False)
        layer.weight.data = torch.tensor(np.asarray(matrix).T)
        layer = torch.nn.utils.spectral_norm(layer)
        for name, buffer in (("u", layer.weight_u), ("v", layer.weight_v)):
            buffer.copy_(torch.tensor(np.asarray(pair[name])))
        total = 0.0
        for call in range(len(weight)):
            layer(torch.zeros(1, len(matrix)))
            theirs = layer.weight.detach().T
            assert_close(normal[call], theirs, 1e-6, f"{what}, call {call}")
            total += (layer.weight * torch.tensor(np.asarray(weight[call]).T)).sum()
        total.backward()
        assert_close(gradient, layer.weight_orig.grad.T, 1e-5, f"{what}, gradient")
        assert_close(after["u"], layer.weight_u, 1e-6, f"{what}, u")
        assert_close(after["v"], layer.weight_v, 1e-6, f"{what}, v")

    given = (params, vectors, weight, normal, gradient, after)
    for path in ("one", "twice"):
        check(path, *(tree[path] for tree in given))
    for block in range(2):
        of_block = jax.tree.map(
            lambda leaf, block=block: leaf[block], [tree["stacked"] for tree in given]
        )
        check(f"block {block}", *of_block)


@pytest.mark.slow
def test_stacked_blocks_are_normalized_one_by_one():
    params = weights()
    vectors = initial(params)
    new, normal, _ = step(params, vectors)
    for block in range(3):
        one = {"qkv": params["stacked"][block]}
        pair = {"qkv": {k: v[block] for k, v in vectors["stacked"].items()}}
        alone, alone_normal, _ = step(one, pair, {"qkv": QKV})
        for name in "uv":
            expected = alone["qkv"][name]
            assert_close(new["stacked"][name][block], expected, 1e-6, name)
        assert_close(normal["stacked"][block], alone_normal["qkv"], 1e-6, "weight")


def test_power_iterations_find_the_largest_singular_value():
    params = weights()
    vectors = initial(params)
    run = jax.jit(lambda vectors: iterate(params, vectors, DECLARATIONS))
    assert_largest_is_one(params, vectors, 0.1)
    for _ in range(185):
        vectors = run(vectors)
    assert_largest_is_one(params, vectors, 1e-3)


def assert_largest_is_one(params, vectors, tolerance):
    normal = normalize(params, vectors, DECLARATIONS)
    for path in ("linear", "conv", "qkv", "out"):
        matrix = to_torch(DECLARATIONS[path], normal[path])
        largest = np.linalg.svd(matrix.astype(np.float64), compute_uv=False)[0]
        assert largest == pytest.approx(1, abs=tolerance), path


def test_weights_without_vectors_are_left_alone():
    params = weights()
    vectors = initial(params, {"linear": LINEAR})
    normal = normalize(params, vectors, DECLARATIONS)
    assert all(normal[path] is params[path] for path in params if path != "linear")


def run_on(mesh):
    """Returns new vectors, normalized weights and gradients as whole arrays."""
    specs = ShardingRules().specs(DECLARATIONS, MeshAxes.from_mesh(mesh))
    if mesh.size > 1:
        used = {name for spec in specs.values() for name in spec if name}
        assert used == set(mesh.axis_names) - {"domain"}, "nothing is split"
    spectral_norm_specs = {
        p: matrix_specs(d, specs[p]) for p, d in DECLARATIONS.items()
    }

    def body(key, params, weight):
        vectors = init_spectral_norm(
            key, params, DECLARATIONS, specs, dict(mesh.shape), alone=True
        )
        new, normal, pullback = step(params, vectors, specs=specs)
        return vectors, new, normal, pullback(weight)[0]

    sharded = jax.shard_map(
        body,
        mesh=mesh,
        in_specs=(P(), specs, specs),
        out_specs=(spectral_norm_specs, spectral_norm_specs, specs, specs),
    )
    weight = {p: jnp.asarray(cotangent(d.shape)) for p, d in DECLARATIONS.items()}
    return jax.jit(sharded)(jax.random.key(5), weights(), weight)


@lru_cache
def on_one_device():
    return run_on(make_mesh())


@pytest.mark.slow(but=["{'dp': 2, 'tp': 2, 'domain': 2}"])
@pytest.mark.parametrize(
    "degrees",
    [{"dp": 2}, {"tp": 2}, {"dp": 2, "tp": 2, "domain": 2}, {"dp": 4}],
    ids=str,
)
def test_split_matrices_are_normalized_as_whole_ones(degrees):
    assert_as_on_one_device(run_on(make_mesh(**degrees)), degrees)


def assert_as_on_one_device(actual, mesh):
    expected = on_one_device()
    names = ("start", "vectors", "weights", "gradients")
    bounds = (1e-6, 1e-6, 1e-6, 1e-5)
    for name, bound, a, e in zip(names, bounds, actual, expected, strict=True):
        for path, leaf in jax.tree_util.tree_leaves_with_path(e):
            value = dict(jax.tree_util.tree_leaves_with_path(a))[path]
            what = f"{mesh}, {name} {jax.tree_util.keystr(path)}"
            assert_close(value, leaf, bound, what)


@pytest.mark.slow(but=["{}", "{'dp': 2, 'tp': 2, 'domain': 2}"])
@pytest.mark.parametrize(
    "degrees", [{}, {"dp": 2}, {"tp": 2}, {"dp": 2, "tp": 2, "domain": 2}], ids=str
)
def test_compensated_quotients_are_those_of_double_precision(degrees):
    """Each element is rounded once, and the terms of sigma, split or not."""
    mesh = make_mesh(**degrees)
    specs = ShardingRules().specs(DECLARATIONS, MeshAxes.from_mesh(mesh))
    pairs = {p: matrix_specs(d, specs[p]) for p, d in DECLARATIONS.items()}
    params = weights()
    vectors = initial(params)
    for _ in range(3):
        vectors = iterate(params, vectors, DECLARATIONS)

    def body(params, vectors):
        return normalize(params, vectors, DECLARATIONS, specs, compensated=True)

    divide = jax.shard_map(body, mesh=mesh, in_specs=(specs, pairs), out_specs=specs)
    found = jax.jit(divide)(params, vectors)
    for path, spec in DECLARATIONS.items():
        blocks = spec.shape[0] if spec.is_stacked else 1
        u, v = (np.float64(vectors[path][k]).reshape(blocks, -1) for k in "uv")
        matrix = np.float64(params[path]).reshape(blocks, v.shape[1], u.shape[1])
        sigma = np.einsum("nio,no,ni->n", matrix, u, v)[:, None, None]
        own = np.float64(found[path]).reshape(matrix.shape)
        error = np.abs(own * sigma / matrix - 1).max()
        print(f"{degrees}, {path}: {error:.2e}")
        assert error < 1.2 * 2.0**-24, path


def test_shapes_of_vectors():
    assert spectral_norm_shapes(QKV) == {"u": (3, 4, 8), "v": (16,)}
    assert spectral_norm_shapes(CONV.stack(2)) == {"u": (2, 16), "v": (2, 3, 3, 8)}
