"""Variables, pipelines of one config section, and single blocks beside CREDIT's."""

import importlib
import warnings

import jax
import jax.numpy as jnp
import numpy as np

from credit_jax.config import parse
from credit_jax.config.transforms import PostblocksConfig, PreblocksConfig
from credit_jax.data import ChannelGroup
from credit_jax.transforms import TRANSFORMS, build_pipeline
from tests.support import assert_close, make_mesh
from tests.support.whole_fields import field_context, field_spec, run_on_mesh

LEVELS, ROWS, COLUMNS = 4, 7, 6
T, SP, LSM = "S/prognostic/3d/T", "S/prognostic/2d/SP", "S/static/2d/LSM"
TSI, TP = "S/dynamic_forcing/2d/tsi", "S/diagnostic/2d/TP"
CONCAT = {"type": "concat"}


def pipeline_of(pre, post=None):
    """Returns the pipeline of sections `preblocks` and `postblocks`."""
    return build_pipeline(
        parse(PreblocksConfig, pre), parse(PostblocksConfig, post or {})
    )


def preblocks(**blocks):
    """Returns the pipeline of a `preblocks.per_step` section."""
    return build_pipeline(parse(PreblocksConfig, {"per_step": blocks}))


def postblocks(**blocks):
    """Returns the pipeline of a `postblocks.per_step` section with `concat`."""
    return pipeline_of({"per_step": {"concat": CONCAT}}, {"per_step": blocks})


def group(key, levels):
    """Returns one variable of a channel layout."""
    return ChannelGroup(key, levels, 1)


def build(kind, args, section="postblocks"):
    """Builds one of our blocks."""
    block = TRANSFORMS[section].parse(kind, args, section)
    block.open()
    return block


def credit_block(kind, args, section="postblocks"):
    """Builds one of CREDIT's blocks."""
    package = importlib.import_module(f"credit.{section[:-1]}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        load = getattr(package, f"_load_{section[:-1]}_entry")
        return load(kind)(**args)


def fields(seed=0, low=0.5, high=9.0):
    """Returns T on four levels, and SP."""
    rng = np.random.default_rng(seed)
    return {
        key: rng.uniform(low, high, (2, levels, 1, ROWS, COLUMNS)).astype(np.float32)
        for key, levels in ((T, LEVELS), (SP, 1))
    }


def tensors(arrays):
    """Returns fields in CREDIT's form: torch leaves that require gradients."""
    import torch

    return {key: torch.tensor(x, requires_grad=True) for key, x in arrays.items()}


def host_results(block, part, arrays):
    """Returns fields after our block, on the host."""
    return dict(block({part: {"S": arrays}}, None)[part]["S"])


def traced_results(block, part, arrays, num_shards=1):
    """Returns fields and gradients of our block, traced on a number of shards."""
    mesh = make_mesh(domain=num_shards) if num_shards > 1 else None
    context = field_context(ROWS, mesh)

    def run(*own):
        def values(own):
            tree = {part: {"S": dict(zip(arrays, own, strict=True))}}
            return list(block(tree, context)[part]["S"].values())

        def total(own):
            done = values(own)
            sizes = [x.shape[0] * x.shape[1] * ROWS * COLUMNS for x in done]
            means = [context.reducer.mean(jnp.square(x)) for x in done]
            return sum(size * mean for size, mean in zip(sizes, means, strict=True))

        return tuple(values(own)), jax.grad(total)(own)

    if mesh is None:
        found = jax.jit(run)(*map(jnp.asarray, arrays.values()))
    else:
        found = run_on_mesh(run, mesh, *arrays.values(), out_specs=field_spec(mesh))
    return [
        {k: np.asarray(x)[..., :ROWS, :] for k, x in zip(arrays, own, strict=True)}
        for own in found
    ]


def compare(block, theirs, part, arrays, *, values=1e-6, gradients=2e-6, shards=(1, 3)):
    """Compares our block with CREDIT's: on the host, traced, and gradients."""
    own = tensors(arrays)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        done = theirs({part: {"S": dict(own)}})[part]["S"]
    sum((x.double() ** 2).sum() for x in done.values()).backward()
    expected = {key: x.detach().numpy() for key, x in done.items()}
    host = host_results(block, part, arrays)
    assert list(host) == list(expected)
    for key, x in expected.items():
        assert_close(host[key], x, values, f"{key} on the host")
    for num_shards in shards:
        done, grads = traced_results(block, part, arrays, num_shards)
        for key, x in expected.items():
            label = f"{key} on {num_shards} shards"
            assert np.isfinite(done[key]).all(), label
            assert_close(done[key], x, values, label)
            assert_close(grads[key], own[key].grad, gradients, f"gradient, {label}")
    return host, expected
