"""The sections `assimilation:` and `optimize_ic:`.

Analyses from forecasts and observations, and an initial state of the best forecast.
"""

from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat

from credit_jax.config.base import FolderPath, StrictModel, checked_by
from credit_jax.config.dates import Date, Timestep, duration

# What can be wrong with an observation; "missing" is a field that has no value there.
Reason = Literal[
    "time",
    "place",
    "level",
    "variable",
    "units",
    "value",
    "error",
    "duplicate",
    "missing",
]


def _check_leads(value: tuple[str, str]) -> None:
    if not duration("0h") < duration(value[0]) < duration(value[1]):
        raise ValueError(f"needs two lead times, the shorter one first, got {value}")


class BackgroundConfig(StrictModel):
    """The covariance of the errors of the background, the forecast that is corrected.

    `credit-jax preprocess` fits it to the differences of two forecasts of the same
    time (the NMC method), and writes the file.

    Attributes:
        file: the fitted covariance, NetCDF.
        forecasts: folder of `credit-jax forecast` with the forecasts that it is fitted
            to.
        leads: the two lead times of a difference.
        truncation: largest degree of the spherical harmonics; null is the largest one
            that products of two fields of the grid resolve, at most 127.
        winds: names of the eastward and the northward wind. Their errors are fitted as
            those of stream functions and velocity potentials, with which errors of
            other variables are in balance; null treats them as any variable.
        scale: factor of the fitted standard deviations, without a new fit.
    """

    file: FolderPath
    forecasts: FolderPath | None = None
    leads: Annotated[tuple[str, str], checked_by(_check_leads)] = ("24h", "48h")
    truncation: int | None = Field(default=None, ge=1)
    winds: tuple[str, str] | None = None
    scale: PositiveFloat = 1.0


class AssimilationConfig(StrictModel):
    """What `credit-jax assimilate` does: 4D-Var with the model as strong constraint.

    Attributes:
        observations: files, CSV, Parquet or NetCDF, with time, latitude, longitude,
            level, variable, value and error of each observation.
        background: see `BackgroundConfig`.
        start: begin of the first window.
        first_lead: length of the forecast, from a state of the data, that is the
            background of the first window; null takes the state of the data at
            `start`.
        window: length of a window, a multiple of the time step.
        cycles: number of windows, one after another.
        outer_iterations: linearizations of the forecast in a window.
        inner_iterations: conjugate-gradient iterations after each, at most.
        tolerance: an inner loop ends when the norm of the gradient has fallen by this
            factor.
        operators: name of an observed variable -> name of its observation operator, an
            `operator` of custom_objects. Other variables are interpolated.
        leave_out: what is wrong with observations that are left out; any other fault
            of an observation is an error.
    """

    observations: tuple[str, ...] = Field(min_length=1)
    background: BackgroundConfig
    start: Date
    first_lead: Timestep | None = None
    window: Timestep = "24h"
    cycles: int = Field(default=1, ge=1)
    outer_iterations: int = Field(default=2, ge=1)
    inner_iterations: int = Field(default=30, ge=1)
    tolerance: float = Field(default=0.01, gt=0, lt=1)
    operators: dict[str, str] = Field(default_factory=dict)
    leave_out: tuple[Reason, ...] = ()


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
        """Steps of each window of a forecast."""
        if self.starting_window > num_steps:
            raise ValueError(
                f"optimize_ic.starting_window: {self.starting_window} steps are more "
                f"than data.forecast_len, {num_steps}"
            )
        return [*range(self.starting_window, num_steps + 1, self.window)]
