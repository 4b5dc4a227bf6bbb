"""The `gfs` source: analyses and forecasts of GFS and GDAS, two files per time."""

import os

from credit_jax.config.data import DataConfig
from credit_jax.data.clock import probe_times
from credit_jax.data.sources.file_source import FileSource, open_files_source
from credit_jax.data.sources.file_variable import FileConventions
from credit_jax.data.sources.files import TimedFiles
from credit_jax.data.sources.registry import SourceEntry
from credit_jax.extensions.noaa.sections import GfsConfig
from credit_jax.io.open_files import OpenFiles

# 2-D variables in the file of the atmosphere; all others are in that of the surface.
_ATMOSPHERE = ("hgtsfc", "pressfc")


def open_gfs(
    name: str, data: DataConfig, open_files: OpenFiles | None = None
) -> FileSource:
    """Opens files of NOAA, or those of CREDIT's gfs_download, in NOAA's folders."""
    config = data.source[name]
    assert isinstance(config, GfsConfig)
    system = config.gfs_type or config.system or config.model or "gdas"
    hour = config.forecast_hour
    suffix = "anl" if hour is None else f"f{hour:03d}"
    base = config.folder.replace("%", "%%")
    folder = os.path.join(base, f"{system}.%Y%m%d", "%H", "atmos")
    probe = probe_times(data, config)
    atmosphere, surface = (
        TimedFiles(
            os.path.join(folder, f"{system}.t%Hz.{part}{suffix}.nc"),
            probe,
            # Differs from CREDIT: files of all times of a sample, the target's too.
            config.check_availability,
        )
        for part in ("atm", "sfc")
    )

    def files_of(_: str, dims: str, variable: str) -> TimedFiles:
        return atmosphere if dims == "3d" or variable in _ATMOSPHERE else surface

    levels = "position" if config.level_type == "model" else "nearest"
    conventions = FileConventions(levels=levels, static_time="same", one_time=True)
    return open_files_source(name, config, files_of, conventions, open_files)


GFS = SourceEntry(GfsConfig, open_gfs)
