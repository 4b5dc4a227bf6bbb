"""The sections of `data.source`: a class for each `dataset_type`."""

import os
import re
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import pandas as pd
from pydantic import Field, field_validator, model_validator
from pydantic_core import PydanticCustomError, ValidationError

from credit_jax.config.base import OTHER_KEY, StrictModel, not_available
from credit_jax.config.dates import Calendar, Dates, Timestep
from credit_jax.config.fields import VariablesConfig
from credit_jax.config.messages import got

# xarray's default engine, which is replaced by thread-safe ones.
NETCDF4 = "netcdf4"

Extent = tuple[float, float, float, float]

# The default of `SourceConfig.input`.
MAIN_INPUT = "x"


class SourceConfig(Dates):
    """Keys that the sections of all sources have.

    Attributes:
        dataset_type: type of the source, a key of `SOURCE_CONFIGS`.
        variables: variables to read.
        levels: values of the level coordinate to read; null reads all levels.
        level_coord: name of the level coordinate.
        time_coord: name of the time coordinate.
        engine: xarray's engine; null or "netcdf4", whose C library is not thread-safe,
            chooses it by the file's content.
        calendar: calendar of the times; null uses that of the files.
        temporal_mode: the time to read for the time t of a sample: "exact" reads t;
            "persist" the last time of this source at or before t; "cyclic" the time of
            the same date in `cycle_year`; "next" the first multiple of its `timestep`
            after the target.
        input: the input of the model that its variables are part of, for models with
            several; CREDIT has no such key.
        cycle_year: the year of a cyclic source; null uses that of the file.
        grid_type: "unstructured" has one dim instead of rows and columns.
        start_datetime, end_datetime, date_ranges, timestep: override those of the data
            section for this source.
        history_len, forecast_len: equal to those of the data section; a source of
            another input than x may have another history_len.
    """

    dataset_type: str
    variables: VariablesConfig
    levels: tuple[float, ...] | None = None
    level_coord: str | None = None
    time_coord: str = "time"
    engine: str | None = None
    calendar: Calendar | None = None
    temporal_mode: Literal["exact", "persist", "cyclic", "next"] = "exact"
    input: str = MAIN_INPUT
    cycle_year: int | None = None
    grid_type: Literal["rectilinear", "curvilinear", "unstructured"] | None = None
    timestep: Timestep | None = None
    history_len: int | None = Field(default=None, ge=1)
    forecast_len: int | None = Field(default=None, ge=0)

    def without_effect(self) -> dict[str, str]:
        """See `StrictModel.without_effect`."""
        if self.engine != NETCDF4:
            return {}
        return {"engine": "h5netcdf reads the same files, and is thread-safe"}

    @property
    def level_values(self) -> tuple[float, ...] | None:
        """The levels that are read; None if only the files define them."""
        return self.levels

    @property
    def file_templates(self) -> dict[str, str]:
        """Path templates of files that must exist before a run, by field type."""
        return {}

    @model_validator(mode="after")
    def _forces_alone(self) -> "SourceConfig":
        given = [kind for kind in self.variables.given if kind != "dynamic_forcing"]
        if self.input != MAIN_INPUT and given:
            raise ValueError(
                f"variables.{given[0]}: a source of input {self.input!r} is read at "
                "every step and never predicted; put its variables into dynamic_forcing"
            )
        return self

    @model_validator(mode="after")
    def _has_a_next_time(self) -> "SourceConfig":
        if self.temporal_mode != "next":
            return self
        day: Any = pd.Timedelta("1D")
        if self.timestep is None or day % pd.Timedelta(self.timestep):
            raise ValueError(
                f"temporal_mode: next needs a timestep of the source that divides a "
                f"day, such as 3h; got {self.timestep}"
            )
        if self.input == MAIN_INPUT:
            raise ValueError(
                "temporal_mode: next is for sources of another input of the model than "
                f"{MAIN_INPUT}; name it with the key input"
            )
        return self

    @model_validator(mode="after")
    def _one_cycle(self) -> "SourceConfig":
        if self.temporal_mode == "cyclic" and self.date_ranges is not None:
            raise ValueError(
                "temporal_mode: cyclic cannot be combined with date_ranges; "
                "start_datetime and end_datetime are those of its one year"
            )
        return self


class LocalConfig(SourceConfig):
    """NetCDF and Zarr files; `levels` selects the nearest levels of a file."""

    ignored: ClassVar = {"mode": "files are read where they are"}

    @property
    def file_templates(self) -> dict[str, str]:
        """See `SourceConfig.file_templates`."""
        return {k: str(f.path) for k, f in self.variables.given.items()}

    @model_validator(mode="after")
    def _has_paths(self) -> "LocalConfig":
        lost = [k for k, field in self.variables.given.items() if field.path is None]
        if lost:
            raise ValueError(f"variables.{lost[0]}.path: missing; it names the files")
        if self.variables.has_levels and self.levels and not self.level_coord:
            raise ValueError(
                "vars_3D with levels needs level_coord, the name of the level "
                "coordinate"
            )
        return self


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
        fields = self.variables.given
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

    @model_validator(mode="after")
    def _has_no_paths(self) -> "RemoteConfig":
        there = [k for k, field in self.variables.given.items() if field.path]
        if there:
            raise ValueError(
                f"variables.{there[0]}.path: {self.dataset_type} reads one store; "
                "name a copy of it with store, or take dataset_type: local"
            )
        return self


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
    def _known_levels(cls, value: str | None) -> str | None:
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


class DownloadedConfig(SourceConfig):
    """Files that CREDIT's downloaders have fetched.

    Attributes:
        mode: only "local", which reads folders. CREDIT's "remote" reads NOAA's buckets.
    """

    # Name of CREDIT's module that fetches such files.
    downloader: ClassVar[str] = ""

    mode: str = "local"

    @model_validator(mode="after")
    def _can_be_reached(self) -> "DownloadedConfig":
        if self.mode != "local":
            fetch = f" with credit.datasets.gen_2.{self.downloader}"
            raise ValueError(
                f"mode: {got(self.mode)} is not available for {self.dataset_type}; "
                f"fetch the files{fetch if self.downloader else ''} and set mode: local"
            )
        return self


class BucketConfig(SourceConfig):
    """Files of NOAA's buckets, read from the bucket or from a local copy.

    Attributes:
        mode: "local" reads `base_path`, "remote" the bucket.
        base_path: parent folder of the folders of the days.
        store: URL of the bucket or of a copy of it; CREDIT has no such key.
    """

    mode: Literal["local", "remote"] = "remote"
    base_path: str | None = None
    store: str = ""

    @property
    def folder(self) -> str:
        """Folder or URL that has the folders of the days."""
        if self.mode == "remote":
            return self.store.rstrip("/")
        return os.path.expanduser(str(self.base_path))

    @model_validator(mode="after")
    def _has_folder(self) -> "BucketConfig":
        if self.mode == "local" and self.base_path is None:
            raise ValueError(
                "base_path: missing; it is the folder of the days (mode: remote reads "
                "NOAA's bucket)"
            )
        return self


class FlatConfig(DownloadedConfig):
    """A source without levels."""

    @model_validator(mode="after")
    def _has_no_levels(self) -> "FlatConfig":
        if self.variables.has_levels:
            raise ValueError(f"{self.dataset_type} has no levels: remove vars_3D")
        lost = [k for k, field in self.variables.given.items() if field.path is None]
        if lost:
            raise ValueError(f"variables.{lost[0]}.path: missing; it names the files")
        return self


class MrmsConfig(FlatConfig):
    """Radar mosaics of MRMS, in NetCDF or Zarr files with `lat` and `lon`.

    Attributes:
        extent: west, east, south, north in degrees, with longitudes from -180 to 180 or
            from 0 to 360; null reads all.
    """

    downloader: ClassVar[str] = "mrms_download"

    extent: Extent | None = None

    ignored: ClassVar = {"region": "files on disk have one"}

    @property
    def file_templates(self) -> dict[str, str]:
        """See `SourceConfig.file_templates`."""
        return {k: str(f.path) for k, f in self.variables.given.items()}


class Corners(StrictModel):
    """The corners of an area, (latitude, longitude) each, degrees."""

    nw: tuple[float, float]
    se: tuple[float, float]


class GoesConfig(FlatConfig):
    """Images of GOES-R's imager, one NetCDF file per time, in NOAA's folder layout.

    Attributes:
        goes_position: position of the satellite.
        product: name of the product, which ends with C (contiguous USA) or F (full
            disk).
        latlon2d_dir: folder of the files with latitudes and longitudes.
        extent: west, east, south, north in degrees, or two corners; null reads all.
        file_catalog_path: JSON catalogs of checked files, to use instead of listing
            folders; may have wildcards.
        scan_tolerance: largest difference between the time of an image and the
            requested time.
    """

    goes_position: Literal["east", "west"] = "east"
    product: str = "ABI-L2-MCMIPC"
    latlon2d_dir: str = ""
    extent: Extent | Corners | None = None
    file_catalog_path: str | None = None
    scan_tolerance: Timestep = "3 minutes"

    @field_validator("product")
    @classmethod
    def _known_area(cls, value: str) -> str:
        if value[-1:] not in ("C", "F"):
            raise ValueError(
                f"must end with 'C' (contiguous USA) or 'F' (whole disk), got "
                f"{got(value)}"
            )
        return value


class GfsConfig(BucketConfig):
    """Analyses and forecasts of GFS and GDAS on the Gaussian grid, NetCDF.

    Attributes:
        system: "gdas" or "gfs"; `gfs_type` and `model` are aliases of this key.
        forecast_hour: lead time in hours; null reads the analysis.
        level_type: whether `levels` are indices, from 1 ("model"), or values of the
            level coordinate in hPa, of which the nearest are read ("pressure").
        check_availability: whether to leave out times whose files are missing.
    """

    store: str = "gs://global-forecast-system"
    system: Literal["gdas", "gfs"] | None = None
    gfs_type: Literal["gdas", "gfs"] | None = None
    model: Literal["gdas", "gfs"] | None = None
    forecast_hour: int | None = Field(default=None, ge=0, le=999)
    level_type: Literal["model", "pressure"] = "model"
    level_coord: str | None = "pfull"
    check_availability: bool = True

    @property
    def model_system(self) -> str:
        """The value of the first of `gfs_type`, `system`, `model` that is set."""
        return self.gfs_type or self.system or self.model or "gdas"


class GefsConfig(BucketConfig):
    """Initial states of a member of GEFS, on the cubed sphere.

    The points are one dim; a regrid block interpolates them to rows and columns.

    Attributes:
        members: a list of one member, such as [c00] or [p01]; null reads c00.
    """

    store: str = "gs://gfs-ensemble-forecast-system"
    members: tuple[str, ...] | None = None

    @property
    def member(self) -> str:
        """Name of the member."""
        return self.members[0] if self.members else "c00"

    @field_validator("members")
    @classmethod
    def _one_member(cls, value: tuple[str, ...] | None) -> Any:
        if value is None:
            return value
        wrong = [own for own in value if not re.fullmatch(r"c00|p\d{2}", own)]
        if len(value) != 1 or wrong:
            raise ValueError(
                f"must name one member, [c00] or [p01] to [p99], got {list(value)}; a "
                "sample is one state: name several sources, or take a run for each"
            )
        return value


class HrrrConfig(BucketConfig):
    """HRRR's GRIB files with their inventories (.idx).

    Attributes:
        product: "wrfprs" (pressure levels), "wrfnat" (hybrid levels), or "wrfsubh"
            (2-D variables every 15 minutes).
        forecast_hour: lead time in hours.
        extent: west, east, south, north in degrees; null reads the whole grid.
    """

    mode: Literal["local", "remote"] = "local"
    store: str = "s3://noaa-hrrr-bdp-pds"
    product: Literal["wrfprs", "wrfnat", "wrfsubh"] = "wrfprs"
    forecast_hour: int = Field(default=0, ge=0)
    extent: Extent | None = None

    ignored: ClassVar = {"num_decompress_workers": "the threads that read decode"}

    @model_validator(mode="after")
    def _can_be_read(self) -> "HrrrConfig":
        if self.product == "wrfsubh" and self.variables.has_levels:
            raise ValueError("wrfsubh has no levels: remove vars_3D")
        return self


# dataset_type -> class of its section.
SOURCE_CONFIGS: dict[str, type[SourceConfig]] = {
    "local": LocalConfig,
    "tisr": TisrConfig,
    "arco_era5": ArcoConfig,
    "weatherbench2_era5": WeatherBenchConfig,
    "mrms": MrmsConfig,
    "goes": GoesConfig,
    "gfs": GfsConfig,
    "gefs": GefsConfig,
    "hrrr": HrrrConfig,
    "hrrr_nat": HrrrConfig,
    "hrrr_subh": HrrrConfig,
}


def parse_source(value: Any) -> Any:
    """Validates a source section by the class of its `dataset_type`.

    Raises:
        ValidationError: the type is unknown, or the section has problems.
    """
    if not isinstance(value, Mapping):
        return value
    kind = value.get("dataset_type")
    if isinstance(kind, str) and kind in SOURCE_CONFIGS:
        return SOURCE_CONFIGS[kind].model_validate(value)
    if kind is None:
        return value
    text = str(not_available("dataset type", kind, SOURCE_CONFIGS))
    text += {
        "base": "; CREDIT's base reads nothing: its fields are constants for tests",
    }.get(
        str(kind),
        "; classes that CREDIT registers by custom_objects are torch datasets",
    )
    error = PydanticCustomError(OTHER_KEY, "{text}", {"text": text})
    raise ValidationError.from_exception_data(
        "SourceConfig",
        [{"type": error, "loc": ("dataset_type",), "input": kind}],
    )
