"""The `local` source: NetCDF and Zarr files of a path template with dates.

Static variables that have a time dim are read at the first time.
"""

from credit_jax.config.data import DataConfig
from credit_jax.data.sources.file_source import FileSource, open_files_source
from credit_jax.data.sources.file_variable import FileConventions
from credit_jax.data.sources.files import Files, discover
from credit_jax.io.open_files import OpenFiles


def open_local(
    name: str, data: DataConfig, open_files: OpenFiles | None = None
) -> FileSource:
    """Finds the files of a source, and reads the metadata of the first ones.

    Args:
        name: name of the source.
        data: the data section that it is in.
        open_files: cache of open files, shared with other sources.

    Raises:
        FileNotFoundError: a field type has no file.
        ValueError: see `open_files_source`.

    Differs from CREDIT: a template without files is an error; CREDIT leaves out its
    variables. Levels that are far from all levels of the file, or select the same one
    twice, are errors, too.
    """
    config = data.source[name]
    files: dict[tuple[str, str], Files] = {}
    for kind, template in config.file_templates.items():
        file_set = discover(template, f"data.source.{name}.variables.{kind}.path")
        field = config.variables.by_type[kind]
        for variable in field.vars_3D + field.vars_2D:
            files[kind, variable] = file_set
    return open_files_source(name, config, files, FileConventions(), open_files)
