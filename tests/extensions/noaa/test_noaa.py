"""Samples of gfs, goes, mrms, gefs and hrrr equal CREDIT's, from downloaded files."""

import copy
import json
import shutil
import struct
import warnings

import numpy as np
import pandas as pd
import pytest
import xarray as xr

from credit_jax.config import parse
from credit_jax.config.data import DataConfig
from credit_jax.data import open_dataset
from credit_jax.extensions.noaa.hrrr import decode, read_inventory
from tests.data.sources.server import same_samples, served
from tests.messages.engine import *  # noqa: F403
from tests.messages.engine import Cases

CASES = Cases("noaa")
TIMES = pd.date_range("2024-01-01", "2024-01-02T12", freq="6h")
STEPS = {"start_datetime": "2024-01-01", "history_len": 1, "forecast_len": 1}


def values(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def section(dataset_type, variables, end="2024-01-02T06:00", step="6h", **source):
    source = {"dataset_type": dataset_type, "variables": variables, **source}
    return {**STEPS, "end_datetime": end, "timestep": step, "source": {"own": source}}


def opened(data):
    return open_dataset(parse(DataConfig, data))


@pytest.fixture(scope="module")
def gfs(tmp_path_factory):
    """Pairs of files in the downloader's folders."""
    folder = tmp_path_factory.mktemp("gfs")
    levels = np.array([10.0, 100.0, 500.0, 900.0], np.float32)
    for number, time in enumerate(TIMES):
        files = folder / f"gdas.{time:%Y%m%d}" / f"{time:%H}" / "atmos"
        files.mkdir(parents=True)
        flat = ("time", "grid_yt", "grid_xt")
        deep = {
            "tmp": (("time", "pfull", *flat[1:]), values(number, 1, 4, 5, 7)),
            "pressfc": (flat, values(number + 50, 1, 5, 7)),
        }
        both = {
            name: (flat, values(number + 90, 1, 5, 7)) for name in ("tmp2m", "land")
        }
        upper = xr.Dataset(deep, {"time": [time], "pfull": levels})
        upper.to_netcdf(files / f"gdas.t{time:%H}z.atmanl.nc")
        surface = xr.Dataset(both, {"time": [time]})
        surface.to_netcdf(files / f"gdas.t{time:%H}z.sfcanl.nc")
    return folder


def gfs_data(folder, **keys):
    variables = {
        "prognostic": {"vars_3D": ["tmp"], "vars_2D": ["pressfc", "tmp2m"]},
        "static": {"vars_2D": ["land"]},
    }
    local = {"mode": "local", "base_path": f"{folder}", "levels": [4, 1]}
    return section("gfs", variables, **{**local, **keys})


@pytest.mark.slow(but=["{}"])
@pytest.mark.reference
@pytest.mark.parametrize(
    "keys",
    [{}, {"levels": None}, {"level_type": "pressure", "levels": [480, 30]}],
    ids=str,
)
def test_gfs(credit, gfs, keys):
    from tests.data.credit_batches import compare_samples

    ours, _ = compare_samples(gfs_data(gfs, **keys))
    every = "levels" in keys and not keys["levels"]
    assert ours.sources["own"].num_levels == (4 if every else 2)


def test_gfs_leaves_out_what_is_missing(gfs):
    data = gfs_data(gfs, end="2024-01-03")
    assert str(opened(data).starts[-1])[:13] == "2024-01-02T06"
    data["source"]["own"]["check_availability"] = False
    dataset = opened(data)
    with pytest.raises(ValueError, match=r"no file of .* is there for 2024-01-02T18"):
        dataset[len(dataset) - 1]


@pytest.mark.slow
def test_gfs_in_the_bucket(gfs):
    with served(gfs) as (address, _):
        keys = {"mode": "remote", "store": address, "base_path": None}
        same_samples(opened(gfs_data(gfs)), opened(gfs_data(gfs, **keys)))
        starts = opened(gfs_data(gfs, end="2024-01-03", **keys)).starts
    assert str(starts[-1])[:13] == "2024-01-02T06"


CASES.rows(
    lambda changes, gfs: opened(gfs_data(gfs, **changes)),
    ({"base_path": None},),
    ({"levels": [0, 5]},),
    name="gfs",
)
CASES.call("gfs, no files", lambda tmp_path: opened(gfs_data(tmp_path)))


@pytest.mark.reference
@pytest.mark.parametrize("extent", [None, [-125, -70, 22, 50], [235, 290, 25, 55]])
def test_mrms(credit, tmp_path, extent):
    from tests.data.credit_batches import compare_samples

    grid = {"lat": np.linspace(20, 55, 8), "lon": np.linspace(230, 300, 12)}
    for number, time in enumerate(TIMES):
        fields = {"QPE": (("time", *grid), values(number, 1, 8, 12))}
        file = xr.Dataset(fields, {"time": [time], **grid})
        file.to_netcdf(tmp_path / f"MRMS_{time:%Y%m%d-%H%M%S}.nc")
    path = f"{tmp_path}/MRMS_%Y%m%d-%H%M%S.nc"
    variables = {"prognostic": {"vars_2D": ["QPE"], "path": path}}
    compare_samples(section("mrms", variables, extent=extent))


@pytest.fixture(scope="module")
def goes(tmp_path_factory):
    """Images close to the times, one of them missing, and the satellite's grid."""
    folder, dims = tmp_path_factory.mktemp("goes"), ("y", "x")
    axes = np.linspace(50, 20, 9), np.linspace(-120, -70, 11)
    lat, lon = np.meshgrid(*axes, indexing="ij")
    points = {"latitude": (dims, lat + lon / 100), "longitude": (dims, lon + lat / 50)}
    xr.Dataset(points).to_netcdf(folder / "goes19_abi_conus_lat_lon.nc")
    for number, time in enumerate(TIMES):
        files = folder / "noaa-goes16/ABI-L2-MCMIPC" / f"{time:%Y/%j/%H}"
        files.mkdir(parents=True)
        for late in (1, 6) if number != 4 else ():
            stamp = f"{time + pd.Timedelta(minutes=late):%Y%j%H%M%S}1"
            name = f"OR_ABI-L2-MCMIPC-M6_G16_s{stamp}_e{stamp}_c{stamp}.nc"
            data = xr.Dataset({"CMI_C04": (dims, values(number + late, *lat.shape))})
            packed = {"dtype": "int16", "scale_factor": 0.001, "_FillValue": -1}
            encoding = {"CMI_C04": packed}
            data.to_netcdf(files / name, engine="h5netcdf", encoding=encoding)
    return folder


def goes_data(folder, **keys):
    variables = {"prognostic": {"vars_2D": ["CMI_C04"], "path": f"{folder}"}}
    local = {"mode": "local", "latlon2d_dir": f"{folder}"}
    return section("goes", variables, **{**local, **keys})


@pytest.mark.reference
@pytest.mark.parametrize(
    "extent", [None, [-110, -80, 25, 45], {"nw": [45, -110], "se": [25, -80]}]
)
def test_goes(credit, goes, extent):
    from tests.data.credit_batches import compare_samples

    ours, _ = compare_samples(goes_data(goes, extent=extent))
    assert len(ours) == 3


@pytest.mark.reference
def test_goes_catalog(credit, goes, tmp_path):
    from tests.data.credit_batches import compare_samples

    files = sorted(str(path) for path in goes.rglob("OR_*.nc"))[::2]
    times = [time for number, time in enumerate(TIMES) if number != 4]
    rows = [[str(t), str(t), f] for t, f in zip(times, files, strict=True)]
    rows[1][2] = "QC_MASKED"
    rows.append([str(TIMES[4]), str(TIMES[4]), "SKIP"])
    meta = {
        "mode": "local",
        "timestep": "0 days 06:00:00",
        "product": "ABI-L2-MCMIPC",
        "goes_position": "east",
        "extent": None,
        "start_datetime": str(TIMES[0]),
        "end_datetime": str(TIMES[-1]),
    }
    path = tmp_path / "catalog.json"
    path.write_text(json.dumps({"metadata": meta, "catalog": rows}))
    data = goes_data(goes, file_catalog_path=f"{path}", end="2024-01-02T12:00")
    ours, _ = compare_samples(data)
    assert len(ours) == 2
    meta["timestep"] = "1h"
    path.write_text(json.dumps({"metadata": meta, "catalog": rows}))
    with pytest.raises(ValueError, match="catalog of timestep '1h', expected '0 days"):
        opened(data)


CASES.rows(
    lambda changes: parse(DataConfig, goes_data("x", **changes)),
    ({"product": "ABI-L2-MCMIPM"},),
    ({"goes_position": "south"},),
    ({"mode": "remote"},),
    name="goes",
)

# GEFS on the cubed sphere.

N, LEVELS = 3, 4
MORNING = pd.date_range("2024-01-01", "2024-01-01T12", freq="6h")


def write_tile(folder, number, seed):
    """Writes both files of a tile."""
    rng = np.random.default_rng(seed)
    draw = lambda *shape: rng.normal(size=shape).astype(np.float32)  # noqa: E731
    points = {name: (("lat", "lon"), draw(N, N)) for name in ("geolat", "geolon")}
    atmosphere = {
        "ps": (("lat", "lon"), draw(N, N)),
        "t": (("lev", "lat", "lon"), draw(LEVELS, N, N)),
        "zh": (("levp", "lat", "lon"), draw(LEVELS + 1, N, N)),
        "u_s": (("lev", "latp", "lon"), draw(LEVELS, N + 1, N)),
        "v_w": (("lev", "lat", "lonp"), draw(LEVELS, N, N + 1)),
    }
    dims = ("Time", "yaxis_1", "xaxis_1")
    surface = {name: (dims, draw(1, N, N)) for name in ("t2m", "slmsk")}
    xr.Dataset(atmosphere | points).to_netcdf(folder / f"gfs_data.tile{number}.nc")
    xr.Dataset(surface).to_netcdf(folder / f"sfc_data.tile{number}.nc")


@pytest.fixture(scope="module")
def gefs(tmp_path_factory):
    """Two members at three times."""
    folder, seed = tmp_path_factory.mktemp("gefs"), 0
    for time in MORNING:
        for member in ("c00", "p01"):
            files = folder / f"gefs.{time:%Y%m%d}/{time:%H}/atmos/init/{member}"
            files.mkdir(parents=True)
            coordinates = np.arange(2.0 * (LEVELS + 1)).reshape(2, -1)
            control = xr.Dataset({"vcoord": (("nvcoord", "levsp"), coordinates)})
            control.to_netcdf(files / "gfs_ctrl.nc")
            for tile in range(1, 7):
                write_tile(files, tile, seed := seed + 1)
    return folder


def gefs_data(folder, **keys):
    deep = {"vars_3D": ["t", "zh", "u_a", "v_a"], "vars_2D": ["ps", "t2m"]}
    variables = {"prognostic": deep, "static": {"vars_2D": ["slmsk"]}}
    local = {"mode": "local", "base_path": f"{folder}", "end": "2024-01-01T12"}
    return section("gefs", **{"variables": variables, **local, **keys})


@pytest.mark.slow
@pytest.mark.reference
@pytest.mark.parametrize(
    ("history", "keys"), [(1, {}), (2, {"members": ["p01"], "levels": [4, 1]})]
)
def test_gefs(credit, gefs, history, keys):
    data = {**gefs_data(gefs, **keys), "history_len": history}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from credit.datasets.gen_2.gefs import GEFSDataset

        theirs = GEFSDataset(copy.deepcopy(data), return_target=True)
    ours = opened(data)
    assert ours.sources["own"].num_levels == (2 if "levels" in keys else LEVELS)
    count = 0
    for index, start in enumerate(ours.starts):
        expected = theirs[(pd.Timestamp(start), 0)]
        for part in ("input", "target"):
            for key, field in expected[part].items():
                own = getattr(ours[index], part)["own"][key]
                assert own.shape == field.shape[1:], key
                assert own.tobytes() == field[0].numpy().tobytes(), key
                count += 1
    assert count >= 12


@pytest.mark.slow
def test_gefs_in_the_bucket(gefs):
    with served(gefs) as (address, sent):
        there = gefs_data(gefs, mode="remote", store=address)
        same_samples(opened(gefs_data(gefs)), opened(there))
        assert sum(sent) > 0


CASES.rows(
    lambda changes, gefs: opened(gefs_data(gefs, **changes)),
    ({"members": ["c00", "p01"]},),
    ({"members": []},),
    ({"members": ["c01"]},),
    ({"base_path": None},),
    ({"base_path": "/nowhere"},),
    ({"levels": [0, 5]},),
    ({"variables": {"prognostic": {"vars_2D": ["x"]}}},),
    name="gefs",
)


def test_a_missing_tile(gefs, tmp_path):
    shutil.copytree(gefs, tmp_path, dirs_exist_ok=True)
    dataset = opened(gefs_data(tmp_path, members=["p01"]))
    next(tmp_path.glob("*/12/*/*/p01/sfc_data.tile3.nc")).unlink()
    with pytest.raises(ValueError, match=r"2024-01-01T12:00: no file .*tile3\.nc"):
        dataset.sources["own"].check("prognostic", MORNING.to_numpy())
    with pytest.raises(ValueError, match=r"no file .*sfc_data\.tile3\.nc"):
        dataset[1]


# HRRR, whose messages are GRIB.

NY, NX = 6, 8
HOURS = pd.date_range("2024-01-01", "2024-01-01T04", freq="1h")


def message(values):
    """Encodes (y, x) values, rows from south to north, as a message; NaN is missing."""
    date = struct.pack(">HBBBBB", 2024, 1, 1, 0, 0, 0)
    identification = struct.pack(">HHBBB", 7, 0, 2, 1, 1) + date + bytes([0, 1])
    surface = struct.pack(">BbI", 1, 0, 0) + bytes([255, 0]) + bytes(4)
    product = struct.pack(">HH", 0, 0) + struct.pack(">BBBBB", 0, 0, 2, 0, 83)
    product += struct.pack(">HBBI", 0, 0, 1, 0) + surface
    contents = identification, None, _grid(*values.shape), product, *_data(values)
    body = b"".join(
        struct.pack(">IB", len(content) + 5, number) + content
        for number, content in enumerate(contents, 1)
        if content is not None
    )
    size = struct.pack(">Q", 16 + len(body) + 4)
    return b"GRIB" + bytes([0, 0, 0, 2]) + size + body + b"7777"


def _grid(ny, nx):
    """Encodes template 3.30 with HRRR's projection and few, distant points."""
    shape = struct.pack(">B", 6) + bytes(15)
    first = struct.pack(">iI", 25_000_000, 240_000_000)
    lambert = (8, 38_500_000, 262_500_000, 300_000_000, 300_000_000)
    scan = bytes([0, 0b0100_0000])
    cone = struct.pack(">iiiI", 38_500_000, 38_500_000, -90_000_000, 0)
    template = shape + struct.pack(">II", nx, ny) + first
    template += struct.pack(">BiIII", *lambert) + scan + cone
    return struct.pack(">BIBBH", 0, nx * ny, 0, 0, 30) + template


def _data(values):
    real = np.isfinite(values).ravel()
    present = values.ravel()[real]
    low = np.float32(present.min())
    scale = int(np.ceil(np.log2(max(float(present.max() - low), 1e-9) / 65535)))
    packed = np.round((present - low) / 2.0**scale).astype(">u2").tobytes()
    exponent = abs(scale) | (0x8000 if scale < 0 else 0)
    head = struct.pack(">IHfHHBB", present.size, 0, low, exponent, 0, 16, 0)
    bitmap = bytes([255])
    if not real.all():
        bitmap = bytes([0]) + np.packbits(real).tobytes()
    return head, bitmap, packed


def write_messages(folder, product, time, hour, entries):
    """Writes a file and its inventory, one message per (variable, level, step)."""
    files = folder / f"hrrr.{time:%Y%m%d}" / "conus"
    files.mkdir(parents=True, exist_ok=True)
    path = files / f"hrrr.t{time:%H}z.{product}f{hour:02d}.grib2"
    rng = np.random.default_rng(time.hour + 100 * hour + len(product))
    content, lines = b"", []
    for number, (variable, level, step) in enumerate(entries):
        lines.append(f"{number + 1}:{len(content)}:d=x:{variable}:{level}:{step}:")
        fields = rng.normal(280, 10, (NY, NX))
        if variable == "LAND":
            fields[2, 3] = np.nan
        content += message(fields)
    path.write_bytes(content)
    path.with_name(path.name + ".idx").write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def hrrr(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hrrr")
    flat = [("TMP", "2 m above ground", "anl"), ("LAND", "surface", "anl")]
    for time in HOURS:
        for product, level, numbers in (
            ("wrfprs", "{} mb", (250, 500, 850)),
            ("wrfnat", "{} hybrid level", (1, 2, 3)),
        ):
            names = [(name, n) for name in ("TMP", "UGRD") for n in numbers]
            deep = [(name, level.format(n), "anl") for name, n in names]
            write_messages(folder, product, time, 0, deep + flat)
        steps = ("15 min fcst", "60 min fcst")
        entries = [("TMP", "2 m above ground", text) for text in steps]
        write_messages(folder, "wrfsubh", time, 1, entries)
    return folder


def hrrr_data(folder, product="wrfprs", **keys):
    deep = {"vars_3D": ["T", "U"], "vars_2D": ["t2m"]}
    variables = {"prognostic": deep, "static": {"vars_2D": ["landmask"]}}
    local = {"mode": "local", "base_path": f"{folder}", "product": product}
    local |= {"variables": variables, "dataset_type": "hrrr"}
    return section(end="2024-01-01T04", step="1h", **{**local, **keys})


LEVEL_CASES = {
    "all levels": {},
    "pressure levels": {"levels": [850, 250]},
    "hybrid levels": {"product": "wrfnat", "levels": [3, 1]},
    "all hybrid levels": {"product": "wrfnat", "dataset_type": "hrrr_nat"},
    "a part": {"levels": [500], "extent": [-118, -100, 27, 36]},
}


@pytest.mark.slow(but=["all levels-2", "hybrid levels-1", "a part-1"])
@pytest.mark.reference
@pytest.mark.parametrize("history", [1, 2])
@pytest.mark.parametrize("name", LEVEL_CASES)
def test_hrrr(credit, hrrr, name, history):
    from tests.data.credit_batches import compare_samples, credit_dataset

    data = {**hrrr_data(hrrr, **LEVEL_CASES[name]), "history_len": history}
    theirs = credit_dataset(data)
    ours, _ = compare_samples(data, theirs)
    field = theirs[(theirs.datetimes[0], 0)]["input"]["own"]["own/prognostic/2d/t2m"]
    assert next(ours.grids()).shape == field.shape[-2:]


@pytest.mark.reference
def test_sub_hourly(credit, hrrr):
    from tests.data.credit_batches import compare_samples

    variables = {"prognostic": {"vars_2D": ["t2m"]}}
    data = hrrr_data(hrrr, "wrfsubh", variables=variables)
    ours, count = compare_samples(data | {"start_datetime": "2024-01-01T01:00"})
    assert count == 2 * len(ours) == 6


CASES.rows(
    lambda changes, hrrr: opened(hrrr_data(hrrr, **changes)),
    ({"levels": [250, 700]},),
    ({"base_path": "/nowhere"},),
    ({"extent": [0, 10, 0, 10]},),
    ({"mode": "there"},),
    ({"base_path": None},),
    ({"variables": {"prognostic": {"vars_2D": ["x"]}}},),
    ({"variables": {"prognostic": {"vars_2D": ["cape"]}}},),
    ({"product": "wrfsubh"},),
    name="hrrr",
)


@CASES.case
def hrrr_without_a_decoder(hrrr, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pygrib", None)
    return lambda: opened(hrrr_data(hrrr))


def test_hrrr_in_the_bucket(hrrr, monkeypatch):
    """Only the messages that a sample needs are read."""
    remote = {"mode": "remote", "base_path": None, "levels": [500]}
    with served(hrrr) as (address, sent):
        there = opened(hrrr_data(hrrr, store=address, **remote))
        same_samples(opened(hrrr_data(hrrr, levels=[500])), there)
        before = len(sent)
        there[0]
        path = next(hrrr.rglob("*t00z.wrfprsf00.grib2"))
        assert max(sent[before:]) < path.stat().st_size / 4
        there.sources["own"].check("prognostic", HOURS.to_numpy())
        late = np.array(["2024-01-05T00"], "datetime64[ns]")
        with pytest.raises(ValueError, match=r"http.*hrrr\.20240105.* does not exist"):
            there.sources["own"].check("prognostic", late)
    monkeypatch.setattr("credit_jax.io.retry.PAUSES", (0.01,))
    with pytest.raises(OSError, match="cannot be reached"):
        opened(hrrr_data(hrrr, store="http://127.0.0.1:9", **remote))


def test_a_file_that_is_cut_off(hrrr, tmp_path):
    source = next(hrrr.rglob("*t02z.wrfprsf00.grib2"))
    path = tmp_path / source.name
    path.write_bytes(source.read_bytes()[:-100])
    shutil.copy(f"{source}.idx", f"{path}.idx")
    last = read_inventory(str(path), "data")[-1]
    with pytest.raises(ValueError, match=r"message of LAND \(surface\) at byte"):
        decode(str(path), last)
