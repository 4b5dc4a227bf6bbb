"""Comparison of diffusion networks and their process with serial CREDIT."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from credit_jax.models.conversion import from_state_dict
from credit_jax.models.diffusion.process import LARGEST_SIGMA, SMALLEST_SIGMA
from credit_jax.models.parallel_model import build_parallel_model
from credit_jax.models.registry import build
from credit_jax.nn.noise import Noise
from credit_jax.parallel.params.precision import Precision
from tests.models.parity import Networks, Tree
from tests.support import assert_close, make_mesh


@contextmanager
def same_noise(model: Any, arrays: Tree) -> Iterator[Noise]:
    """Makes CREDIT's process draw "start" once and then "step", as ours does.

    Args:
        model: CREDIT's process.
        arrays: NHWC by call site.
    """

    import torch

    kept = model.randn_like_fn

    def draw(shape: Any = None, tensor: Any = None, device: Any = None) -> Any:
        array = arrays["step"] if shape is None else arrays["start"]
        return torch.from_numpy(array).permute(0, 3, 1, 2)[:, :, None].clone()

    model.randn_like_fn = draw
    try:
        yield Noise(jax.random.key(0), jax.tree.map(jnp.asarray, arrays))
    finally:
        model.randn_like_fn = kept


def assert_samples_equal_credit(
    credit: Any, block: dict[str, Any], name: str, dtype: str, tolerance: float
) -> None:
    """Asserts equal samples by all sampler steps, with the same noise at each step."""

    import torch

    from credit_torch_bridge.compare.credit_side import floats_of

    theirs = Networks(credit).credit_case(block, dtype=getattr(torch, dtype))
    model_def, rng = build(block), np.random.default_rng(2)
    batch, _, _, height, width = theirs.y.shape
    shape = batch, height, width, model_def.output_channels
    drawn = {site: rng.normal(size=shape).astype(dtype) for site in ("start", "step")}
    # Of log-uniform noise, whose factors are then 1.
    one = -np.log(SMALLEST_SIGMA) / np.log(LARGEST_SIGMA / SMALLEST_SIGMA)
    drawn |= {f"{site} scale": np.full(shape, one, dtype) for site in drawn}
    with same_noise(theirs.model, drawn) as noise, floats_of(getattr(torch, dtype)):
        x = torch.from_numpy(theirs.inputs["x"])
        wanted = theirs.model.eval().sample(x, batch_size=batch).numpy()
    model = build_parallel_model(model_def, make_mesh(), mp_policy=Precision.of(dtype))
    params, state = jax.device_put(from_state_dict(model_def, theirs.state_after))
    ours = model.apply(params, state, {"x": jnp.asarray(theirs.inputs["x"])}, noise)
    assert np.asarray(ours).shape == wanted.shape
    assert_close(np.asarray(ours), wanted, tolerance, f"{name}: sample")
