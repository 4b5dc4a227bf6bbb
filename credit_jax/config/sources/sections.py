"""The sections of the sources of files, of ERA5 in clouds, and of solar radiation."""

from collections.abc import Iterator
from typing import ClassVar, Literal

from pydantic import Field, field_validator

from credit_jax.config.messages import got
from credit_jax.config.sources.source import SourceConfig

_PRESSURE_13 = (50, 100, 150, 200, 250, 300, 400, 500, 600, 700, 850, 925, 1000)
_PRESSURE_37 = (1, 2, 3, 5, 7, 10, 20, 30, 50, 70, *range(100, 275, 25), 300)
_PRESSURE_37 += (350, 400, 450, 500, 550, 600, 650, 700, *range(750, 1025, 25))
_ARCO = "gs://gcp-public-data-arco-era5/ar"
_WB2 = "gs://weatherbench2/datasets/era5"
WB2_STORES = {
    "1440x721": f"{_WB2}/1959-2023_01_10-wb13-6h-1440x721_with_derived_variables.zarr",
    "240x121": f"{_WB2}/1959-2023_01_10-6h-240x121_equiangular_with_poles_"
    "conservative.zarr",
    "64x32": f"{_WB2}/1959-2023_01_10-6h-64x32_equiangular_conservative.zarr",
    "full": f"{_WB2}/1959-2023_01_10-full_37-1h-0p25deg-chunk-1.zarr",
}


class RemoteConfig(SourceConfig):
    """A Zarr store at a URL, or a copy of it in a folder."""

    ignored: ClassVar = {"mode": "the store's address says where it is"}

    def conflicts(self) -> Iterator[str]:
        yield from super().conflicts()
        with_path = [k for k, field in self.variables.by_type.items() if field.path]
        if with_path:
            yield (
                f"variables.{with_path[0]}.path: {self.dataset_type} reads one store; "
                "name a copy of it with store, or take dataset_type: local"
            )


class ArcoConfig(RemoteConfig):
    """ERA5 in Google's ARCO stores, hourly at 0.25 degrees.

    Attributes:
        level_coord: "level" for pressure levels (hPa), "hybrid" for model levels.
        store: URL or folder of the pressure levels and the 2-D variables. CREDIT has no
            such key.
        model_level_store: URL or folder of the model levels. CREDIT has no such key.
    """

    store: str = f"{_ARCO}/full_37-1h-0p25deg-chunk-1.zarr-v3"
    model_level_store: str = f"{_ARCO}/model-level-1h-0p25deg.zarr-v1"

    @field_validator("level_coord")
    @classmethod
    def _has_levels(cls, value: str | None) -> str | None:
        if value not in ("level", "hybrid"):
            raise ValueError(f"must be one of 'level' or 'hybrid', got {got(value)}")
        return value

    @property
    def level_values(self) -> tuple[float, ...] | None:
        """`levels`, or all levels of the store."""
        if self.levels is not None:
            return self.levels
        if self.level_coord == "hybrid":
            return tuple(range(1, 138))
        return (1, 2, 3, 5, 7, 10, 20, 30, 50, 70, *range(100, 1025, 25))


class WeatherBenchConfig(RemoteConfig):
    """ERA5 in the stores of WeatherBench 2.

    Attributes:
        resolution: selects one of `WB2_STORES`.
        store: URL or folder of another store; CREDIT has no such key.
    """

    level_coord: str | None = "level"
    resolution: Literal["1440x721", "240x121", "64x32", "full"] = "1440x721"
    store: str | None = None

    @property
    def level_values(self) -> tuple[float, ...] | None:
        """`levels`, or all levels of the store (hPa)."""
        if self.levels:
            return self.levels
        return _PRESSURE_37 if self.resolution == "full" else _PRESSURE_13


class AnemoiConfig(RemoteConfig):
    """A store of anemoi-datasets: "t" with `levels` [500] is its variable "t_500".

    Attributes:
        store: URL or folder of the store.
        member: position of the ensemble member; null for a store that has one.
    """

    store: str
    member: int | None = Field(default=None, ge=0)


class LocalConfig(SourceConfig):
    """NetCDF and Zarr files; `levels` selects the nearest levels of a file."""

    ignored: ClassVar = {"mode": "files are read where they are"}

    @property
    def file_templates(self) -> dict[str, str]:
        return {k: str(f.path) for k, f in self.variables.by_type.items()}

    def conflicts(self) -> Iterator[str]:
        yield from super().conflicts()
        without_path = [
            k for k, field in self.variables.by_type.items() if field.path is None
        ]
        if without_path:
            yield (f"variables.{without_path[0]}.path: missing; it names the files")
        if self.variables.has_levels and self.levels and not self.level_coord:
            yield (
                "vars_3D with levels needs level_coord, the name of the level "
                "coordinate"
            )


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

    def conflicts(self) -> Iterator[str]:
        yield from super().conflicts()
        fields = self.variables.by_type
        only = fields.get("dynamic_forcing")
        if len(fields) != 1 or only is None or only.vars_2D != ("tisr",):
            yield (
                "tisr has one variable, dynamic_forcing: {vars_2D: [tisr]}, and no "
                "other field types"
            )
        elif only.vars_3D:
            yield "tisr has no levels: remove dynamic_forcing.vars_3D"
        specs = [self.lat_spec is not None, self.lon_spec is not None]
        if any(specs) != all(specs) or any(specs) == bool(self.latlon_grid_path):
            yield (
                "needs one grid: latlon_grid_path, or both lat_spec and lon_spec "
                "([first, last, number])"
            )
