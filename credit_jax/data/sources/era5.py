"""ERA5 in public Zarr stores: `arco_era5` and `weatherbench2_era5`.

Variables have the names of the stores. A store may also be a folder with a copy of it.
"""

from credit_jax.config.data import DataConfig
from credit_jax.config.sources.era5 import WB2_STORES, ArcoConfig, WeatherBenchConfig
from credit_jax.data.sources.file_source import FileSource, open_files_source
from credit_jax.data.sources.file_variable import FileConventions
from credit_jax.data.sources.files import FileSet
from credit_jax.io.open_files import OpenFiles


def open_arco(
    name: str, data: DataConfig, open_files: OpenFiles | None = None
) -> FileSource:
    """Opens ERA5 of the ARCO stores, with 3-D variables on pressure or model levels.

    2-D variables are in the store of pressure levels. A static variable that has a time
    dim is read at the time of the other variables.

    Args:
        name: name of the source.
        data: the data section that it is in.
        open_files: cache of open files, shared with other sources.

    Raises:
        ValueError: a store cannot be read; see `open_files_source`.
    """
    config = data.source[name]
    assert isinstance(config, ArcoConfig)
    flat = FileSet(config.store, (config.store,))
    deep = flat
    if config.level_coord == "hybrid":
        deep = FileSet(config.model_level_store, (config.model_level_store,))
    files = {}
    for kind, field in config.variables.by_type.items():
        files |= {(kind, variable): deep for variable in field.vars_3D}
        files |= {(kind, variable): flat for variable in field.vars_2D}
    conventions = FileConventions(levels="exact", static_time="same")
    return open_files_source(name, config, files, conventions, open_files)


def open_weatherbench(
    name: str, data: DataConfig, open_files: OpenFiles | None = None
) -> FileSource:
    """Opens ERA5 of WeatherBench 2, whose stores are (longitude, latitude).

    Args:
        name: name of the source.
        data: the data section that it is in.
        open_files: cache of open files, shared with other sources.

    Raises:
        ValueError: the store cannot be read; see `open_files_source`.
    """
    config = data.source[name]
    assert isinstance(config, WeatherBenchConfig)
    place = config.store or WB2_STORES[config.resolution]
    store = FileSet(place, (place,))
    files = {
        (kind, variable): store
        for kind, field in config.variables.by_type.items()
        for variable in field.vars_3D + field.vars_2D
    }
    conventions = FileConventions(levels="exact", static_time="same", transposed=True)
    return open_files_source(name, config, files, conventions, open_files)
