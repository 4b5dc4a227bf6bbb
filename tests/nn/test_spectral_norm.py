"""Spectral norm against torch.nn.utils.spectral_norm, and on split matrices.

Of matrices with several calls see "graph gates" of tests/models.
"""

import warnings
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from credit_jax.nn.spectral_norm import (
    init_spectral_norm,
    iterate,
    normalize,
    spectral_norm_shapes,
)
from credit_jax.parallel.mesh.device_mesh import MeshAxes
from credit_jax.parallel.params.fsdp import ShardingRules, matrix_specs
from credit_jax.parallel.params.spec import ParamSpec
from tests.models.parity import mesh_of
from tests.support import assert_close
from tests.support.gradients import cotangent, draw

LINEAR = ParamSpec((32, 48), ("embed", "mlp"), matrix_out=(1,))
CONV = ParamSpec((3, 3, 8, 16), (None, None, "conv_in", "conv_out"), matrix_out=(3,))
QKV = ParamSpec(
    (16, 3, 4, 8), ("embed", None, "heads", "head_dim"), matrix_out=(1, 2, 3)
)
OUT = ParamSpec((4, 16, 24), ("heads", "head_dim", "embed"), matrix_out=(2,))
DECLARATIONS = {"linear": LINEAR, "conv": CONV, "qkv": QKV, "out": OUT}
DECLARATIONS["stacked"] = QKV.stack(3)


def weights():
    named = enumerate(DECLARATIONS.items())
    return {path: jnp.asarray(draw(d.shape, seed=i)) for i, (path, d) in named}


def initial(params, param_specs=None):
    key, param_specs = jax.random.key(0), param_specs or DECLARATIONS
    return jax.jit(lambda p: init_spectral_norm(key, p, param_specs))(params)


def step(params, vectors, specs=None):
    """Runs a training forward: new vectors, normalized weights and the pullback."""
    new = iterate(params, vectors, DECLARATIONS, specs)
    normal, pullback = jax.vjp(lambda w: normalize(w, new, DECLARATIONS, specs), params)
    return new, normal, pullback


def split_on(mesh):
    """Returns the specs of matrices on a mesh, and of their vectors."""
    specs = ShardingRules().specs(DECLARATIONS, MeshAxes.from_mesh(mesh))
    return specs, {p: matrix_specs(d, specs[p]) for p, d in DECLARATIONS.items()}


def to_torch(param_spec, value):
    """Returns our kernel as torch's (out, in) matrix."""
    order = (*param_spec.matrix_out, *param_spec.matrix_in)
    out = np.prod([param_spec.shape[d] for d in param_spec.matrix_out])
    return np.asarray(value).transpose(order).reshape(out, -1)


@pytest.mark.parametrize("path", ["linear", "conv", "qkv", "out"])
def test_one_training_forward_is_that_of_torch(torch, path):
    param_spec, vectors = DECLARATIONS[path], initial(weights())
    matrix = to_torch(param_spec, weights()[path])
    layer = torch.nn.Linear(*matrix.shape[::-1], bias=False)
    layer.weight.data = torch.tensor(matrix)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        layer = torch.nn.utils.spectral_norm(layer)
    for name, buffer in (("u", layer.weight_u), ("v", layer.weight_v)):
        buffer.copy_(torch.tensor(np.asarray(vectors[path][name]).ravel()))
    layer(torch.zeros(1, layer.in_features))
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


def test_weights_without_vectors_are_left_alone():
    params = weights()
    vectors = initial(params, {"linear": LINEAR})
    normal = normalize(params, vectors, DECLARATIONS)
    assert all(normal[path] is params[path] for path in params if path != "linear")


@cache
def run_on(mesh):
    """Returns vectors before and after, normalized weights, gradients, all whole."""
    mesh = mesh_of(mesh)
    specs, vector_specs = split_on(mesh)
    if mesh.size > 1:
        used = {name for spec in specs.values() for name in spec if name}
        assert used == set(mesh.axis_names) - {"domain"}, "nothing is split"

    def body(key, params, weight):
        vectors = init_spectral_norm(
            key, params, DECLARATIONS, specs, dict(mesh.shape), alone=True
        )
        new, normal, pullback = step(params, vectors, specs)
        return vectors, new, normal, pullback(weight)[0]

    sharded = jax.shard_map(
        body,
        mesh=mesh,
        in_specs=(P(), specs, specs),
        out_specs=(vector_specs, vector_specs, specs, specs),
    )
    weight = {p: jnp.asarray(cotangent(d.shape)) for p, d in DECLARATIONS.items()}
    return jax.jit(sharded)(jax.random.key(5), weights(), weight)


@pytest.mark.slow(but=["2x2x2"])
@pytest.mark.parametrize("mesh", ["dp2", "tp2", "2x2x2"])
def test_split_matrices_are_normalized_as_whole_ones(mesh):
    names = ("start", "vectors", "weights", "gradients")
    for name, actual, expected in zip(names, run_on(mesh), run_on("one"), strict=True):
        bound = 1e-5 if name == "gradients" else 1e-6
        ours = dict(jax.tree_util.tree_leaves_with_path(actual))
        for path, leaf in jax.tree_util.tree_leaves_with_path(expected):
            what = f"{mesh}, {name} {jax.tree_util.keystr(path)}"
            assert_close(ours[path], leaf, bound, what)


@pytest.mark.slow(but=["one", "2x2x2"])
@pytest.mark.parametrize("mesh", ["one", "dp2", "tp2", "2x2x2"])
def test_compensated_quotients_are_those_of_double_precision(mesh):
    """Each element is rounded once, and the terms of sigma, split or not."""
    specs, pairs = split_on(mesh_of(mesh))
    params = weights()
    vectors = initial(params)
    for _ in range(3):
        vectors = iterate(params, vectors, DECLARATIONS)

    def body(params, vectors):
        return normalize(params, vectors, DECLARATIONS, specs, compensated=True)

    divide = jax.shard_map(
        body, mesh=mesh_of(mesh), in_specs=(specs, pairs), out_specs=specs
    )
    quotients = jax.jit(divide)(params, vectors)
    for path, spec in DECLARATIONS.items():
        blocks = spec.shape[0] if spec.is_stacked else 1
        u, v = (np.float64(vectors[path][k]).reshape(blocks, -1) for k in "uv")
        matrix = np.float64(params[path]).reshape(blocks, v.shape[1], u.shape[1])
        sigma = np.einsum("nio,no,ni->n", matrix, u, v)[:, None, None]
        ours = np.float64(quotients[path]).reshape(matrix.shape)
        error = np.abs(ours * sigma / matrix - 1).max()
        print(f"{mesh}, {path}: {error:.2e}")
        assert error < 1.2 * 2.0**-24, path


def test_shapes_of_vectors():
    assert spectral_norm_shapes(QKV) == {"u": (3, 4, 8), "v": (16,)}
    assert spectral_norm_shapes(CONV.stack(2)) == {"u": (2, 16), "v": (2, 3, 3, 8)}
