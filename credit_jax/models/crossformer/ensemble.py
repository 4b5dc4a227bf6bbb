"""CREDIT's `crossformer-ensemble` and `crossformer-style`, which are the same model.

A `crossformer` that adds noise to its features, in training and in evaluation; each
draw gives a member of an ensemble. Source: models/wxformer/crossformer_ensemble.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, ClassVar, Literal

from flax import nnx
from jaxtyping import Array, Float
from pydantic import PositiveInt

from credit_jax.kernels import dense
from credit_jax.models.common.config import ignored_by, register_model
from credit_jax.models.crossformer.config import without_patches
from credit_jax.models.crossformer.crossformer import (
    CROSSFORMER,
    CrossFormer,
    CrossFormerConfig,
)
from credit_jax.nn.context import Context
from credit_jax.nn.parameters import (
    Parameter,
    named_variables,
    param_spec_of,
    parameter,
)
from credit_jax.ops.dense import add_bias
from credit_jax.parallel.params.spec import constant, torch_uniform
from credit_jax.parallel.rows.layout import Field
from credit_jax.state_dict.key_table import key_table


class EnsembleConfig(CrossFormerConfig):
    """Constructor keys of CREDIT's CrossFormerWithNoise, with its defaults.

    Attributes:
        noise_latent_dim: size of the latent noise of a sample.
        encoder_noise_factor, decoder_noise_factor: constant factors of the noise.
        encoder_noise: whether to add noise after stages of the encoder; it is always
            added after blocks of the decoder.
        freeze: whether only the layers of the noise are trained.
        correlated: whether all layers share the latent noise of a forward pass.
    """

    small_keys: ClassVar[Mapping[str, Any]] = {
        **CrossFormerConfig.small_keys,
        "noise_latent_dim": 8,
    }

    ignored: ClassVar[Mapping[str, str]] = {
        **CrossFormerConfig.ignored,
        "pretrained_weights": "CREDIT ignores it; use trainer.load_weights",
        **ignored_by(
            "crossformer-ensemble", "noise_scheduler noise_input_dim state_latent_dim"
        ),
    }

    draws_noise: ClassVar[bool] = True

    type: Literal[  # pyright: ignore[reportIncompatibleVariableOverride]
        "crossformer-ensemble", "crossformer-style"
    ] = "crossformer-ensemble"
    noise_latent_dim: PositiveInt = 128
    encoder_noise_factor: float = 0.05
    decoder_noise_factor: float = 0.275
    encoder_noise: bool = True
    freeze: bool = True
    correlated: bool = False

    def problems(self) -> Iterator[str]:
        """See `ModelConfig.problems`; CREDIT's forward pass fails with these, too."""
        for key in ("frames", "output_frames"):
            if getattr(self, key) != 1:
                yield (
                    f"model.{key} is {getattr(self, key)}; expected 1: CREDIT's "
                    f"{self.type} takes and gives one frame"
                )
        yield from without_patches(self)
        for index in range(3):
            channels = self.dim[3] // 2 ** (3 - index)
            if self.encoder_noise and self.dim[index] != channels:
                yield (
                    f"model.dim[{index}] is {self.dim[index]}; expected {channels}, "
                    f"dim[3] / {2 ** (3 - index)}: the noise of a stage has the "
                    "channels of the block of the decoder, as in CREDIT"
                )
        yield from super().problems()


_INJECTION = """
    modulation       modulation  1 c 1 1 -> c
    noise_factor     factor
    noise_transform  .           linear
"""
ENSEMBLE = replace(
    CROSSFORMER,
    key_table=(
        *CROSSFORMER.key_table,
        *key_table(_INJECTION, "encoder_noise_layers.{i}", "encoder_noise/{i}"),
        *key_table(_INJECTION, "noise_inject1", "decoder_noise/0"),
        *key_table(_INJECTION, "noise_inject2", "decoder_noise/1"),
        *key_table(_INJECTION, "noise_inject3", "decoder_noise/2"),
    ),
    lists_frozen=False,
)


@register_model(EnsembleConfig, ENSEMBLE)
class EnsembleCrossFormer(CrossFormer):
    """The ensemble model; see `EnsembleConfig` for its keys."""

    def __init__(self, config: EnsembleConfig) -> None:
        super().__init__(config)
        if config.freeze:
            # All but the layers of the noise, which follow.
            for _, variable in named_variables(self, Parameter):
                spec = replace(param_spec_of(variable), frozen=True)
                variable.set_metadata(param_spec=spec)
        latent, last = config.noise_latent_dim, config.dim[3]
        if config.encoder_noise:
            # After every stage except the last.
            factor = config.encoder_noise_factor
            self.encoder_noise = nnx.List(
                NoiseInjection(f"encoder {i}", latent, last // 2 ** (3 - i), factor)
                for i in range(3)
            )
        factor = config.decoder_noise_factor
        self.decoder_noise = nnx.List(
            NoiseInjection(f"decoder {i}", latent, last // 2 ** (i + 1), factor)
            for i in range(3)
        )


class NoiseInjection(nnx.Module):
    """CREDIT's StochasticDecompositionLayer.

    x + factor * noise * style(z) * modulation, with noise N(0, 1) at every point and
    channel, and a linear layer `style` of the latent noise z of each sample.
    """

    def __init__(self, name: str, latent: int, channels: int, factor: float) -> None:
        self.name = name
        init = torch_uniform(latent)
        shape = latent, channels
        # No spectral norm: CREDIT adds these layers after applying it to the model.
        self.kernel = parameter(init, shape, ("embed", "embed"))
        self.bias = parameter(init, (channels,), ("embed",))
        self.modulation = parameter(constant(1.0), (channels,), ("embed",))
        self.factor = parameter(constant(factor), (1,), (None,), frozen=True)

    def __call__(
        self, field: Field, latent: Float[Array, "batch latent"], context: Context
    ) -> Float[Array, "batch rows lon channel"]:
        kernel, dtype = self.kernel[...], field.data.dtype
        style = add_bias(dense(latent.astype(dtype), kernel), self.bias[...])
        scale = style * self.modulation[...][None]
        noise = context.normal_field(self.name, field).astype(dtype)
        noise = noise * self.factor[...][None, None, None]
        return field.data + noise * scale[:, None, None]
