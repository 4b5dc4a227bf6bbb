"""Stores in the layout of anemoi-datasets, beside the arrays that they were made of."""

import re

import numpy as np
import pytest
import xarray as xr
import zarr

from credit_jax.config.load import config_of
from credit_jax.data import open_dataset
from credit_jax.extensions.packaging.write import _copy
from credit_jax.extensions.preprocess.data_store import write_store
from credit_jax.transforms import Normalizer
from tests.data.world import raw_config

LAT, LON = np.linspace(90, -90, 5), np.arange(8) * 45.0
NAMES = ["10u", "lsm", "q_500", "q_850", "t_500", "t_850", "tp", "cos_latitude"]
DATES = np.arange("2000-01-01", "2000-01-06", np.timedelta64(6, "h"), "datetime64[s]")
VARIABLES = {
    "prognostic": {"vars_3D": ["t", "q"], "vars_2D": ["10u"]},
    "static": {"vars_2D": ["lsm"]},
    "dynamic_forcing": {"vars_2D": ["cos_latitude"]},
    "diagnostic": {"vars_2D": ["tp"]},
}


def metadata(name):
    """What anemoi-datasets 0.5 writes of a variable of GRIB."""
    parameter, _, level = name.rpartition("_")
    if not level.isdigit():
        return {"mars": {"param": name, "levtype": "sfc"}, "units": "m s**-1"}
    mars = {"param": parameter, "levtype": "pl", "levelist": int(level)}
    return {"mars": mars, "units": {"t": "K", "q": "kg kg**-1"}[parameter]}


def make(path, zarr_format=3, members=1, points=None, chunks=None, **attributes):
    """Writes a store; returns its values (time, variable, ensemble, cell)."""
    if points is None:
        points = [x.ravel() for x in np.meshgrid(LAT, LON, indexing="ij")]
        attributes = {"field_shape": [5, 8], **attributes}
    shape = len(DATES), len(NAMES), members, len(points[0])
    data = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    data[:, 1] = data[0, 1]
    group = zarr.open_group(path, mode="w", zarr_format=zarr_format)
    axes = (0, 2, 3)
    arrays = {
        "data": (data, ("time", "variable", "ensemble", "cell")),
        "dates": (DATES, ("time",)),
        "latitudes": (points[0], ("cell",)),
        "longitudes": (points[1], ("cell",)),
        "mean": (data.mean(axes, dtype=float), ("variable",)),
        "stdev": (data.std(axes, dtype=float), ("variable",)),
        "minimum": (data.min(axes), ("variable",)),
        "maximum": (data.max(axes), ("variable",)),
        "has_nans": (np.zeros(len(NAMES), bool), ("variable",)),
    }
    for name, (values, dims) in arrays.items():
        options = {"shape": values.shape, "dtype": values.dtype}
        if name == "data":
            options |= {"fill_value": np.nan, "chunks": chunks or (1, *shape[1:])}
            if chunks:
                options |= {"shards": (4, *shape[1:]), "compressors": None}
        array = group.create_array(name, **options)
        array[...] = values
        array.attrs["_ARRAY_DIMENSIONS"] = dims
    group.attrs.update(
        {
            "variables": NAMES,
            "variables_metadata": {name: metadata(name) for name in NAMES},
            "missing_dates": [],
            "frequency": "6h",
            **attributes,
        }
    )
    return data


def raw(path, **section):
    """A config that reads the store."""
    config = raw_config(path.parent)
    source = {"dataset_type": "anemoi", "store": str(path), "variables": VARIABLES}
    config["data"] = {
        "source": {"era": {**source, **section}},
        "start_datetime": "2000-01-01",
        "end_datetime": "2000-01-04",
        "timestep": "6h",
        "forecast_len": 1,
    }
    config["preblocks"] = {"per_step": {"concat": {"type": "concat"}}}
    return config


def opened(path, **section):
    """The data set of a store."""
    return open_dataset(config_of(raw(path, **section)).data)


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_values(tmp_path, zarr_format):
    data = make(tmp_path / "a.zarr", zarr_format).reshape(len(DATES), 8, 5, 8)
    dataset = opened(tmp_path / "a.zarr", levels=[850, 500])
    dataset.check((5, 8))
    sample = dataset[3]
    fields = sample.input["era"] | {
        f"target {key}": field for key, field in sample.target["era"].items()
    }
    expected = {
        "era/prognostic/3d/t": data[3, [5, 4]],
        "era/prognostic/3d/q": data[3, [3, 2]],
        "era/prognostic/2d/10u": data[3, [0]],
        "era/static/2d/lsm": data[3, [1]],
        "era/dynamic_forcing/2d/cos_latitude": data[3, [7]],
        "target era/prognostic/3d/t": data[4, [5, 4]],
        "target era/prognostic/3d/q": data[4, [3, 2]],
        "target era/prognostic/2d/10u": data[4, [0]],
        "target era/diagnostic/2d/tp": data[4, [6]],
    }
    assert fields.keys() == expected.keys()
    for key, field in fields.items():
        assert field.dtype == np.float32
        np.testing.assert_array_equal(field[:, 0], expected[key], err_msg=key)
    (source,) = dataset.sources.values()
    rows = source.read("prognostic", DATES[3:4].astype("datetime64[ns]"), slice(1, 3))
    np.testing.assert_array_equal(
        rows["era/prognostic/3d/t"][:, 0], data[3, [5, 4], 1:3]
    )
    axes = source.axes()
    np.testing.assert_array_equal(axes.latitude, LAT)
    np.testing.assert_array_equal(axes.longitude, LON)
    assert axes.levels == (850, 500)
    assert source.units()["era/prognostic/3d/q"] == (
        "kg kg**-1",
        str(tmp_path / "a.zarr"),
    )


def test_levels_by_default_and_grids_without_their_shape(tmp_path):
    make(tmp_path / "a.zarr", field_shape=None)
    (source,) = opened(tmp_path / "a.zarr").sources.values()
    assert source.axes().levels == (500, 850)
    assert source.grid.shape == (5, 8)


def test_reduced_grids_are_points(tmp_path):
    """Rows of 4, 6 and 2 cells."""
    latitude = np.repeat([60.0, 0.0, -60.0], [4, 6, 2])
    points = latitude, np.arange(12) * 30.0
    data = make(tmp_path / "a.zarr", points=points, field_shape=[12])
    dataset = opened(tmp_path / "a.zarr")
    field = dataset[0].input["era"]["era/prognostic/3d/t"]
    np.testing.assert_array_equal(field[:, 0], data[0, 4:6, 0])
    write_store(config_of(raw(tmp_path / "a.zarr")), tmp_path / "store")
    path = tmp_path / "store/era/prognostic"
    with xr.open_zarr(path, consolidated=False) as stored:
        np.testing.assert_array_equal(stored["latitude"], latitude)
        np.testing.assert_array_equal(stored["t"][0], data[0, 4:6, 0])


def test_missing_dates_are_no_samples(tmp_path):
    make(tmp_path / "a.zarr", missing_dates=["2000-01-02T06:00:00"])
    starts = opened(tmp_path / "a.zarr").starts.astype("datetime64[h]").astype(str)
    assert "2000-01-02T12" in starts
    assert not {"2000-01-02T00", "2000-01-02T06"} & {*starts}


def test_uncompressed_chunks_in_shards_and_members(tmp_path):
    data = make(tmp_path / "a.zarr", members=2, chunks=(1, 1, 1, 40))
    dataset = opened(tmp_path / "a.zarr", member=1)
    field = dataset[2].input["era"]["era/prognostic/3d/t"]
    np.testing.assert_array_equal(field.reshape(2, 40), data[2, 4:6, 1])


def test_statistics_normalize(tmp_path):
    data = make(tmp_path / "a.zarr")
    path = str(tmp_path / "a.zarr")
    _copy(tmp_path / "a.zarr", tmp_path / "package.zarr")
    assert not [*(tmp_path / "package.zarr/data").glob("c")]
    for store in (path, str(tmp_path / "package.zarr")):
        block = Normalizer(mean_path=store, std_path=store)
        block.open()
        np.testing.assert_allclose(block._mean["t"], data[:, 4:6].mean((0, 2, 3)), 1e-4)
        np.testing.assert_allclose(block._std["t"], data[:, 4:6].std((0, 2, 3)), 1e-4)
        np.testing.assert_allclose(block._mean["10u"], data[:, 0].mean(), 1e-3)
        assert block.unit_of("q") == "kg kg**-1"


@pytest.mark.parametrize(
    ("section", "text"),
    [
        (
            {"levels": [500, 700]},
            "t has no levels [700.0], expected some of [500.0, 850.0]",
        ),
        ({"member": 1}, "member: got 1, and "),
        ({"variables": {"prognostic": {"vars_2D": ["2t"]}}}, "no variable '2t'; "),
        (
            {"variables": {"prognostic": {"vars_3D": ["z"]}}},
            "no variable 'z' on levels",
        ),
    ],
)
def test_wrong_sections(tmp_path, section, text):
    make(tmp_path / "a.zarr")
    with pytest.raises(ValueError, match=re.escape(text)):
        opened(tmp_path / "a.zarr", **section)


def test_other_stores_and_times(tmp_path):
    make(tmp_path / "a.zarr")
    config = raw(tmp_path / "a.zarr")
    config["data"]["end_datetime"] = "2000-01-08"
    dataset = open_dataset(config_of(config).data)
    with pytest.raises(ValueError, match=r"9 of 29 times are missing in .*2000-01-06"):
        dataset.check()
    xr.Dataset({"t": ("x", [1.0])}).to_zarr(tmp_path / "b.zarr", consolidated=False)
    with pytest.raises(ValueError, match=r"b\.zarr: no array data, which stores of"):
        opened(tmp_path / "b.zarr")
    chunk = next(p for p in (tmp_path / "a.zarr/data/c/8").rglob("*") if p.is_file())
    chunk.write_bytes(chunk.read_bytes()[:50])
    dataset = opened(tmp_path / "a.zarr")
    with pytest.raises(ValueError, match=r"a\.zarr: variable 'data' at 2000-01-03 00"):
        dataset[8]
