"""The sections of sources in NOAA's buckets: GFS, GEFS, HRRR, MRMS, GOES."""

import os
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from credit_jax.config import StrictModel
from credit_jax.config.dates import Timestep
from credit_jax.config.messages import got
from credit_jax.config.sources.source import SourceConfig

# West, east, south, north.
Extent = tuple[float, float, float, float]

# CREDIT's names of variables -> name and level (None if 3-D) in the inventory.
_IN_INVENTORY: Mapping[str, tuple[str, str | None]] = MappingProxyType(
    {
        "T": ("TMP", None),
        "U": ("UGRD", None),
        "V": ("VGRD", None),
        "W": ("VVEL", None),
        "GH": ("HGT", None),
        "ABSV": ("ABSV", None),
        "P": ("PRES", None),
        "Q": ("SPFH", None),
        "RH": ("RH", None),
        "DPT": ("DPT", None),
        "CLWMR": ("CLWMR", None),
        "ICMR": ("ICMR", None),
        "RWMR": ("RWMR", None),
        "SNMR": ("SNMR", None),
        "GRLE": ("GRLE", None),
        "t2m": ("TMP", "2 m above ground"),
        "d2m": ("DPT", "2 m above ground"),
        "rh2m": ("RH", "2 m above ground"),
        "u10m": ("UGRD", "10 m above ground"),
        "v10m": ("VGRD", "10 m above ground"),
        "u80m": ("UGRD", "80 m above ground"),
        "v80m": ("VGRD", "80 m above ground"),
        "sp": ("PRES", "surface"),
        "mslp": ("MSLMA", "mean sea level"),
        "orog": ("HGT", "surface"),
        "gust": ("GUST", "surface"),
        "fricv": ("FRICV", "surface"),
        "prate": ("PRATE", "surface"),
        "tp": ("APCP", "surface"),
        "refc": ("REFC", "entire atmosphere"),
        "cape": ("CAPE", "surface"),
        "cin": ("CIN", "surface"),
        "hpbl": ("HPBL", "surface"),
        "vis": ("VIS", "surface"),
        "dswrf": ("DSWRF", "surface"),
        "uswrf": ("USWRF", "surface"),
        "dlwrf": ("DLWRF", "surface"),
        "ulwrf": ("ULWRF", "surface"),
        "shtfl": ("SHTFL", "surface"),
        "lhtfl": ("LHTFL", "surface"),
        "snowd": ("SNOD", "surface"),
        "weasd": ("WEASD", "surface"),
        "snowc": ("SNOWC", "surface"),
        "landmask": ("LAND", "surface"),
        "goes11bt3": ("SBT113", "top of atmosphere"),
        "goes11bt4": ("SBT114", "top of atmosphere"),
        "goes12bt3": ("SBT123", "top of atmosphere"),
        "goes12bt4": ("SBT124", "top of atmosphere"),
    }
)


class Corners(StrictModel):
    """The corners of an area, (latitude, longitude) each, degrees."""

    nw: tuple[float, float]
    se: tuple[float, float]


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
        wrong = [member for member in value if not re.fullmatch(r"c00|p\d{2}", member)]
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
        in_inventory: CREDIT's names of variables -> name and level in the inventory;
            None for the level of a 3-D variable.
    """

    in_inventory: ClassVar[Mapping[str, tuple[str, str | None]]] = _IN_INVENTORY

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
            folder = "base_path" if "base_path" in type(self).model_fields else "path"
            raise ValueError(
                f"mode: {got(self.mode)} is not available for {self.dataset_type}; "
                f"fetch the files{fetch if self.downloader else ''}, set mode: local, "
                f"and name their folder in {folder}"
            )
        return self


class FlatConfig(DownloadedConfig):
    """A source without levels."""

    @model_validator(mode="after")
    def _has_no_levels(self) -> "FlatConfig":
        if self.variables.has_levels:
            raise ValueError(f"{self.dataset_type} has no levels: remove vars_3D")
        without_path = [
            k for k, field in self.variables.by_type.items() if field.path is None
        ]
        if without_path:
            raise ValueError(
                f"variables.{without_path[0]}.path: missing; it names the files"
            )
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
        return {k: str(f.path) for k, f in self.variables.by_type.items()}


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
