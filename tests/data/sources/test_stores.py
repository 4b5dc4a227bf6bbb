"""Stores of anemoi-datasets, ERA5, also as IFS has it, and Icechunk."""

import sys
from datetime import UTC, datetime
from pathlib import Path

import icechunk
import numpy as np
import pytest
import xarray as xr
import yaml
import zarr

from credit_jax.config import build_config, parse
from credit_jax.config.data import DataConfig
from credit_jax.config.load import config_of
from credit_jax.data import open_dataset
from credit_jax.data.dataset import collate
from credit_jax.extensions.packaging.write import _copy
from credit_jax.extensions.preprocess.data_store import write_store
from credit_jax.io.icechunk import session_at
from credit_jax.plan.run import build_loader
from credit_jax.plan.run_record import RunRecord
from credit_jax.transforms import Normalizer, Phase
from tests.data.sources.server import same_samples, served
from tests.data.world import GRID, NUM_LAT, NUM_LON, raw_config, set_key
from tests.io import s3_server
from tests.messages.engine import *  # noqa: F403
from tests.messages.engine import Cases
from tests.support import assert_close
from tests.transforms.cases import CONCAT, preblocks

CASES = Cases("stores")
LAT, LON = np.linspace(90, -90, 5), np.arange(8) * 45.0
NAMES = ["10u", "lsm", "q_500", "q_850", "t_500", "t_850", "tp", "cos_latitude"]
DATES = np.arange("2000-01-01", "2000-01-06", np.timedelta64(6, "h"), "datetime64[s]")
STEPS = {"timestep": "6h", "history_len": 1, "forecast_len": 1}


def metadata(name):
    """What anemoi-datasets 0.5 writes of a variable of GRIB."""
    parameter, _, level = name.rpartition("_")
    if not level.isdigit():
        return {"mars": {"param": name, "levtype": "sfc"}, "units": "m s**-1"}
    mars = {"param": parameter, "levtype": "pl", "levelist": int(level)}
    return {"mars": mars, "units": {"t": "K", "q": "kg kg**-1"}[parameter]}


def make(folder, zarr_format=3, members=1, points=None, chunks=None, **attributes):
    """Writes a.zarr; returns its values (time, variable, ensemble, cell)."""
    if points is None:
        points = [x.ravel() for x in np.meshgrid(LAT, LON, indexing="ij")]
        attributes = {"field_shape": [5, 8], **attributes}
    shape = len(DATES), len(NAMES), members, len(points[0])
    data = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    data[:, 1] = data[0, 1]
    group = zarr.open_group(folder / "a.zarr", mode="w", zarr_format=zarr_format)
    axes, of_variable = (0, 2, 3), ("variable",)
    arrays = {
        "data": (data, ("time", "variable", "ensemble", "cell")),
        "dates": (DATES, ("time",)),
        "latitudes": (points[0], ("cell",)),
        "longitudes": (points[1], ("cell",)),
        "mean": (data.mean(axes, dtype=float), of_variable),
        "stdev": (data.std(axes, dtype=float), of_variable),
        "minimum": (data.min(axes), of_variable),
        "maximum": (data.max(axes), of_variable),
        "has_nans": (np.zeros(len(NAMES), bool), of_variable),
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
    described = {name: metadata(name) for name in NAMES}
    about = {"variables": NAMES, "variables_metadata": described, "missing_dates": []}
    group.attrs.update({**about, "frequency": "6h", **attributes})
    return data


def anemoi(folder, name="a.zarr", **section):
    """A config that reads the store."""
    config = raw_config(folder)
    variables = {
        "prognostic": {"vars_3D": ["t", "q"], "vars_2D": ["10u"]},
        "static": {"vars_2D": ["lsm"]},
        "dynamic_forcing": {"vars_2D": ["cos_latitude"]},
        "diagnostic": {"vars_2D": ["tp"]},
    }
    source = {"dataset_type": "anemoi", "store": str(folder / name)}
    dates = {"start_datetime": "2000-01-01", "end_datetime": "2000-01-04"}
    source |= {"variables": variables, **section}
    config["data"] = {"source": {"era": source}, **dates, **STEPS}
    config["preblocks"] = {"per_step": {"concat": {"type": "concat"}}}
    return config


def opened(folder, *name, **section):
    return open_dataset(config_of(anemoi(folder, *name, **section)).data)


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_values_of_anemoi(tmp_path, zarr_format):
    data = make(tmp_path, zarr_format).reshape(len(DATES), 8, 5, 8)
    dataset = opened(tmp_path, levels=[850, 500])
    dataset.check((5, 8))
    sample = dataset[3]
    expected = (
        {
            "prognostic/3d/t": data[3, [5, 4]],
            "prognostic/3d/q": data[3, [3, 2]],
            "prognostic/2d/10u": data[3, [0]],
            "static/2d/lsm": data[3, [1]],
            "dynamic_forcing/2d/cos_latitude": data[3, [7]],
        },
        {
            "prognostic/3d/t": data[4, [5, 4]],
            "prognostic/3d/q": data[4, [3, 2]],
            "prognostic/2d/10u": data[4, [0]],
            "diagnostic/2d/tp": data[4, [6]],
        },
    )
    for fields, wanted in zip((sample.input, sample.target), expected, strict=True):
        assert fields["era"].keys() == {f"era/{key}" for key in wanted}
        for key, field in wanted.items():
            found = fields["era"][f"era/{key}"]
            assert found.dtype == np.float32
            np.testing.assert_array_equal(found[:, 0], field, err_msg=key)
    (source,) = dataset.sources.values()
    rows = source.read("prognostic", DATES[3:4].astype("datetime64[ns]"), slice(1, 3))
    found = rows["era/prognostic/3d/t"][:, 0]
    np.testing.assert_array_equal(found, data[3, [5, 4], 1:3])
    axes = source.axes()
    np.testing.assert_array_equal(axes.latitude, LAT)
    np.testing.assert_array_equal(axes.longitude, LON)
    assert axes.levels == (850, 500)
    unit = "kg kg**-1", str(tmp_path / "a.zarr")
    assert source.units()["era/prognostic/3d/q"] == unit


def test_levels_by_default_and_grids_without_their_shape(tmp_path):
    make(tmp_path, field_shape=None)
    (source,) = opened(tmp_path).sources.values()
    assert source.axes().levels == (500, 850)
    assert source.grid.shape == (5, 8)


@pytest.mark.parametrize("last", [2, 3])
def test_reduced_grids_are_points(tmp_path, last):
    """Rows of 4, 6 and few cells, of which the first could make a grid, or not."""
    latitude = np.repeat([60.0, 0.0, -60.0], [4, 6, last])
    points = latitude, np.arange(10.0 + last) * 25
    data = make(tmp_path, points=points, field_shape=[10 + last])
    field = opened(tmp_path)[0].input["era"]["era/prognostic/3d/t"]
    np.testing.assert_array_equal(field[:, 0], data[0, 4:6, 0])
    text = write_store(config_of(anemoi(tmp_path)), tmp_path / "store")
    path = tmp_path / "store/era/prognostic"
    with xr.open_zarr(path, consolidated=False) as stored:
        np.testing.assert_array_equal(stored["latitude"], latitude)
        np.testing.assert_array_equal(stored["t"][0], data[0, 4:6, 0])
        assert stored["longitude"].dims == stored["t"].dims[-1:]
    stored = yaml.safe_load(text)
    assert stored["data"]["source"]["era"]["grid_type"] == "unstructured"
    same_samples(opened(tmp_path), open_dataset(config_of(stored).data))


def test_missing_dates_are_no_samples(tmp_path):
    make(tmp_path, missing_dates=["2000-01-02T06:00:00"])
    starts = opened(tmp_path).starts.astype("datetime64[h]").astype(str)
    assert "2000-01-02T12" in starts
    assert not {"2000-01-02T00", "2000-01-02T06"} & {*starts}


def test_uncompressed_chunks_in_shards_and_members(tmp_path):
    data = make(tmp_path, members=2, chunks=(1, 1, 1, 40))
    field = opened(tmp_path, member=1)[2].input["era"]["era/prognostic/3d/t"]
    np.testing.assert_array_equal(field.reshape(2, 40), data[2, 4:6, 1])


def test_statistics_normalize(tmp_path):
    data = make(tmp_path)
    _copy(tmp_path / "a.zarr", tmp_path / "package.zarr")
    assert not [*(tmp_path / "package.zarr/data").glob("c")]
    for store in (f"{tmp_path}/a.zarr", f"{tmp_path}/package.zarr"):
        block = Normalizer(mean_path=store, std_path=store)
        block.open()
        np.testing.assert_allclose(block._mean["t"], data[:, 4:6].mean((0, 2, 3)), 1e-4)
        np.testing.assert_allclose(block._std["t"], data[:, 4:6].std((0, 2, 3)), 1e-4)
        np.testing.assert_allclose(block._mean["10u"], data[:, 0].mean(), 1e-3)
        assert block.unit_of("q") == "kg kg**-1"


def wrong_section(section, tmp_path):
    make(tmp_path)
    return lambda: opened(tmp_path, **section)


CASES.rows(
    wrong_section,
    ({"levels": [500, 700]},),
    ({"member": 1},),
    ({"variables": {"prognostic": {"vars_2D": ["2t"]}}},),
    ({"variables": {"prognostic": {"vars_3D": ["z"]}}},),
    name="anemoi",
)


@CASES.case
def anemoi_until_later(tmp_path):
    make(tmp_path)
    config = anemoi(tmp_path)
    config["data"]["end_datetime"] = "2000-01-08"
    return lambda: open_dataset(config_of(config).data).check()


@CASES.case
def anemoi_without_arrays(tmp_path):
    xr.Dataset({"t": ("x", [1.0])}).to_zarr(tmp_path / "b.zarr", consolidated=False)
    return lambda: opened(tmp_path, "b.zarr")


def test_a_chunk_that_is_cut_off(tmp_path):
    make(tmp_path)
    chunk = next(p for p in (tmp_path / "a.zarr/data/c/8").rglob("*") if p.is_file())
    chunk.write_bytes(chunk.read_bytes()[:50])
    with pytest.raises(ValueError, match=r"a\.zarr: variable 'data' at 2000-01-03 00"):
        opened(tmp_path)[8]


# Public ERA5 stores: local copies, and one read by HTTP.


def write_era5(path, level, levels, dims, zarr_format):
    """A Zarr store of `temperature` and two 2-D variables, one static."""
    rng = np.random.default_rng(len(levels))
    times = xr.date_range("2020-01-01", "2020-01-04", freq="6h", use_cftime=False)
    sizes = {"time": len(times), level: len(levels)}
    sizes |= {"latitude": NUM_LAT, "longitude": NUM_LON}

    def variable(*names):
        shape = [sizes[name] for name in names]
        return names, rng.normal(size=shape).astype(np.float32)

    static = dims if dims[0] == "longitude" else ("time", *dims)
    xr.Dataset(
        {
            "temperature": variable("time", level, *dims),
            "surface_pressure": variable("time", *dims),
            "land_sea_mask": variable(*static),
        },
        coords={"time": times, level: list(levels), **GRID},
    ).to_zarr(path, zarr_format=zarr_format, consolidated=zarr_format == 2)


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    folder = tmp_path_factory.mktemp("era5")
    rows = ("latitude", "longitude")
    write_era5(folder / "pressure.zarr", "level", (100, 500, 850), rows, 2)
    write_era5(folder / "model.zarr", "hybrid", (1, 2, 3, 4), rows, 3)
    write_era5(folder / "wb2.zarr", "level", (100, 500, 850), rows[::-1], 2)
    return folder


def section(**source):
    dates = {"start_datetime": "2020-01-01", "end_datetime": "2020-01-03", **STEPS}
    source["variables"] = source.get("variables") or {
        "prognostic": {"vars_3D": ["temperature"], "vars_2D": ["surface_pressure"]},
        "static": {"vars_2D": ["land_sea_mask"]},
    }
    return {**dates, "source": {"ERA5": source}}


def arco(folder, level, levels, **source):
    store = {
        "store": f"{folder}/pressure.zarr",
        "model_level_store": f"{folder}/model.zarr",
    }
    source = {**store, "level_coord": level, "levels": levels, **source}
    return section(dataset_type="arco_era5", **source)


def weatherbench(address, **source):
    options = {"store": f"{address}", "level_coord": "level", "levels": [850, 100]}
    return section(dataset_type="weatherbench2_era5", **{**options, **source})


def dataset_of(data):
    return open_dataset(parse(DataConfig, data), shared_grid=False)


@pytest.mark.slow(but=["level-1", "hybrid-2"])
@pytest.mark.reference
@pytest.mark.parametrize("history", [1, 2])
@pytest.mark.parametrize("case", ["level", "hybrid", "weatherbench"])
@pytest.mark.filterwarnings("ignore:Failed to open Zarr store:RuntimeWarning")
def test_samples_are_credits(credit, stores, case, history):
    from tests.data.credit_batches import compare_samples, credit_dataset

    if case == "weatherbench":
        data = weatherbench(stores / "wb2.zarr")
    else:
        data = arco(stores, case, {"level": [850, 100], "hybrid": [2, 4]}[case])
    data["history_len"] = history
    theirs = credit_dataset(data)
    (dataset,) = theirs.datasets.values()
    dataset._fs = True
    for attribute, name in (
        ("store", "wb2"),
        ("p" + "res_level_store", "pressure"),
        ("mod_level_store", "model"),
    ):
        store = zarr.storage.LocalStore(stores / f"{name}.zarr", read_only=True)
        setattr(dataset, attribute, store)
    compare_samples(data, theirs)


def test_stores_at_an_address(stores, monkeypatch):
    """Also as a template of paths; without a store there, and without obstore."""
    with served(stores) as (address, _):
        there = weatherbench(f"{address}/wb2.zarr")
        here = dataset_of(weatherbench(stores / "wb2.zarr"))
        same_samples(here, dataset_of(there))
        source = weatherbench("x")["source"]["ERA5"] | {"dataset_type": "local"}
        source.pop("store")
        for field in source["variables"].values():
            field["path"] = f"{address}/pressure.zarr"
        sample = dataset_of({**there, "source": {"E": source}})[0].input["E"]
        assert sample["E/prognostic/3d/temperature"].shape == (2, 1, 6, 10)
        with pytest.raises(ValueError, match=r"nothing\.zarr: cannot be opened"):
            dataset_of(weatherbench(f"{address}/nothing.zarr"))
    monkeypatch.setitem(sys.modules, "obstore", None)
    with served(stores) as (address, _):
        there = weatherbench(f"{address}/wb2.zarr")
        with pytest.raises(ValueError, match=r"pip install credit-jax\[cloud\]"):
            dataset_of(there)


CASES.rows(
    lambda levels, address, stores: dataset_of(
        arco(stores, "level", levels, model_level_store=address)
    ),
    ([100, 400], "gs://x"),
    (None, "gs://x"),
    name="arco_era5",
)
CASES.call("arco_era5, level_coord", lambda: dataset_of(arco("x", "lev", [100])))


def test_default_levels():
    def count(data):
        return len(parse(DataConfig, data).source["ERA5"].level_values)

    assert count(weatherbench("x", levels=None)) == 13
    assert count(weatherbench("x", levels=None, resolution="full")) == 37
    assert count(weatherbench("x", levels=[5, 7])) == 2
    assert count(arco("x", "hybrid", None)) == 137


# ERA5 as IFS has it: coefficients and reduced Gaussian points.

TRUNCATION, RADIUS, OMEGA = 21, 6371229.0, 2e-5
TIMES = xr.date_range("2020-01-01", periods=9, freq="6h", use_cftime=False)
COUNTS = np.concatenate([np.arange(20, 84, 4), np.arange(80, 16, -4)])
RINGS = np.rad2deg(np.arcsin(np.polynomial.legendre.leggauss(32)[0]))[::-1]
LATITUDE = np.repeat(RINGS, COUNTS)
LONGITUDE = np.concatenate([np.arange(n) * 360 / n for n in COUNTS])
MOISTURE = "model-level-moisture.zarr-v2"


def coefficients(by_degree, count):
    """Coefficients of order 0 at all times, times the number of the level."""
    values = np.zeros((len(TIMES), count, (TRUNCATION + 1) * (TRUNCATION + 2)))
    for degree, value in by_degree.items():
        values[..., 2 * degree] = value
    return values.astype(np.float32) * np.arange(1, count + 1)[:, None]


@pytest.fixture(scope="module")
def native(tmp_path_factory):
    root = tmp_path_factory.mktemp("co")
    deep, flat = ("time", "hybrid", "values"), ("time", "values")
    points = np.arange(len(TIMES))[:, None] + np.sin(np.deg2rad(LATITUDE))
    humidity = np.stack([points - 1.5, points, points], 1) * 1e-6
    points = (flat, points.astype(np.float32))
    stores = {
        "model-level-wind.zarr-v2": {
            "t": (deep, coefficients({0: 280.0, 1: 10.0}, 3)),
            "vo": (deep, coefficients({1: 2 * OMEGA / np.sqrt(3)}, 3)),
            "d": (deep, coefficients({}, 3)),
        },
        MOISTURE: {"q": (deep, humidity.astype(np.float32))},
        "single-level-reanalysis.zarr-v2": {"t2m": points, "z": points},
        "single-level-surface.zarr-v2": {
            "lnsp": (flat, coefficients({0: 11.5}, 1)[:, 0])
        },
    }
    for name, variables in stores.items():
        coords = {"time": TIMES, "hybrid": np.arange(1.0, 4)}
        if "q" in variables or "t2m" in variables:
            coords |= {"latitude": ("values", LATITUDE)}
            coords |= {"longitude": ("values", LONGITUDE)}
        xr.Dataset(variables, coords).to_zarr(root / name, zarr_format=2)
    return root


WINDS = ["u_component_of_wind", "v_component_of_wind"]
NATIVE = {
    "prognostic": {
        "vars_3D": ["temperature", *WINDS, "q"],
        "vars_2D": ["log_surface_pressure", "t2m"],
    },
    "static": {"vars_2D": ["geopotential_at_surface"]},
}


def native_data(folder, **changes):
    source = {"dataset_type": "arco_era5_co", "levels": [1, 3], "variables": NATIVE}
    return section(**source | {"store": str(folder), **changes})


def native_blocks(folder):
    """Returns the preblocks that make fields of the coefficients, and logarithms."""
    deep, flat = "ERA5/prognostic/3d", "ERA5/prognostic/2d"
    logs = {"variables": [f"{deep}/specific_humidity"]}
    rules = [{"search": 0.0, "op": "<", "fill": 0.0}]
    wind = {key: f"{deep}/{key}" for key in ("vorticity", "divergence")}
    wind |= {"u": f"{deep}/{WINDS[0]}", "v": f"{deep}/{WINDS[1]}"}
    args = {
        "truncation": TRUNCATION,
        "grid_file": str(folder / MOISTURE),
        "scalar_vars": {
            f"{deep}/temperature": f"{deep}/temperature",
            f"{flat}/log_surface_pressure": f"{flat}/surface_pressure",
        },
        "exp_vars": [f"{flat}/surface_pressure"],
        "vector_vars": [wind],
    }
    return {
        "spectral": {"type": "spectral_to_grid", "args": args},
        "clamp": {"type": "fill_values", "args": {"rules": rules, **logs}},
        "logs": {"type": "log_transform", "args": logs},
        "concat": CONCAT,
    }


def test_a_bucket_has_what_its_folder_has(native, monkeypatch):
    with s3_server.served("era5") as (server, environment):
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        for path in filter(Path.is_file, native.rglob("*")):
            key = f"co/{path.relative_to(native).as_posix()}"
            content = path.read_bytes()
            server.buckets["era5"][key] = content, '"1"', datetime.now(UTC)
        there = dataset_of(native_data("s3://era5/co"))
        same_samples(there, dataset_of(native_data(native)))


def test_a_sample_as_fields(native):
    dataset = dataset_of(native_data(native))
    assert dataset.check(shared_grid=False) == []
    sample = dataset[1]
    shapes = {k.split("/")[-1]: x.shape for k, x in sample.input["ERA5"].items()}
    spectral, points = (TRUNCATION + 1) * (TRUNCATION + 2), LATITUDE.size
    assert shapes == {
        "temperature": (2, 1, spectral),
        "vorticity": (2, 1, spectral),
        "divergence": (2, 1, spectral),
        "specific_humidity": (2, 1, points),
        "log_surface_pressure": (1, 1, spectral),
        "2m_temperature": (1, 1, points),
        "geopotential_at_surface": (1, 1, points),
    }
    pipeline = preblocks(**native_blocks(native))
    schema = dataset.schema.as_read()
    pipeline = pipeline.at(schema, dataset.coordinates().grid)
    x = pipeline.run(Phase.BEFORE_STEP, collate([sample]))["x"]
    groups = pipeline.schema_after(schema)["input"]
    names = [group.variable for group in groups for _ in range(group.n_levels)]
    sine, cosine = np.sin(np.deg2rad(LATITUDE)), np.cos(np.deg2rad(LATITUDE))
    temperature = 280 + 10 * np.sqrt(3) * sine
    wind = OMEGA * RADIUS * cosine
    humidity = np.log(np.maximum([sine - 0.5, sine + 1], 0) * 1e-6 + 1e-8)
    expected = {
        "temperature": [temperature, 3 * temperature],
        WINDS[0]: [wind, 3 * wind],
        WINDS[1]: [0 * wind, 0 * wind],
        "specific_humidity": humidity - np.log(1e-8),
        "surface_pressure": [np.full(points, np.exp(11.5))],
        "2m_temperature": [1 + sine],
        "geopotential_at_surface": [1 + sine],
    }
    assert [*dict.fromkeys(names)] == [*expected]
    assert x.shape == (1, len(names), 1, points)
    for name, field in expected.items():
        rows = [i for i, other in enumerate(names) if other == name]
        assert_close(x[0, rows, 0], np.array(field), 1e-5, name)


CASES.rows(
    lambda changes, native: dataset_of(native_data(native, **changes)),
    ({"variables": {"prognostic": {"vars_3D": ["u_component_of_wind"]}}},),
    ({"variables": {"prognostic": {"vars_2D": ["precipitation"]}}},),
    ({"level_coord": "level"},),
    ({"levels": [1, 9]},),
    ({"variables": {"prognostic": {"vars_2D": ["temperature"]}}},),
    name="arco_era5_co",
)


# Icechunk repositories: branches, tags, snapshots.


@pytest.fixture(scope="module")
def repository(world, tmp_path_factory):
    """The files of the world in one repository, and a commit that doubles T."""
    folder = tmp_path_factory.mktemp("repository") / "data"
    storage = icechunk.local_filesystem_storage(str(folder))
    repo = icechunk.Repository.create(storage)
    files = [xr.open_dataset(path) for path in sorted(world.glob("w_*.nc"))]
    data = xr.concat(files, "time").drop_encoding()
    snapshots = []
    for factor in (1, 2):
        session = repo.writable_session("main")
        changed = data.assign(T=factor * data["T"])
        changed.to_zarr(session.store, mode="w", consolidated=False, zarr_format=3)
        snapshots.append(session.commit(f"T times {factor}"))
        if factor == 1:
            repo.create_tag("v1", snapshot_id=snapshots[0])
    return folder, snapshots


def test_samples_of_a_snapshot(world, repository):
    folder, snapshots = repository
    files = build_loader(build_config(raw_config(world)), split="train")
    expected = files.read([0, 3, 5])
    for ref, factor, snapshot in (
        ("?tag=v1", 1, snapshots[0]),
        (f"?snapshot={snapshots[0]}", 1, snapshots[0]),
        ("?branch=main", 2, snapshots[1]),
        ("", 2, snapshots[1]),
    ):
        raw = raw_config(world)
        for kind in ("prognostic", "dynamic_forcing", "diagnostic"):
            key = f"data__source__ERA5__variables__{kind}__path"
            set_key(raw, key, f"icechunk+file://{folder}{ref}")
        chosen = build_config(raw)
        batch = build_loader(chosen, split="train").read([0, 3, 5])
        same = [np.array_equal(batch.x[:, c], expected.x[:, c]) for c in range(5)]
        # U, T, SP: T at both levels.
        assert same == [True, True, factor == 1, factor == 1, True]
        digests = RunRecord.of(chosen).digests
        assert digests["data.source.ERA5.variables.prognostic.path"] == snapshot


CASES.rows(
    lambda ref, repository: session_at(f"icechunk+file://{repository[0]}{ref}"),
    "?branch=other",
    "?snapshot=ABC",
    "?tag=v1&branch=main",
    "?version=1",
    "/nothing",
    name="icechunk",
)


def test_several_processes_read_no_branch(repository, monkeypatch):
    monkeypatch.setattr("jax.distributed.is_initialized", lambda: True)
    folder, snapshots = repository
    with pytest.raises(ValueError, match=rf"write \?snapshot={snapshots[1]}"):
        session_at(f"icechunk+file://{folder}/")
    assert session_at(f"icechunk+file://{folder}/?tag=v1")
