"""The `demo:` section: a data set that is generated before the first training."""

from datetime import date, timedelta
from typing import Literal

from pydantic import Field, model_validator

from credit_jax.config.base import LocalPath, StrictModel


class ForcingConfig(StrictModel):
    """The forcing of the demo climate; the defaults are those of its base climate.

    Attributes:
        equator_to_pole: difference of the equilibrium temperature between equator and
            pole in K, 60 in Held and Suarez (1994).
        season: shift of the warmest sin(latitude) per sin(declination).
        land_heating: equilibrium temperature of land at sigma 1 with the sun in the
            zenith, minus that at night, in K.
    """

    equator_to_pole: float = Field(default=60.0, ge=0, le=120)
    season: float = Field(default=0.1, ge=0, le=1)
    land_heating: float = Field(default=40.0, ge=0, le=100)


class DemoConfig(StrictModel):
    """The data set that `python -m credit_jax.demo` generates.

    Attributes:
        out: folder of the data set; it is created if it does not exist.
        truncation: "T21" is a grid of 32 x 64 points, "T42" one of 64 x 128.
        days: length of the data set in days, from 2000-01-01.
        spinup_days: days that are computed before it and discarded; for T21, 200 days,
            seed 0 and the default forcing the state after them comes with the package.
        held_out_days: last days, which the mean and std files exclude.
        seed: seed of the initial state.
        forcing: forcing of the climate; another one makes another climate.
    """

    out: LocalPath
    truncation: Literal["T21", "T42"] = "T21"
    days: int = Field(default=560, ge=2)
    spinup_days: int = Field(default=200, ge=0)
    held_out_days: int = Field(default=60, ge=0)
    seed: int = Field(default=0, ge=0)
    forcing: ForcingConfig = ForcingConfig()

    @property
    def files(self) -> list[str]:
        """Paths of the files that are made."""
        last = date(2000, 1, 1) + timedelta(days=self.days - 1)
        names = [f"demo_{year}.zarr" for year in range(2000, last.year + 1)]
        names += ["static.nc", "mean.nc", "std.nc"]
        return [f"{self.out}/{name}" for name in names]

    @model_validator(mode="after")
    def _has_training_days(self) -> "DemoConfig":
        if self.held_out_days >= self.days:
            raise ValueError(
                f"held_out_days {self.held_out_days} of days {self.days} leave no day "
                "for training"
            )
        return self
