"""Errors in data raised before compilation: variables, times, grids, units."""

import shutil

import numpy as np
import pytest
import xarray as xr

from credit_jax.data import build_loader
from credit_jax.data.opened_data import open_data
from tests.data.damaged import refused, rewrite
from tests.data.world import FLAT, GRID, parsed, raw_config, save, write_world


def test_variable_missing_in_a_later_file(folder):
    rewrite(folder / "w_2000.nc", lambda d: d.drop_vars("SP"))
    refused(folder, "w_2000.nc: variable 'SP' is not available")


def test_missing_times(folder):
    rewrite(folder / "w_2000.nc", lambda d: d.isel(time=[0, 1, 2, 5, 6, 7]))
    refused(
        folder,
        "variables.prognostic: 11 of 33 times are missing",
        "2000-01-01T18:00, 2000-01-02T00:00",
        "1999-12-25T00:00 to 2000-01-02T18:00 (2 files)",
        "or the time step of the files (data.source.ERA5.timestep)",
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
    moved = {**GRID, "latitude": GRID["latitude"] * 0.9}
    save(xr.Dataset({"LSM": mask}, coords=moved), folder / "static.nc")
    refused(
        folder,
        "static.nc: LSM: 6 latitudes run from 67.5 to -67.5",
        "w_1999.nc: U 6 latitudes run from 75 to -75",
    )


def reversed_rows(dataset):
    return dataset.isel(latitude=slice(None, None, -1))


def western(dataset):
    longitude = (dataset.longitude + 180) % 360 - 180
    return dataset.assign_coords(longitude=longitude).sortby("longitude")


def reversed_levels(dataset):
    return dataset.isel(level=slice(None, None, -1))


def more_levels(dataset):
    return dataset.reindex(level=[0.5, *dataset.level.values], fill_value=7.0)


@pytest.mark.slow(but=["w_2000-western-texts1-zarr"])
@pytest.mark.parametrize("kind", ["nc", "zarr"])
@pytest.mark.parametrize(
    ("name", "change", "texts"),
    [
        ("w_2000", reversed_rows, ["its rows are put in the order of", "w_1999"]),
        ("w_2000", western, ["its columns are put in the order of"]),
        ("w_2000", lambda d: western(reversed_rows(d)), ["rows and columns"]),
        ("static", lambda d: western(reversed_rows(d)), ["static.nc: its rows"]),
        ("w_2000", reversed_levels, []),
        ("w_2000", more_levels, []),
    ],
)
def test_files_in_another_order_are_read_by_their_coordinates(
    folder, kind, name, change, texts
):
    """Rows, columns and levels are those of the first file, also of a few rows."""
    other = folder / "other"
    other.mkdir()
    for place in (folder, other):
        write_world(place, kind=kind)
    raw = raw_config(folder, kind, data__end_datetime="2000-01-05")
    expected = build_loader(parsed(raw), split="train")
    samples = [expected.read([i]) for i in range(len(expected.dataset))]
    rows = expected.for_rows(slice(1, 4)).read([3])
    suffix = "nc" if name == "static" else kind
    engine = "zarr" if suffix == "zarr" else "h5netcdf"
    given = xr.open_dataset(folder / f"{name}.{suffix}", engine=engine)
    save(change(given.load().drop_encoding()), other / f"{name}.{suffix}")
    raw = raw_config(other, kind, data__end_datetime="2000-01-05")
    loader = build_loader(parsed(raw), split="train")
    if texts:
        assert any(all(text in note for text in texts) for note in loader.notes)
    for index, sample in enumerate(samples):
        found = loader.read([index])
        np.testing.assert_array_equal(found.x, sample.x)
        np.testing.assert_array_equal(found.y, sample.y)
    np.testing.assert_array_equal(loader.for_rows(slice(1, 4)).read([3]).x, rows.x)


@pytest.mark.parametrize(
    ("change", "texts"),
    [
        (
            lambda d: d.isel(longitude=slice(1, None)),
            ("w_2000.nc: U has a grid of 6 x 9, but ", "w_1999.nc: U has 6 x 10; "),
        ),
    ],
)
def test_grids_of_two_files_of_a_variable(folder, change, texts):
    rewrite(folder / "w_2000.nc", change)
    refused(folder, *texts)


def test_levels_of_a_run_in_another_unit_are_converted(folder):
    """Also where the file has levels of the same numbers in its own unit."""
    raw = raw_config(folder, data__source__ERA5__levels=[1.0, 5.0])
    for name in ("w_1999.nc", "w_2000.nc"):
        rewrite(folder / name, lambda d: d.assign_coords(level=as_hpa(d.level)))
    first = open_data(parsed(raw).data)
    like, date = first.coordinates(), [np.datetime64("1999-12-26", "ns")]
    assert like.sources["ERA5"].levels.unit == "hPa"
    expected = first.sources["ERA5"].read("prognostic", np.array(date))
    other = another(folder)
    raw = raw_config(other, data__source__ERA5__levels=[1.0, 5.0])
    for name in ("w_1999.nc", "w_2000.nc"):
        rewrite(other / name, with_pascals)
    refused(other, "in hPa as well as in Pa", raw=raw)
    opened = open_data(parsed(raw).data, like=like)
    found = opened.sources["ERA5"].read("prognostic", np.array(date))
    for key, field in expected.items():
        np.testing.assert_array_equal(found[key], field)
    about = opened.sources["ERA5"].attributes()["ERA5/level"]
    assert about["units"] == "hPa"


def test_levels_without_values_are_none_of_a_run(folder):
    raw = raw_config(folder, data__source__ERA5__levels=None)
    like, other = open_data(parsed(raw).data).coordinates(), another(folder)
    for name in ("w_1999.nc", "w_2000.nc"):
        rewrite(other / name, lambda d: d.drop_vars("level"))
    data = parsed(raw_config(other, data__source__ERA5__levels=None)).data
    assert open_data(data).coordinates().sources["ERA5"].levels is None
    with pytest.raises(ValueError, match="the levels of U have no values, expected 1,"):
        open_data(data, like=like)


def another(folder):
    """A folder with the same files: open ones are not to be changed."""
    other = folder / "other"
    other.mkdir()
    write_world(other)
    return other


def as_hpa(level):
    return ("level", level.values, {"units": "hPa"})


def with_pascals(dataset):
    """The levels 1, 2, 5 hPa in Pa, beside 1, 2, 5 Pa, which hold zeros."""
    both = [1.0, 2.0, 5.0, 100.0, 200.0, 500.0]
    low = dataset.assign_coords(level=dataset.level.values * 100)
    low = low.reindex(level=both, fill_value=0.0)
    return low.assign_coords(level=("level", both, {"units": "Pa"}))


@pytest.mark.parametrize(
    ("change", "attrs"),
    [
        ({"latitude": "Lat"}, {}),
        ({"latitude": "rows"}, {"units": "degrees_N"}),
        ({"latitude": "rows"}, {"axis": "Y"}),
    ],
)
def test_rows_are_known_by_cf(folder, change, attrs):
    def turned(dataset):
        (name,) = change.values()
        dataset = reversed_rows(dataset).rename(change)
        return dataset.assign_coords({name: dataset[name].assign_attrs(attrs)})

    sample = build_loader(parsed(raw_config(folder)), split="train").read([30])
    other = another(folder)
    rewrite(other / "w_2000.nc", turned)
    loader = build_loader(parsed(raw_config(other)), split="train")
    np.testing.assert_array_equal(loader.read([30]).x, sample.x)


def test_rows_without_coordinates(folder):
    """A run that knows its rows takes none by their order, unless it is told to."""
    key = "data__source__ERA5__grid_type"
    rewrite(folder / "w_2000.nc", lambda d: d.drop_vars(["latitude", "longitude"]))
    refused(
        folder,
        "w_2000.nc: U has no latitudes and longitudes of rows and columns",
        "set data.source.ERA5.grid_type: rectilinear",
    )
    build_loader(parsed(raw_config(folder, **{key: "rectilinear"})), split="train")
    other = another(folder)
    for name in ("w_1999.nc", "w_2000.nc", "static.nc"):
        rewrite(other / name, lambda d: d.drop_vars(["latitude", "longitude"]))
    loader = build_loader(parsed(raw_config(other)), split="train")
    text = "has no latitudes and longitudes of rows and columns, which are taken in"
    assert any(text in note for note in loader.notes)


def test_what_is_predicted_has_times(folder):
    for name in ("w_1999.nc", "w_2000.nc"):
        rewrite(folder / name, lambda d: d.assign(SP=d["SP"].isel(time=0, drop=True)))
    refused(folder, "w_1999.nc: variable 'SP' has no dim 'time', and would be the same")


def test_units_that_are_spelled_otherwise(folder):
    for year, (wind, temperature) in {
        1999: ("m s**-1", "K"),
        2000: ("m/s", "kelvin"),
    }.items():
        rewrite(
            folder / f"w_{year}.nc",
            lambda d, u=wind, t=temperature: d.assign(
                U=d["U"].assign_attrs(units=u), T=d["T"].assign_attrs(units=t)
            ),
        )
    build_loader(parsed(raw_config(folder)), split="train")
    folder = another(folder)
    rewrite(
        folder / "w_1999.nc", lambda d: d.assign(SP=d["SP"].assign_attrs(units="blob"))
    )
    loader = build_loader(parsed(raw_config(folder)), split="train")
    assert any(
        "not known, and are compared with none: SP in 'blob'" in n for n in loader.notes
    )


def test_text_in_place_of_numbers(folder):
    rewrite(folder / "w_1999.nc", lambda d: d.assign(SP=d["SP"].astype(str)))
    refused(folder, "w_1999.nc: variable 'SP' is of dtype <U", "expected numbers")


def test_complex_numbers(folder):
    for name in ("w_1999", "w_2000"):
        with xr.open_dataset(folder / f"{name}.nc") as file:
            fields = file.load().drop_encoding()
        fields["SP"] = fields["SP"].astype(np.complex128)
        fields.to_zarr(folder / f"{name}.zarr", zarr_format=2, consolidated=False)
    raw = raw_config(folder, "zarr")
    refused(folder, "w_1999.zarr: variable 'SP' is of dtype complex128", raw=raw)


def in_units(folder, name, units):
    """A copy of some files, in each of which a variable has a unit and values in it."""
    copy = folder.with_name("_".join((folder.name, name, *units)).replace(" ", ""))
    shutil.copytree(folder, copy)
    for year, unit in zip((1999, 2000), units, strict=True):
        with xr.open_dataset(folder / f"w_{year}.nc") as file:
            dataset = file.load()
        factor, offset = {"hPa": (0.01, 0), "degC": (1, -273.15)}.get(unit, (1, 0))
        values = (dataset[name] * factor + offset).assign_attrs(units=unit)
        dataset.assign({name: values}).to_netcdf(copy / f"w_{year}.nc")
    return copy


def dates_of(data, name, like=None):
    """A variable at a date of each file, and the notes."""
    source = open_data(data, like=like).sources["ERA5"]
    dates = np.array(["1999-12-26", "2000-01-02"], "datetime64[ns]")
    source.check("prognostic", dates)
    fields = source.read("prognostic", dates)
    (field,) = (field for key, field in fields.items() if key.endswith(f"/{name}"))
    return field, source.notes()


@pytest.mark.parametrize(("name", "units"), [("SP", "Pa hPa"), ("T", "K degC")])
def test_units_that_are_converted(folder, name, units):
    """To that of the first file, or to that of a run."""
    unit, other = units.split()
    first, *further = (
        parsed(raw_config(in_units(folder, name, pair))).data
        for pair in ((unit, unit), (unit, other), (other, other))
    )
    like = open_data(first).coordinates()
    expected, notes = dates_of(first, name, like)
    assert not any("read in" in note for note in notes)
    for data, of_run, year in zip(further, (None, like), (2000, 1999), strict=True):
        field, notes = dates_of(data, name, of_run)
        np.testing.assert_allclose(field, expected, rtol=1e-6, atol=1e-4)
        (note,) = (note for note in notes if "read in" in note)
        assert note.endswith(
            f"w_{year}.nc: {name} is in {other!r}, and read in {unit!r}"
        )
        units_read = open_data(data, like=of_run).units()
        assert [u for k, (u, _) in units_read.items() if k.endswith(f"/{name}")] == [
            unit
        ]


def test_units_that_are_not_converted(folder):
    """An accumulation is no rate; a run compares its units by itself."""
    copy = in_units(folder, "SP", ("J m-2", "W m-2"))
    refused(copy, "'SP' has units 'W m-2', but in", "'J m-2', to which they cannot")
    first, second = (
        parsed(raw_config(in_units(folder, "SP", (unit, unit)))).data
        for unit in ("J m-2", "W m-2")
    )
    field, notes = dates_of(first, "SP")
    other, notes = dates_of(second, "SP", open_data(first).coordinates())
    np.testing.assert_array_equal(field, other)
    assert not any("read in" in note for note in notes)


def with_units(folder, **units):
    """Sets units of variables in the data or in the file of means."""
    for name in ("w_1999.nc", "w_2000.nc", "mean.nc"):
        own = {k: u[name == "mean.nc"] for k, u in units.items()}

        def name_them(dataset, own=own):
            made = {k: dataset[k].assign_attrs(units=u) for k, u in own.items() if u}
            return dataset.assign(made)

        rewrite(folder / name, name_them)


def test_units_of_the_means(folder):
    with_units(folder, SP=("hPa", "Pa"), T=("K", "kelvin"), U=("m s**-1", "m/s"))
    refused(
        folder,
        "w_1999.nc: variable 'SP' has units 'hPa', but preblocks.per_step.norm has a",
        "mean.nc and",
        "in 'Pa'; bring the file to that unit",
    )


def test_units_of_a_formula(folder):
    """Also for a variable that an earlier block renames."""
    with_units(folder, SP=("mbar", None), T=("degrees_C", None))
    old, new = "ERA5/prognostic/2d/SP", "ERA5/prognostic/2d/PS"
    args = {"surface_pressure_var": new, "temperature_var": "ERA5/prognostic/3d/T"}
    blocks = {"sea": {"type": "mslp_diagnostic", "args": args}}
    rename = {"type": "rename", "args": {"mapping": {old: new}}}
    changes = {"postblocks__per_step": blocks, "preblocks__ic_only": {"names": rename}}
    text = (
        "'SP' has units 'mbar', but postblocks.per_step.sea.args.surface_pressure_var"
    )
    refused(folder, text, "takes 'Pa'", **changes)


@pytest.mark.parametrize(
    ("years", "text"),
    [
        (3000 - 1999, "w_1999.nc: has times in the year 3000, outside of 1678 to 2261"),
        (100 - 1999, "w_1999.nc: has times in the year 100, outside of 1678 to 2261"),
    ],
)
def test_times_outside_of_datetime64(folder, years, text):
    def move(dataset):
        start = f"{1999 + years:04d}-12-25"
        count = dataset.sizes["time"]
        times = xr.date_range(start, periods=count, freq="6h", use_cftime=True)
        return dataset.assign_coords(time=times)

    rewrite(folder / "w_1999.nc", move)
    refused(folder, text)


def test_times_without_a_unit(folder):
    def move(dataset):
        count = dataset.sizes["time"]
        return dataset.assign_coords(time=np.arange(count, dtype=np.int64))

    rewrite(folder / "w_1999.nc", move)
    refused(folder, "the time coordinate holds int64 (0, ...) and no dates")


def test_360_day_calendar(folder):
    def move(dataset):
        times = xr.date_range(
            "1999-12-25",
            periods=dataset.sizes["time"],
            freq="6h",
            calendar="360_day",
            use_cftime=True,
        )
        return dataset.assign_coords(time=times)

    rewrite(folder / "w_1999.nc", move)
    refused(folder, "calendar '360_day', which is not available", "30 February")


def test_truncated_chunk(tmp_path):
    write_world(tmp_path, kind="zarr")
    chunk = sorted((tmp_path / "w_1999.zarr" / "SP").glob("[0-9]*"))[0]
    chunk.write_bytes(chunk.read_bytes()[:-20])
    raw = raw_config(tmp_path, "zarr")
    refused(
        tmp_path,
        "w_1999.zarr: variable 'SP' at 1999-12-28",
        "cannot be read",
        raw=raw,
    )


def test_truncated_file(folder):
    path = folder / "w_1999.nc"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    refused(folder, "w_1999.nc: cannot be opened", "is it complete?")


def test_times_that_are_rounded_are_read_with_a_note(folder):
    """As in files whose times are days of float32."""
    with xr.open_dataset(folder / "w_2000.nc", engine="h5netcdf") as given:
        expected = given.load()
    off = np.array([13, -42, 56, 0, -7, 21, 30, -59] * 5, "timedelta64[s]")
    moved = expected.assign_coords(
        time=expected.time.values + off[: len(expected.time)]
    )
    (folder / "w_2000.nc").unlink()
    moved.to_netcdf(folder / "w_2000.nc", engine="h5netcdf")
    loader = build_loader(parsed(raw_config(folder)), split="train")
    (note,) = [note for note in loader.notes if "its times are rounded" in note]
    assert "w_2000.nc: its times are rounded, by up to 59 s" in note
    last = loader.samples.dataset[len(loader.dataset) - 1]
    field = expected["SP"].sel(time=last.target_time).values
    found = last.target["ERA5"]["ERA5/prognostic/2d/SP"][0, 0]
    np.testing.assert_array_equal(found, field)


def test_times_that_are_gaps_are_no_rounding(folder):
    late = np.timedelta64(61, "s")
    rewrite(folder / "w_2000.nc", lambda d: d.assign_coords(time=d.time + late))
    refused(folder, "times are missing", "2000-01-01T00:00")


def test_a_static_field_of_twelve_months(folder):
    months = xr.date_range("2000-01-01", periods=12, freq="MS")
    rewrite(folder / "static.nc", lambda d: d.expand_dims(time=months))
    loader = build_loader(parsed(raw_config(folder)), split="train")
    assert any("LSM is static, and has 12 times" in note for note in loader.notes)


def test_statistics_are_matched_by_their_levels(folder):
    """In another order, with further levels, in Pa; other levels are refused."""
    expected = build_loader(parsed(raw_config(folder)), split="train").read([0])
    raw = raw_config(folder)
    raw["preblocks"]["per_step"]["norm"]["args"].pop("levels")
    for name, order in (("mean.nc", [2, 0, 1]), ("std.nc", [1, 2, 0])):
        levels = {"level": [1.0, 2.0, 5.0]}
        rewrite(
            folder / name,
            lambda d, order=order, levels=levels: d.assign_coords(levels).isel(
                level=order
            ),
        )
    found = build_loader(parsed(raw), split="train").read([0])
    np.testing.assert_array_equal(found.x, expected.x)
    np.testing.assert_array_equal(found.y, expected.y)
    rewrite(folder / "std.nc", lambda d: d.assign_coords(level=[1.0, 2.0, 7.0]))
    refused(folder, "std.nc: has the levels [1.0, 2.0, 7.0]", "[1.0, 5.0]", raw=raw)
