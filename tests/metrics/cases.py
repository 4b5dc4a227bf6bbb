"""Fields to score, and a config section with every metric."""

import jax.numpy as jnp
import numpy as np

from credit_jax.config.loss import MetricsConfig
from credit_jax.metrics import METRICS
from credit_jax.named_fields import ChannelLayout

LON = 12
CHANNELS = {"S/prognostic/3d/T": 3, "S/prognostic/2d/SP": 1, "S/diagnostic/2d/TP": 1}
NUM = sum(CHANNELS.values())


def draw(rng, lat, batch=2):
    pred = 2.0 * rng.normal(size=(batch, NUM, 1, lat, LON)).astype(np.float32)
    target = pred + rng.normal(size=pred.shape).astype(np.float32) + 0.3
    climatology = rng.normal(size=(NUM, lat, LON)).astype(np.float32)
    return pred, target, climatology


def everything(**settings):
    args = {"metrics": {name: {} for name in METRICS}, "var_weighting": "none"}
    return MetricsConfig(type="combined", args=args | settings)


def named(fields):
    """Returns channels as named fields, {source: {key: ...}}."""
    layout = ChannelLayout.of(CHANNELS)
    return {
        "S": {
            key: jnp.asarray(fields[:, place]) for key, place in layout.slices.items()
        }
    }


def of(climatology):
    """Returns mean fields (channel, lat, lon) as a climatology."""
    fields = ChannelLayout.of(CHANNELS).slices
    return lambda path: {key: climatology[place] for key, place in fields.items()}
