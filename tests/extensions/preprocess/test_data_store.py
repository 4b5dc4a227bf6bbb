"""The store made for training: values, times, resumption, 16 bits, wrong inputs."""

import csv
import io
import json
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import xarray as xr
import yaml
import zarr
from rich.console import Console

from credit_jax.config.load import config_of
from credit_jax.data import build_loader, open_dataset
from credit_jax.data.sources.file_source import FileSource
from credit_jax.extensions.preprocess.command import main
from credit_jax.extensions.preprocess.data_store import DIGESTS, ERRORS, write_store
from credit_jax.io.digests import find_damage
from tests.data.damaged import YEARS, rewrite, rewrite_all, setting
from tests.data.world import GRID, raw_config, write_world
from tests.messages.engine import *  # noqa: F403
from tests.messages.engine import Cases

CASES = Cases("data_store")

SHORT = {"data__end_datetime": "1999-12-31"}


@pytest.fixture
def world(folder):
    return folder


def open_group(path):
    """Opens a group of a store with xarray."""
    return xr.open_zarr(path, consolidated=False)


def fields_of(world):
    """The fields of both files."""
    return xr.concat([xr.open_dataset(world / f"{y}.nc") for y in YEARS], "time")


def write(world, raw, name="store", **options):
    """Writes a store; returns the config that reads it, and what was printed."""
    out = Console(file=io.StringIO(), width=200)
    text = write_store(config_of(raw), world / name, console=out, **options)
    return text and yaml.safe_load(text), out.file.getvalue()


def assert_same_batches(raw, other, rtol=0.0):
    """Asserts that two configs have the same samples, and the same batches."""
    for split in ("train", "valid"):
        loaders = [build_loader(config_of(c), split=split) for c in (raw, other)]
        for first, second in zip(*(loader.epoch(0) for loader in loaders), strict=True):
            np.testing.assert_array_equal(first.input_times, second.input_times)
            for name in ("x", "y"):
                arrays = getattr(first, name), getattr(second, name)
                np.testing.assert_allclose(*arrays, rtol=rtol, atol=rtol)
            assert len(first.replaced) == len(second.replaced)


def test_the_printed_config_reads_the_same_batches(world):
    rewrite(world / "w_1999.nc", lambda d: d.assign_attrs(title="x"))

    def described(dataset):
        dataset["T"].attrs = {"units": "K", "cell_methods": "time: point", "n": 3}
        dataset["level"].attrs = {"units": "hPa"}
        return dataset

    rewrite_all(world, described)
    raw = raw_config(world)
    stored, _ = write(world, raw)
    assert_same_batches(raw, stored)
    section = stored["data"]["source"]["ERA5"]
    assert "levels" not in section
    with open_group(section["variables"]["prognostic"]["path"]) as own:
        assert own["T"].attrs == {"units": "K", "cell_methods": "time: point", "n": 3}
        assert own["level"].attrs == {"units": "hPa"}
        np.testing.assert_array_equal(own["level"], [1, 5])
        np.testing.assert_array_equal(own["latitude"], GRID["latitude"])
        np.testing.assert_array_equal(own["longitude"], GRID["longitude"])
        assert str(own["time"].values[0])[:16] == "1999-12-28T00:00"
        assert str(own["time"].values[-1])[:16] == "2000-01-05T00:00"
        expected = fields_of(world).sel(time=own["time"], level=own["level"])
        for name in ("T", "U", "SP"):
            values = expected[name].astype(np.float32)
            np.testing.assert_array_equal(own[name], values)
    with open_group(section["variables"]["diagnostic"]["path"]) as own:
        # No sample has it: the truth of the first forecast.
        assert str(own["time"].values[0])[:16] == "1999-12-28T00:00"
    array = zarr.open_array(world / "store/ERA5/prognostic/T", mode="r")
    assert array.shape == (33, 2, 6, 10)
    assert array.chunks == (1, 2, 6, 10)
    assert array.shards == (4, 2, 6, 10)
    (sharding,) = array.metadata.codecs
    assert [codec.to_dict()["name"] for codec in sharding.codecs] == ["bytes"]
    assert not [p for p in world.iterdir() if "partial" in p.name]


def test_damage_and_other_requests_are_noticed(world):
    raw = raw_config(world, **SHORT)
    write(world, raw)
    _, shown = write(world, raw)
    assert "is complete; its files have their digests" in shown
    with pytest.raises(ValueError, match="was written with other bits"):
        write(world, raw, bits=16)
    with pytest.raises(ValueError, match="with other data and groups"):
        write(world, raw_config(world))
    shard = world / "store/ERA5/prognostic/T/c/1/0/0/0"
    content = bytearray(shard.read_bytes())
    content[3] ^= 1
    shard.write_bytes(content)
    with pytest.raises(ValueError, match=r"T/c/1/0/0/0: damaged, its bytes were chang"):
        write(world, raw)


def test_16_bits(world):
    """Errors as reported, NaN, exact zeros, levels of other orders of magnitude."""

    def changed(dataset):
        dataset["T"].values[:, 0] *= 1e-6  # as humidity of the stratosphere
        dataset["T"].values[5, :, 2, 3] = np.nan
        dataset["TP"].values[:, 3] = 0
        dataset["TP"].values[:, 4] -= 0.4
        return dataset

    rewrite_all(world, changed)
    raw = raw_config(world, preblocks={"per_step": {"concat": {"type": "concat"}}})
    raw["data"] |= {"start_datetime": "1999-12-27", "end_datetime": "1999-12-29"}
    raw["validation_data"] = {"start_datetime": "2000-01-02"}
    raw["validation_data"]["end_datetime"] = "2000-01-04"
    exact, _ = write(world, raw, "exact")
    raw["data"]["start_datetime"] = "1999-12-25"
    stored, shown = write(world, raw, bits=16)
    assert "ERA5/prognostic/3d/T 1: largest error " in shown
    lines = (world / "store" / ERRORS).read_text().splitlines()
    rows = list(csv.DictReader(lines))
    names = [row["variable"].split("/")[-1] for row in rows]
    assert names == [*"UUTT", "SP", "tsi", "TP"]
    expected = fields_of(world)
    for kind in ("prognostic", "dynamic_forcing", "diagnostic"):
        path = stored["data"]["source"]["ERA5"]["variables"][kind]["path"]
        own = open_group(path).load()
        source = expected.sel(time=own["time"], level=own.get("level", [1, 5]))
        for name in raw["data"]["source"]["ERA5"]["variables"][kind].get("vars_2D", []):
            check_errors(own[name], source[name], rows, name)
        if kind == "prognostic":
            check_errors(own["U"], source["U"], rows, "U")
            scaled = own["T"] * own[own["T"].scale_factor_of_levels]
            scaled += own[own["T"].add_offset_of_levels]
            check_errors(scaled, source["T"], rows, "T")
            missing = np.isnan(scaled), np.isnan(source["T"])
            assert missing[0].any()
            np.testing.assert_array_equal(*missing)
    assert own["TP"].encoding["dtype"] == np.int16
    np.testing.assert_array_equal(own["TP"][:, 3], 0)
    assert all(float(row["rms_error"]) < 1e-4 for row in rows)
    # Read through the source, the bits are those of xarray.
    (opened,) = open_dataset(config_of(exact).data).sources.values()
    stored["data"]["start_datetime"] = "1999-12-27"
    loader = build_loader(config_of(stored), split="train")
    (packed,) = loader.dataset.sources.values()
    times = np.array(["1999-12-28T06"], "datetime64[ns]")
    read = packed.read("prognostic", times)
    near = opened.read("prognostic", times)
    at = scaled.sel(time=times[0]).values
    np.testing.assert_array_equal(read["ERA5/prognostic/3d/T"][:, 0], at)
    for key, values in near.items():
        np.testing.assert_allclose(read[key], values, rtol=1e-3, atol=1e-3)


def check_errors(own, expected, rows, name):
    """Compares errors with those of the report."""
    rows = [row for row in rows if row["variable"].endswith(f"/{name}")]
    values = expected.values.astype(np.float32).astype(float)
    values = values.reshape(len(expected), len(rows), -1)
    error = np.abs(own.values.astype(np.float32) - values.reshape(own.shape))
    error = error.reshape(values.shape)
    for level, row in enumerate(rows):
        deviation = np.nanstd(values[:, level])
        assert float(row["deviation"]) == pytest.approx(deviation, rel=1e-3)
        rms = np.sqrt(np.nanmean(np.square(error[:, level]))) / deviation
        largest = np.nanmax(error[:, level]) / deviation
        assert float(row["rms_error"]) == pytest.approx(rms, rel=5e-3)
        assert float(row["largest_error"]) == pytest.approx(largest, rel=5e-3)


SLOW = """
import sys, time
from pathlib import Path
import yaml
from credit_jax.config.load import config_of
from credit_jax.data.sources.file_source import FileSource
from credit_jax.extensions.preprocess.data_store import write_store
read = FileSource.read
def slow(*args):
    time.sleep(0.03)
    return read(*args)
FileSource.read = slow
raw = yaml.safe_load(Path(sys.argv[1]).read_text())
write_store(config_of(raw), Path(sys.argv[2]), bits=int(sys.argv[3]))
"""


@pytest.mark.parametrize("bits", [32, 16])
def test_killed_and_resumed(world, bits):
    raw = raw_config(world, **SHORT)
    (world / "raw.yml").write_text(yaml.safe_dump(raw))
    write(world, raw, "expected", bits=bits)
    folder, records = world / "store", world / ".store.partial/records"
    command = [sys.executable, "-c", SLOW, world / "raw.yml", folder, str(bits)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as child:
        while len([*records.glob("0*.json")]) < 3:
            assert child.poll() is None
            time.sleep(0.01)
        child.send_signal(signal.SIGKILL)
    assert not folder.exists()
    shards = [p for p in records.parent.glob("store/**/c/*") if p.name.isdigit()]
    done = {
        world / ".store.partial/store" / name
        for record in records.glob("0*.json")
        for name in json.loads(record.read_text())["files"]
    }
    written = {path: path.stat().st_mtime_ns for path in done}
    assert done
    assert len(shards) < len([*(world / "expected").glob("**/c/*")])
    write(world, raw, bits=bits)
    for path, at in written.items():
        name = path.relative_to(world / ".store.partial/store")
        assert (folder / name).stat().st_mtime_ns == at
    assert find_damage(folder / DIGESTS) == []
    assert arrays(folder) == arrays(world / "expected")


def arrays(folder):
    """Digests of the shards of a store, by their path."""
    digests = json.loads((folder / DIGESTS).read_text())
    return {name: entry for name, entry in digests.items() if "/c/" in name}


def test_jobs_side_by_side(world):
    raw = raw_config(world, **SHORT)
    write(world, raw, "expected", bits=16)
    (world / "raw.yml").write_text(yaml.safe_dump(raw))
    command = [sys.executable, "-m", "credit_jax.preprocess", "--bits", "16"]
    command += ["--config", "raw.yml", "--store", world / "store", "--shard"]
    pipe = {"cwd": world, "stdout": subprocess.PIPE, "text": True}
    for _ in range(2):
        jobs = [subprocess.Popen([*command, f"{n}/2"], **pipe) for n in (1, 2)]
        texts = [job.communicate()[0] for job in jobs]
        assert {job.returncode for job in jobs} <= {0, 75}
    assert arrays(world / "store") == arrays(world / "expected")
    (text, *_) = filter(None, texts)
    assert text == (world / "store/config.yaml").read_text()


def test_each_job_writes_its_shards_alone(world):
    raw = raw_config(world, **SHORT)
    stored, shown = write(world, raw, shard=(1, 2))
    assert stored is None
    assert "part 1 of 2 is done" in shown
    partial = world / ".store.partial"
    first = {p: p.stat().st_mtime_ns for p in partial.glob("store/**/c/**/*")}
    stored, _ = write(world, raw, shard=(2, 2))
    for path, at in first.items():
        if path.is_file():
            new = world / path.relative_to(partial)
            assert new.stat().st_mtime_ns == at
    assert_same_batches(raw, stored)


def test_computed_and_persisted_sources(world):
    raw = raw_config(world)
    sources = raw["data"]["source"]
    sources["Sun at noon"] = {
        "dataset_type": "tisr",
        "lat_spec": [75, -75, 6],
        "lon_spec": [0, 324, 10],
        "variables": {"dynamic_forcing": {"vars_2D": ["tisr"]}},
    }
    daily = sources["ERA5"]["variables"].pop("dynamic_forcing")
    for name, mode, first, last, variables in (
        ("daily", {"timestep": "24h"}, "1999-12-26", "2000-01-09", daily),
        ("year", {"cycle_year": 2000}, "2000-01-01", "2000-01-10", {"vars_2D": ["TP"]}),
    ):
        mode["temporal_mode"] = "persist" if name == "daily" else "cyclic"
        dates = {"start_datetime": first, "end_datetime": last}
        fields = {"variables": {"dynamic_forcing": daily | variables}}
        sources[name] = {"dataset_type": "local", **mode, **dates, **fields}
    raw["preblocks"] = {"per_step": {"concat": {"type": "concat"}}}
    raw["data"] |= {"history_len": 2, "forecast_len": 2}
    stored, _ = write(world, raw)
    assert_same_batches(raw, stored)
    with open_group(world / "store/daily/dynamic_forcing") as own:
        assert own.sizes["time"] == 9


@pytest.mark.parametrize("calendar", ["noleap", "all_leap"])
def test_calendars(tmp_path, calendar):
    times = xr.date_range(
        "2000-02-25", "2000-03-05", freq="6h", calendar=calendar, use_cftime=True
    )
    write_world(tmp_path, times)
    raw = raw_config(tmp_path)
    raw["data"] |= {"start_datetime": "2000-02-26", "end_datetime": "2000-03-03"}
    stored, _ = write(tmp_path, raw)
    assert_same_batches(raw, stored)
    with open_group(tmp_path / "store/ERA5/prognostic") as own:
        assert own["time"].dt.calendar == calendar
        assert own["time"].values[0] == times[4]


def test_times_that_a_source_leaves_out(world, monkeypatch):
    """They are no samples of the store, either."""
    raw = raw_config(world)
    left_out = np.datetime64("1999-12-30T06", "ns")
    available = FileSource.available
    with monkeypatch.context() as patch:
        patch.setattr(
            FileSource, "available", lambda s, t: available(s, t) & (t != left_out)
        )
        stored, _ = write(world, raw)
        expected = build_loader(config_of(raw), split="train").dataset.starts
    actual = build_loader(config_of(stored), split="train").dataset.starts
    np.testing.assert_array_equal(actual, expected)
    with open_group(world / "store/ERA5/prognostic") as own:
        assert left_out not in own["time"].values


def test_missing_times(world):
    """An error, or samples that are replaced as from the files."""
    rewrite(world / "w_1999.nc", lambda d: d.drop_isel(time=[14, 20]))
    with pytest.raises(ValueError, match="2 of 33 times are missing"):
        write(world, raw_config(world))
    raw = raw_config(world, data__on_bad_sample="skip")
    stored, shown = write(world, raw)
    assert "note: data.source.ERA5.variables.prognostic: 2 of" in shown
    assert_same_batches(raw, stored)


@CASES.case
def a_folder_with_a_date(world):
    return lambda: write(world, raw_config(world, **SHORT), "store_%Y")


def arguments(options, world):
    (world / "raw.yml").write_text(yaml.safe_dump(raw_config(world, **SHORT)))
    return lambda: main(["--config", str(world / "raw.yml"), *options])


CASES.rows(
    arguments,
    (["--bits", "16"],),
    (["--store", "s", "--shard", "3/2"],),
    name="options",
)


@CASES.case
def infinite_values(world):
    rewrite(world / "w_1999.nc", setting("TP", np.s_[14, 1, 1], np.inf))
    write(world, raw_config(world, **SHORT), bits=16)
