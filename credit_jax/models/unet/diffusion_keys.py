"""CREDIT's names of `unet-diffusion`, as written by its trainer.

The buffers of the process, then the keys of the network under "model.".
"""

from __future__ import annotations

from collections.abc import Iterator

from credit_jax.models.diffusion.process_keys import below_process, process_buffers
from credit_jax.models.unet.diffusion import DiffusionUNetConfig
from credit_jax.state_dict.arrangement import (
    CHANNELS_OF_FIELD,
    CONV_2D,
    LINEAR,
    POINTWISE,
    Arrangement,
)
from credit_jax.state_dict.key_table import Rule
from credit_jax.state_dict.layers import weight_and_bias
from credit_jax.state_dict.torch_model import TorchModel

# Memory keys and values; in linear attention tokens are the last dim.
MEMORY = Arrangement("k h n d -> k n h d")
LINEAR_MEMORY = Arrangement("k h d n -> k n h d")
# Space to depth and a 1 x 1 convolution, as one convolution of stride 2.
HALVING = Arrangement("o (i p q) 1 1 -> p q i o")


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


def _rules() -> Iterator[Rule]:
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


def _block_names(config: DiffusionUNetConfig) -> list[str]:
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


TORCH_MODEL = TorchModel(
    key_table=below_process(_rules()),
    block_names=_block_names,
    constants=process_buffers,
)
