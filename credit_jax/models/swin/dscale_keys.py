"""CREDIT's names of the parameters of `dscale` (models/dscale_wrf.py)."""

from __future__ import annotations

from collections.abc import Iterator

from credit_jax.models.swin.dscale import DscaleConfig
from credit_jax.models.swin.fuxi_keys import u_transformer, u_transformer_blocks
from credit_jax.state_dict.arrangement import LINEAR
from credit_jax.state_dict.key_table import Rule
from credit_jax.state_dict.layers import patch_embedding, weight_and_bias
from credit_jax.state_dict.torch_model import TorchModel


def _rules() -> Iterator[Rule]:
    yield from patch_embedding("cube_embedding", "cube_embedding")
    yield from u_transformer("u_transformer", "u_transformer")
    yield from weight_and_bias("fc", "head/linear", LINEAR)
    yield from weight_and_bias("film", "film", LINEAR)


def _block_names(config: DscaleConfig) -> list[str]:
    # The output of "film" is the modulated field in credit_jax, but the modulating
    # vector in CREDIT. The changed name is no module, so it is not compared.
    return ["cube_embedding", "film, applied", *u_transformer_blocks(config)]


TORCH_MODEL = TorchModel(key_table=tuple(_rules()), block_names=_block_names)
