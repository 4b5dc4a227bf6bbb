"""Random checkpoints for tests of the commands."""

from dataclasses import replace

import numpy as np
import torch
import yaml

from credit_jax.checkpoint import Progress
from credit_jax.models.registry import build
from credit_jax.nn.spectral_norm import spectral_norm_shapes
from credit_torch_bridge import JaxCheckpoint, Moments
from tests.reference.training import GEN2_CONFIG

CONFIG = yaml.safe_load(GEN2_CONFIG.read_text())
MODEL_DEF = build(CONFIG["model"])
SCALER = {
    "scale": 1024.0,
    "growth_factor": 2.0,
    "backoff_factor": 0.5,
    "growth_interval": 2000,
    "_growth_tracker": 17,
}


def draw(seed, model_def=MODEL_DEF):
    rng = np.random.default_rng(seed)
    shapes = {path: spec.shape for path, spec in model_def.param_specs.items()}
    return {path: rng.normal(size=s).astype("f4") for path, s in shapes.items()}


def draw_checkpoint():
    """Returns a random checkpoint of epoch 2 after 60 micro-batches."""
    rng = np.random.default_rng(0)
    vectors = {
        path: {
            k: rng.normal(size=s).astype("f4")
            for k, s in spectral_norm_shapes(d).items()
        }
        for path, d in MODEL_DEF.matrices.items()
    }
    return JaxCheckpoint(
        draw(1),
        {"spectral_norm": vectors, "batch_stats": {}},
        moments=Moments(draw(2), draw(3), 60),
        ema=draw(4),
        micro_step=60,
        update_step=60,
        progress=Progress(epoch=3),
        loss_scale=SCALER,
    )


def earlier(checkpoint, epoch):
    progress, params = Progress(epoch=epoch + 1), draw(10 + epoch)
    steps = 20 * (epoch + 1)
    return replace(checkpoint, params=params, micro_step=steps, progress=progress)


def read_torch(folder, name="checkpoint.pt"):
    return torch.load(folder / name, weights_only=True)


def assert_same(actual, expected, what="content"):
    """Asserts equal structure, types, dtypes, bits and order of keys."""
    assert type(actual) is type(expected), what
    if isinstance(expected, torch.Tensor):
        assert actual.dtype == expected.dtype, what
        assert torch.equal(actual, expected), what
    elif isinstance(expected, dict):
        assert list(actual) == list(expected), what
        for key, value in expected.items():
            assert_same(actual[key], value, f"{what}.{key}")
    else:
        assert actual == expected, what
