"""The sections of models whose files stand in NOAA's buckets: GFS, GEFS, HRRR."""

import os
import re
from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from credit_jax.config.sources.extent import Extent
from credit_jax.config.sources.source import SourceConfig


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
