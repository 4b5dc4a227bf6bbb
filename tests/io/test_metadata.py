"""Files of strangers: one error from their metadata, nothing allocated, nothing run."""

import gzip
import io
import json
import os
import resource
import zipfile
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
from tests.messages.engine import Case, Cases

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


@CASES.case
def metadata_that_are_none(tmp_path):
    path = store(tmp_path, 2)
    (path / ".zmetadata").write_text("not JSON")
    return lambda: OpenFiles().dataset(path)


def long_coordinate(units, tmp_path):
    """Also a time axis, which xarray reads to decode it."""
    path = tmp_path / "long.nc"
    with h5py.File(path, "w") as file:
        file.create_dataset("level", (10**9,), "f8", chunks=(1000,))
        file["level"].make_scale("level")
        file["level"].attrs["units"] = units
        file.create_dataset("T", (10**9,), "f4", chunks=(1000,))
        file["T"].dims[0].attach_scale(file["level"])
    return lambda: print(OpenFiles().dataset(path))


CASES.rows(long_coordinate, "hPa", "days since 2000-01-01", name="a long axis in")


@CASES.case
def large_chunks_of_hdf5(tmp_path):
    """A chunk of zeros takes a few bytes on disk, and all of its values in memory."""
    path, chunks = tmp_path / "bomb.nc", (2**15, 2**14)
    with h5py.File(path, "w") as file:
        file.create_dataset("T", (10**5, 10**5), "f8", chunks=chunks, compression=9)
    return lambda: print(OpenFiles().dataset(path))


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


def test_hard_links_are_read(tmp_path):
    path = tmp_path / "links.nc"
    dataset().to_netcdf(path, engine="h5netcdf")
    with h5py.File(path, "a") as file:
        group = file.create_group("group")
        group["again"] = group
        file["root"] = file["/"]
    np.testing.assert_array_equal(OpenFiles().dataset(path)["T"], dataset()["T"])
    refuse_links(path)


def elsewhere(links, read, tmp_path):
    """A file with links to other files or back, or values in other files."""
    dataset().to_netcdf(tmp_path / "source.nc", engine="h5netcdf")
    path, source = tmp_path / "links.nc", str(tmp_path / "source.nc")
    refuse_links(source)
    dataset().to_netcdf(path, engine="h5netcdf")
    with h5py.File(path, "a" if links == "in a loop" else "w") as file:
        if links == "in a loop":
            file["a"], file["b"] = h5py.SoftLink("/b"), h5py.SoftLink("/a")
        elif links == "outside":
            file["x"] = h5py.ExternalLink("/etc/passwd", "/x")
        elif links == "virtual":
            layout = h5py.VirtualLayout((2, 3), "f4")
            layout[:] = h5py.VirtualSource(source, "T", (2, 3))
            file.create_virtual_dataset("T", layout)
        else:
            file.create_dataset("V", (2,), "f4", external=[("/etc/passwd", 0, 8)])
    return lambda: print(read(path))


LINKS = "in a loop", "outside", "virtual", "external"
for name in LINKS:
    CASES.add(Case(f"links {name}", elsewhere, (name, refuse_links)))
for name in LINKS[:2]:
    CASES.add(Case(f"links {name}, opened", elsewhere, (name, OpenFiles().dataset)))


@CASES.case
def a_pipe(tmp_path):
    os.mkfifo(tmp_path / "pipe.nc")
    OpenFiles().dataset(tmp_path / "pipe.nc")


def content(name, damage, tmp_path):
    """A file of other content than NetCDF."""
    dataset().to_netcdf(tmp_path / "a.nc", engine="h5netcdf")
    whole = (tmp_path / "a.nc").read_bytes()
    (tmp_path / "a.nc").unlink()
    (tmp_path / name).write_bytes(damage(whole))

    def read():
        with opened(tmp_path / name) as found:
            found.load()

    return read


def zipped(whole):
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("a.nc", whole)
    return archive.getvalue()


for name, damage in {
    "empty.nc": lambda whole: b"",
    "a.nc.gz": gzip.compress,
    "zip.nc": zipped,
    **{f"cut at {n}.nc": lambda whole, n=n: whole[:n] for n in (9, 600, -20)},
}.items():
    CASES.add(Case(name, content, (name, damage)))


def groups(write, tmp_path):
    write(tmp_path)
    (path,) = tmp_path.iterdir()
    return lambda: opened(path).__enter__()


OBS = {"group": "obs"}
for name, write in {
    "netCDF": lambda folder: dataset().to_netcdf(folder / "groups.nc", **OBS),
    "zarr": lambda folder: dataset().to_zarr(folder / "a.zarr", zarr_format=2, **OBS),
}.items():
    CASES.add(Case(f"groups of {name}", groups, (write,)))
