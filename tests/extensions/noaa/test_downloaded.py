"""Samples of gfs, goes and mrms equal CREDIT's, from files of its downloaders."""

import json

import numpy as np
import pandas as pd
import pytest
import xarray as xr

from credit_jax.config import parse
from credit_jax.config.data import DataConfig
from credit_jax.data import open_dataset
from tests.data.sources.server import same_samples, served

TIMES = pd.date_range("2024-01-01", "2024-01-02T12", freq="6h")
DATES = {
    "start_datetime": "2024-01-01",
    "end_datetime": "2024-01-02T06:00",
    "timestep": "6h",
    "history_len": 1,
    "forecast_len": 1,
}


def values(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def data_of(**source):
    return {**DATES, "source": {"own": source}}


@pytest.fixture(scope="module")
def gfs(tmp_path_factory):
    """Pairs of files in the downloader's folders."""
    folder = tmp_path_factory.mktemp("gfs")
    levels = np.array([900.0, 500.0, 100.0, 10.0], np.float32)[::-1]
    for number, time in enumerate(TIMES):
        place = folder / f"gdas.{time:%Y%m%d}" / f"{time:%H}" / "atmos"
        place.mkdir(parents=True)
        flat, deep = ("time", "grid_yt", "grid_xt"), ("time", "pfull", "grid_yt")
        coords = {"time": [time], "pfull": levels}
        xr.Dataset(
            {
                "tmp": ((*deep, "grid_xt"), values(number, 1, 4, 5, 7)),
                "pressfc": (flat, values(number + 50, 1, 5, 7)),
            },
            coords,
        ).to_netcdf(place / f"gdas.t{time:%H}z.atmanl.nc")
        xr.Dataset(
            {name: (flat, values(number + 90, 1, 5, 7)) for name in ("tmp2m", "land")},
            {"time": [time]},
        ).to_netcdf(place / f"gdas.t{time:%H}z.sfcanl.nc")
    return folder


def gfs_source(folder, **keys):
    return {
        "dataset_type": "gfs",
        "mode": "local",
        "base_path": f"{folder}",
        "levels": [4, 1],
        "variables": {
            "prognostic": {"vars_3D": ["tmp"], "vars_2D": ["pressfc", "tmp2m"]},
            "static": {"vars_2D": ["land"]},
        },
        **keys,
    }


@pytest.mark.slow(but=["{}"])
@pytest.mark.reference
@pytest.mark.parametrize(
    "keys",
    [{}, {"levels": None}, {"level_type": "pressure", "levels": [480, 30]}],
    ids=str,
)
def test_gfs(credit, gfs, keys):
    from tests.data.credit_samples import compare_samples

    ours, count = compare_samples(data_of(**gfs_source(gfs, **keys)))
    assert ours.sources["own"].num_levels == (
        4 if "levels" in keys and not keys["levels"] else 2
    )
    print(f"gfs: {len(ours)} samples, {count} fields, bitwise")


def test_gfs_leaves_out_what_is_missing(gfs):
    data = data_of(**gfs_source(gfs)) | {"end_datetime": "2024-01-03"}
    starts = open_dataset(parse(DataConfig, data)).starts
    assert str(starts[-1])[:13] == "2024-01-02T06"
    data["source"]["own"]["check_availability"] = False
    dataset = open_dataset(parse(DataConfig, data))
    with pytest.raises(ValueError, match=r"no file of .* is there for 2024-01-02T18"):
        dataset[len(dataset) - 1]


@pytest.mark.slow
def test_gfs_in_the_bucket(gfs):
    whole = sum(path.stat().st_size for path in gfs.rglob("*.nc"))
    with served(gfs) as (address, sent):
        keys = {"mode": "remote", "store": address, "base_path": None}
        there = open_dataset(parse(DataConfig, data_of(**gfs_source(gfs, **keys))))
        same_samples(open_dataset(parse(DataConfig, data_of(**gfs_source(gfs)))), there)
        print(f"gfs over http: {sum(sent)} of {whole} bytes")
        data = data_of(**gfs_source(gfs, **keys)) | {"end_datetime": "2024-01-03"}
        starts = open_dataset(parse(DataConfig, data)).starts
    assert str(starts[-1])[:13] == "2024-01-02T06"


def test_gfs_errors(gfs, tmp_path):
    data = data_of(**gfs_source(gfs, base_path=None))
    with pytest.raises(ValueError, match=r"base_path: missing; .*mode: remote"):
        parse(DataConfig, data)
    data = data_of(**gfs_source(gfs, levels=[0, 5]))
    with pytest.raises(ValueError, match=r"got \[0\.0, 5\.0\] .* from 1 to 4"):
        open_dataset(parse(DataConfig, data))
    data = data_of(**gfs_source(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"gdas\.t00z\.atmanl\.nc"):
        open_dataset(parse(DataConfig, data))


@pytest.fixture(scope="module")
def mrms(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mrms")
    for number, time in enumerate(TIMES):
        fields = values(number, 1, 8, 12)
        xr.Dataset(
            {"QPE": (("time", "lat", "lon"), fields)},
            {
                "time": [time],
                "lat": np.linspace(20, 55, 8),
                "lon": np.linspace(230, 300, 12),
            },
        ).to_netcdf(folder / f"MRMS_{time:%Y%m%d-%H%M%S}.nc")
    return folder


@pytest.mark.reference
@pytest.mark.parametrize("extent", [None, [-125, -70, 22, 50], [235, 290, 25, 55]])
def test_mrms(credit, mrms, extent):
    from tests.data.credit_samples import compare_samples

    path = f"{mrms}/MRMS_%Y%m%d-%H%M%S.nc"
    source = {
        "dataset_type": "mrms",
        "extent": extent,
        "variables": {"prognostic": {"vars_2D": ["QPE"], "path": path}},
    }
    ours, count = compare_samples(data_of(**source))
    print(f"mrms: {len(ours)} samples, {count} fields, bitwise")


@pytest.fixture(scope="module")
def goes(tmp_path_factory):
    """Images close to the times, one of them missing, and the satellite's grid."""
    folder = tmp_path_factory.mktemp("goes")
    shape = (9, 11)
    lat, lon = np.meshgrid(
        np.linspace(50, 20, 9), np.linspace(-120, -70, 11), indexing="ij"
    )
    xr.Dataset(
        {
            "latitude": (("y", "x"), lat + lon / 100),
            "longitude": (("y", "x"), lon + lat / 50),
        }
    ).to_netcdf(folder / "goes19_abi_conus_lat_lon.nc")
    for number, time in enumerate(TIMES):
        place = folder / "noaa-goes16/ABI-L2-MCMIPC" / f"{time:%Y/%j/%H}"
        place.mkdir(parents=True)
        if number == 4:
            continue
        for late in (1, 6):
            begin = time + pd.Timedelta(minutes=late)
            stamp = f"{begin:%Y%j%H%M%S}1"
            name = f"OR_ABI-L2-MCMIPC-M6_G16_s{stamp}_e{stamp}_c{stamp}.nc"
            data = xr.Dataset({"CMI_C04": (("y", "x"), values(number + late, *shape))})
            packed = {"dtype": "int16", "scale_factor": 0.001, "_FillValue": -1}
            data.to_netcdf(
                place / name, engine="h5netcdf", encoding={"CMI_C04": packed}
            )
    return folder


def goes_source(folder, **keys):
    return {
        "dataset_type": "goes",
        "mode": "local",
        "latlon2d_dir": f"{folder}",
        "variables": {"prognostic": {"vars_2D": ["CMI_C04"], "path": f"{folder}"}},
        **keys,
    }


@pytest.mark.reference
@pytest.mark.parametrize(
    "extent",
    [None, [-110, -80, 25, 45], {"nw": [45, -110], "se": [25, -80]}],
)
def test_goes(credit, goes, extent):
    from tests.data.credit_samples import compare_samples

    ours, count = compare_samples(data_of(**goes_source(goes, extent=extent)))
    assert len(ours) == 3
    print(f"goes: {len(ours)} samples, {count} fields, bitwise")


@pytest.mark.reference
def test_goes_catalog(credit, goes, tmp_path):
    from tests.data.credit_samples import compare_samples

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
    source = goes_source(goes, file_catalog_path=f"{path}")
    data = data_of(**source) | {"end_datetime": "2024-01-02T12:00"}
    ours, _ = compare_samples(data)
    assert len(ours) == 2
    path.write_text(
        json.dumps({"metadata": {**meta, "timestep": "1h"}, "catalog": rows})
    )
    with pytest.raises(
        ValueError, match="a catalog of timestep '1h', expected '0 days"
    ):
        open_dataset(parse(DataConfig, data))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"product": "ABI-L2-MCMIPM"}, "must end with 'C'"),
        ({"goes_position": "south"}, "must be one of 'east' or 'west'"),
        ({"mode": "remote"}, "mode: 'remote' is not available"),
    ],
)
def test_goes_configs(goes, change, text):
    with pytest.raises(ValueError, match=text):
        parse(DataConfig, data_of(**goes_source(goes, **change)))
