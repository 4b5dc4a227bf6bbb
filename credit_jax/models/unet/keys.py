"""CREDIT's names of the parameters of `unet`, `unet_downscaling`, `unet-diffusion`.

Those of models/unet.py are the names of segmentation_models_pytorch's Unet, under
"model.". Those of `unet-diffusion` are as its trainer writes them: the buffers of the
process, then the keys of the network under "model.".
"""

from __future__ import annotations

from collections.abc import Iterator

from credit_jax.models.diffusion.process_keys import below_process, process_buffers
from credit_jax.models.unet.config import UNetKeys
from credit_jax.models.unet.diffusion import DiffusionUNetConfig
from credit_jax.state_dict.arrangement import (
    CHANNELS_OF_FIELD,
    CONV_2D,
    LINEAR,
    POINTWISE,
    Arrangement,
)
from credit_jax.state_dict.key_table import Rule
from credit_jax.state_dict.layers import scale_and_bias, weight_and_bias
from credit_jax.state_dict.torch_model import TorchModel

# A 1 x 1 convolution to one channel.
POINTS = Arrangement("1 i 1 1 -> i")
SCALAR = Arrangement("1 ->")
# Memory keys and values; in linear attention tokens are the last dim.
MEMORY = Arrangement("k h n d -> k n h d")
LINEAR_MEMORY = Arrangement("k h d n -> k n h d")
# Space to depth and a 1 x 1 convolution, as one convolution of stride 2.
HALVING = Arrangement("o (i p q) 1 1 -> p q i o")


def _unet_rules() -> Iterator[Rule]:
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


def _unet_blocks(config: UNetKeys) -> list[str]:
    """See `TorchModel.block_names`; Runge-Kutta runs them four times."""
    depth = config.architecture.encoder_depth
    names = ["model.encoder.relu"]
    for layer in range(1, depth):
        names += [f"model.encoder.layer{layer}.0", f"model.encoder.layer{layer}"]
    names += [f"model.decoder.blocks.{block}" for block in range(depth)]
    names.append("model.segmentation_head")
    return names * (4 if config.rk4_integration else 1)


def _unet_idle(config: UNetKeys) -> list[str]:
    """Layers beyond the encoder's depth, and attention of the block without a skip."""
    depth = config.architecture.encoder_depth
    last = f"model.decoder.blocks.{depth - 1}.attention1"
    return [f"model.encoder.layer{layer}" for layer in range(depth, 5)] + [last]


def _residual(torch: str, ours: str) -> Iterator[Rule]:
    yield from weight_and_bias(f"{torch}.mlp.1", f"{ours}/time", LINEAR)
    for i in (1, 2):
        block = f"{torch}.block{i}"
        yield from weight_and_bias(f"{block}.proj", f"{ours}/conv_{i}", CONV_2D)
        norm = f"{ours}/norm_{i}/scale"
        yield Rule(f"{block}.norm.g", norm, CHANNELS_OF_FIELD)
    yield from weight_and_bias(f"{torch}.res_conv", f"{ours}/skip", CONV_2D)


def _attention(torch: str, ours: str, *, full: bool) -> Iterator[Rule]:
    out = f"{torch}.to_out" if full else f"{torch}.to_out.0"
    yield Rule(f"{torch}.mem_kv", f"{ours}/memory", MEMORY if full else LINEAR_MEMORY)
    yield Rule(f"{torch}.norm.g", f"{ours}/norm/scale", CHANNELS_OF_FIELD)
    yield Rule(f"{torch}.to_qkv.weight", f"{ours}/to_qkv", POINTWISE)
    yield Rule(f"{out}.weight", f"{ours}/to_out", POINTWISE)
    yield Rule(f"{out}.bias", f"{ours}/to_out_bias")
    if not full:
        norm = f"{ours}/out_norm/scale"
        yield Rule(f"{torch}.to_out.1.g", norm, CHANNELS_OF_FIELD)


def _levels(torch: str, ours: str) -> Iterator[Rule]:
    for i in (0, 1):
        yield from _residual(f"{torch}.{{i}}.{i}", f"{ours}/{{i}}/block_{i + 1}")
    for full in (False, True):
        name = "full_attention" if full else "attention"
        yield from _attention(f"{torch}.{{i}}.2", f"{ours}/{{i}}/{name}", full=full)
    halving = torch == "downs"
    arrangement, resize = (HALVING if halving else CONV_2D), f"{ours}/{{i}}/resize"
    yield from weight_and_bias(f"{torch}.{{i}}.3.1", f"{resize}/conv", arrangement)
    periodic = f"{ours}/{{i}}/periodic"
    yield from weight_and_bias(f"{torch}.{{i}}.3.conv", f"{periodic}/conv", CONV_2D)


def _diffusion_rules() -> Iterator[Rule]:
    yield from weight_and_bias("init_conv", "entry/conv", CONV_2D)
    for i, name in ((1, "first"), (3, "second")):
        yield from weight_and_bias(f"time_mlp.{i}", f"time/{name}", LINEAR)
    yield from _levels("downs", "downs")
    yield from _levels("ups", "ups")
    yield from _residual("mid_block1", "middle/0")
    yield from _attention("mid_attn", "middle_attention", full=True)
    yield from _residual("mid_block2", "middle/1")
    yield from _residual("final_res_block", "final_block")
    yield from weight_and_bias("final_conv", "final/conv", CONV_2D)


def _diffusion_blocks(config: DiffusionUNetConfig) -> list[str]:
    count = len(config.dim_mults)
    names = ["init_conv"]

    def levels(kind: str) -> list[str]:
        # Our output of attention includes the residual, unlike CREDIT's. The changed
        # name is no module, so it is not compared.
        return [
            name
            for i in range(count)
            for name in (
                f"{kind}.{i}.0",
                f"{kind}.{i}.1",
                f"{kind}.{i}.2, added",
                f"{kind}.{i}.3",
            )
        ]

    names += levels("downs")
    names += ["mid_block1", "mid_attn, added", "mid_block2"]
    names += [*levels("ups"), "final_res_block", "final_conv"]
    return [f"model.{name}" for name in names]


UNET = TorchModel(
    key_table=tuple(_unet_rules()), block_names=_unet_blocks, idle_modules=_unet_idle
)
DIFFUSION = TorchModel(
    key_table=below_process(_diffusion_rules()),
    block_names=_diffusion_blocks,
    constants=process_buffers,
)
