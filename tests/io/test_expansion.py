"""Compressed bombs: a chunk that expands far beyond its size is one bounded error."""

import bz2
import gzip
import json
import lzma
import resource
import struct
import zlib

import h5py
import numcodecs
import numpy as np
import pytest
import zarr

from credit_jax.data.sources.stored_files import open_hdf5_array
from credit_jax.io import expansion
from credit_jax.io.expansion import check_expansion, check_pipeline, inner_places
from credit_jax.io.open_files import OpenFiles

HUGE, MOST = 2**30, 2**27  # bytes that a bomb expands to, and that a chunk may
SHAPE = (4, 1000)


@pytest.fixture(autouse=True)
def smaller(monkeypatch):
    """Bombs that take less time to make and to tell."""
    monkeypatch.setattr(expansion, "MAX_EXPANDED_BYTES", MOST)


def deflated(size, gzipped=False):
    """A stream of zeros, made of equal blocks of 1 MiB."""
    packer = zlib.compressobj(9, wbits=-15)
    block = packer.compress(bytes(2**20)) + packer.flush(zlib.Z_FULL_FLUSH)
    content = block * (size >> 20) + zlib.compressobj(wbits=-15).flush()
    if gzipped:
        return b"\x1f\x8b\x08" + bytes(6) + b"\x03" + content + bytes(8)
    return b"\x78\xda" + content + struct.pack(">I", size % 65521 << 16 | 1)


def zstd(size, *, says_size):
    """A frame of blocks of one repeated byte."""
    blocks = [(2**17 << 3 | 2).to_bytes(3, "little") + b"\0"] * (size >> 17)
    blocks[-1] = (2**17 << 3 | 3).to_bytes(3, "little") + b"\0"
    header = b"\xe0" + size.to_bytes(8, "little") if says_size else b"\0\x38"
    return b"\x28\xb5\x2f\xfd" + header + b"".join(blocks)


def streams(pack, size):
    return pack(bytes(2**26)) * (size >> 26)


BOMBS = {
    "zlib": lambda: deflated(HUGE),
    "gzip": lambda: deflated(HUGE, gzipped=True),
    "zstd": lambda: zstd(HUGE, says_size=True),
    "zstd without its size": lambda: zstd(HUGE, says_size=False),
    "bz2": lambda: streams(bz2.compress, HUGE),
    "lzma": lambda: streams(lambda x: lzma.compress(x, preset=0), 4 * MOST),
}
PACKERS = {
    "zlib": numcodecs.Zlib(),
    "gzip": numcodecs.GZip(),
    "zstd": numcodecs.Zstd(),
    "bz2": numcodecs.BZ2(),
    "lzma": numcodecs.LZMA(preset=0),
}


def codec_of(name):
    return name.partition(" ")[0]


def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 2**10


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_of_zarr_v2(name, tmp_path):
    path, codec = tmp_path / "bomb.zarr", codec_of(name)
    group = zarr.open_group(path, mode="w", zarr_format=2)
    array = group.create_array(
        "T", shape=SHAPE, chunks=SHAPE, dtype="f4", compressors=PACKERS[codec]
    )
    array.attrs["_ARRAY_DIMENSIONS"] = ["y", "x"]
    array[:] = 1
    dataset = OpenFiles().dataset(path)
    np.testing.assert_array_equal(dataset["T"], np.ones(SHAPE))
    (path / "T/0.0").write_bytes(BOMBS[name]())
    before = peak()
    with pytest.raises(ValueError, match=rf"chunk T/0\.0: \d+ bytes of {codec} expand"):
        dataset["T"].load()
    assert peak() - before < 2 * MOST


@pytest.mark.parametrize("shards", [None, (8, 1000)])
@pytest.mark.parametrize("codec", ["gzip", "zstd"])
def test_bombs_of_zarr_v3(codec, shards, tmp_path):
    path = tmp_path / "bomb.zarr"
    packer = {"gzip": zarr.codecs.GzipCodec(), "zstd": zarr.codecs.ZstdCodec()}[codec]
    group = zarr.open_group(path, mode="w", zarr_format=3)
    array = group.create_array(
        "T",
        shape=(8, 1000),
        chunks=SHAPE,
        shards=shards,
        dtype="f4",
        compressors=packer,
        dimension_names=["y", "x"],
    )
    array[:] = 1
    dataset = OpenFiles().dataset(path)
    np.testing.assert_array_equal(dataset["T"], np.ones((8, 1000)))
    bomb = BOMBS[codec]()
    file = path / "T/c/0/0"
    if shards:
        index = struct.pack("<QQQQ", 0, len(bomb), 0, len(bomb))
        checksum = numcodecs.CRC32C(location="end").encode(index)[-4:]
        bomb += index + bytes(checksum)
    file.write_bytes(bomb)
    for rows in (slice(None), slice(0, 2)):  # the whole shard, and a part of it
        with pytest.raises(ValueError, match=f"bytes of {codec} expand"):
            dataset["T"][rows].load()


@pytest.mark.parametrize(
    ("codec", "shards"), [("blosc", None), ("blosc", (8, 1000)), ("lz4", None)]
)
def test_sizes_that_a_chunk_states(codec, shards, tmp_path):
    """Of blosc and lz4, where xarray reads them: libraries allocate that size."""
    group = zarr.open_group(tmp_path, mode="w", zarr_format=3 if shards else 2)
    packer = {"blosc": numcodecs.Blosc(), "lz4": numcodecs.LZ4()}[codec]
    packer = zarr.codecs.BloscCodec() if shards else packer
    names = {"dimension_names": ["y", "x"]} if shards else {}
    options = {"chunks": SHAPE, "shards": shards, "compressors": packer, **names}
    array = group.create_array("T", shape=(8, 1000), dtype="f4", **options)
    if not shards:
        array.attrs["_ARRAY_DIMENSIONS"] = ["y", "x"]
    array[:] = 1
    dataset = OpenFiles().dataset(tmp_path)
    np.testing.assert_array_equal(dataset["T"], np.ones((8, 1000)))
    file = tmp_path / ("T/c/0/0" if shards else "T/0.0")
    content, stated = file.read_bytes(), (2**27).to_bytes(4, "little")
    place = 4 if codec == "blosc" else 0
    file.write_bytes(content[:place] + stated + content[place + 4 :])
    with pytest.raises(ValueError, match=f"bytes of {codec} expand to more than"):
        dataset["T"].load()


@pytest.mark.parametrize(
    "index",
    [
        [{"name": "bytes", "configuration": {"endian": "big"}}, {"name": "crc32c"}],
        [{"name": "bytes"}, {"name": "gzip", "configuration": {"level": 1}}],
    ],
)
def test_an_index_of_shards_that_is_read_otherwise(index, tmp_path):
    group = zarr.open_group(tmp_path, mode="w", zarr_format=3)
    group.create_array("T", shape=(8, 8), chunks=(4, 4), shards=(8, 8), dtype="f4")
    path = tmp_path / "T/zarr.json"
    content = json.loads(path.read_text())
    content["codecs"][0]["configuration"]["index_codecs"] = index
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match="T has an index of shards in"):
        OpenFiles().dataset(tmp_path)


def hdf5(path, **options):
    with h5py.File(path, "w") as file:
        data = file.create_dataset("T", SHAPE, "f4", chunks=SHAPE, **options)
        data[:] = 1
        for name, dim in zip("yx", data.dims, strict=True):
            file[name] = np.arange(SHAPE["yx".index(name)], dtype=np.float64)
            file[name].make_scale(name)
            dim.attach_scale(file[name])


def test_bombs_of_hdf5(tmp_path):
    for name in ("plain.nc", "bomb.nc"):
        path, out = str(tmp_path / name), np.empty(SHAPE, np.float32)
        hdf5(path, compression=4, shuffle=True)
        if name == "bomb.nc":
            with h5py.File(path, "a") as file:
                file["T"].id.write_direct_chunk((0, 0), deflated(HUGE), 0)
        variable = OpenFiles().dataset(path).variables["T"]
        array = open_hdf5_array(path, "T", variable, object())
        assert array is not None
        if name == "plain.nc":
            array.read((slice(None),) * 2, out)
            np.testing.assert_array_equal(variable.values, np.ones(SHAPE))
            np.testing.assert_array_equal(out, np.ones(SHAPE))
    with pytest.raises(ValueError, match=r"chunk 0\.0 of /T has \d+ bytes, compressed"):
        _ = variable.values
    with pytest.raises(ValueError, match=r"a chunk has \d+ bytes, compressed"):
        array.read((slice(None),) * 2, out)


def test_large_chunks_of_hdf5_are_measured(tmp_path):
    """A bomb that is no longer than the values of its chunk would be."""
    path, shape = tmp_path / "bomb.nc", (5, 10**6)
    with h5py.File(path, "w") as file:
        data = file.create_dataset("T", shape, "f4", chunks=shape, compression=1)
        data.id.write_direct_chunk((0, 0), deflated(8 * HUGE), 0)
    with pytest.raises(ValueError, match="bytes of zlib expand to more than 20004096"):
        OpenFiles().dataset(path)["T"].load()
    values = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    with h5py.File(path, "w") as file:
        file.create_dataset("T", data=values, chunks=shape, compression=1)
    assert path.stat().st_size > 2**23  # long enough to be measured
    np.testing.assert_array_equal(OpenFiles().dataset(path)["T"], values)


def test_what_is_compressed_twice(tmp_path):
    path = tmp_path / "twice.nc"
    with h5py.File(path, "w") as file:
        options = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        options.set_chunk(SHAPE)
        options.set_deflate(1)
        options.set_deflate(1)
        space = h5py.h5s.create_simple(SHAPE)
        h5py.h5d.create(file.id, b"T", h5py.h5t.NATIVE_FLOAT, space, options)
        file["T"][:] = 1
    with pytest.raises(ValueError, match="compressed twice"):
        OpenFiles().dataset(path)["T"].load()
    for codecs in (["zlib", "blosc"], ["gzip", "shuffle"], ["sharding_indexed", "bz2"]):
        with pytest.raises(ValueError, match="expected one compressor"):
            check_pipeline("T", codecs)
    check_pipeline("T", ["delta", "shuffle", "zstd", "crc32c"])


def test_usual_content_passes():
    values = np.arange(10**4).tobytes()
    packed = {
        "zlib": zlib.compress(values),
        "gzip": gzip.compress(values) + gzip.compress(values),
        "bz2": bz2.compress(values),
        "lzma": lzma.compress(values, preset=0),
        "zstd": PACKERS["zstd"].encode(values),
    }
    for codec, content in packed.items():
        most = len(values) * (2 if codec == "gzip" else 1)
        check_expansion("T", codec, content, most)
        check_expansion("T", codec, content[: len(content) // 2], most)
        check_expansion("T", codec, b"no such content at all", most)
        with pytest.raises(ValueError, match=f"bytes of {codec} expand to more than"):
            check_expansion("T", codec, content, most - 1)


@pytest.mark.parametrize("at_end", [True, False])
def test_chunks_of_a_shard(at_end):
    place, none = 0 if at_end else 36, 2**64 - 1
    index = struct.pack("<QQQQ", place, 2, none, none) + b"sum!"
    content = b"ab" + index if at_end else index + b"ab"
    found = inner_places(content, 2, at_end=at_end, checksum=True)
    assert [*found] == [(place, 2)], "the other one has the fill value"
