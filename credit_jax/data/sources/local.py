"""Files by path template, and ERA5 in public Zarr stores.

`local` reads NetCDF and Zarr files of a path template with dates; static variables that
have a time dim are read at the first time. Variables of `arco_era5` and
`weatherbench2_era5` have the names of the stores, those of `arco_era5_co` the names of
`arco_era5`; a store may also be a folder with a copy of it.
"""

import dataclasses

from credit_jax.config.data import DataConfig
from credit_jax.config.sources import sections
from credit_jax.data.sources.file_source import FileSource, open_files_source
from credit_jax.data.sources.file_variable import FileConventions
from credit_jax.data.sources.files import FileSet, discover
from credit_jax.io.open_files import OpenFiles

_LOCAL = FileConventions()
_ERA5 = FileConventions(levels="exact", static_time="same")
_NATIVE = dataclasses.replace(_ERA5, names=sections.NATIVE_NAMES)


def open_local(
    name: str,
    data: DataConfig,
    open_files: OpenFiles | None = None,
    conventions: FileConventions = _LOCAL,
) -> FileSource:
    """Finds the files of a source, and reads the metadata of the first ones."""
    config = data.source[name]
    # Differs from CREDIT: a template without files is an error; CREDIT leaves out its
    # variables. Levels that are far from all levels of the file, or select the same one
    # twice, are errors, too.
    sets = {
        kind: discover(template, f"data.source.{name}.variables.{kind}.path")
        for kind, template in config.file_templates.items()
    }
    return open_files_source(
        name, config, lambda kind, *_: sets[kind], conventions, open_files
    )


def open_arco(
    name: str, data: DataConfig, open_files: OpenFiles | None = None
) -> FileSource:
    """Opens ERA5 of the ARCO stores, with 3-D variables on pressure or model levels."""
    config = data.source[name]
    assert isinstance(config, sections.ArcoConfig)
    # 2-D variables are in the store of pressure levels. A static variable that has a
    # time dim is read at the time of the other variables.
    flat = FileSet(config.store, (config.store,))
    deep = flat
    if config.level_coord == "hybrid":
        deep = FileSet(config.model_level_store, (config.model_level_store,))
    sets = {"3d": deep, "2d": flat}
    return open_files_source(
        name, config, lambda _, dims, *__: sets[dims], _ERA5, open_files
    )


def open_native_arco(
    name: str, data: DataConfig, open_files: OpenFiles | None = None
) -> FileSource:
    """Opens ERA5 of the ARCO stores of coefficients and of reduced Gaussian points."""
    config = data.source[name]
    assert isinstance(config, sections.NativeArcoConfig)
    stores = {
        variable: FileSet(path := f"{config.store}/{store}", (path,))
        for store, names in sections.NATIVE_STORES.items()
        for variable in names
    }
    return open_files_source(
        name, config, lambda _, __, variable: stores[variable], _NATIVE, open_files
    )


def open_weatherbench(
    name: str, data: DataConfig, open_files: OpenFiles | None = None
) -> FileSource:
    """Opens ERA5 of WeatherBench 2, whose stores are (longitude, latitude)."""
    config = data.source[name]
    assert isinstance(config, sections.WeatherBenchConfig)
    index = config.store or sections.WB2_STORES[config.resolution]
    store = FileSet(index, (index,))
    return open_files_source(name, config, lambda *_: store, _ERA5, open_files)
