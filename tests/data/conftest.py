"""Fixtures: a shared small data set, and one that a test may damage."""

import shutil

import pytest


@pytest.fixture(scope="session")
def world(tmp_path_factory):
    """A folder with the data set as NetCDF and as Zarr; tests must not change it."""
    from tests.data.world import write_world

    folder = tmp_path_factory.mktemp("world")
    write_world(folder, kind="nc")
    write_world(folder, kind="zarr")
    return folder


@pytest.fixture
def folder(world, tmp_path):
    """A data set that a test may damage."""
    for path in world.glob("*.nc"):
        shutil.copy(path, tmp_path)
    return tmp_path
