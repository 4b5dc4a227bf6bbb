"""Arrays read by TensorStore equal those read by xarray."""

import os
import struct

import numpy as np
import pytest
import xarray as xr

from credit_jax.data.sources.stored_arrays import open_zarr_array
from credit_jax.io.open_files import OpenFiles
from tests.data.world import make_fields

INDEX = {"time": slice(2, 3), "level": [2, 0], "latitude": slice(1, 5)}


def store(folder, zarr_format, encoding=None):
    path = str(folder / "fields.zarr")
    chunks = {"T": {"chunks": (1, 2, 4, 10)}}
    make_fields().to_zarr(
        path, zarr_format=zarr_format, encoding=encoding or chunks, consolidated=False
    )
    return path, OpenFiles().dataset(path)


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_values_are_those_of_xarray(tmp_path, zarr_format):
    path, dataset = store(tmp_path, zarr_format)
    for name in ("T", "SP"):
        variable = dataset[name].variable
        array = open_zarr_array(path, name, variable)
        assert array is not None, name
        chosen = {dim: own for dim, own in INDEX.items() if dim in variable.dims}
        found = array[tuple(chosen.get(dim, slice(None)) for dim in variable.dims)]
        expected = variable.isel(chosen).values
        assert found.dtype == expected.dtype
        assert found.tobytes() == expected.tobytes(), name


def test_values_that_are_decoded_are_left_to_xarray(tmp_path):
    packed = {"dtype": "int16", "scale_factor": 0.01, "_FillValue": -9999}
    path, dataset = store(tmp_path, 2, {"SP": {"_FillValue": 1e20}, "T": packed})
    for name in ("T", "SP", "time"):
        assert open_zarr_array(path, name, dataset[name].variable) is None, name
    assert open_zarr_array(path, "U", dataset["U"].variable) is not None


def test_a_filter_of_another_package_is_left_to_xarray(tmp_path):
    numcodecs = pytest.importorskip("numcodecs")
    filters = {"SP": {"filters": [numcodecs.Delta(dtype="f4")]}}
    path, dataset = store(tmp_path, 2, filters)
    assert open_zarr_array(path, "SP", dataset["SP"].variable) is None
    assert np.isfinite(dataset["SP"].values).all()


def first_chunk(path, zarr_format, name="T"):
    own = "0.0.0.0" if zarr_format == 2 else "c/0/0/0/0"
    return os.path.join(path, name, own)


@pytest.mark.parametrize("integers", [False, True])
def test_a_missing_chunk_without_a_fill_value_is_an_error(tmp_path, integers):
    """TensorStore and Zarr's own reader, with which xarray reads integers."""
    path, fields = str(tmp_path / "fields.zarr"), make_fields()[["T"]]
    fields = fields.astype("int16") if integers else fields
    encoding = {"T": {"_FillValue": None, "chunks": (1, 2, 4, 10)}}
    fields.to_zarr(path, zarr_format=2, encoding=encoding, consolidated=False)
    dataset = OpenFiles().dataset(path)
    os.remove(first_chunk(path, 2))
    array = open_zarr_array(path, "T", dataset["T"].variable)
    assert (array is None) == integers
    for read in (
        lambda time: dataset["T"][time].values,
        *([] if array is None else [lambda time: array[time : time + 1, :, :, :]]),
    ):
        assert np.isfinite(read(1)).all()
        with pytest.raises(ValueError, match=r"(T/0.0.0.0|0, 0, 0, 0).* is missing"):
            read(0)


@pytest.mark.parametrize(("zarr_format", "fill"), [(2, np.nan), (3, np.nan), (3, 0.0)])
def test_a_chunk_that_is_left_out_has_the_fill_value(tmp_path, zarr_format, fill):
    """Writers of Zarr v3 leave out chunks that hold nothing else."""
    encoding = {"T": {"chunks": (1, 2, 4, 10), "_FillValue": np.nan}}
    if zarr_format == 3:
        encoding["T"]["fill_value"] = fill
    path, dataset = store(tmp_path, zarr_format, encoding)
    os.remove(first_chunk(path, zarr_format))
    array = open_zarr_array(path, "T", dataset["T"].variable)
    expected = make_fields()["T"].values[:1]
    expected[:, :2, :4] = fill
    found = dataset["T"][:1].values
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(array[:1, :, :, :], expected)


@pytest.mark.parametrize("at", ["start", "end"])
def test_a_chunk_in_a_shard_that_states_more_bytes_than_it_has(tmp_path, at):
    numcodecs, zarr = (pytest.importorskip(name) for name in ("numcodecs", "zarr"))
    rng, shape = np.random.default_rng(0), (4, 6, 10)
    values = rng.normal(size=shape).astype(np.float32)
    group = zarr.open_group(tmp_path, mode="w", zarr_format=3)
    array = group.create_array(
        "T",
        shape=shape,
        chunks=(1, 3, 10),
        shards={"shape": (2, 6, 10), "index_location": at},
        dtype="f4",
        compressors=zarr.codecs.BloscCodec(),
        dimension_names=["time", "y", "x"],
        fill_value=0.0,
    )
    array[:] = values
    array[2, :3] = 0.0  # a chunk of the second shard is left out
    values[2, :3] = 0.0
    every = (slice(None),) * 3
    with xr.open_zarr(tmp_path, consolidated=False) as dataset:
        variable = dataset["T"].variable
    opened = open_zarr_array(str(tmp_path), "T", variable)
    np.testing.assert_array_equal(opened[every], values)
    file = tmp_path / "T/c/0/0/0"
    content, bomb = file.read_bytes(), numcodecs.Blosc("zstd").encode(bytes(2**20))
    index = content[: 4 * 16 + 4] if at == "start" else content[-4 * 16 - 4 :]
    place = struct.unpack_from("<Q", index, 2 * 16)[0]
    file.write_bytes(content[:place] + bomb[:16] + content[place + 16 :])
    opened = open_zarr_array(str(tmp_path), "T", variable)
    for rows in (every, (slice(1, 2), slice(0, 1), slice(None))):
        with pytest.raises(ValueError, match=r"states 1048576 bytes.* a chunk has 120"):
            opened[rows]
    rest = slice(2, 4), slice(None), slice(None)
    np.testing.assert_array_equal(opened[rest], values[2:])


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_a_chunk_that_states_more_bytes_than_it_has_is_not_expanded(
    tmp_path, zarr_format
):
    """58 KB of blosc may be 1 GiB, which TensorStore would allocate for every core."""
    numcodecs, zarr = (pytest.importorskip(name) for name in ("numcodecs", "zarr"))
    packers = {2: numcodecs.Blosc(), 3: zarr.codecs.BloscCodec()}
    packer = {"compressors": [packers[zarr_format]], "chunks": (1, 2, 4, 10)}
    path, dataset = store(tmp_path, zarr_format, {"T": packer})
    array = open_zarr_array(path, "T", dataset["T"].variable)
    expected = make_fields()["T"].values
    places = slice(0, 2), [0, 2], slice(1, 6), slice(None)
    found = array[places]
    np.testing.assert_array_equal(found, expected[0:2][:, [0, 2], 1:6])
    bomb = numcodecs.Blosc("zstd", 9).encode(np.zeros(2**20, np.uint8))
    file = first_chunk(path, zarr_format).replace("0.0.0.0", "3.1.1.0")
    file = file.replace("0/0/0/0", "3/1/1/0")
    assert os.path.exists(file)
    with open(file, "wb") as chunk:
        chunk.write(bomb)
    for places in ((slice(3, 4), [2], slice(4, 5), slice(None)), (slice(None),) * 4):
        with pytest.raises(ValueError, match=r"states 1048576 bytes.* a chunk has 640"):
            array[places]
    beside = array[3:4, [2], 0:4, :]
    np.testing.assert_array_equal(beside, expected[3:4, [2], :4])
