"""Random checkpoints for tests of the commands."""

from dataclasses import replace

import numpy as np
import yaml

from credit_jax.checkpoint import Progress
from credit_jax.io.digests import record_files
from credit_jax.models.registry import build
from credit_jax.nn.spectral_norm import spectral_norm_shapes
from credit_jax.packages.grids import write_grid
from credit_jax.packages.manifest import Manifest
from credit_jax.packages.weights import write_weights
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


def draw(seed):
    rng = np.random.default_rng(seed)
    shapes = {path: d.shape for path, d in MODEL_DEF.param_specs.items()}
    return {path: rng.normal(size=s).astype("f4") for path, s in shapes.items()}


def draw_checkpoint(rng):
    """Returns a random checkpoint of epoch 2 after 60 micro-batches."""
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
    return replace(
        checkpoint,
        params=draw(10 + epoch),
        micro_step=20 * (epoch + 1),
        progress=Progress(epoch=epoch + 1),
    )


def write_package(checkpoint, folder):
    """Writes a model package with the weights of a checkpoint."""
    folder.mkdir()
    weights = checkpoint.params, checkpoint.model_state
    write_weights(folder / "weights.safetensors", MODEL_DEF, *weights)
    config = {"model": CONFIG["model"], "data": {"source": {}}}
    (folder / "model.yml").write_text(yaml.safe_dump(config))
    (folder / "channels.json").write_text('{"input": [], "output": []}')
    (folder / "README.md").write_text("A model.\n")
    write_grid(folder / "grid.nc", np.arange(3.0), np.arange(4.0))
    manifest = Manifest("wxformer", 60, False, "0" * 64, "CREDIT", record_files(folder))
    manifest.write(folder)
    return folder
