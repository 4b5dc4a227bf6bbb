"""Files of strangers: one error from their metadata, nothing allocated, nothing run."""

import json
import os
import resource
from pathlib import Path

import h5py
import numpy as np
import pytest
import xarray as xr
import zarr

from credit_jax.io import open_files
from credit_jax.io.metadata import refuse_links
from credit_jax.io.open_files import OpenFiles, open_dataset, opened
from tests.messages.engine import *  # noqa: F403
from tests.messages.engine import Cases

CASES = Cases("metadata")

SPARE = 2**32  # bytes of address space beyond what is in use


@pytest.fixture(autouse=True)
def bounded():
    """Limits the address space: what is allocated by metadata alone is an error."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf(
        "SC_PAGE_SIZE"
    )
    resource.setrlimit(resource.RLIMIT_AS, (used + SPARE, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


def dataset():
    return xr.Dataset(
        {"T": (("time", "level"), np.arange(6, dtype=np.float32).reshape(2, 3))},
        coords={"time": [0, 1], "level": [100, 200, 300]},
    )


def store(folder, version):
    path = folder / "store.zarr"
    dataset().to_zarr(path, zarr_format=version, consolidated=version == 2)
    return path


def change(path, **values):
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | values))


def change_v2(path, **values):
    """Changes an array in its own file and in the consolidated one."""
    change(path / "T/.zarray", **values)
    content = json.loads((path / ".zmetadata").read_text())
    content["metadata"]["T/.zarray"].update(values)
    (path / ".zmetadata").write_text(json.dumps(content))


def metadata(version, values, tmp_path):
    """Opens a store with other metadata of an array."""
    path = store(tmp_path, version)
    if version == 2:
        change_v2(path, **values)
    else:
        change(path / "T/zarr.json", **values)
    return lambda: print(OpenFiles().dataset(path))


GRID = {"name": "regular", "configuration": {"chunk_shape": [10**6, 10**6]}}
INNER = [{"name": "bytes"}, {"name": "numcodecs.pickle"}]
SHARDS = {"chunk_shape": [1, 1], "codecs": INNER, "index_codecs": [{"name": "bytes"}]}


CASES.rows(
    metadata,
    (2, {"chunks": [10**6, 8 * 32 * 64 * 100]}),
    (2, {"filters": [{"id": "pickle"}]}),
    (2, {"compressor": {"id": "mine"}}),
    (2, {"shape": None}),
    (2, {"dtype": "<q99"}),
    (3, {"chunk_grid": GRID}),
    (3, {"storage_transformers": [{"name": "x"}]}),
    (3, {"codecs": [{"name": "sharding_indexed", "configuration": SHARDS}]}),
)


def test_metadata_that_are_none(tmp_path):
    path = store(tmp_path, 2)
    (path / ".zmetadata").write_text("not JSON")
    with pytest.raises(ValueError, match="cannot be opened as NetCDF or Zarr"):
        OpenFiles().dataset(path)


@pytest.mark.parametrize("version", [2, 3])
def test_stores_of_usual_codecs_are_read(version, tmp_path):
    """Those that xarray and zarr write by default, and shards."""
    path = store(tmp_path, version)
    if version == 3:
        group = zarr.open_group(path, mode="a")
        group.create_array(
            "V",
            shape=(4, 4),
            chunks=(2, 2),
            shards=(4, 4),
            dtype="float32",
            dimension_names=["y", "x"],
        )
    found = OpenFiles().dataset(path)
    np.testing.assert_array_equal(found["T"], dataset()["T"])
    assert found.sel(level=200)["T"].values.tolist() == [1, 4]


@pytest.mark.parametrize("units", ["hPa", "days since 2000-01-01"])
def test_long_coordinates(tmp_path, units):
    """Also a time axis, which xarray reads to decode it."""
    path = tmp_path / "long.nc"
    with h5py.File(path, "w") as file:
        file.create_dataset("level", (10**9,), "f8", chunks=(1000,))
        file["level"].make_scale("level")
        file["level"].attrs["units"] = units
        file.create_dataset("T", (10**9,), "f4", chunks=(1000,))
        file["T"].dims[0].attach_scale(file["level"])
    with pytest.raises(ValueError, match="'level' has 1000000000 values"):
        OpenFiles().dataset(path)


def test_large_chunks_of_hdf5(tmp_path):
    """A chunk of zeros takes a few bytes on disk, and all of its values in memory."""
    path = tmp_path / "bomb.nc"
    with h5py.File(path, "w") as file:
        shape = (10**5, 10**5)
        file.create_dataset("T", shape, "f8", chunks=(2**15, 2**14), compression=9)
    text = "'T' has chunks of 32768x16384 values, 4294967296 bytes"
    with pytest.raises(ValueError, match=text):
        OpenFiles().dataset(path)


@pytest.mark.parametrize("version", [2, 3])
def test_metadata_of_stores_elsewhere(version, monkeypatch):
    """Those that are read by URL are judged as they arrive, not as files."""
    place = zarr.storage.MemoryStore()
    dataset().to_zarr(place, zarr_format=version, consolidated=False)
    url = "https://example.org/store.zarr"
    monkeypatch.setattr(open_files, "_remote", lambda url, engine: place)
    with open_dataset(url) as found:
        np.testing.assert_array_equal(found["T"], dataset()["T"])
    key = "T/.zarray" if version == 2 else "T/zarr.json"
    content = json.loads(place._store_dict[key].to_bytes())
    if version == 2:
        content |= {"filters": [{"id": "pickle"}]}
    else:
        content["codecs"] = [{"name": "pickle"}]
    text = json.dumps(content).encode()
    place._store_dict[key] = zarr.core.buffer.cpu.Buffer.from_bytes(text)
    with pytest.raises(ValueError, match=r"example\.org/store\.zarr: .*pickle'"):
        open_dataset(url)


def soft_loop(file):
    file["a"], file["b"] = h5py.SoftLink("/b"), h5py.SoftLink("/a")


def hard_loop(file):
    group = file.create_group("group")
    group["again"] = group
    file["root"] = file["/"]


def outside(file):
    file["x"] = h5py.ExternalLink("/etc/passwd", "/x")


@pytest.mark.parametrize("links", [soft_loop, hard_loop, outside])
def test_loops_of_links(links, tmp_path):
    path = tmp_path / "links.nc"
    dataset().to_netcdf(path, engine="h5netcdf")
    with h5py.File(path, "a") as file:
        links(file)
    if links is hard_loop:
        np.testing.assert_array_equal(OpenFiles().dataset(path)["T"], dataset()["T"])
        refuse_links(path)
        return
    with pytest.raises(ValueError, match=r"links\.nc: .*is it complete"):
        OpenFiles().dataset(path)
    with pytest.raises(ValueError, match="is a link to"):
        refuse_links(path)


def test_values_in_other_files(tmp_path):
    path = tmp_path / "virtual.nc"
    dataset().to_netcdf(tmp_path / "source.nc", engine="h5netcdf")
    refuse_links(tmp_path / "source.nc")
    layout = h5py.VirtualLayout((2, 3), "f4")
    layout[:] = h5py.VirtualSource(str(tmp_path / "source.nc"), "T", (2, 3))
    with h5py.File(path, "w") as file:
        file.create_virtual_dataset("T", layout)
    with pytest.raises(ValueError, match="values of /T are in other files"):
        refuse_links(path)
    with h5py.File(path, "w") as file:
        file.create_dataset("T", (2,), "f4", external=[("/etc/passwd", 0, 8)])
    with pytest.raises(ValueError, match="values of /T are in other files"):
        refuse_links(path)


def test_what_is_no_file(tmp_path):
    os.mkfifo(tmp_path / "pipe.nc")
    with pytest.raises(ValueError, match=r"pipe\.nc: is a pipe"):
        OpenFiles().dataset(tmp_path / "pipe.nc")
    (tmp_path / "empty.nc").touch()
    with pytest.raises(ValueError, match=r"empty\.nc: is empty \(0 bytes\)"):
        OpenFiles().dataset(tmp_path / "empty.nc")
    whole = tmp_path / "whole.nc"
    dataset().to_netcdf(whole, engine="h5netcdf")
    for size in (9, 600, whole.stat().st_size - 20):
        cut = tmp_path / "cut.nc"
        cut.write_bytes(whole.read_bytes()[:size])
        with (
            pytest.raises(ValueError, match=r"cut\.nc: .*is it complete"),
            opened(cut) as found,
        ):
            found.load()
