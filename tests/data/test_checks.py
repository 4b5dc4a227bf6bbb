"""Files that differ in order, labels or units are read as the same values."""

import shutil

import numpy as np
import pytest
import xarray as xr
import yaml

from credit_jax.config import Config, parse
from credit_jax.data import build_loader
from credit_jax.data.opened_data import open_data
from tests.data.damaged import YEARS, in_units, load, rewrite, rewrite_all
from tests.data.fuzz import OTHER, SAME, DataSet, write
from tests.data.world import TIMES, parsed, raw_config

IN_FILES = [("second", k) for k, (dim, _) in {**SAME, **OTHER}.items() if dim != "hour"]
IN_FILES += [
    ("static", k) for k in ("rows", "shuffled columns", "turned", "another row")
]
IN_FILES += [("statistics", k) for k in ("shuffled levels", "more levels", "Pa")]
PLAIN = DataSet((), "second", "nc", 2)


def batch_of(folder, dataset, seed=0):
    """All samples of a data set of `tests.data.fuzz`, also of some rows alone."""
    write(folder, dataset, seed)
    config = parse(Config, yaml.safe_load((folder / "c.yml").read_text()))
    loader = build_loader(config, split="train")
    samples = range(len(loader.dataset))
    return [loader.for_rows(rows).read(samples) for rows in (None, slice(1, 4))]


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return batch_of(tmp_path_factory.mktemp("plain"), PLAIN)


QUICK = "second-shuffled rows", "second-Pa", "second-gap", "second-a level twice"


@pytest.mark.slow(but=[*QUICK, "static-rows"])
@pytest.mark.parametrize(("place", "kind"), IN_FILES)
def test_changes_of_files(tmp_path, plain, place, kind):
    """What means the same is read as the same, all else is refused."""
    suffix = ("nc", "zarr")[IN_FILES.index((place, kind)) % 2]
    dataset = DataSet((kind,), place, suffix, 3)
    if kind in OTHER:
        with pytest.raises(ValueError, match=str(tmp_path)):
            batch_of(tmp_path, dataset)
        return
    for ours, expected in zip(batch_of(tmp_path, dataset), plain, strict=True):
        np.testing.assert_array_equal(ours.x, expected.x)
        np.testing.assert_array_equal(ours.y, expected.y)


def transposed(*order):
    def change(data):
        flat = [dim for dim in order if dim != "level"]
        surface = {name: data[name].transpose(*flat) for name in ("SP", "tsi")}
        return data.assign(T=data["T"].transpose(*order), **surface)

    return change


def labels_of(dataset):
    """The same levels in float32 and float64 are the same levels."""
    dtype = np.float32 if dataset.time.dt.year[0] == 1999 else np.float64
    return dataset.assign_coords(level=np.array([1.1, 2.3, 5.7], dtype))


ALL_LEVELS = {
    "data__source__ERA5__levels": None,
    "data__source__ERA5__level_coord": None,
    "model__levels": 3,
    "preblocks__per_step__norm__args__levels": None,
}
FIRST = ["w_1999"]
LAST = transposed("time", "latitude", "longitude", "level")
BACK = transposed("longitude", "level", "time", "latitude")
# Files, their change, changes of the config.
CASES = {
    "levels in no order": (YEARS, lambda d: d.isel(level=[2, 0, 1]), {}),
    "levels that round": (YEARS, labels_of, {}),
    "static, of a time": (["static"], lambda d: d.expand_dims(time=TIMES[:1]), {}),
    "levels last": (FIRST, LAST, {}),
    "times third": (FIRST, BACK, {}),
    "levels last, all read": (FIRST, LAST, ALL_LEVELS),
    "times third, all read": (FIRST, BACK, ALL_LEVELS),
}


@pytest.mark.parametrize("case", CASES)
def test_the_same_batches(world, folder, case):
    names, change, changes = CASES[case]
    rewrite_all(folder, change, names)
    samples = range(0, 32, 7)
    actual, expected = (load(own, **changes).read(samples) for own in (folder, world))
    np.testing.assert_array_equal(actual.x, expected.x)
    np.testing.assert_array_equal(actual.y, expected.y)


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
