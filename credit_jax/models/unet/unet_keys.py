"""CREDIT's names of the parameters of `unet` and `unet_downscaling` (models/unet.py).

The names are those of segmentation_models_pytorch's Unet, under "model.".
"""

from __future__ import annotations

from collections.abc import Iterator

from credit_jax.models.unet.config import UNetKeys
from credit_jax.state_dict.arrangement import CONV_2D, POINTWISE, Arrangement
from credit_jax.state_dict.key_table import Rule
from credit_jax.state_dict.layers import scale_and_bias, weight_and_bias
from credit_jax.state_dict.torch_model import TorchModel

# A 1 x 1 convolution to one channel.
POINTS = Arrangement("1 i 1 1 -> i")
SCALAR = Arrangement("1 ->")


def _rules() -> Iterator[Rule]:
    encoder = "model.encoder"
    yield from _conv_norm(f"{encoder}.conv1", f"{encoder}.bn1", "encoder/stem/embed")
    for layer in (1, 2, 3, 4):
        torch, ours = f"{encoder}.layer{layer}", f"encoder/layer{layer}"
        yield from _residual_block(f"{torch}.0", f"{ours}/first")
        yield from _residual_block(f"{torch}.{{d}}", f"{ours}/rest", first=1)
    block, ours = "model.decoder.blocks.{b}", "decoder/blocks/{b}"
    for i in (1, 2):
        conv = f"{block}.conv{i}"
        yield from _conv_norm(f"{conv}.0", f"{conv}.1", f"{ours}/layers/{i - 1}")
        # without a norm
        yield Rule(f"{conv}.0.bias", f"{ours}/layers/{i - 1}/conv/bias")
        gates = f"{block}.attention{i}.attention"
        yield from _scse(gates, f"{ours}/attention_{i}")
    yield from weight_and_bias("model.segmentation_head.0", "head/conv", CONV_2D)


def _residual_block(torch: str, ours: str, first: int = 0) -> Iterator[Rule]:
    """Two or three convolutions, and one of a shortcut."""
    for i in range(3):
        conv, norm = f"{torch}.conv{i + 1}", f"{torch}.bn{i + 1}"
        yield from _conv_norm(conv, norm, f"{ours}/branch/{i}", first)
    shortcut = f"{torch}.downsample"
    yield from _conv_norm(f"{shortcut}.0", f"{shortcut}.1", f"{ours}/shortcut", first)


def _conv_norm(conv: str, norm: str, ours: str, first: int = 0) -> Iterator[Rule]:
    """A convolution without bias and a batch norm."""
    yield Rule(f"{conv}.weight", f"{ours}/conv/kernel", CONV_2D, first)
    for rule in scale_and_bias(norm, f"{ours}/norm"):
        yield Rule(rule.torch, rule.ours, rule.arrangement, first)


def _scse(torch: str, ours: str) -> Iterator[Rule]:
    for name, layer in (("squeeze", "cSE.1"), ("expand", "cSE.3")):
        yield Rule(f"{torch}.{layer}.weight", f"{ours}/{name}", POINTWISE)
        yield Rule(f"{torch}.{layer}.bias", f"{ours}/{name}_bias")
    yield Rule(f"{torch}.sSE.0.weight", f"{ours}/points", POINTS)
    yield Rule(f"{torch}.sSE.0.bias", f"{ours}/points_bias", SCALAR)


def _blocks(config: UNetKeys) -> list[str]:
    """See `TorchModel.block_names`; Runge-Kutta runs them four times."""
    depth = config.architecture.encoder_depth
    names = ["model.encoder.relu"]
    for layer in range(1, depth):
        names += [f"model.encoder.layer{layer}.0", f"model.encoder.layer{layer}"]
    names += [f"model.decoder.blocks.{block}" for block in range(depth)]
    names.append("model.segmentation_head")
    return names * (4 if config.rk4_integration else 1)


def _idle(config: UNetKeys) -> list[str]:
    """Layers beyond the encoder's depth, and attention of the block without a skip."""
    depth = config.architecture.encoder_depth
    last = f"model.decoder.blocks.{depth - 1}.attention1"
    return [f"model.encoder.layer{layer}" for layer in range(depth, 5)] + [last]


TORCH_MODEL = TorchModel(
    key_table=tuple(_rules()), block_names=_blocks, idle_modules=_idle
)
