"""Files that differ in order, labels or units are read as the same values."""

import shutil

import numpy as np
import pytest
import xarray as xr

from credit_jax.data.opened_data import open_data
from tests.data.damaged import YEARS, in_units, load, rewrite, rewrite_all
from tests.data.world import TIMES, parsed, raw_config, save

BOTH, SECOND = YEARS, ("w_2000",)
ALL_LEVELS = {
    "data__source__ERA5__levels": None,
    "data__source__ERA5__level_coord": None,
    "model__levels": 3,
    "preblocks__per_step__norm__args__levels": None,
}


def reversed_along(dim):
    return lambda d: d.isel({dim: slice(None, None, -1)})


def western(dataset):
    longitude = (dataset.longitude + 180) % 360 - 180
    return dataset.assign_coords(longitude=longitude).sortby("longitude")


def turned(dataset):
    return western(reversed_along("latitude")(dataset))


def renamed(dataset):
    """Rows in another order, which their axis alone tells."""
    rows = reversed_along("latitude")(dataset).rename(latitude="rows")
    return rows.assign_coords(rows=rows["rows"].assign_attrs(axis="Y"))


def labels_of(dataset):
    """The same levels in float32 and float64 are the same levels."""
    dtype = np.float32 if dataset.time.dt.year[0] == 1999 else np.float64
    return dataset.assign_coords(level=np.array([1.1, 2.3, 5.7], dtype))


def rounded(dataset):
    """Times as those of files whose times are days of float32."""
    off = np.array([13, -42, 56, 0, -7, 21, 30, -59] * 5, "timedelta64[s]")
    return dataset.assign_coords(time=dataset.time.values + off[: dataset.time.size])


def statistics(dataset):
    """In another order, with a level more, in Pa."""
    levels = dataset.assign_coords(level=[100.0, 200.0, 500.0])
    return levels.reindex(level=[500.0, 100.0, 300.0, 200.0], fill_value=7.0)


def transposed(*order):
    def change(data):
        flat = [dim for dim in order if dim != "level"]
        surface = {name: data[name].transpose(*flat) for name in ("SP", "tsi")}
        return data.assign(T=data["T"].transpose(*order), **surface)

    return change


LAST = transposed("time", "latitude", "longitude", "level")
BACK = transposed("longitude", "level", "time", "latitude")
FIRST_TIME = lambda d: d.expand_dims(time=TIMES[:1])  # noqa: E731
STATISTICS = {"preblocks__per_step__norm__args__levels": None}
# Files, their change, a note, changes of the config.
CASES = {
    "rows": (SECOND, reversed_along("latitude"), "its rows are put in the order of"),
    "columns": (SECOND, western, "its columns are put in the order of"),
    "both": (SECOND, turned, "rows and columns"),
    "static": (["static"], turned, "static.nc: its rows"),
    "levels": (SECOND, reversed_along("level"), ""),
    "more levels": (
        SECOND,
        lambda d: d.reindex(level=[0.5, *d.level.values], fill_value=7.0),
        "",
    ),
    "levels in no order": (BOTH, lambda d: d.isel(level=[2, 0, 1]), ""),
    "levels in another order": (
        SECOND,
        lambda d: d.isel(level=[2, 0, 1]),
        "",
        {**ALL_LEVELS, "data__source__ERA5__level_coord": "level"},
    ),
    "levels that round": (BOTH, labels_of, ""),
    "rows that CF tells": (SECOND, renamed, "its rows are put in the order of"),
    "a static field of a time": (["static"], FIRST_TIME, ""),
    "rounded times": (SECOND, rounded, "w_2000.nc: its times are rounded, by up to 59"),
    "statistics": (["mean", "std"], statistics, "", STATISTICS),
    "levels last": (["w_1999"], LAST, ""),
    "times third": (["w_1999"], BACK, ""),
    "levels last, all read": (["w_1999"], LAST, "", ALL_LEVELS),
    "times third, all read": (["w_1999"], BACK, "", ALL_LEVELS),
}
IN_STORES = ("rows", "columns", "both", "static", "levels", "more levels")


@pytest.mark.slow(but=[*(f"nc-{name}" for name in CASES), "zarr-columns"])
@pytest.mark.parametrize(
    ("kind", "case"),
    [*(("nc", name) for name in CASES), *(("zarr", name) for name in IN_STORES)],
)
def test_the_same_batches(world, folder, kind, case):
    names, change, note, changes = (*CASES[case], {})[:4]
    expected = load(world, raw_config(world, kind, **changes))
    for name in names:
        suffix = "nc" if name not in BOTH else kind
        path = world / f"{name}.{suffix}"
        engine = "zarr" if suffix == "zarr" else "h5netcdf"
        dataset = change(xr.load_dataset(path, engine=engine).drop_encoding())
        save(dataset, folder / path.name)
    for path in world.glob(f"w_*.{kind}"):
        if path.suffix == ".zarr" and not (folder / path.name).exists():
            shutil.copytree(path, folder / path.name)
    actual = load(folder, raw_config(folder, kind, **changes))
    assert any(note in text for text in actual.notes) or not note
    samples = [*range(0, len(expected.dataset), 5), len(expected.dataset) - 1]
    for rows in (None, slice(1, 4)):
        batches = [each.for_rows(rows).read(samples) for each in (expected, actual)]
        for name in ("x", "y"):
            ours, theirs = (getattr(batch, name) for batch in batches)
            np.testing.assert_array_equal(ours, theirs)


@pytest.fixture
def other(world, tmp_path):
    """A second folder with the same files: open ones are not to be changed."""
    (tmp_path / "other").mkdir()
    for path in world.glob("*.nc"):
        shutil.copy(path, tmp_path / "other")
    return tmp_path / "other"


@pytest.mark.parametrize("levels", [None, [1.0, 5.0]])
def test_levels_of_a_run_in_another_unit_are_converted(folder, other, levels):
    """Also where the file has levels of the same numbers in its own unit."""
    about = {"units": "hPa", "standard_name": "air_pressure"}
    rewrite_all(folder, lambda d: d.assign_coords(level=d["level"].assign_attrs(about)))

    def with_pascals(dataset):
        both = [1.0, 2.0, 5.0, 100.0, 200.0, 500.0]
        low = dataset.assign_coords(level=dataset.level.values * 100)
        low = low.reindex(level=both, fill_value=0.0)
        return low.assign_coords(level=("level", both, {"units": "Pa"}))

    rewrite_all(other, with_pascals)
    (data, raw), times = (
        (raw_config(own, data__source__ERA5__levels=levels) for own in (folder, other)),
        np.array(["1999-12-26"], "M8[ns]"),
    )
    first = open_data(parsed(data).data)
    assert first.sources["ERA5"].attributes()["ERA5/level"] == about
    expected, like = (
        first.sources["ERA5"].read("prognostic", times),
        first.coordinates(),
    )
    if levels:
        with pytest.raises(ValueError, match="in hPa as well as in Pa"):
            load(other, raw)
    opened = open_data(parsed(raw).data, like=like).sources["ERA5"]
    for key, field in opened.read("prognostic", times).items():
        np.testing.assert_array_equal(field, expected[key])
    assert opened.attributes()["ERA5/level"]["units"] == "hPa"


def dates_of(folder, name, units, like=None):
    """Files with values in units, of which a variable is read at a date of each."""
    copy = folder / "_".join((name, *units)).replace(" ", "")
    copy.mkdir(exist_ok=True)
    for year, unit in zip((1999, 2000), units, strict=True):
        fields = xr.load_dataset(folder / f"w_{year}.nc")
        factor, offset = {"hPa": (0.01, 0), "degC": (1, -273.15)}.get(unit, (1, 0))
        values = (fields[name] * factor + offset).assign_attrs(units=unit)
        fields.assign({name: values}).to_netcdf(copy / f"w_{year}.nc")
    shutil.copy(folder / "static.nc", copy)
    opened = open_data(parsed(raw_config(copy)).data, like=like)
    source = opened.sources["ERA5"]
    dates = np.array(["1999-12-26", "2000-01-02"], "datetime64[ns]")
    source.check("prognostic", dates)
    fields = source.read("prognostic", dates)
    (key,) = (key for key in fields if key.endswith(f"/{name}"))
    notes = [note for note in source.notes() if "read in" in note]
    return opened, fields[key], opened.units()[key][0], notes


@pytest.mark.parametrize(("name", "units"), [("SP", "Pa hPa"), ("T", "K degC")])
def test_units_that_are_converted(folder, name, units):
    """To that of the first file, or to that of a run."""
    unit, other = units.split()
    first, expected, _, notes = dates_of(folder, name, (unit, unit))
    assert not notes
    like = first.coordinates()
    for pair, of_run, year in (((unit, other), None, 2000), ((other,) * 2, like, 1999)):
        _, field, unit_read, (note,) = dates_of(folder, name, pair, of_run)
        np.testing.assert_allclose(field, expected, rtol=1e-6, atol=1e-4)
        text = f"w_{year}.nc: {name} is in {other!r}, and read in {unit!r}"
        assert note.endswith(text)
        assert unit_read == unit


def test_units_that_are_not_converted(folder):
    """An accumulation is no rate; a run compares its units by itself."""
    first, field, *_ = dates_of(folder, "SP", ("J m-2",) * 2)
    _, other, _, notes = dates_of(folder, "SP", ("W m-2",) * 2, first.coordinates())
    np.testing.assert_array_equal(field, other)
    assert not notes


def test_units_that_are_spelled_otherwise(folder):
    for year, (wind, kelvin) in {
        1999: ("m s**-1", "K"),
        2000: ("m/s", "kelvin"),
    }.items():
        rewrite(folder / f"w_{year}.nc", in_units(U=wind, T=kelvin))
    (note,) = load(folder).notes
    assert "4.6 is read from level 5" in note
