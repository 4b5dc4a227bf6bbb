"""Opens forecasts of either layout."""

from __future__ import annotations

from pathlib import Path

from credit_jax.evaluation.forecast_files import ForecastFiles
from credit_jax.evaluation.netcdf_forecasts import open_netcdf, start_folders
from credit_jax.evaluation.zarr_forecasts import open_zarr
from credit_jax.io.open_files import OpenFiles

STORE = "forecast.zarr"
_ZARR = ("zarr.json", ".zgroup", ".zmetadata")


def open_forecasts(path: str, open_files: OpenFiles | None = None) -> ForecastFiles:
    """Opens forecasts without reading fields.

    Args:
        path: a Zarr store, a folder with `forecast.zarr`, or CREDIT's folder.
        open_files: files that are open already.

    Raises:
        FileNotFoundError: there is no such path.
        ValueError: it contains no forecasts, or parts of them are missing.
    """
    files = open_files or OpenFiles()
    place = Path(path)
    if (place / STORE).is_dir():
        return open_zarr(str(place / STORE), files)
    if place.is_dir():
        if folders := start_folders(place):
            return open_netcdf(place, folders, files)
        if not any((place / name).exists() for name in _ZARR):
            raise ValueError(
                f"--forecast: {path} holds no forecasts: neither {STORE} nor folders "
                "of start dates such as 20010601_0000Z, and it is no Zarr store"
            )
    return open_zarr(path, files)


def holds_forecasts(folder: Path) -> bool:
    """Whether a folder holds a store of forecasts, or CREDIT's folders."""
    if not folder.is_dir():
        return False
    return (folder / STORE).exists() or bool(start_folders(folder))
