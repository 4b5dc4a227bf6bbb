"""The sections of observations that CREDIT's downloaders fetch: MRMS, GOES."""

from typing import ClassVar, Literal

from pydantic import field_validator, model_validator

from credit_jax.config.dates import Timestep
from credit_jax.config.messages import got
from credit_jax.config.sources.extent import Corners, Extent
from credit_jax.config.sources.source import SourceConfig


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
