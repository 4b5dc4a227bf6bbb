"""Config keys that give the numbers of channels of a model's input and output."""

from __future__ import annotations

from pydantic import NonNegativeInt

from credit_jax.config import StrictModel
from credit_jax.models.common.config import ModelConfig


class ChannelKeys(ModelConfig):
    """Interface of configs that count the channels of input and output."""

    @property
    def input_channels(self) -> int:
        """Number of channels of an input frame."""
        raise NotImplementedError

    @property
    def output_channels(self) -> int:
        """Number of channels of an output frame."""
        raise NotImplementedError

    def channel_sum(self, direction: str) -> str:
        """Returns the arithmetic of the number of channels, for error messages.

        Args:
            direction: "input" or "output".
        """
        raise NotImplementedError

    def channel_problems(self) -> list[str]:
        """Returns an error if a model has no input or no output channels."""
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
        channels: number of 3D variables.
        surface_channels, input_only_channels, output_only_channels: number of 2D
            variables of both input and output, of the input only, of the output only.
        levels: number of levels of each 3D variable.
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
    """`model.channels`, which CREDIT computes from its `data.datasets`.

    Attributes:
        boundary: number of channels of the input only.
        prognostic: number of channels of both input and output.
        diagnostic: number of channels of the output only.
    """

    boundary: NonNegativeInt
    prognostic: NonNegativeInt
    diagnostic: NonNegativeInt


class ChannelCountKeys(ChannelKeys):
    """Numbers of channels of downscaling models.

    Attributes:
        channels: numbers of channels of a frame, by kind.
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
