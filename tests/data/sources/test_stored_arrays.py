"""Every layout, dtype, codec and index reads as xarray reads it, to any destination."""

import itertools
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
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
    "v2 marked": v2(options={"fill_value": 7.0}),
    "v2 in one chunk": v2(options=WHOLE),
    "v2 in folders": v2(options=FOLDERS),
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


def stored(folder, layout, values=None, written=slice(None)):
    """Writes a variable, some times of it; returns its path and xarray's variable."""
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
            made = file.create_dataset("T", SHAPE, values.dtype, **options)
            for number, dim in enumerate(DIMS):
                made.dims[number].attach_scale(file[dim])
            for name, value in layout.attributes.items():
                made.attrs[name] = made.dtype.type(value) if name[0] == "_" else value
            if written is not None:
                made[written] = values[written]
    else:
        number = int(layout.kind[1])
        group = zarr.open_group(path, mode="w", zarr_format=number)
        attributes = {k: float(v) for k, v in layout.attributes.items()}
        if attributes:
            options |= {"fill_value": attributes.pop("_FillValue", None)}
        options = {"fill_value": None if number == 2 else 0, **options}
        options |= {"dimension_names": DIMS} if number == 3 else {}
        made = group.create_array("T", shape=SHAPE, dtype=values.dtype, **options)
        made.attrs.update(attributes)
        if number == 2:
            made.attrs["_ARRAY_DIMENSIONS"] = DIMS
        made[:] = values
    return path, OpenFiles().dataset(path).variables["T"]


def opened(path, variable):
    return open_zarr_array(path, "T", variable) or open_hdf5_array(
        path, "T", variable, variable
    )


def whole(array):
    """All values, read into an array of other numbers."""
    out = np.full(SHAPE, 5, np.float32)
    array.read(INDICES["all"], out)
    return out


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
    for other in (unsigned, variable[1:]):
        assert opened(path, other) is None


def test_files_that_xarray_has_closed_are_opened_again(tmp_path):
    path, variable = stored(tmp_path, nc())
    with xr.set_options(file_cache_maxsize=1):
        array = opened(path, variable)
        (tmp_path / "other").mkdir()
        stored(tmp_path / "other", nc())[1].load()
        np.testing.assert_array_equal(whole(array), variable.values)


@pytest.mark.parametrize("name", ["v2", "v3 shards, zstd", "nc shuffled, deflated"])
def test_threads(tmp_path, name):
    path, variable = stored(tmp_path, LAYOUTS[name])
    with ThreadPoolExecutor(8) as pool:
        for out in pool.map(whole, [opened(path, variable)] * 8):
            np.testing.assert_array_equal(out, variable.values)


def first_chunk(path):
    """The file of the first chunk of a store."""
    files = (p for p in Path(path, "T").rglob("*") if p.is_file())
    return min(p for p in files if not p.name.startswith((".z", "zarr.")))


@pytest.mark.parametrize(
    ("name", "fill"), [("v2", None), ("v2 marked", np.nan), ("v3", 0), ("v3 shards", 0)]
)
def test_a_chunk_that_is_not_there(tmp_path, name, fill):
    path, variable = stored(tmp_path, LAYOUTS[name])
    expected = variable.values.astype(np.float32)
    first_chunk(path).unlink()
    if fill is None:
        with pytest.raises(ValueError, match=r"T/0.0.0.0 is missing"):
            whole(opened(path, variable))
        return
    times, _, rows, _ = LAYOUTS[name].options.get("shards", CHUNKS)
    expected[:times, :, :rows] = fill
    np.testing.assert_array_equal(whole(opened(path, variable)), expected)


def test_a_chunk_that_is_left_out_of_a_shard(tmp_path):
    values = np.ones(SHAPE, np.float32)
    values[2:4, :, :4] = 0
    array = opened(*stored(tmp_path, LAYOUTS["v3 shards, zstd"], values))
    np.testing.assert_array_equal(whole(array), values)


def ways(path, variable):
    """Reads of HDF5 at an index by xarray and directly."""
    array = open_hdf5_array(path, "T", variable, variable)

    def read(index):
        shape = [np.arange(n)[own].size for n, own in zip(SHAPE, index, strict=True)]
        out = np.empty(shape, np.float32)
        array.read(index, out)
        return out

    yield lambda index: variable.isel(dict(zip(DIMS, index, strict=True))).values
    if array is not None:
        yield read


def times(part):
    return (part, slice(None), slice(None), slice(0, 1))


def test_chunks_that_were_never_written_are_an_error(tmp_path):
    path, variable = stored(tmp_path, nc(), written=slice(0, 4))
    field = stored_values()
    reads = [*ways(path, variable)]
    assert len(reads) == 2
    for read in reads:
        for index in (times(slice(1, 4)), ([3, 0], [1], [2], slice(7, 2, -2))):
            pairs = zip(SHAPE, index, strict=True)
            expected = field[np.ix_(*(np.arange(size)[own] for size, own in pairs))]
            np.testing.assert_array_equal(read(index), expected)
        with pytest.raises(ValueError, match=r"the chunk 2\.0\.\d\.0 of /T was never"):
            read(times(slice(3, 5)))
        with pytest.raises(ValueError, match=r"the chunk 2\.0\.1\.0 of /T was never"):
            read(([4], [0], [4], [4]))


def stored_values():
    """What `stored` writes as float32."""
    values = np.random.default_rng(0).integers(0, 200, SHAPE).astype("f4")
    values[2, 0, 1, 3] = -9999
    return values


@pytest.mark.parametrize(
    "layout",
    [
        # HDF5 has no storage for an array in one piece, either, until it is written.
        nc(),
        nc(chunks=None),
        # The attribute alone does not make HDF5 read its value.
        nc(attributes={"_FillValue": np.nan}),
    ],
    ids=["chunks", "one piece", "a mark that HDF5 does not know"],
)
def test_nothing_was_written(tmp_path, layout):
    for read in ways(*stored(tmp_path, layout, written=None)):
        with pytest.raises(ValueError, match=r"of /T was never written"):
            read(times(slice(0, 1)))


def test_the_mark_of_missing_values(tmp_path):
    """What NetCDF writers leave out is missing where their fill value says so."""
    layout = nc(attributes={"_FillValue": np.nan}, fillvalue=np.nan)
    for read in ways(*stored(tmp_path, layout, written=slice(0, 4))):
        assert np.isnan(read(times(slice(4, 5)))).all()
        found = read(times(slice(0, 4)))
        np.testing.assert_array_equal(found, stored_values()[:4, ..., :1])


def test_a_variable_shorter_than_its_unlimited_dim(tmp_path):
    path, field = str(tmp_path / "fields.nc"), stored_values()
    fields = xr.Dataset({"T": (DIMS, field)}, {"time": np.arange(SHAPE[0])})
    options = {"unlimited_dims": ["time"], "encoding": {"T": {"_FillValue": None}}}
    fields.to_netcdf(path, engine="h5netcdf", **options)
    with h5py.File(path, "a") as file:
        file["T"].resize(SHAPE[0] - 2, 0)
    variable = OpenFiles().dataset(path)["T"].variable
    assert variable.shape == SHAPE
    np.testing.assert_array_equal(variable[:3].values, field[:3])
    with pytest.raises(ValueError, match="never written"):
        _ = variable[3:].values


def test_time_and_memory_do_not_grow_with_what_is_missing(tmp_path):
    """A variable of 1e15 values of which a few are there."""
    path = str(tmp_path / "fields.nc")
    with h5py.File(path, "w") as file:
        file.create_dataset("T", (10**5, 10**5, 10**5), "f4", chunks=(1, 10, 10))
        file["T"][3, :10, :10] = 1.0
    variable = OpenFiles().dataset(path)["T"].variable
    assert (variable[3, :10, :10].values == 1).all()
    with pytest.raises(ValueError, match=r"chunk 3\.0\.1 of /T"):
        _ = variable[3, :10, 10:20].values


@pytest.mark.parametrize("packed", [False, True])
def test_chunks_of_zeros_that_zarr_leaves_out(tmp_path, packed):
    """Zarr v2 without a fill value, as xarray writes times, masks and land cover."""
    path, start = str(tmp_path / "fields.zarr"), np.datetime64("2000-01-01", "ns")
    mask = np.zeros((1, 4), np.int16)
    fields = xr.Dataset({"mask": (("time", "y"), mask)}, {"time": [start]})
    fields["time"].encoding = {"units": "hours since 2000-01-01"}
    if packed:  # what a missing chunk of these was, nobody can say
        fields["mask"].attrs["scale_factor"] = 0.5
    fields.to_zarr(path, zarr_format=2, consolidated=False)
    for name in ("time", "mask"):
        assert len(os.listdir(f"{path}/{name}")) == 2, "no chunk, which this is about"
    dataset = OpenFiles().dataset(path)
    np.testing.assert_array_equal(dataset["time"], fields["time"])
    array = open_zarr_array(path, "mask", dataset["mask"].variable)
    out = np.ones(mask.shape, np.float32)
    reads = lambda: dataset["mask"].values, lambda: array.read(np.s_[:, :], out)
    if packed:
        for read in reads:
            with pytest.raises(ValueError, match=r"mask/0.0 is missing"):
                read()
        return
    np.testing.assert_array_equal(reads[0](), mask)
    reads[1]()
    np.testing.assert_array_equal(out, mask)


def stating(number, start=4):
    """Content whose header states another number of bytes."""
    return lambda c: c[:start] + number.to_bytes(4, "little") + c[start + 4 :]


def zstd_without_size(size):
    """A frame of blocks of one repeated byte, which does not say how many there are."""
    blocks = [(2**17 << 3 | 2).to_bytes(3, "little") + b"\0"] * (size >> 17)
    blocks[-1] = (2**17 << 3 | 3).to_bytes(3, "little") + b"\0"
    return b"\x28\xb5\x2f\xfd\0\x38" + b"".join(blocks)


DAMAGE = {
    "cut": lambda content: content[: len(content) // 2],
    "one byte less": lambda content: content[:-1],
    "one byte more": lambda content: content + b"\0",
    "empty": lambda content: b"",
    "zeros": lambda content: bytes(len(content)),
    "noise": lambda content: np.random.default_rng(0).bytes(len(content)),
}
ZEROS, FEW = bytes(2**20), bytes(480)
STATED = {
    ("v2 blosc", stating(2**30)): "states 1073741824 bytes",
    ("v2 blosc", stating(40)): "states 40 bytes",
    ("v2 lz4", stating(40, start=0)): "states 40 bytes",
    ("v2 blosc", lambda c: numcodecs.Blosc().encode(ZEROS)): "states 1048576",
    ("v2 zstd", lambda c: numcodecs.Zstd().encode(FEW)): "states 480 bytes",
    ("v2 zstd", lambda c: zstd_without_size(2**20)): "Destination buffer is too small",
    ("v2 zlib", lambda c: numcodecs.Zlib().encode(ZEROS)): "states",
    ("v2 zlib", lambda c: numcodecs.Zlib().encode(FEW)): "states 480 bytes",
}


@pytest.mark.parametrize(
    "name", [n for n, own in LAYOUTS.items() if own.direct and own.kind != "nc"]
)
def test_damaged_chunks(tmp_path, name):
    path, variable = stored(tmp_path, LAYOUTS[name])
    file = first_chunk(path)
    content = file.read_bytes()
    changes = [*DAMAGE.values()]
    if "shards" in name:
        changes = changes[:2] + changes[3:]
    elif not opened(path, variable).is_compressed:
        changes = changes[:4]
    for change in changes:
        file.write_bytes(change(content))
        with pytest.raises(UNREADABLE):
            whole(opened(path, variable))
    for (layout, change), message in STATED.items():
        if layout == name:
            file.write_bytes(change(content))
            with pytest.raises(UNREADABLE, match=message):
                whole(opened(path, variable))


@pytest.mark.parametrize("name", ["nc", "nc in one piece", "nc deflated"])
def test_a_file_that_was_cut(tmp_path, name):
    values = np.random.default_rng(0).normal(size=SHAPE).astype(np.float32)
    path, variable = stored(tmp_path, LAYOUTS[name], values)
    array = opened(path, variable)
    whole(array)
    os.truncate(path, os.path.getsize(path) // 2)
    with pytest.raises(ValueError, match=r"store.nc ends at byte"):
        whole(array)


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
