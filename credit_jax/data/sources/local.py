"""The `local` source: NetCDF and Zarr files that a template with dates names.

A time dim of a static file is dropped by taking its first entry.
"""

from credit_jax.config.data import DataConfig
from credit_jax.data.sources.file_source import FileSource, Layout, open_files_source
from credit_jax.data.sources.files import Files, discover
from credit_jax.io.open_files import OpenFiles


def open_local(
    name: str, data: DataConfig, open_files: OpenFiles | None = None
) -> FileSource:
    """Find the files of a source and read the metadata of the first of each kind.

    Args:
        name: of the source.
        data: the data section that it is in.
        open_files: files that are open already, shared with other sources.

    Raises:
        FileNotFoundError: if a field type has no file.
        ValueError: see `open_files_source`.

    Differs from CREDIT: a template without files is an error; CREDIT leaves out its
    variables. Levels that no level of the file is near to, or that select one twice,
    are errors, too.
    """
    config = data.source[name]
    files: dict[tuple[str, str], Files] = {}
    for kind, template in config.file_templates.items():
        found = discover(template, f"data.source.{name}.variables.{kind}.path")
        field = config.variables.given[kind]
        for variable in field.vars_3D + field.vars_2D:
            files[kind, variable] = found
    return open_files_source(name, config, files, Layout(), open_files)
