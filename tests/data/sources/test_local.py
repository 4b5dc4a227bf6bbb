"""The local source: levels, variables, dims and their errors."""

import numpy as np
import pytest
import xarray as xr

from credit_jax.data.sources.levels import common_count
from tests.data.damaged import VARIABLES, load, refused, rewrite
from tests.data.world import TIMES, raw_config, set_key


def test_all_levels_without_a_list(world):
    raw = raw_config(world, data__source__ERA5__levels=None, model__levels=3)
    raw["preblocks"]["per_step"]["norm"]["args"].pop("levels")
    assert load(world, raw).schema.num_target_channels == 8


@pytest.mark.parametrize("levels", [None, [1.0, 5.0]])
def test_levels_are_described_as_in_the_files(folder, levels):
    """Also where the config lists none."""
    about = {"units": "hPa", "standard_name": "air_pressure"}
    for path in folder.glob("w_*.nc"):
        rewrite(path, lambda d: d.assign_coords(level=d["level"].assign_attrs(about)))
    raw = raw_config(folder, data__source__ERA5__levels=levels)
    if levels is None:
        set_key(raw, "model__levels", 3)
        raw["preblocks"]["per_step"]["norm"]["args"].pop("levels")
    source = load(folder, raw).dataset.sources["ERA5"]
    assert source.attributes()["ERA5/level"] == about


def test_static_field_with_a_time_dim(folder):
    rewrite(folder / "static.nc", lambda d: d.expand_dims(time=TIMES[:1]))
    assert load(folder).read([0]).x.shape == (1, 7, 1, 6, 10)


def test_missing_variable(folder):
    refused(
        folder,
        "w_1999.nc: variable 'Tt' is not available; there are: ",
        "(nearest: 'T')",
        **{f"{VARIABLES}__prognostic__vars_3D": ["U", "Tt"]},
    )


def test_a_level_that_is_read_from_another_one_is_a_note(world):
    (note,) = load(world, data__source__ERA5__levels=[1.0, 2.3]).notes
    assert note.startswith("data.source.ERA5.levels: 2.3 is read from level 2, the ")
    assert load(world, data__source__ERA5__levels=[1.0, 2.00001]).notes == ()


@pytest.mark.parametrize("levels", [[1.0, 9.0], [-4.0]])
def test_level_not_found(folder, levels):
    lost = [level for level in levels if level != 1.0]
    refused(
        folder,
        f"w_1999.nc: variable 'U' has no level near {lost}; it has 3 levels: [1.0, 2.",
        data__source__ERA5__levels=levels,
    )


def test_level_twice(folder):
    text = "w_1999.nc: variable 'U': data.source.ERA5.levels [1.0, 1.1] select a level"
    refused(folder, text, data__source__ERA5__levels=[1.0, 1.1])


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda d: d.drop_vars("level"), " has no level coordinate 'level' to select"),
        (
            lambda d: d.assign_coords(level=[1.0, 5.0, 1.0]),
            ": the level 1 occurs more than once",
        ),
        (
            lambda d: d.assign_coords(level=[1.0, np.nan, 5.0]),
            " has levels [1.0, nan, 5.0], expected finite numbers",
        ),
    ],
)
def test_levels_from_which_none_can_be_selected(folder, change, text):
    rewrite(folder / "w_1999.nc", change)
    refused(folder, f"w_1999.nc: variable 'U'{text}")


def test_variables_of_different_numbers_of_levels():
    assert common_count({"T": 3, "U": 3}, "data.source.ERA5") == 3
    assert common_count({}, "data.source.ERA5") == 0
    with pytest.raises(ValueError, match=r"got \{'T': 3, 'U': 2\}; name those to take"):
        common_count({"T": 3, "U": 2}, "data.source.ERA5")


@pytest.mark.parametrize(
    ("levels", "own", "wanted"),
    [
        ([1.0, 2.0], [1.0, 2.4, 5.0], [1.0, 2.0]),
        (None, [1.0, 2.0, 4.0], [1.0, 2.0, 5.0]),
    ],
)
def test_files_of_different_levels(folder, levels, own, wanted):
    """Also where the config names levels, of which those of the files are near."""
    rewrite(folder / "w_2000.nc", lambda d: d.assign_coords(level=own))
    refused(
        folder,
        f"w_2000.nc: variable 'U': has the levels {own}, but",
        f"w_1999.nc: U has {wanted}; give both the same levels",
        data__source__ERA5__levels=levels,
        model__levels=len(wanted),
    )


def test_a_list_of_levels_from_files_in_no_order(world, folder):
    """The nearest ones are those of the same files in order."""
    for name in ("w_1999.nc", "w_2000.nc"):
        rewrite(folder / name, lambda d: d.isel(level=[2, 0, 1]))
    expected = load(world).read([0]).x
    np.testing.assert_array_equal(load(folder).read([0]).x, expected)


def test_levels_of_a_file_in_another_order(folder):
    """Without a list of levels, those of the first file are read, in their order."""
    rewrite(folder / "w_2000.nc", lambda d: d.isel(level=[2, 0, 1]))
    given = {"preblocks__per_step": {"concat": {"type": "concat"}}}
    loader = load(folder, data__source__ERA5__levels=None, model__levels=3, **given)
    last = loader.read([len(loader.dataset) - 1])
    with xr.open_dataset(folder / "w_2000.nc") as file:
        fields = file.sel(time=last.input_times[0])["U"].sel(level=[1.0, 2.0, 5.0])
    np.testing.assert_array_equal(last.x[0, :3, 0], fields.astype(np.float32))


def test_files_of_levels_that_round_otherwise(folder):
    """The same levels in float32 and float64 are the same levels."""
    for name, dtype in (("w_1999.nc", "float32"), ("w_2000.nc", "float64")):
        own = np.array([1.1, 2.3, 5.7], dtype)
        rewrite(folder / name, lambda d, own=own: d.assign_coords(level=own))
    assert load(folder).read([0]).x.shape == (1, 7, 1, 6, 10)


def test_level_coordinate_name(folder):
    rewrite(folder / "w_1999.nc", lambda d: d.rename(level="lev"))
    refused(
        folder,
        "has dims (time, lev, latitude, longitude)",
        "expected (time, level, latitude, longitude)",
    )


@pytest.mark.parametrize("coordinate", ["level", None])
@pytest.mark.parametrize(
    "order",
    [
        ("time", "latitude", "longitude", "level"),
        ("time", "level", "longitude", "latitude"),
        ("longitude", "level", "time", "latitude"),
    ],
)
def test_dims_in_another_order(folder, order, coordinate):
    raw, samples = raw_config(folder), range(0, 18, 7)
    if coordinate is None:
        for key in ("levels", "level_coord"):
            set_key(raw, f"data__source__ERA5__{key}", None)
        set_key(raw, "model__levels", 3)
        raw["preblocks"]["per_step"]["norm"]["args"].pop("levels")
    expected = load(folder, raw).read(samples)

    def transposed(data):
        dims = [dim for dim in order if dim != "level"]
        surface = {name: data[name].transpose(*dims) for name in ("SP", "tsi")}
        return data.assign(T=data["T"].transpose(*order), **surface)

    rewrite(folder / "w_1999.nc", transposed)
    actual = load(folder, raw).read(samples)
    np.testing.assert_array_equal(actual.x, expected.x)
    np.testing.assert_array_equal(actual.y, expected.y)


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


def test_another_dataset_type(folder):
    refused(
        folder,
        "'era5' is not available; there are: local",
        data__source__ERA5__dataset_type="era5",
    )
