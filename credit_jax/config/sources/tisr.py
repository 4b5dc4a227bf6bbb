"""The section of the computed solar radiation."""

from typing import ClassVar

from pydantic import Field, model_validator

from credit_jax.config.sources.source import SourceConfig


class TisrConfig(SourceConfig):
    """Incident solar radiation at the top of the atmosphere, which is computed.

    Attributes:
        num_integration_steps: intervals of the trapezoidal sum over one time step.
        latlon_grid_path: file with the latitudes and longitudes.
        lat_spec, lon_spec: first value, last value and number of the latitudes and
            longitudes (degrees), instead of a file.
    """

    num_integration_steps: int = Field(default=360, ge=1)
    latlon_grid_path: str | None = None
    lat_spec: tuple[float, float, int] | None = None
    lon_spec: tuple[float, float, int] | None = None

    ignored: ClassVar = {
        "mode": "it is computed",
        "device": "it is computed on the CPU, by the threads that read",
    }

    @model_validator(mode="after")
    def _computes(self) -> "TisrConfig":
        fields = self.variables.by_type
        only = fields.get("dynamic_forcing")
        if len(fields) != 1 or only is None or only.vars_2D != ("tisr",):
            raise ValueError(
                "tisr has one variable, dynamic_forcing: {vars_2D: [tisr]}, and no "
                "other field types"
            )
        if only.vars_3D:
            raise ValueError("tisr has no levels: remove dynamic_forcing.vars_3D")
        return self

    @model_validator(mode="after")
    def _has_one_grid(self) -> "TisrConfig":
        specs = [self.lat_spec is not None, self.lon_spec is not None]
        if any(specs) != all(specs) or any(specs) == bool(self.latlon_grid_path):
            raise ValueError(
                "needs one grid: latlon_grid_path, or both lat_spec and lon_spec "
                "([first, last, number])"
            )
        return self
