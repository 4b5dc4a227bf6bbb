"""Samples that cannot be used: replaced and counted with `on_bad_sample: skip`."""

import numpy as np
import pytest
import xarray as xr

from credit_jax.config import ConfigError
from credit_jax.data.mean_fields import mean_targets
from tests.data.damaged import load, refused, rewrite
from tests.data.world import EXACT, parsed, raw_config, write_world

SKIP = {"data__on_bad_sample": "skip"}


def nan_at(folder, position, variable="SP"):
    """Writes NaN at a time of the second file, which two samples contain."""

    def damage(dataset):
        dataset[variable][position, 2] = np.nan
        return dataset

    rewrite(folder / "w_2000.nc", damage)


def collect(loader, epoch=0):
    return list(loader.epoch(epoch))


@pytest.mark.slow(but=["0"])
@pytest.mark.parametrize("threads", [0, 3])
def test_the_next_good_sample_stands_for_a_bad_one(world, folder, threads):
    batches = collect(load(world, trainer__train_batch_size=4))
    nan_at(folder, 3)
    changes = {"trainer__train_batch_size": 4, "trainer__thread_workers": threads}
    loader = load(folder, **changes, **SKIP)
    bad = np.datetime64("2000-01-01T12:00"), np.datetime64("2000-01-01T18:00")
    stand_in = np.datetime64("2000-01-02T00:00")
    lines = []
    by_time = {t: x for b in batches for t, x in zip(b.input_times, b.x, strict=True)}
    for before, after in zip(batches, collect(loader), strict=True):
        times = [stand_in if time in bad else time for time in before.input_times]
        assert np.array_equal(after.input_times, times)
        for x, time in zip(after.x, times, strict=True):
            assert np.array_equal(x, by_time[time])
        lines += after.replaced
    assert len(lines) == 2
    assert (
        "at 2000-01-01T12:00 is replaced by that at 2000-01-02T00:00: "
        f"{folder}/w_2000.nc: SP" in lines[0] + lines[1]
    )
    assert "has 10 of 60 values that are NaN" in lines[0]
    # The bad samples are then known: the next epoch does not read them again.
    again = [line for batch in collect(loader, 1) for line in batch.replaced]
    assert sorted(again) == sorted(lines)


def test_by_default_a_bad_sample_is_an_error(folder):
    nan_at(folder, 3)
    with pytest.raises(ValueError, match=r"SP of the (input|target).* 10 of 60 values"):
        collect(load(folder))


def test_the_file_of_a_target_in_the_next_file(folder):
    nan_at(folder, 0, "TP")
    with pytest.raises(ValueError, match=r"w_2000.nc: TP of the target.* 1999-12-31T"):
        collect(load(folder))


@pytest.mark.slow
def test_missing_times(folder):
    rewrite(folder / "w_2000.nc", lambda d: d.isel(time=[0, 1, 2, 5, 6, *range(8, 37)]))
    refused(folder, "3 of 33 times are missing")
    loader = load(folder, **SKIP)
    assert "3 of 33 times are missing" in loader.notes[0]
    lines = [line for batch in collect(loader) for line in batch.replaced]
    assert any("w_2000.nc: no time 2000-01-01T18:00" in line for line in lines)
    used = {time for batch in collect(loader) for time in batch.input_times}
    assert np.datetime64("2000-01-01T18:00") not in used


def test_a_file_that_is_cut_off(folder):
    path = folder / "w_2000.nc"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    refused(folder, "w_2000.nc: cannot be opened")
    loader = load(folder, **SKIP)
    assert "w_2000.nc: cannot be opened" in loader.notes[0]
    used = {time for batch in collect(loader) for time in batch.input_times}
    assert max(used) == np.datetime64("1999-12-31T12:00")


def test_a_chunk_that_is_cut_off(tmp_path):
    write_world(tmp_path, kind="zarr")
    chunks = sorted((tmp_path / "w_2000.zarr" / "SP").glob("[0-9]*"))
    for chunk in chunks:
        chunk.write_bytes(chunk.read_bytes()[:-20])
    loader = load(tmp_path, raw_config(tmp_path, "zarr", **SKIP))
    text = "".join(line for batch in collect(loader) for line in batch.replaced)
    assert "w_2000.zarr: variable 'SP' at 2000-01-01" in text
    assert "cannot be read" in text


def test_a_bad_first_sample_is_reported_before_training(folder):
    def damage(dataset):
        dataset["T"][12, :, 0] = np.nan
        return dataset

    rewrite(folder / "w_1999.nc", damage)
    notes = load(folder, **SKIP, **EXACT).notes
    replaced = "1999-12-28T00:00 is replaced by that at 1999-12-28T06:00"
    assert f"{replaced}: {folder}/w_1999.nc: T 1 " in notes[0]


@pytest.mark.slow
def test_all_samples_are_bad(folder):
    for year in (1999, 2000):
        rewrite(folder / f"w_{year}.nc", lambda d: d.assign(SP=d["SP"] * np.nan))
    first = f"the first: {folder}/w_1999.nc: SP"
    refused(folder, f"none of the 32 samples can be used; {first}", **SKIP)


def test_fill_values_at_the_end_are_seen_before_training(folder):
    def damage(dataset):
        dataset["SP"][16, 2:4, :3] = -9999.0
        return dataset

    rewrite(folder / "w_2000.nc", damage)
    refused(folder, "SP at 2000-01-05T00:00 has 6 of 60 values that are -9999, a fill")


def test_fill_values_between_are_seen_when_they_are_read(folder):
    def damage(dataset):
        dataset["SP"][4, 2:4, :3] = -9999.0
        return dataset

    rewrite(folder / "w_2000.nc", damage)
    loader = load(folder)
    with pytest.raises(ValueError, match="SP at 2000-01-02T00:00 has 6 of 60 values"):
        collect(loader)


@pytest.mark.slow
def test_the_climatology_leaves_bad_samples_out(world, folder):
    whole = load(world).dataset
    nan_at(folder, 3)
    loader = load(folder, **SKIP)
    part, every = mean_targets(loader.dataset), mean_targets(whole)
    assert np.isfinite(part).all()
    assert not np.array_equal(part, every)


def test_other_units_than_the_statistics(world, folder):
    """The statistics are in Pa, the files in hPa."""
    assert not load(world, **EXACT).notes
    for year in (1999, 2000):
        rewrite(folder / f"w_{year}.nc", lambda d: d.assign(SP=d["SP"] / 100))
    (note,) = load(folder, **EXACT).notes
    path = folder / "w_1999.nc"
    assert note.startswith(f"{path}: SP (ERA5/prognostic/2d/SP) is -9")
    assert "by a mean and deviation of other units" in note
    assert "in the input of the sample at 1999-12-" in note


@pytest.mark.parametrize(
    ("name", "part"), [("SP", "input"), ("TP", "target")], ids=["input", "diagnostic"]
)
def test_deviations_of_0_are_noted(folder, name, part):
    """Also where the mean is that of the file, and in the target only."""
    with xr.open_dataset(folder / "std.nc") as dataset:
        std = dataset.load()
    std[name] *= 0
    std.to_netcdf(folder / "std.nc")
    (note,) = load(folder, **EXACT).notes
    assert note.startswith(f"{folder}/w_1999.nc: {name} (ERA5/")
    assert f"in the {part} of the sample" in note
    assert "a deviation of 0" in note


def test_the_key(folder):
    assert parsed(raw_config(folder)).data.on_bad_sample == "raise"
    with pytest.raises(ConfigError, match=r"data\.on_bad_sample"):
        parsed(raw_config(folder, data__on_bad_sample="ignore"))


def outlier_at(folder):
    """Writes a value of 1e6 at one point of T in the second file."""

    def damage(dataset):
        dataset["T"][3, 2, 4, 7] = 1e6
        return dataset

    rewrite(folder / "w_2000.nc", damage)


def test_an_outlier_is_named_once(folder, caplog):
    outlier_at(folder)
    loader = load(folder)
    caplog.clear()
    for epoch in (0, 1):
        collect(loader, epoch)
    (line,) = [
        own.getMessage() for own in caplog.records if "deviations" in own.msg % own.args
    ]
    for text in (
        "w_2000.nc: T 5 at 2000-01-01T18:00",
        "row 4, column 7",
        "latitude -45, longitude 252",
    ):
        assert text in line
    deviations = float(line.partition("a value that is ")[2].split()[0])
    assert 5e4 < deviations < 2e5


def outliers_named(caplog):
    """The notes on outliers, of which there is one for each field."""
    lines = [record.getMessage() for record in caplog.records]
    return [line for line in lines if "deviations" in line]


def normalized_too(folder, name):
    """Adds a mean of 0 and a deviation of 1 of a variable to the statistics."""
    rewrite(folder / "mean.nc", lambda d: d.assign({name: 0.0}))
    rewrite(folder / "std.nc", lambda d: d.assign({name: 1.0}))


@pytest.mark.slow
def test_an_outlier_of_a_static_field_is_named_once(folder, caplog):
    """It is that of one field, at whatever times it is read."""
    normalized_too(folder, "LSM")
    rewrite(folder / "static.nc", lambda d: d.assign(LSM=d["LSM"] * 0 + 1e6))
    loader = load(folder)
    collect(loader)
    (line,) = outliers_named(caplog)
    assert f"{folder}/static.nc: LSM has a value that is 1e+06 deviations" in line


@pytest.mark.slow
def test_outliers_in_a_folder_with_any_name(tmp_path, caplog):
    folder = tmp_path / "what it has at home"
    folder.mkdir()
    write_world(folder)
    outlier_at(folder)
    rewrite(
        folder / "w_1999.nc", lambda d: d.assign(SP=d["SP"].where(d["SP"] < 102e3, 1e9))
    )
    collect(load(folder))
    lines = outliers_named(caplog)
    assert {line.split(".nc: ")[1].split()[0] for line in lines} == {"SP", "T"}
    assert len(lines) == len(set(lines)) > 2


@pytest.mark.slow
def test_an_outlier_of_a_renamed_variable(folder, caplog):
    """Statistics have the name before the block, files theirs."""
    outlier_at(folder)
    old, new = "ERA5/prognostic/3d/T", "ERA5/prognostic/3d/temperature"
    rename = {"type": "rename", "args": {"mapping": {old: new}}}
    raw = raw_config(folder)
    steps = raw["preblocks"]["per_step"]
    raw["preblocks"]["per_step"] = {
        "norm": steps["norm"],
        "names": rename,
        "concat": steps["concat"],
    }
    collect(load(folder, raw))
    (line,) = outliers_named(caplog)
    assert "w_2000.nc: temperature 5 at 2000-01-01T18:00" in line


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (np.nan, "has 1 of 60 values that are NaN"),
        (-9999.0, "has 6 of 60 values that are -9999, a fill"),
        (1e6, "has a value that is 1e"),
    ],
)
def test_the_forcing_of_later_steps_is_checked(folder, value, words):
    """The last one is the input of no sample."""
    normalized_too(folder, "tsi")

    def damage(dataset):
        dataset["tsi"][15, 3, : 6 if value < 0 else 1] = value
        return dataset

    rewrite(folder / "w_2000.nc", damage)
    changes = {"data__forecast_len": 2, "data__on_outlier": "raise"}
    with pytest.raises(ValueError, match=words) as caught:
        collect(load(folder, **changes))
    assert str(caught.value).startswith(f"{folder}/w_2000.nc: ")
    assert "tsi" in str(caught.value)
    assert "2000-01-04T18:00" in str(caught.value)


@pytest.mark.slow
def test_an_outlier_ends_a_run_or_is_replaced(world, folder):
    outlier_at(folder)
    refused_while_reading = load(folder, data__on_outlier="raise")
    with pytest.raises(ValueError, match=r"w_2000.nc: T 5 at 2000-01-01T18"):
        collect(refused_while_reading)
    loader = load(folder, data__on_outlier="skip")
    lines = [line for batch in collect(loader) for line in batch.replaced]
    assert len(lines) == 2, "the sample whose input it is, and whose target"
    assert all("is replaced by that at" in line for line in lines)
    assert max(abs(batch.x).max() for batch in collect(loader)) < 50


def test_an_outlier_is_no_bad_sample(folder):
    """`on_bad_sample: skip` does not hide one."""
    outlier_at(folder)
    with pytest.raises(ValueError, match="deviations"):
        collect(load(folder, data__on_outlier="raise", **SKIP))


def test_a_bad_sample_is_no_outlier(folder):
    """`on_outlier: skip` does not hide NaN."""
    nan_at(folder, 5)
    with pytest.raises(ValueError, match="NaN"):
        collect(load(folder, data__on_outlier="skip"))
