"""CREDIT's names of `crossformer-ensemble` (models/wxformer/crossformer_ensemble.py).

The keys of `crossformer`, then those of the layers that add noise.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from credit_jax.models.crossformer import crossformer_keys
from credit_jax.state_dict.arrangement import CHANNELS_OF_FIELD, LINEAR
from credit_jax.state_dict.key_table import Rule
from credit_jax.state_dict.layers import weight_and_bias


def _rules() -> Iterator[Rule]:
    yield from _injection("encoder_noise_layers.{i}", "encoder_noise/{i}")
    for i in range(3):
        yield from _injection(f"noise_inject{i + 1}", f"decoder_noise/{i}")


def _injection(torch: str, ours: str) -> Iterator[Rule]:
    yield Rule(f"{torch}.modulation", f"{ours}/modulation", CHANNELS_OF_FIELD)
    yield Rule(f"{torch}.noise_factor", f"{ours}/factor")
    yield from weight_and_bias(f"{torch}.noise_transform", ours, LINEAR)


TORCH_MODEL = replace(
    crossformer_keys.TORCH_MODEL,
    key_table=(*crossformer_keys.TORCH_MODEL.key_table, *_rules()),
    lists_frozen=False,
)
