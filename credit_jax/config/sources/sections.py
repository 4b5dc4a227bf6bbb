"""The sections of the sources of files, of ERA5 in clouds, and of solar radiation."""

from collections.abc import Iterator
from itertools import product
from typing import ClassVar, Literal

from pydantic import Field, field_validator

from credit_jax.config.base import not_available
from credit_jax.config.messages import got
from credit_jax.config.sources.source import SourceConfig, VariablesConfig

_PRESSURE_13 = (50, 100, 150, 200, 250, 300, 400, 500, 600, 700, 850, 925, 1000)
_PRESSURE_37 = (1, 2, 3, 5, 7, 10, 20, 30, 50, 70, *range(100, 275, 25), 300)
_PRESSURE_37 += (350, 400, 450, 500, 550, 600, 650, 700, *range(750, 1025, 25))
_ARCO = "gs://gcp-public-data-arco-era5/ar"
_SINGLE = "single-level-reanalysis.zarr-v2"
# Store of ARCO's native ERA5 -> variable -> its name there. Those of the first and of
# the last store are coefficients of spherical harmonics.
NATIVE_STORES = {
    "model-level-wind.zarr-v2": {
        "temperature": "t",
        "vorticity": "vo",
        "divergence": "d",
        "vertical_velocity": "w",
    },
    "model-level-moisture.zarr-v2": {
        "specific_humidity": "q",
        "ozone_mass_mixing_ratio": "o3",
        "specific_cloud_liquid_water_content": "clwc",
        "specific_cloud_ice_water_content": "ciwc",
        "fraction_of_cloud_cover": "cc",
        "specific_rain_water_content": "crwc",
        "specific_snow_water_content": "cswc",
    },
    _SINGLE: {
        "2m_temperature": "t2m",
        "2m_dewpoint_temperature": "d2m",
        "surface_pressure": "sp",
        "mean_sea_level_pressure": "msl",
        "sea_surface_temperature": "sst",
        "skin_temperature": "skt",
        "sea_ice_cover": "siconc",
        "geopotential_at_surface": "z",
        "temperature_of_snow_layer": "tsn",
        "total_cloud_cover": "tcc",
        "low_cloud_cover": "lcc",
        "medium_cloud_cover": "mcc",
        "high_cloud_cover": "hcc",
        "total_column_water": "tcw",
        "total_column_water_vapour": "tcwv",
        "total_column_cloud_ice_water": "tciw",
        "total_column_cloud_liquid_water": "tclw",
        "total_column_rain_water": "tcrw",
        "total_column_snow_water": "tcsw",
        "convective_available_potential_energy": "cape",
    },
    "single-level-surface.zarr-v2": {"log_surface_pressure": "lnsp"},
}
for _i in range(1, 5):
    NATIVE_STORES[_SINGLE] |= {
        f"soil_temperature_level_{_i}": f"stl{_i}",
        f"volumetric_soil_water_layer_{_i}": f"swvl{_i}",
        f"ice_temperature_layer_{_i}": f"istl{_i}",
    }
for _h, _c in product((10, 100), "uv"):
    NATIVE_STORES[_SINGLE][f"{_h}m_{_c}_component_of_wind"] = f"{_c}{_h}"
NATIVE_NAMES = {k: v for names in NATIVE_STORES.values() for k, v in names.items()}
# What winds on model levels are made of: the preblock `spectral_to_grid` makes them.
_NATIVE_WINDS = {
    "u_component_of_wind": "vorticity",
    "v_component_of_wind": "divergence",
}
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

    level_coord: Literal["level", "hybrid"]  # type: ignore[override]
    store: str = f"{_ARCO}/full_37-1h-0p25deg-chunk-1.zarr-v3"
    model_level_store: str = f"{_ARCO}/model-level-1h-0p25deg.zarr-v1"

    @property
    def level_values(self) -> tuple[float, ...] | None:
        """`levels`, or all levels of the store."""
        if self.levels is not None:
            return self.levels
        if self.level_coord == "hybrid":
            return tuple(range(1, 138))
        return (1, 2, 3, 5, 7, 10, 20, 30, 50, 70, *range(100, 1025, 25))


class NativeArcoConfig(RemoteConfig):
    """ERA5 as IFS has it, hourly on model levels, in Google's ARCO stores.

    Variables have the names of `arco_era5`, or those of GRIB. The winds on levels are
    read as vorticity and divergence.

    Attributes:
        level_coord: "hybrid", the model levels.
        store: URL or folder of the four stores. CREDIT has no such key.
    """

    level_coord: str | None = "hybrid"
    grid_type: Literal["rectilinear", "curvilinear", "unstructured"] | None = (
        "unstructured"
    )
    store: str = f"{_ARCO[:-2]}co"

    @field_validator("level_coord")
    @classmethod
    def _has_levels(cls, value: str | None) -> str | None:
        if value != "hybrid":
            raise ValueError(
                f"must be 'hybrid', got {got(value)}; arco_era5 has pressure levels"
            )
        return value

    @field_validator("variables")
    @classmethod
    def _long_names(cls, value: VariablesConfig) -> VariablesConfig:
        names = {short: name for name, short in NATIVE_NAMES.items()}
        names |= _NATIVE_WINDS
        fields = {}
        for kind, field in value.by_type.items():
            missing = {*_NATIVE_WINDS} - {*field.vars_3D}
            if len(missing) == 1:
                raise ValueError(
                    f"{kind}.vars_3D: {min(missing)} is missing; both winds are made "
                    "of vorticity and divergence, so name both or none"
                )
            changed = {}
            for dims in ("vars_3D", "vars_2D"):
                listed = [names.get(n, n) for n in getattr(field, dims)]
                if unknown := [n for n in listed if n not in NATIVE_NAMES]:
                    what = f"{kind}.{dims}: variable"
                    known = [*NATIVE_NAMES, *_NATIVE_WINDS]
                    raise not_available(what, unknown[0], known)
                changed[dims] = tuple(dict.fromkeys(listed))
            fields[kind] = field.model_copy(update=changed)
        return value.model_copy(update=fields)

    @property
    def level_values(self) -> tuple[float, ...] | None:
        """`levels`, or all model levels."""
        return self.levels or tuple(range(1, 138))


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
        "integration_chunk_size": "it bounds CREDIT's memory, and changes no value",
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
