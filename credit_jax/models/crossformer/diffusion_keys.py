"""CREDIT's names of `crossformer-diffusion`, as written by its trainer.

The buffers of the process, then under "model." the keys of `crossformer`, with the
layers of the time embedding between the patch embedding and the decoder.
"""

from __future__ import annotations

from collections.abc import Iterator

from credit_jax.models.crossformer import crossformer_keys
from credit_jax.models.crossformer.diffusion import DiffusionCrossFormerConfig
from credit_jax.models.diffusion.process_keys import below_process, process_buffers
from credit_jax.state_dict.arrangement import LINEAR
from credit_jax.state_dict.key_table import Rule
from credit_jax.state_dict.layers import (
    encoder_decoder_blocks,
    unused_patch_embedding,
    weight_and_bias,
)
from credit_jax.state_dict.torch_model import TorchModel


def _rules() -> Iterator[Rule]:
    table = [r for r in crossformer_keys.TORCH_MODEL.key_table if isinstance(r, Rule)]
    decoder = [rule for rule in table if rule.torch.startswith("up_block")]
    yield from (rule for rule in table if rule not in decoder)
    for i, name in enumerate(("first", "second")):
        ours = f"time_embedding/{name}"
        yield from weight_and_bias(f"time_to_emb.{2 * i}", ours, LINEAR)
    ours = "time_embedding/stages/{s}"
    yield from weight_and_bias("time_emb_proj.{s}.1", ours, LINEAR)
    yield from decoder


def _block_names(config: DiffusionCrossFormerConfig) -> list[str]:
    return [f"model.{name}" for name in encoder_decoder_blocks(config)]


def _idle_modules(config: DiffusionCrossFormerConfig) -> list[str]:
    return [f"model.{name}" for name in unused_patch_embedding(config)]


TORCH_MODEL = TorchModel(
    key_table=below_process(_rules()),
    block_names=_block_names,
    idle_modules=_idle_modules,
    constants=process_buffers,
)
