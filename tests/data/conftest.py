"""The small data set, written once."""

import pytest


@pytest.fixture(scope="session")
def world(tmp_path_factory):
    """A folder with the data set as NetCDF and as Zarr; not to be changed."""
    from tests.data.world import write_world

    folder = tmp_path_factory.mktemp("world")
    write_world(folder, kind="nc")
    write_world(folder, kind="zarr")
    return folder
