"""Public ERA5 stores: local copies, and one read by HTTP."""

import functools
import http.server
import sys
import threading

import numpy as np
import pytest
import xarray as xr

from credit_jax.config import parse
from credit_jax.config.data import DataConfig
from credit_jax.data import open_dataset
from tests.data.world import GRID, NUM_LAT, NUM_LON

TIMES = xr.date_range("2020-01-01", "2020-01-04", freq="6h", use_cftime=False)
DATES = {
    "start_datetime": "2020-01-01",
    "end_datetime": "2020-01-03",
    "timestep": "6h",
    "history_len": 1,
    "forecast_len": 1,
}


def store(path, level, levels, dims, zarr_format):
    """A Zarr store of `temperature` and two 2-D variables, one static."""
    rng = np.random.default_rng(len(levels))
    sizes = {"time": len(TIMES), level: len(levels)}
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
        coords={"time": TIMES, level: list(levels), **GRID},
    ).to_zarr(path, zarr_format=zarr_format, consolidated=zarr_format == 2)


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    folder = tmp_path_factory.mktemp("era5")
    rows = ("latitude", "longitude")
    store(folder / "pressure.zarr", "level", (100, 500, 850), rows, 2)
    store(folder / "model.zarr", "hybrid", (1, 2, 3, 4), rows, 3)
    store(folder / "wb2.zarr", "level", (100, 500, 850), rows[::-1], 2)
    return folder


def arco(folder, level, levels, history=1):
    source = {
        "dataset_type": "arco_era5",
        "level_coord": level,
        "levels": levels,
        "store": f"{folder}/pressure.zarr",
        "model_level_store": f"{folder}/model.zarr",
        "variables": {
            "prognostic": {"vars_3D": ["temperature"], "vars_2D": ["surface_pressure"]},
            "static": {"vars_2D": ["land_sea_mask"]},
        },
    }
    return {**DATES, "history_len": history, "source": {"ERA5": source}}


def weatherbench(place, history=1):
    data = arco("x", "level", [850, 100], history)
    source = data["source"]["ERA5"]
    for key in ("store", "model_level_store"):
        source.pop(key)
    source |= {"dataset_type": "weatherbench2_era5", "store": f"{place}"}
    return data


@pytest.mark.slow(but=["level-1", "hybrid-2"])
@pytest.mark.reference
@pytest.mark.parametrize("history", [1, 2])
@pytest.mark.parametrize("case", ["level", "hybrid", "weatherbench"])
@pytest.mark.filterwarnings("ignore:Failed to open Zarr store:RuntimeWarning")
def test_samples_are_credits(credit, stores, case, history):
    import zarr

    from tests.data.credit_samples import compare_samples, credit_dataset

    if case == "weatherbench":
        data = weatherbench(stores / "wb2.zarr", history)
    else:
        levels = {"level": [850, 100], "hybrid": [2, 4]}[case]
        data = arco(stores, case, levels, history)
    theirs = credit_dataset(data)
    (dataset,) = theirs.datasets.values()
    dataset._fs = True
    for attribute, name in (
        ("store", "wb2"),
        ("p" + "res_level_store", "pressure"),
        ("mod_level_store", "model"),
    ):
        place = zarr.storage.LocalStore(stores / f"{name}.zarr", read_only=True)
        setattr(dataset, attribute, place)
    ours, count = compare_samples(data, theirs)
    print(f"{case}: {len(ours)} samples, {count} fields, bitwise")


class Silent(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args):
        pass


@pytest.fixture
def server(stores):
    """Serves the folder of stores on the loopback interface; yields its address."""
    handler = functools.partial(Silent, directory=str(stores))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def test_over_http(stores, server):
    samples = []
    for place in (stores / "wb2.zarr", f"{server}/wb2.zarr"):
        dataset = open_dataset(parse(DataConfig, weatherbench(place)))
        samples.append(dataset[3])
    for key, field in samples[0].input["ERA5"].items():
        assert samples[1].input["ERA5"][key].tobytes() == field.tobytes(), key


def test_a_template_may_be_an_address(server):
    source = weatherbench("x")["source"]["ERA5"]
    source.pop("store")
    for field in source["variables"].values():
        field["path"] = f"{server}/pressure.zarr"
    source["dataset_type"] = "local"
    dataset = open_dataset(parse(DataConfig, {**DATES, "source": {"E": source}}))
    assert dataset[0].input["E"]["E/prognostic/3d/temperature"].shape == (2, 1, 6, 10)


def test_no_store_at_an_address(server):
    data = parse(DataConfig, weatherbench(f"{server}/nothing.zarr"))
    with pytest.raises(ValueError, match=r"nothing\.zarr: cannot be opened"):
        open_dataset(data)


def test_without_obstore(monkeypatch, server):
    monkeypatch.setitem(sys.modules, "obstore", None)
    data = parse(DataConfig, weatherbench(f"{server}/wb2.zarr"))
    with pytest.raises(ValueError, match=r"pip install credit-jax\[cloud\]"):
        open_dataset(data)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"levels": [100, 400]}, r"no level near \[400\.0\]; it has 3 levels"),
        ({"level_coord": "lev"}, "level_coord: must be one of 'level' or 'hybrid'"),
        ({"model_level_store": "gs://x", "levels": None}, r"no level near \[1\.0, 2"),
    ],
)
def test_errors(stores, change, text):
    data = arco(stores, "level", [100, 850])
    data["source"]["ERA5"] |= change
    with pytest.raises(ValueError, match=text):
        open_dataset(parse(DataConfig, data))


def test_default_levels():
    def levels(**keys):
        data = weatherbench("x")
        data["source"]["ERA5"] |= {"levels": None, **keys}
        return parse(DataConfig, data).source["ERA5"].level_values

    assert len(levels()) == 13
    assert len(levels(resolution="full")) == 37
    assert levels(levels=[5, 7]) == (5, 7)
    data = arco("x", "hybrid", None)
    assert len(parse(DataConfig, data).source["ERA5"].level_values) == 137
