"""CREDIT's older `crossformer` (models/crossformer.py), the released WXFormer weights.

The encoder of the CrossFormer family with a decoder of transposed convolutions, or of
interpolation and convolution, and optional attention over channels or points.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator

from credit_jax.config.base import Unavailable
from credit_jax.models.common.padded_config import flat_padding_problems
from credit_jax.models.common.upsampling import ResidualUpBlock, UpsampleHead
from credit_jax.models.crossformer.config import EncoderConfig
from credit_jax.models.crossformer.encoder_decoder import EncoderDecoder


def _attention(value: Any) -> Any:
    """Converts to lower case as CREDIT does, and "none" to None."""
    value = value.lower() if isinstance(value, str) else value
    return None if value == "none" else value


Attention = Annotated[
    Literal["coordinate", "eca", "spatial", "scse_optimized", "scse_standard", "mixed"]
    | None,
    BeforeValidator(_attention),
]


class CrossFormerKeys(EncoderConfig):
    """Constructor keys of CREDIT's CrossFormer, with its defaults; see `EncoderConfig`.

    Attributes:
        attention_type: attention at the end of each block of the decoder; None or
            "none" for no attention.
        upsample_v_conv: whether the decoder interpolates and convolves, instead of
            transposed convolutions.
        pad_lat, pad_lon: padding keys of older configs; an error without
            `padding_conf`, ignored with it.
    """

    ignored: ClassVar[Mapping[str, str]] = {
        "frame_patch_size": "CREDIT's crossformer ignores it",
        "static_channels": "CREDIT's crossformer ignores it",
        "decoder_attention_type": "CREDIT's crossformer ignores it; see attention_type",
        "upsample_with_ps": "CREDIT's crossformer ignores it",
    }
    unavailable: ClassVar[Mapping[str, Unavailable]] = {
        "diffusion": Unavailable(
            "a crossformer that is a denoiser is not available; remove the key",
            harmless=(False,),
        )
    }
    symmetric_embedding: ClassVar[bool] = True

    attention_type: Attention = None
    upsample_v_conv: bool = False
    pad_lat: int | None = None
    pad_lon: int | None = None

    def without_effect(self) -> dict[str, str]:
        """Returns keys without effect; see `StrictModel.without_effect`."""
        notes = super().without_effect()
        if self.padding_conf is None:
            return notes
        keys = ("pad_lat", "pad_lon")
        flat = [key for key in keys if getattr(self, key) is not None]
        return notes | dict.fromkeys(flat, "padding_conf is there and counts")

    def problems(self, tensor: int = 1, domain: int = 1) -> list[str]:
        """See `EncoderConfig.problems`."""
        return [*self._family_problems(), *super().problems(tensor, domain)]

    def _family_problems(self) -> list[str]:
        problems = flat_padding_problems(self.padding_conf, self.pad_lat, self.pad_lon)
        return [*problems, *self.kernel_problems()]


class CrossFormerConfig(CrossFormerKeys):
    """The `model:` section of `crossformer`; see `CrossFormerKeys`."""

    type: Literal["crossformer"] = "crossformer"


class CrossFormer(EncoderDecoder):
    """The CrossFormer model; see `CrossFormerKeys` for its keys."""

    def __init__(self, config: CrossFormerKeys) -> None:
        interpolate, attention = config.upsample_v_conv, config.attention_type
        super().__init__(
            config,
            partial(ResidualUpBlock, interpolate=interpolate, attention=attention),
            partial(UpsampleHead, interpolate=interpolate),
        )
