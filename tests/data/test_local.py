"""The local source: what is read, and one readable error for what cannot be."""

import re

import numpy as np
import pandas as pd
import pytest
import xarray as xr

from credit_jax.data import build_loader, open_dataset
from credit_jax.data.reader import Reader
from tests.data.world import (
    FLAT,
    GRID,
    TIMES,
    make_fields,
    parsed,
    raw_config,
    save,
    set_key,
    write_world,
)

VARIABLES = "data__source__ERA5__variables"


def load(folder, raw=None, split="train", grid=None, **changes):
    """The loader of one device."""
    config = parsed(raw or raw_config(folder, **changes))
    return build_loader(config, split=split, grid=grid)


def refused(folder, *texts, error=ValueError, raw=None, grid=None, **changes):
    """The loader is refused with a message that holds all the texts."""
    with pytest.raises(error, match=re.escape(texts[0])) as caught:
        load(folder, raw, grid=grid, **changes)
    print(caught.value)
    for text in texts:
        assert text in str(caught.value)


@pytest.fixture
def folder(tmp_path):
    """A data set that a test may damage."""
    write_world(tmp_path)
    return tmp_path


def rewrite(path, change):
    """Change a NetCDF file."""
    with xr.open_dataset(path) as dataset:
        new = change(dataset.load())
    save(new, path)


@pytest.mark.parametrize("kind", ["nc", "zarr"])
def test_fields_of_a_sample(world, kind):
    dataset = open_dataset(parsed(raw_config(world, kind)).data)
    fields = make_fields()
    assert len(dataset) == 8 * 4
    time = np.datetime64("1999-12-31T18:00", "ns")  # the target is in the next file
    sample = dataset[int(np.flatnonzero(dataset.starts == time)[0])]
    assert sample.target_time == np.datetime64("2000-01-01T00:00", "ns")
    now, later = (fields.sel(time=t) for t in (time, sample.target_time))
    inputs, targets = sample.input["ERA5"], sample.target["ERA5"]
    assert list(targets) == [
        "ERA5/prognostic/3d/U",
        "ERA5/prognostic/3d/T",
        "ERA5/prognostic/2d/SP",
        "ERA5/diagnostic/2d/TP",
    ]
    deep = now["T"].values[[0, 2]].astype(np.float32)
    assert np.array_equal(inputs["ERA5/prognostic/3d/T"][:, 0], deep)
    flat = later["TP"].values
    assert np.array_equal(targets["ERA5/diagnostic/2d/TP"][0, 0], flat)
    assert inputs["ERA5/static/2d/LSM"].shape == (1, 1, 6, 10)
    assert np.array_equal(dataset.latitude, GRID["latitude"])
    assert np.array_equal(dataset.longitude, GRID["longitude"])


def test_all_levels_without_a_list(world):
    raw = raw_config(world, data__source__ERA5__levels=None, model__levels=3)
    raw["preblocks"]["per_step"]["norm"]["args"].pop("levels")
    assert load(world, raw).schema.num_target_channels == 8


def test_static_field_with_a_time_dim(folder):
    rewrite(folder / "static.nc", lambda d: d.expand_dims(time=TIMES[:1]))
    assert load(folder).read([0]).x.shape == (1, 7, 1, 6, 10)


def test_a_small_cache_reads_the_same(world, monkeypatch):
    whole = load(world).read([3, 1, 3])
    monkeypatch.setattr("credit_jax.data.reader.CACHE_BYTES", 1000)
    small = load(world).read([3, 1, 3])
    assert np.array_equal(whole.x, small.x)


@pytest.mark.parametrize(("kept", "reads"), [(2**20, [4, 4, 1]), (0, [1] * 9)])
def test_times_of_a_chunk_are_read_together_where_they_may_be_kept(
    tmp_path, kept, reads
):
    path = str(tmp_path / "chunks.zarr")
    values = np.arange(9 * 2 * 3.0, dtype=np.float32).reshape(9, 2, 3)
    times = pd.date_range("2000-01-01", periods=9, freq="6h")
    data = xr.Dataset({"SP": (("time", "lat", "lon"), values)}, {"time": times})
    data.to_zarr(path, encoding={"SP": {"chunks": (4, 2, 3)}}, zarr_format=2)
    reader = Reader("time", None, kept)
    variable = reader.open(path).variable("SP")
    seen = []

    def read(index):
        steps = reader.chunk_times(variable, index)
        seen.append(len(steps))
        return {(step,): values[step].copy() for step in steps}

    for index in (5, 4, 8, 0, 3, 7, 1, 6, 2):
        field = reader.field((index,), lambda i=index: read(i))
        assert np.array_equal(field, values[index])
    assert sorted(seen) == sorted(reads)


def test_missing_file(folder):
    raw = raw_config(folder)
    set_key(raw, f"{VARIABLES}__static__path", f"{folder}/mask.nc")
    refused(
        folder,
        "data.source.ERA5.variables.static.path",
        "mask.nc",
        "holds: mean.nc, static.nc, std.nc, w_1999.nc",
        error=FileNotFoundError,
        raw=raw,
    )


def test_missing_folder(folder):
    raw = raw_config(folder)
    set_key(raw, f"{VARIABLES}__static__path", f"{folder}/deep/er/mask.nc")
    refused(folder, "does not exist", "holds:", error=FileNotFoundError, raw=raw)


def test_missing_variable(folder):
    refused(
        folder,
        "w_1999.nc: no variable 'Tt'; nearest: T, TP; it has:",
        **{f"{VARIABLES}__prognostic__vars_3D": ["U", "Tt"]},
    )


def test_variable_missing_in_a_later_file(folder):
    rewrite(folder / "w_2000.nc", lambda d: d.drop_vars("SP"))
    refused(folder, "w_2000.nc: no variable 'SP'")


def test_missing_times(folder):
    rewrite(folder / "w_2000.nc", lambda d: d.isel(time=[0, 1, 2, 5, 6, 7]))
    refused(
        folder,
        "variables.prognostic: 11 of 33 times are missing",
        "2000-01-01T18:00, 2000-01-02T00:00",
        "1999-12-25T00:00 to 2000-01-02T18:00 (2 files)",
    )


def test_missing_year(folder):
    (folder / "w_2000.nc").rename(folder / "w_2001.nc")
    refused(folder, "times are missing", "2000-01-01T00:00")


def test_wrong_grid(folder):
    refused(
        folder,
        "a grid of 6 x 10",
        "image_height 8 x image_width 10",
        grid=(8, 10),
    )


def test_grids_of_two_files(folder):
    mask = (FLAT[1:], np.zeros((6, 10)))
    upside = {**GRID, "latitude": GRID["latitude"][::-1]}
    save(xr.Dataset({"LSM": mask}, coords=upside), folder / "static.nc")
    refused(folder, "latitude runs from -75 to 75", "one is upside down")


@pytest.mark.parametrize("levels", [[1.0, 9.0], [-4.0]])
def test_level_not_found(folder, levels):
    lost = [level for level in levels if level != 1.0]
    refused(
        folder,
        f"no level near {lost}; it has 3 levels: [1.0, 2.0, 5.0]",
        data__source__ERA5__levels=levels,
    )


def test_level_twice(folder):
    refused(folder, "select a level twice", data__source__ERA5__levels=[1.0, 1.1])


def test_level_coordinate_name(folder):
    rewrite(folder / "w_1999.nc", lambda d: d.rename(level="lev"))
    refused(
        folder,
        "has dims (time, lev, latitude, longitude)",
        "expected (time, level, latitude, longitude)",
    )


def test_dims_in_another_order(folder):
    order = ("time", "latitude", "longitude", "level")
    rewrite(
        folder / "w_1999.nc",
        lambda d: d.assign(T=d["T"].transpose(*order)),
    )
    refused(folder, "variable 'T' has dims (time, latitude, longitude, level)")


def test_three_d_variable_named_as_two_d(folder):
    refused(
        folder,
        "'T' has dims (time, level, latitude, longitude), expected (time, latitude,",
        **{
            f"{VARIABLES}__prognostic__vars_3D": ["U"],
            f"{VARIABLES}__prognostic__vars_2D": ["SP", "T"],
        },
    )


def test_no_time_coordinate(folder):
    refused(folder, "expected (when, level", data__source__ERA5__time_coord="when")


def test_nan_in_the_first_sample(folder):
    def damage(dataset):
        dataset["T"][12, 2, 0, :3] = np.nan
        return dataset

    rewrite(folder / "w_1999.nc", damage)
    refused(
        folder,
        "T (level 2 of 2) of the input",
        "1999-12-28T00:00 has 3 of 60 values",
    )


def test_nan_later_is_found_when_it_is_read(folder):
    def damage(dataset):
        dataset["TP"][4] = np.inf
        return dataset

    rewrite(folder / "w_2000.nc", damage)
    loader = load(folder, trainer__thread_workers=2)
    with pytest.raises(ValueError, match=r"TP of the target.*has 60 of 60 values"):
        list(loader.epoch(0))


def test_broken_file(folder):
    (folder / "w_1999.nc").write_bytes(b"nothing")
    refused(folder, "w_1999.nc: cannot be opened")


def test_time_twice(folder):
    rewrite(folder / "w_1999.nc", lambda d: d.isel(time=[0, 1, 1, 2]))
    refused(folder, "the time 1999-12-25 06:00:00 occurs more than once")


def test_another_dataset_type(folder):
    refused(
        folder,
        "'arco_era5' is not available; there are: local",
        data__source__ERA5__dataset_type="arco_era5",
    )


def test_batch_larger_than_the_data(folder):
    refused(folder, "no full batch: 32 samples", trainer__train_batch_size=40)


def test_noleap_calendar(folder):
    """A noleap file: 28 February is followed by 1 March, in 2000 too."""
    days = xr.date_range(
        "2000-02-26", "2000-03-03", freq="6h", calendar="noleap", use_cftime=True
    )
    for name in ("w_1999.nc", "w_2000.nc"):
        (folder / name).unlink()
    fields = make_fields(pd.date_range("2001-01-01", periods=len(days), freq="6h"))
    save(fields.assign_coords(time=days), folder / "w_2000.nc")
    dates = {"data__start_datetime": "2000-02-27", "data__end_datetime": "2000-03-02"}
    dataset = load(folder, **dates).dataset
    starts = [str(start)[:13] for start in dataset.starts]
    assert "2000-02-29T00" not in starts
    last = dataset[starts.index("2000-02-28T18")]
    assert str(last.target_time)[:13] == "2000-03-01T00"
    expected = fields["TP"].values[12].astype(np.float32)
    assert np.array_equal(last.target["ERA5"]["ERA5/diagnostic/2d/TP"][0, 0], expected)
    assert len(dataset) == 3 * 4
