"""Runs CREDIT's own blocks on the arrays of a tree, and writes scaler files."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from credit_jax.transforms import TRANSFORMS
from tests.reference.bridgescaler import import_bridgescaler
from tests.support import assert_close, make_mesh
from tests.support.whole_fields import field_context, field_spec, run_on_mesh
from tests.transforms.cases import SP, T

SHAPES = {T: 4, SP: 1}
NUM_ROWS, NUM_COLUMNS = 7, 6


def built(section, kind, **args):
    """Builds one of our blocks."""
    block = TRANSFORMS[section].parse(kind, args, section)
    block.open()
    return block


def fields(seed=0, low=0.5, high=9.0, dtype=np.float32):
    """Returns T on four levels, and SP."""
    rng = np.random.default_rng(seed)
    return {
        key: rng.uniform(low, high, (2, levels, 1, NUM_ROWS, NUM_COLUMNS)).astype(dtype)
        for key, levels in SHAPES.items()
    }


def tensors(arrays):
    """Returns fields in CREDIT's form: torch leaves that require gradients."""
    import torch

    return {key: torch.tensor(x, requires_grad=True) for key, x in arrays.items()}


def credit_results(block, part, arrays):
    """Returns fields after CREDIT's block, and gradients of their sum of squares."""
    own = tensors(arrays)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        done = block({part: {"S": dict(own)}})[part]["S"]
    total = sum((x.double() ** 2).sum() for x in done.values())
    total.backward()
    grads = {key: np.asarray(x.grad) for key, x in own.items()}
    return {key: np.asarray(x.detach()) for key, x in done.items()}, grads


def host_results(block, part, arrays):
    """Returns fields after our block, on the host."""
    return dict(block({part: {"S": arrays}}, None)[part]["S"])


def traced_results(block, part, arrays, num_shards=1):
    """Returns fields and gradients of our block, traced on a number of shards."""
    mesh = make_mesh(domain=num_shards) if num_shards > 1 else None
    context = field_context(NUM_ROWS, mesh)

    def run(*own):
        def values(own):
            tree = {part: {"S": dict(zip(arrays, own, strict=True))}}
            return list(block(tree, context)[part]["S"].values())

        def total(own):
            done = values(own)
            sizes = [x.shape[0] * x.shape[1] * NUM_ROWS * NUM_COLUMNS for x in done]
            means = [context.reducer.mean(jnp.square(x)) for x in done]
            return sum(size * mean for size, mean in zip(sizes, means, strict=True))

        return tuple(values(own)), jax.grad(total)(own)

    if mesh is None:
        done, grads = jax.jit(run)(*map(jnp.asarray, arrays.values()))
    else:
        spec: PartitionSpec = field_spec(mesh)
        done, grads = run_on_mesh(run, mesh, *arrays.values(), out_specs=spec)
    return _cut(arrays, done), _cut(arrays, grads)


def _cut(arrays, found):
    """Returns fields by key, without padding rows."""
    pairs = zip(arrays, found, strict=True)
    return {key: np.asarray(x)[..., :NUM_ROWS, :] for key, x in pairs}


def compare(block, theirs, part, arrays, *, values=1e-6, gradients=2e-6, shards=(1, 3)):
    """Compares our block with CREDIT's: on the host, traced, and gradients."""
    expected, expected_grads = credit_results(theirs, part, arrays)
    host = host_results(block, part, arrays)
    assert list(host) == list(expected)
    for key, x in expected.items():
        assert_close(host[key], x, values, f"{key} on the host")
    for num_shards in shards:
        done, grads = traced_results(block, part, arrays, num_shards)
        for key, x in expected.items():
            where = f"{key} on {num_shards} shards"
            assert np.isfinite(done[key]).all(), where
            assert_close(done[key], x, values, where)
            found = grads[key], expected_grads[key]
            assert_close(*found, gradients, f"gradient, {where}")
    return host, expected


def write_scalers(path, kind, *, per_point=(), seed=3, **params):
    """Writes a file of scalers fitted by bridgescaler."""
    import torch

    import_bridgescaler()
    from bridgescaler import save_scaler_dict
    from bridgescaler.distributed_tensor import (
        DMinMaxScalerTensor,
        DQuantileScalerTensor,
        DStandardScalerTensor,
    )

    classes = {
        "standard": DStandardScalerTensor,
        "minmax": DMinMaxScalerTensor,
        "quantile": DQuantileScalerTensor,
    }
    made = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for part in ("input", "target"):
            made[part] = {"S": {}}
            samples = [fields(seed + i) for i in range(20)]
            for key in SHAPES:
                data = torch.tensor(np.concatenate([own[key] for own in samples]))
                data = data + (0.25 if part == "target" else 0.0)
                if key in per_point:
                    data = data.reshape(len(data), -1)
                scaler = classes[kind](**{"channels_last": False, **params})
                scaler.fit(data)
                made[part]["S"][key] = scaler
    save_scaler_dict(made, str(path))
    return str(path)
