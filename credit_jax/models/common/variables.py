"""Keys that count the channels of input and output of a model."""

from __future__ import annotations

from pydantic import NonNegativeInt

from credit_jax.config.base import StrictModel
from credit_jax.models.common.config import ModelConfig


class ChannelKeys(ModelConfig):
    """Channels of one frame of input and output, which a subclass counts."""

    @property
    def input_channels(self) -> int:
        """Channels of one input frame."""
        raise NotImplementedError

    @property
    def output_channels(self) -> int:
        """Channels of one output frame."""
        raise NotImplementedError

    def channel_sum(self, direction: str) -> str:
        """The arithmetic of `input_channels` or `output_channels`, for errors.

        Args:
            direction: "input" or "output".
        """
        raise NotImplementedError

    def channel_problems(self) -> list[str]:
        """The error of a model without input or output channels, if any."""
        if self.input_channels >= 1 and self.output_channels >= 1:
            return []
        return [
            f"model has {self.input_channels} input and {self.output_channels} "
            "output channels; expected at least 1 of each: "
            f"{self.channel_sum('input')}; {self.channel_sum('output')}"
        ]


class VariableKeys(ChannelKeys):
    """Numbers of variables of input and output, with CREDIT's names and defaults.

    Attributes:
        channels: number of 3D variables; levels: of each.
        surface_channels, input_only_channels, output_only_channels: 2D variables of
            input and output, of the input only, of the output only.
    """

    channels: int = 4
    surface_channels: int = 7
    input_only_channels: int = 3
    output_only_channels: int = 0
    levels: int = 15

    @property
    def input_channels(self) -> int:
        """See `ChannelKeys`."""
        variables = self.channels * self.levels + self.surface_channels
        return variables + self.input_only_channels

    @property
    def output_channels(self) -> int:
        """See `ChannelKeys`."""
        variables = self.channels * self.levels + self.surface_channels
        return variables + self.output_only_channels

    def channel_sum(self, direction: str) -> str:
        """See `ChannelKeys.channel_sum`."""
        only = f"{direction}_only_channels"
        return (
            f"channels {self.channels} x levels {self.levels} + surface_channels "
            f"{self.surface_channels} + {only} {getattr(self, only)}"
        )


class ChannelCounts(StrictModel):
    """`channels`, which CREDIT counts from its `data.datasets`.

    Attributes:
        boundary: channels of the input only.
        prognostic: of input and output.
        diagnostic: of the output only.
    """

    boundary: NonNegativeInt
    prognostic: NonNegativeInt
    diagnostic: NonNegativeInt


class ChannelCountKeys(ChannelKeys):
    """Numbers of channels of the models that downscale.

    Attributes:
        channels: of one frame, by kind.
    """

    channels: ChannelCounts

    @property
    def input_channels(self) -> int:
        """See `ChannelKeys`."""
        return self.channels.boundary + self.channels.prognostic

    @property
    def output_channels(self) -> int:
        """See `ChannelKeys`."""
        return self.channels.prognostic + self.channels.diagnostic

    def channel_sum(self, direction: str) -> str:
        """See `ChannelKeys.channel_sum`."""
        only = {"input": "boundary", "output": "diagnostic"}[direction]
        return (
            f"channels.prognostic {self.channels.prognostic} + channels.{only} "
            f"{getattr(self.channels, only)}"
        )
