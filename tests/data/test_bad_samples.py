"""Samples that cannot be used: replaced and counted with `on_bad_sample: skip`."""

import numpy as np
import pytest

from credit_jax.data import channel_checks
from credit_jax.data.mean_fields import mean_targets
from tests.data.damaged import load, rewrite, setting
from tests.data.world import make_fields, raw_config, write_world

SKIP = {"data__on_bad_sample": "skip"}
# A time of the second file, which two samples contain.
BAD = setting("SP", np.s_[3, 2], np.nan)


def collect(loader, epoch=0):
    return list(loader.epoch(epoch))


@pytest.mark.slow(but=["0"])
@pytest.mark.parametrize("threads", [0, 3])
def test_the_next_good_sample_stands_for_a_bad_one(world, folder, threads):
    batches = collect(load(world, trainer__train_batch_size=4))
    rewrite(folder / "w_2000.nc", BAD)
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
    # The bad samples are then known: the next epoch does not read them again.
    again = [line for batch in collect(loader, 1) for line in batch.replaced]
    assert sorted(again) == sorted(lines)


def missing_times(path):
    rewrite(path, lambda d: d.isel(time=[0, 1, 2, 5, 6, *range(8, 37)]))


def cut(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize(
    ("damage", "text", "last"),
    [
        (missing_times, "3 of 33 times are missing", "2000-01-04T18:00"),
        (cut, "w_2000.nc: cannot be opened", "1999-12-31T12:00"),
    ],
)
def test_files_that_are_not_complete(folder, damage, text, last):
    damage(folder / "w_2000.nc")
    loader = load(folder, **SKIP)
    assert text in loader.notes[0]
    used = {time for batch in collect(loader) for time in batch.input_times}
    assert max(used) == np.datetime64(last)
    assert not used & {*np.arange("2000-01-01T12", "2000-01-01T23", 6, "M8[h]")}


def test_a_chunk_that_is_cut_off(tmp_path):
    write_world(tmp_path, kind="zarr")
    for chunk in (tmp_path / "w_2000.zarr" / "SP").glob("[0-9]*"):
        chunk.write_bytes(chunk.read_bytes()[:-20])
    loader = load(tmp_path, raw_config(tmp_path, "zarr", **SKIP))
    text = "".join(line for batch in collect(loader) for line in batch.replaced)
    assert "w_2000.zarr: variable 'SP' at 2000-01-01" in text
    assert "cannot be read" in text
    with pytest.raises(ValueError, match=r"w_2000.zarr: variable 'SP' at .* be read"):
        collect(load(tmp_path, raw_config(tmp_path, "zarr")))


def test_means_of_targets(world, folder):
    """Of some samples, and without bad ones."""
    dataset = load(world).dataset
    times = dataset.starts + np.timedelta64(6, "h")
    for chosen, most in ((times, 1000), (times[[0, -1]], 2)):
        expected = make_fields()["SP"].sel(time=chosen).mean("time").values
        actual = mean_targets(dataset, most)
        assert actual.shape == (6, 1, 6, 10)
        assert np.allclose(actual[4, 0], expected, rtol=1e-6)
    rewrite(folder / "w_2000.nc", BAD)
    part = mean_targets(load(folder, **SKIP).dataset)
    assert np.isfinite(part).all()
    assert not np.array_equal(part, mean_targets(dataset))


def outlier(folder):
    """A value of 1e6 at one point of T in the second file."""
    rewrite(folder / "w_2000.nc", setting("T", np.s_[3, 2, 4, 7], 1e6))


def outliers_of(loader, caplog):
    """The notes on outliers of two epochs, of which there is one for each field."""
    caplog.clear()
    channel_checks._NAMED.clear()  # of 50 names that other tests may have used
    for epoch in (0, 1):
        collect(loader, epoch)
    lines = [record.getMessage() for record in caplog.records]
    return [line for line in lines if "deviations" in line]


def test_outliers_are_named_once(tmp_path, caplog):
    """In a folder with any name."""
    folder = tmp_path / "what it has at home"
    folder.mkdir()
    write_world(folder)
    outlier(folder)
    loader = load(folder)
    (line,) = outliers_of(loader, caplog)
    assert "w_2000.nc: T 5 at 2000-01-01T18:00" in line
    high = lambda d: d.assign(SP=d["SP"].where(d["SP"] < 102e3, 1e9))  # noqa: E731
    rewrite(folder / "w_1999.nc", high)
    lines = outliers_of(load(folder), caplog)
    assert {line.split(".nc: ")[1].split()[0] for line in lines} == {"SP", "T"}
    assert len(lines) == len(set(lines)) > 2


def test_an_outlier_of_a_static_field_is_named_once(folder, caplog):
    """It is that of one field, at whatever times it is read."""
    for name, number in (("mean", 0.0), ("std", 1.0)):
        rewrite(folder / f"{name}.nc", lambda d, n=number: d.assign(LSM=n))
    rewrite(folder / "static.nc", lambda d: d.assign(LSM=d["LSM"] * 0 + 1e6))
    (line,) = outliers_of(load(folder), caplog)
    assert f"{folder}/static.nc: LSM has a value that is 1e+06 deviations" in line


def test_an_outlier_of_a_renamed_variable(folder, caplog):
    """Statistics have the name before the block, files theirs."""
    outlier(folder)
    old, new = "ERA5/prognostic/3d/T", "ERA5/prognostic/3d/temperature"
    raw = raw_config(folder)
    steps = raw["preblocks"]["per_step"]
    steps["names"] = {"type": "rename", "args": {"mapping": {old: new}}}
    steps["concat"] = steps.pop("concat")
    (line,) = outliers_of(load(folder, raw), caplog)
    assert "w_2000.nc: temperature 5 at 2000-01-01T18:00" in line


def test_replaced_outliers_are_not_read(folder):
    outlier(folder)
    loader = load(folder, data__on_outlier="skip")
    assert max(abs(batch.x).max() for batch in collect(loader)) < 50
