"""HRRR: samples equal CREDIT's, from files in the layout of its downloader."""

import struct

import numpy as np
import pandas as pd
import pytest

from credit_jax.config import parse
from credit_jax.config.data import DataConfig
from credit_jax.data import open_dataset
from credit_jax.extensions.noaa.hrrr import read_inventory
from tests.data.sources.server import same_samples, served

NY, NX = 6, 8


def message(values, level_type=1, level=0, discipline=0, category=0, number=0):
    """Encodes (y, x) values, rows from south to north, as a message; NaN is missing."""
    values = np.asarray(values, np.float64)
    sections = [
        _identification(discipline),
        _grid(*values.shape),
        _product(category, number, level_type, level),
        *_data(values),
    ]
    body = b"".join(sections) + b"7777"
    head = b"GRIB" + bytes([0, 0, discipline, 2]) + struct.pack(">Q", 16 + len(body))
    return head + body


def _section(number, content):
    return struct.pack(">IB", len(content) + 5, number) + content


def _identification(discipline):
    date = struct.pack(">HBBBBB", 2024, 1, 1, 0, 0, 0)
    return _section(1, struct.pack(">HHBBB", 7, 0, 2, 1, 1) + date + bytes([0, 1]))


def _grid(ny, nx):
    """Encodes template 3.30 with HRRR's projection and few, distant points."""
    shape = struct.pack(">B", 6) + bytes(15)
    first = struct.pack(">iI", 25_000_000, 240_000_000)
    lambert = struct.pack(
        ">BiIII", 8, 38_500_000, 262_500_000, 300_000_000, 300_000_000
    )
    scan = bytes([0, 0b0100_0000])
    cone = struct.pack(">iiiI", 38_500_000, 38_500_000, -90_000_000, 0)
    template = shape + struct.pack(">II", nx, ny) + first + lambert + scan + cone
    return _section(3, struct.pack(">BIBBH", 0, nx * ny, 0, 0, 30) + template)


def _product(category, number, level_type, level):
    surface = struct.pack(">BbI", level_type, 0, level) + bytes([255, 0]) + bytes(4)
    when = struct.pack(">HBBI", 0, 0, 1, 0)
    first = struct.pack(">BBBBB", category, number, 2, 0, 83)
    return _section(4, struct.pack(">HH", 0, 0) + first + when + surface)


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
    return _section(5, head), _section(6, bitmap), _section(7, packed)


TIMES = pd.date_range("2024-01-01", "2024-01-01T04", freq="1h")
DATES = {
    "start_datetime": "2024-01-01",
    "end_datetime": "2024-01-01T04",
    "timestep": "1h",
    "history_len": 1,
    "forecast_len": 1,
}
LEVELS = {"wrfprs": "{} mb", "wrfnat": "{} hybrid level"}


def write(folder, product, time, hour, entries):
    """Writes a file and its inventory, one message per (variable, level, step)."""
    place = folder / f"hrrr.{time:%Y%m%d}" / "conus"
    place.mkdir(parents=True, exist_ok=True)
    path = place / f"hrrr.t{time:%H}z.{product}f{hour:02d}.grib2"
    rng = np.random.default_rng(time.hour + 100 * hour + len(product))
    content, lines = b"", []
    for number, (variable, level, step) in enumerate(entries):
        lines.append(f"{number + 1}:{len(content)}:d=x:{variable}:{level}:{step}:")
        values = rng.normal(280, 10, (NY, NX))
        if variable == "LAND":
            values[2, 3] = np.nan
        content += message(values)
    path.write_bytes(content)
    path.with_name(path.name + ".idx").write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hrrr")
    flat = [("TMP", "2 m above ground", "anl"), ("LAND", "surface", "anl")]
    for time in TIMES:
        for product, levels in (("wrfprs", (250, 500, 850)), ("wrfnat", (1, 2, 3))):
            deep = [
                (name, LEVELS[product].format(level), "anl")
                for name in ("TMP", "UGRD")
                for level in levels
            ]
            write(folder, product, time, 0, deep + flat)
        steps = [(15, "15 min fcst"), (60, "60 min fcst")]
        entries = [("TMP", "2 m above ground", text) for _, text in steps]
        write(folder, "wrfsubh", time, 1, entries)
    return folder


def section(folder, product="wrfprs", **keys):
    variables = {
        "prognostic": {"vars_3D": ["T", "U"], "vars_2D": ["t2m"]},
        "static": {"vars_2D": ["landmask"]},
    }
    if product == "wrfsubh":
        variables = {"prognostic": {"vars_2D": ["t2m"]}}
    source = {
        "dataset_type": "hrrr",
        "product": product,
        "mode": "local",
        "base_path": f"{folder}",
        "variables": variables,
        **keys,
    }
    return {**DATES, "source": {"own": source}}


CASES = {
    "all levels": {},
    "pressure levels": {"levels": [850, 250]},
    "hybrid levels": {"product": "wrfnat", "levels": [3, 1]},
    "all hybrid levels": {"product": "wrfnat", "dataset_type": "hrrr_nat"},
    "a part": {"levels": [500], "extent": [-118, -100, 27, 36]},
}


@pytest.mark.slow(but=["all levels-2", "hybrid levels-1", "a part-1"])
@pytest.mark.reference
@pytest.mark.parametrize("history", [1, 2])
@pytest.mark.parametrize("name", CASES)
def test_samples(credit, folder, name, history):
    from tests.data.credit_samples import credit_dataset, our_dataset, starts_of

    data = {**section(folder, **CASES[name]), "history_len": history}
    ours, theirs = our_dataset(data), credit_dataset(data)
    assert np.array_equal(ours.starts, starts_of(theirs))
    for index in range(len(ours)):
        expected = theirs[(theirs.datetimes[index], 0)]
        for part in ("input", "target"):
            own = getattr(ours[index], part)["own"]
            for key, field in expected[part]["own"].items():
                assert np.array_equal(own[key], field.numpy(), equal_nan=True), key
    assert next(ours.grids()).shape == own[key].shape[-2:]


@pytest.mark.reference
def test_sub_hourly(credit, folder):
    from tests.data.credit_samples import compare_samples

    data = section(folder, "wrfsubh") | {"start_datetime": "2024-01-01T01:00"}
    ours, count = compare_samples(data)
    assert count == 2 * len(ours) == 6


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"levels": [250, 700]}, r"T: no level mb \[700\.0\]; it has \[250\.0, 500"),
        ({"base_path": "/nowhere"}, "no file '/nowhere/hrrr"),
        ({"extent": [0, 10, 0, 10]}, "no point of HRRR's grid"),
        ({"mode": "there"}, "mode: must be one of 'local' or 'remote'"),
        ({"base_path": None}, "base_path: missing"),
        ({"variables": {"prognostic": {"vars_2D": ["x"]}}}, "'x' is none of T, U, V"),
        ({"variables": {"prognostic": {"vars_2D": ["cape"]}}}, "no message of cape"),
        ({"product": "wrfsubh"}, "wrfsubh has no levels"),
    ],
)
def test_errors(folder, change, text):
    data = section(folder)
    data["source"]["own"] |= change
    with pytest.raises((ValueError, FileNotFoundError), match=text):
        open_dataset(parse(DataConfig, data))


def test_the_bucket(folder):
    """Only the messages that a sample needs are read."""
    keys = {"levels": [500]}
    with served(folder) as (address, sent):
        remote = {"mode": "remote", "store": address, "base_path": None}
        there = open_dataset(parse(DataConfig, section(folder, **keys, **remote)))
        local = open_dataset(parse(DataConfig, section(folder, **keys)))
        same_samples(local, there)
        before = len(sent)
        there[0]
        path = next(folder.rglob("*t00z.wrfprsf00.grib2"))
        sizes = sent[before:]
        print("bytes of a sample:", sizes, "of a file:", path.stat().st_size)
        assert max(sizes) < path.stat().st_size / 4
        there.sources["own"].check("prognostic", TIMES.to_numpy())
        late = np.array(["2024-01-05T00"], "datetime64[ns]")
        with pytest.raises(ValueError, match=r"http.*hrrr\.20240105.* does not exist"):
            there.sources["own"].check("prognostic", late)


@pytest.mark.slow
def test_a_bucket_that_does_not_answer(folder, monkeypatch):
    monkeypatch.setattr("credit_jax.io.retry.PAUSES", (0.01,))
    keys = {"mode": "remote", "store": "http://127.0.0.1:9"}
    with pytest.raises(OSError, match="cannot be reached"):
        open_dataset(parse(DataConfig, section(folder, **keys)))


def test_without_a_decoder(folder, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pygrib", None)
    with pytest.raises(ValueError, match=r"pip install credit-jax\[grib\]"):
        open_dataset(parse(DataConfig, section(folder)))


def test_a_file_that_is_cut_off(folder, tmp_path):
    from credit_jax.extensions.noaa.hrrr import decode

    source = next(folder.rglob("*t02z.wrfprsf00.grib2"))
    path = tmp_path / source.name
    path.write_bytes(source.read_bytes()[:-100])
    (tmp_path / f"{source.name}.idx").write_bytes(
        source.with_name(f"{source.name}.idx").read_bytes()
    )
    last = read_inventory(str(path), "data")[-1]
    with pytest.raises(ValueError, match=r"message of LAND \(surface\) at byte"):
        decode(str(path), last)
