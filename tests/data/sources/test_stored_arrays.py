"""Every layout, dtype, codec and index reads as xarray reads it, to any destination."""

import itertools
import os
import threading
from dataclasses import dataclass, field
from typing import Any

import h5py
import numcodecs
import numpy as np
import pytest
import xarray as xr
import zarr

from credit_jax.data.sources import stored_arrays
from credit_jax.data.sources.reader import UNREADABLE
from credit_jax.data.sources.stored_files import open_hdf5_array, open_zarr_array
from credit_jax.io.open_files import OpenFiles
from tests.data.damaged import zstd_without_size

DIMS, SHAPE, CHUNKS = ("time", "level", "y", "x"), (5, 3, 6, 10), (2, 3, 4, 10)
INDICES = {
    "all": (slice(None),) * 4,
    "a time": (slice(3, 4), slice(None), slice(None), slice(None)),
    "rows of levels": (slice(1, 2), [2, 0], slice(1, 5), slice(None)),
    "backward": (slice(4, None, -1), [1, 1], slice(5, 0, -2), slice(None, None, -1)),
    "lists": ([0, 3, 4], [0, 2], [5, 1, 3], [9, 0, 4]),
    "columns": (slice(0, 2), slice(1, 3), slice(None), slice(7, 9)),
    "nothing": (slice(2, 2), slice(None), slice(None), slice(None)),
}
PACKED = {"scale_factor": 0.01, "add_offset": 3.0, "_FillValue": -9999}


@dataclass(frozen=True)
class Layout:
    """How a variable is stored; `direct` says whether it is read without xarray."""

    kind: str
    dtype: str = "f4"
    options: dict[str, Any] = field(default_factory=dict)
    attributes: dict[str, Any] = field(default_factory=dict)
    direct: bool = True


def v2(codec=None, **others):
    options = {"compressors": codec, **others.pop("options", {})}
    return Layout("v2", options=options, **others)


def v3(codec=None, dtype="f4", **options):
    return Layout("v3", dtype, {"compressors": codec, **options})


def nc(dtype="f4", attributes=None, direct=True, **options):
    return Layout("nc", dtype, options, attributes or {}, direct)


WHOLE = {"chunks": SHAPE}
FOLDERS = {"chunk_key_encoding": {"name": "v2", "separator": "/"}}
SHARDS = {"shards": (4, 3, 8, 10)}
FIRST = {"shards": {"shape": (4, 3, 8, 10), "index_location": "start"}}
SINGLE = {"scale_factor": np.float32(0.01), "add_offset": np.float32(3)}
LAYOUTS = {
    "v2": v2(),
    "v2 f8": v2(dtype="f8"),
    "v2 big": v2(dtype=">f4"),
    "v2 i2": v2(dtype="i2"),
    "v2 packed": v2(dtype="i2", attributes=PACKED),
    "v2 packed, zstd": v2(numcodecs.Zstd(), dtype="i2", attributes=PACKED),
    "v2 marked": v2(dtype="f4", options={"fill_value": 7.0}),
    "v2 in one chunk": v2(options=WHOLE),
    "v2 in folders": v2(
        options={"chunk_key_encoding": {"name": "v2", "separator": "/"}}
    ),
    "v2 F": v2(options={"order": "F"}, direct=False),
    "v2 delta": v2(options={"filters": [numcodecs.Delta("f4")]}, direct=False),
    "v2 blosc": v2(numcodecs.Blosc()),
    "v2 blosc in one chunk": v2(numcodecs.Blosc("zstd"), options=WHOLE),
    "v2 zstd": v2(numcodecs.Zstd()),
    "v2 lz4": v2(numcodecs.LZ4()),
    "v2 zlib": v2(numcodecs.Zlib()),
    "v2 gzip f8": v2(numcodecs.GZip(), dtype="f8"),
    "v2 bz2": v2(numcodecs.BZ2(), direct=False),
    "v3": v3(),
    "v3 u1": v3(dtype="u1"),
    "v3 big": Layout(
        "v3", options={"serializer": zarr.codecs.BytesCodec(endian="big")}
    ),
    "v3 blosc": v3(zarr.codecs.BloscCodec()),
    "v3 zstd": v3(zarr.codecs.ZstdCodec()),
    "v3 gzip": v3(zarr.codecs.GzipCodec()),
    "v3 shards": v3(**SHARDS),
    "v3 shards, zstd": v3(zarr.codecs.ZstdCodec(), **SHARDS),
    "v3 shards, index first": v3(zarr.codecs.BloscCodec(), **FIRST),
    "v3 packed shards": Layout("v3", "i2", SHARDS, SINGLE),
    "nc in one piece": nc(chunks=None),
    "nc in one piece f8": nc("f8", chunks=None),
    "nc": nc(),
    "nc big": nc(">f4"),
    "nc deflated": nc(compression=4),
    "nc shuffled": nc(shuffle=True),
    "nc shuffled, deflated": nc(compression=1, shuffle=True),
    "nc packed": nc("i2", PACKED, compression=1, shuffle=True),
    "nc packed singly": nc("i2", SINGLE),
    "nc lzf": nc(compression="lzf", direct=False),
    "nc fletcher32": nc(fletcher32=True, direct=False),
}


def stored(folder, layout, values=None):
    """Writes a variable; returns its path and xarray's variable."""
    rng = np.random.default_rng(0)
    if values is None:
        values = rng.integers(0, 200, SHAPE).astype(layout.dtype)
        values[2, 0, 1, 3] = -9999 if values.dtype.kind in "fi" else 0
    options = {"chunks": CHUNKS, **layout.options}
    path = str(folder / f"store.{'nc' if layout.kind == 'nc' else 'zarr'}")
    if layout.kind == "nc":
        coordinates = {dim: np.arange(n) for dim, n in zip(DIMS, SHAPE, strict=True)}
        xr.Dataset(coords=coordinates).to_netcdf(path, engine="h5netcdf")
        with h5py.File(path, "a") as file:
            made = file.create_dataset("T", data=values, **options)
            for place, dim in enumerate(DIMS):
                made.dims[place].attach_scale(file[dim])
            for name, value in layout.attributes.items():
                made.attrs[name] = made.dtype.type(value) if name[0] == "_" else value
    else:
        number = int(layout.kind[1])
        group = zarr.open_group(path, mode="w", zarr_format=number)
        attributes = {k: float(v) for k, v in layout.attributes.items()}
        options |= (
            {"fill_value": attributes.pop("_FillValue", None)} if attributes else {}
        )
        options = {"fill_value": None if number == 2 else 0, **options}
        options |= {"dimension_names": DIMS} if number == 3 else {}
        dtype = values.dtype
        made = group.create_array("T", shape=SHAPE, dtype=dtype, **options)
        made.attrs.update(attributes)
        if number == 2:
            made.attrs["_ARRAY_DIMENSIONS"] = DIMS
        made[:] = values
    return path, OpenFiles().dataset(path).variables["T"]


def opened(path, variable):
    return open_zarr_array(path, "T", variable) or open_hdf5_array(
        path, "T", variable, variable
    )


def destinations(shape):
    """In one piece, and parts of larger arrays in other orders."""
    yield np.full(shape, 5, np.float32)
    wide = np.full((2, *shape[1:3], shape[0], shape[3] + 2), 5, np.float32)
    yield wide[1, ..., 1:-1].transpose(2, 0, 1, 3)
    yield np.full(shape[::-1], 5, np.float32).T
    yield np.full(shape, 5, np.float32)[:, :, ::-1]


@pytest.mark.parametrize("run", [2**14, 16], ids=["short", "long"])
@pytest.mark.parametrize("name", LAYOUTS)
def test_values_are_those_of_xarray(tmp_path, monkeypatch, name, run):
    monkeypatch.setattr(stored_arrays, "_RUN", run)
    path, variable = stored(tmp_path, LAYOUTS[name])
    array = opened(path, variable)
    assert (array is not None) == LAYOUTS[name].direct
    for index in INDICES.values() if array is not None else ():
        lazy = variable.isel(dict(zip(DIMS, index, strict=True)))
        expected = lazy.values.astype(np.float32)
        for out in destinations(expected.shape):
            array.read(index, out)
            np.testing.assert_array_equal(out, expected)


def test_what_is_left_to_xarray(tmp_path):
    path, variable = stored(tmp_path, v2(dtype="i2", attributes={"_FillValue": -1}))
    assert opened(path, variable) is not None
    unsigned = variable.copy()
    unsigned.encoding["_Unsigned"] = "true"
    shorter = variable[1:]
    for other in (unsigned, shorter, variable.astype(np.float64)):
        assert opened(path, other) is None or other.dtype.kind == "f"


def test_files_that_xarray_has_closed_are_opened_again(tmp_path):
    path, variable = stored(tmp_path, nc())
    out = np.empty(SHAPE, np.float32)
    with xr.set_options(file_cache_maxsize=1):
        array = opened(path, variable)
        (tmp_path / "other").mkdir()
        stored(tmp_path / "other", nc())[1].load()
        array.read(INDICES["all"], out)
    np.testing.assert_array_equal(out, variable.values)


@pytest.mark.parametrize("name", ["v2", "v3 shards, zstd", "nc shuffled, deflated"])
def test_threads(tmp_path, name):
    path, variable = stored(tmp_path, LAYOUTS[name])
    array, expected = opened(path, variable), variable.values
    outs = [np.empty(SHAPE, np.float32) for _ in range(8)]
    threads = [
        threading.Thread(target=array.read, args=(INDICES["all"], out)) for out in outs
    ]
    for step in (threading.Thread.start, threading.Thread.join):
        for thread in threads:
            step(thread)
    for out in outs:
        np.testing.assert_array_equal(out, expected)


def chunk_files(path):
    """The files of chunks of a store."""
    every = (os.path.join(f, n) for f, _, names in os.walk(f"{path}/T") for n in names)
    return sorted(
        f for f in every if not os.path.basename(f).startswith((".z", "zarr."))
    )


@pytest.mark.parametrize(
    ("name", "fill"), [("v2", None), ("v2 marked", np.nan), ("v3", 0), ("v3 shards", 0)]
)
def test_a_chunk_that_is_not_there(tmp_path, name, fill):
    path, variable = stored(tmp_path, LAYOUTS[name])
    expected, out = variable.values.astype(np.float32), np.empty(SHAPE, np.float32)
    os.remove(chunk_files(path)[0])
    array = opened(path, variable)
    if fill is None:
        with pytest.raises(ValueError, match=r"T/0.0.0.0 is missing"):
            array.read(INDICES["all"], out)
        return
    times, _, rows, _ = LAYOUTS[name].options.get("shards", CHUNKS)
    expected[:times, :, :rows] = fill
    array.read(INDICES["all"], out)
    np.testing.assert_array_equal(out, expected)


def test_a_chunk_that_is_left_out_of_a_shard(tmp_path):
    values = np.ones(SHAPE, np.float32)
    values[2:4, :, :4] = 0
    path, variable = stored(tmp_path, LAYOUTS["v3 shards, zstd"], values)
    out = np.full(SHAPE, 5, np.float32)
    opened(path, variable).read(INDICES["all"], out)
    np.testing.assert_array_equal(out, values)


def stating(codec, number):
    """Content whose header states another number of bytes."""

    def change(content):
        place = {"blosc": 4, "lz4": 0}[codec]
        return content[:place] + number.to_bytes(4, "little") + content[place + 4 :]

    return change


DAMAGE = {
    "cut": lambda content: content[: len(content) // 2],
    "one byte less": lambda content: content[:-1],
    "one byte more": lambda content: content + b"\0",
    "empty": lambda content: b"",
    "zeros": lambda content: bytes(len(content)),
    "noise": lambda content: np.random.default_rng(0).bytes(len(content)),
}
STATED = {
    ("v2 blosc", stating("blosc", 2**30)): "states 1073741824 bytes",
    ("v2 blosc", stating("blosc", 40)): "states 40 bytes",
    ("v2 lz4", stating("lz4", 40)): "states 40 bytes",
    ("v2 blosc", lambda c: numcodecs.Blosc().encode(bytes(2**20))): "states 1048576",
    ("v2 zstd", lambda c: numcodecs.Zstd().encode(bytes(480))): "states 480 bytes",
    ("v2 zstd", lambda c: zstd_without_size(2**20)): "Destination buffer is too small",
    ("v2 zlib", lambda c: numcodecs.Zlib().encode(bytes(2**20))): "states",
    ("v2 zlib", lambda c: numcodecs.Zlib().encode(bytes(480))): "states 480 bytes",
}


@pytest.mark.parametrize(
    "name", [n for n, own in LAYOUTS.items() if own.direct and own.kind != "nc"]
)
def test_damaged_chunks(tmp_path, name):
    path, variable = stored(tmp_path, LAYOUTS[name])
    file = chunk_files(path)[0]
    with open(file, "rb") as chunk:
        content = chunk.read()
    changes = [*DAMAGE.values()]
    if "shards" in name:
        changes = changes[:2] + changes[3:]
    changes += [change for own, change in STATED if own == name]
    compressed = opened(path, variable).is_compressed
    for change in changes if compressed or "shards" in name else changes[:4]:
        with open(file, "wb") as chunk:
            chunk.write(change(content))
        with pytest.raises(UNREADABLE):
            opened(path, variable).read(INDICES["all"], np.empty(SHAPE, np.float32))


@pytest.mark.parametrize("case", range(len(STATED)))
def test_what_a_chunk_states(tmp_path, case):
    (name, change), message = [*STATED.items()][case]
    path, variable = stored(tmp_path, LAYOUTS[name])
    file = chunk_files(path)[0]
    with open(file, "rb") as chunk:
        content = chunk.read()
    with open(file, "wb") as chunk:
        chunk.write(change(content))
    with pytest.raises((ValueError, RuntimeError), match=message):
        opened(path, variable).read(INDICES["all"], np.empty(SHAPE, np.float32))


@pytest.mark.parametrize("name", ["nc", "nc in one piece", "nc deflated"])
def test_a_file_that_was_cut(tmp_path, name):
    values = np.random.default_rng(0).normal(size=SHAPE).astype(np.float32)
    path, variable = stored(tmp_path, LAYOUTS[name], values)
    array, out = opened(path, variable), np.empty(SHAPE, np.float32)
    array.read(INDICES["all"], out)
    os.truncate(path, os.path.getsize(path) // 2)
    with pytest.raises(ValueError, match=r"store.nc ends at byte"):
        array.read(INDICES["all"], out)


def test_blocks_of_deflate(tmp_path, monkeypatch):
    """Content and values that are longer than what is expanded at once."""
    monkeypatch.setattr(stored_arrays, "_PIECE", 100)
    rng = np.random.default_rng(0)
    for values, codec in itertools.product(
        (rng.bytes(2000), bytes(2000)), (numcodecs.Zlib(), numcodecs.GZip())
    ):
        content = np.frombuffer(bytes(codec.encode(values)), np.uint8)
        out = np.empty(2000, np.uint8)
        stored_arrays._from_zlib("T", content, out)
        assert out.tobytes() == values
