"""Samples and batches: restartable, the same for any threads and mesh."""

import collections
import os

import jax
import numpy as np
import pytest
import xarray as xr

from credit_jax.data import build_loader
from credit_jax.data.sources.reader import OpenFile
from tests.data.world import (
    FLAT,
    NUM_LAT,
    NUM_LON,
    TIMES,
    make_fields,
    parsed,
    raw_config,
    save,
    write_weights,
    write_world,
)


def load(world, ranks=(0,), dp_size=1, **changes):
    config = parsed(raw_config(world, **changes))
    return build_loader(config, split="train", local_dp_ranks=ranks, dp_size=dp_size)


def same(ours, theirs):
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        for name in ("x", "y", "input_times", "target_times"):
            assert np.array_equal(getattr(a, name), getattr(b, name)), name


def test_threads_do_not_change_the_order(world):
    plain = list(load(world).epoch(2))
    same(list(load(world, trainer__thread_workers=3).epoch(2)), plain)


@pytest.mark.slow(but=["9"])
@pytest.mark.parametrize("start", [0, 9])
def test_restart(world, start):
    loader = load(world, trainer__thread_workers=2)
    done = start * loader.sampler.samples_per_batch
    same(list(loader.epoch(1, done)), list(loader.epoch(1))[start:])


def test_a_step_holds_the_same_samples_on_any_number_of_ranks(world):
    one = load(world, trainer__train_batch_size=4)
    two = [
        load(world, ranks=(r,), dp_size=2, trainer__train_batch_size=2) for r in (0, 1)
    ]
    steps = zip(one.epoch(0), two[0].epoch(0), two[1].epoch(0), strict=True)
    for whole, *parts in steps:
        times = np.concatenate([part.input_times for part in parts])
        order, there = np.argsort(times), np.argsort(whole.input_times)
        assert np.array_equal(times[order], whole.input_times[there])
        x = np.concatenate([part.x for part in parts])
        assert np.array_equal(x[order], whole.x[there])


@pytest.mark.slow
def test_the_ranks_of_an_open_loader_can_change(world):
    found = load(world).for_ranks((1, 2), 3)
    same(list(found.epoch(1)), list(load(world, ranks=(1, 2), dp_size=3).epoch(1)))
    with pytest.raises(ValueError, match="no full batch"):
        found.for_ranks((0,), 40)


def test_units(world):
    loader = load(world)
    batch = loader.read([0, 1])
    sample = loader.dataset[1].target["ERA5"]["ERA5/prognostic/2d/SP"]
    physical = loader.units.denormalize(batch.y)
    assert np.allclose(physical[1, 4], sample[0], rtol=1e-6)
    assert np.allclose(loader.units.normalize(physical), batch.y, atol=1e-4)


@pytest.mark.slow(but=["per_step"])
@pytest.mark.parametrize("where", ["ic_only", "per_step"])
def test_later_steps_go_through_the_same_chain(world, where):
    """A block before a rename refers to the variable by its old name."""
    old, new = "ERA5/prognostic/2d/SP", "ERA5/prognostic/2d/PS"
    rename = {"type": "rename", "args": {"mapping": {old: new}}}
    changes = {"data__forecast_len": 2, "preblocks__per_step__norm": None}
    loaders = []
    for renames in (True, False):
        raw = raw_config(world, **changes)
        name = new if renames and where == "ic_only" else old
        log = {"type": "log_transform", "args": {"variables": [name]}}
        steps = {"log": log, "concat": raw["preblocks"]["per_step"]["concat"]}
        raw["preblocks"] = {"ic_only": {}, "per_step": steps}
        if renames and where == "ic_only":
            raw["preblocks"]["ic_only"] = {"names": rename}
        elif renames:
            steps["names"] = rename
            steps["concat"] = steps.pop("concat")
        loaders.append(build_loader(parsed(raw), split="train"))
    assert new in loaders[0].schema.target_slices()
    ours, plain = (loader.read([0, 3]) for loader in loaders)
    assert ours.y.shape[2] == 2
    assert np.array_equal(ours.y, plain.y)
    assert np.array_equal(ours.x, plain.x)


def write_chunked(folder):
    """Writes the data set as NetCDF, and as Zarr in chunks of two rows."""
    write_world(folder)
    for year in (1999, 2000):
        fields = make_fields().sel(time=str(year))
        encoding = {
            name: {"chunks": (1, *field.shape[1:-2], 2, 10), "compressors": None}
            for name, field in fields.data_vars.items()
        }
        options = {"zarr_format": 2, "consolidated": True, "encoding": encoding}
        fields.to_zarr(folder / f"w_{year}.zarr", **options)
    return folder


@pytest.fixture(scope="module")
def chunked(tmp_path_factory):
    return write_chunked(tmp_path_factory.mktemp("chunked"))


@pytest.mark.parametrize("rows", [slice(0, 2), slice(2, 5), slice(5, 6)])
@pytest.mark.parametrize(("kind", "forecast_len"), [("nc", 1), ("zarr", 2)])
def test_some_rows_are_those_of_the_batch(chunked, kind, forecast_len, rows):
    raw = raw_config(chunked, kind, data__forecast_len=forecast_len)
    host = build_loader(parsed(raw), split="train")
    for loader in (host, host.for_step()):
        whole, part = loader.read([3, 1]), loader.for_rows(rows).read([3, 1])
        assert np.array_equal(part.x, whole.x[..., rows, :])
        assert np.array_equal(part.y, whole.y[..., rows, :])
        assert part.fields.keys() == whole.fields.keys()
        for own, every in zip(
            jax.tree.leaves(part.fields), jax.tree.leaves(whole.fields), strict=True
        ):
            assert np.array_equal(own, every[..., rows, :])


def test_a_process_reads_the_bytes_of_its_rows(chunked, monkeypatch):
    loader = build_loader(parsed(raw_config(chunked, "zarr")), split="train")
    preadv, counts, read = os.preadv, [], {}

    def counted(*args):
        counts.append(preadv(*args))
        return counts[-1]

    monkeypatch.setattr(os, "preadv", counted)
    for rows in (slice(0, 6), slice(2, 4), slice(4, 6), slice(1, 3)):
        part = loader.for_rows(rows)
        part.read([9])  # the metadata, too
        counts.clear()
        part.read([12])
        read[rows.start] = sum(counts)
    # Of two times, U and T in float64 on two of three levels, SP; tsi and TP of one.
    assert read[0] == 2 * (2 * 2 * 60 * 8 + 60 * 4) + 2 * 60 * 4
    assert read[2] == read[4] == read[0] / 3
    assert read[1] == read[2], "only parts of chunks"


@pytest.mark.parametrize(
    ("history", "window", "most"), [(1, "12d", 1.0), (3, "12d", 1.0), (1, "1d", 1.1)]
)
def test_windows_read_each_field_once(world, monkeypatch, history, window, most):
    """Within a run of windows; without them it is read for each sample."""
    changes = {"data__history_len": history, "trainer__thread_workers": 3}
    windows = {"trainer__shuffle": {"window": window}, **changes}
    default, loader = (load(world, **own) for own in (changes, windows))
    counts, read = collections.Counter(), OpenFile.read

    def counted(file, name, chosen, index, out):
        counts[file.path, name, index] += 1
        return read(file, name, chosen, index, out)

    monkeypatch.setattr(OpenFile, "read", counted)
    batches = [*loader.epoch(0)]
    assert sum(counts.values()) <= most * len(counts)
    expected = {
        str(time): (x, y)
        for batch in default.epoch(0)
        for time, x, y in zip(batch.input_times, batch.x, batch.y, strict=True)
    }
    assert len(batches) == default.sampler.num_batches
    for batch in batches:
        for time, x, y in zip(batch.input_times, batch.x, batch.y, strict=True):
            if str(time) in expected:
                assert np.array_equal(x, expected[str(time)][0])
                assert np.array_equal(y, expected[str(time)][1])


def test_validation_is_in_order_and_complete(world):
    dates = {"start_datetime": "2000-01-02", "end_datetime": "2000-01-03T06"}
    raw = raw_config(world, validation_data=dates)
    loader = build_loader(parsed(raw), split="valid")
    times = np.concatenate([batch.input_times for batch in loader.epoch(0)])
    expected = np.arange("2000-01-02T00", "2000-01-03T06", 6, "datetime64[h]")
    np.testing.assert_array_equal(times, expected)


def test_a_source_on_another_grid_is_regridded(world, tmp_path):
    """Every point of the coarse grid maps to two rows and two columns."""
    coarse = xr.Dataset(
        {"soil": (FLAT, np.arange(len(TIMES) * 15.0).reshape(-1, 3, 5))},
        {"time": TIMES, "latitude": [60.0, 0.0, -60.0], "longitude": np.arange(5) * 72},
    )
    save(coarse, tmp_path / "soil.nc")
    rows, columns = np.divmod(np.arange(NUM_LAT * NUM_LON), NUM_LON)
    columns = rows // 2 * 5 + columns // 2
    write_weights(tmp_path / "weights.nc", columns, 15)
    raw, key = raw_config(world), "LAND/dynamic_forcing/2d/soil"
    soil = {"vars_2D": ["soil"], "path": f"{tmp_path}/soil.nc"}
    source = {"dataset_type": "local", "variables": {"dynamic_forcing": soil}}
    raw["data"]["source"]["LAND"] = source
    args = {"weight_file": f"{tmp_path}/weights.nc", "variables": [key]}
    steps = raw["preblocks"]["per_step"]
    with pytest.raises(ValueError, match=r"soil\.nc: soil has a grid of 3 x 5"):
        build_loader(parsed(raw), split="train")
    raw["preblocks"]["per_step"] = {"new": {"type": "regrid", "args": args}, **steps}
    loader = build_loader(parsed(raw), split="train", grid=(NUM_LAT, NUM_LON))
    batch = loader.read([0])
    first = coarse["soil"].sel(time=batch.input_times[0]).values
    found = batch.x[0, loader.schema.input_slices()[key]][0, 0]
    assert np.array_equal(found, first.repeat(2, 0).repeat(2, 1))
    args["variables"] = ["ERA5/prognostic/2d/none"]
    with pytest.raises(ValueError, match=r"must agree in all but the levels.*soil"):
        build_loader(parsed(raw), split="train")
