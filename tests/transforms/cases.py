"""Variables, and pipelines of one config section."""

from credit_jax.config import parse
from credit_jax.config.transforms import PostblocksConfig, PreblocksConfig
from credit_jax.data import ChannelGroup
from credit_jax.transforms import build_pipeline

LEVELS = 4
T, SP, LSM = "S/prognostic/3d/T", "S/prognostic/2d/SP", "S/static/2d/LSM"
TSI, TP = "S/dynamic_forcing/2d/tsi", "S/diagnostic/2d/TP"
CONCAT = {"type": "concat"}


def preblocks(**blocks):
    """Returns the pipeline of a `preblocks.per_step` section."""
    return build_pipeline(parse(PreblocksConfig, {"per_step": blocks}))


def postblocks(**blocks):
    """Returns the pipeline of a `postblocks.per_step` section with `concat`."""
    before = parse(PreblocksConfig, {"per_step": {"concat": CONCAT}})
    return build_pipeline(before, parse(PostblocksConfig, {"per_step": blocks}))


def group(key, levels):
    """Returns one variable of a channel layout."""
    return ChannelGroup(key, levels, 1)
