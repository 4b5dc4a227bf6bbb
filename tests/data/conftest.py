"""The small data set: written once, and one for each test to damage."""

import pytest


@pytest.fixture(scope="session")
def world(tmp_path_factory):
    """A folder with the data set as NetCDF and as Zarr; not to be changed."""
    from tests.data.world import write_world

    folder = tmp_path_factory.mktemp("world")
    write_world(folder, kind="nc")
    write_world(folder, kind="zarr")
    return folder


@pytest.fixture
def folder(tmp_path):
    """A data set that a test may damage."""
    from tests.data.world import write_world

    write_world(tmp_path)
    return tmp_path
