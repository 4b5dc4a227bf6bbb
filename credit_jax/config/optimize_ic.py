"""The `optimize_ic:` section: an initial state that makes the best forecast."""

from typing import Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat

from credit_jax.config.base import StrictModel


class OptimizeConfig(StrictModel):
    """How `credit-jax optimize-ic` fits an initial state, as CREDIT's trainer `ic-opt`.

    The loss is the mean over the steps of a window, which grows as long as it is within
    the forecast of `data.forecast_len` steps.

    Attributes:
        starting_window: steps of the first window.
        window: steps by which it grows.
        iterations: updates of the state with each window.
        learning_rate: first learning rate of AdamW; it falls as a cosine over all
            iterations, to 1e-4 of this.
        weight_decay: weight decay of AdamW, of the normalized state.
        max_norm: largest norm of a gradient; "dynamic" is the root of its norm, 0 does
            not clip.
    """

    starting_window: int = Field(default=8, ge=1)
    window: int = Field(default=12, ge=1)
    iterations: int = Field(default=100, ge=1)
    learning_rate: PositiveFloat = 1e-3
    weight_decay: NonNegativeFloat = 0.0
    max_norm: NonNegativeFloat | Literal["dynamic"] = 0.0

    def windows(self, num_steps: int) -> list[int]:
        """Steps of each window of a forecast.

        Raises:
            ValueError: the first one is longer than the forecast.
        """
        if self.starting_window > num_steps:
            raise ValueError(
                f"optimize_ic.starting_window: {self.starting_window} steps are more "
                f"than data.forecast_len, {num_steps}"
            )
        return [*range(self.starting_window, num_steps + 1, self.window)]
