"""What is said of damaged files and wrong configs of data, before and while reading."""

import numpy as np
import pytest
import xarray as xr
import yaml

from credit_jax.config.config import section_conflicts
from credit_jax.data import ChannelGroup, ChannelSchema, open_dataset
from credit_jax.data.forecast_data import open_forecast_data
from credit_jax.data.opened_data import NamedData, open_data
from credit_jax.data.sampler import torch_randperm
from credit_jax.data.sources.file_variable import common_count
from credit_jax.data.sources.files import discover
from credit_jax.evaluation.references import open_truth
from credit_jax.models.registry import parse_model
from credit_jax.plan.channels import channel_problems
from tests.data.damaged import YEARS, in_units, load, rewrite, rewrite_all, setting
from tests.data.region import region, region_config, write_outside
from tests.data.test_sampler import sampler
from tests.data.world import EXACT, GRID, MODEL, parsed, raw_config, set_key
from tests.messages.engine import *  # noqa: F403
from tests.messages.engine import Case, Cases
from tests.support.configs import plan_problems

__all__ = ["region"]
CASES = Cases("data")
ERA5 = "data__source__ERA5__"
VARIABLES = f"{ERA5}variables__"
PROGNOSTIC = f"{VARIABLES}prognostic__"
SKIP = {"data__on_bad_sample": "skip"}
DEEP = {f"{ERA5}levels": None, "model__levels": 3}
START = np.datetime64("2000-01-05", "ns")


def opened(names, change, folder, **changes):
    """Files that are changed, and a config of them."""
    rewrite_all(folder, change, names.split())
    return lambda: [*load(folder, **changes).notes]


def read(names, change, folder, **changes):
    """The same, read once: the lines of samples that others stand for."""
    rewrite_all(folder, change, names.split())
    loader = load(folder, **changes)
    return lambda: [line for batch in loader.epoch(0) for line in batch.replaced]


def rows(function, table):
    """A row is the files, their change and changes of the config."""
    for name, (files, change, *others) in table.items():
        CASES.add(Case(name, function, (files, change), *others))


def coords(**values):
    return lambda d: d.assign_coords(values)


def turned(*dims):
    return lambda d: d.isel(dict.fromkeys(dims, slice(None, None, -1)))


def no_points(dataset):
    return dataset.drop_vars(["latitude", "longitude"])


def units_of(name, fields, means):
    """A change of the units of the fields, and of those of the means."""
    return lambda d: in_units(**{name: fields if "time" in d.coords else means})(d)


def moved(start, calendar="standard"):
    """A change of the times to those that begin at a date."""

    def change(dataset):
        options = {"freq": "6h", "calendar": calendar, "use_cftime": True}
        times = xr.date_range(start, periods=dataset.sizes["time"], **options)
        return dataset.assign_coords(time=times)

    return change


FIRST, SECOND = YEARS
BOTH = f"{FIRST} {SECOND}"
LATER = np.s_[16, 2:4, :3]
MASKED = np.s_[12, 2:4, :3]
LATE, LOW = np.timedelta64(61, "s"), {f"{ERA5}levels": [1.0, 2.0]}
WITH_MEANS = f"{BOTH} mean"
PRESSURE = "ERA5/prognostic/2d/PS"
FORMULA = {
    "postblocks__per_step__sea__type": "mslp_diagnostic",
    "postblocks__per_step__sea__args": {
        "surface_pressure_var": PRESSURE,
        "temperature_var": "ERA5/prognostic/3d/T",
    },
    "preblocks__ic_only__names__type": "rename",
    "preblocks__ic_only__names__args": {"mapping": {"ERA5/prognostic/2d/SP": PRESSURE}},
}
FLAT_T = {f"{PROGNOSTIC}vars_3D": ["U"], f"{PROGNOSTIC}vars_2D": ["SP", "T"]}

AT_12 = np.s_[12, 2, 0, :3]
T_BAD = setting("T", np.s_[12, :, 0], np.nan)
MONTHS = xr.date_range("2000", periods=12, freq="MS")
OPENED = {
    "a variable is missing": (SECOND, lambda d: d.drop_vars("SP")),
    "a variable is named otherwise": ("", None, {f"{PROGNOSTIC}vars_3D": ["Tt"]}),
    "times are missing": (SECOND, lambda d: d.isel(time=[0, 1, 2, 5, 6, 7])),
    "times are late": (SECOND, lambda d: d.assign_coords(time=d.time + LATE)),
    "a time twice": (FIRST, lambda d: d.isel(time=[0, 1, 1, 2])),
    "the year 3000": (FIRST, moved("3000-12-25")),
    "the year 100": (FIRST, moved("0100-12-25")),
    "years of 360 days": (FIRST, moved("1999-12-25", "360_day")),
    "files of standard and noleap": (SECOND, moved("2000-01-01", "noleap")),
    # The same date is another day, 13 days later.
    "files of standard and julian": (SECOND, moved("2000-01-01", "julian")),
    "times without a unit": (FIRST, coords(time=np.arange(28))),
    "another grid": ("static", coords(latitude=GRID["latitude"] * 0.9)),
    "fewer columns": (SECOND, lambda d: d.isel(longitude=slice(1, None))),
    "another grid than asked for": ("", None, {"grid": (8, 10)}),
    "no rows in a second file": (SECOND, no_points),
    "no rows in any file": (f"{BOTH} static", no_points),
    "rows in another order": (SECOND, turned("latitude")),
    "rows and columns in another order": (SECOND, turned("latitude", "longitude")),
    "a static field in another order": ("static", turned("longitude")),
    "rounded times": (SECOND, lambda d: d.assign_coords(time=d.time + LATE / 2)),
    "rows in order": (SECOND, no_points, {f"{ERA5}grid_type": "rectilinear"}),
    "a prediction without times": (
        BOTH,
        lambda d: d.assign(SP=d.SP[0].drop_vars("time")),
    ),
    "text": (FIRST, lambda d: d.assign(SP=d["SP"].astype(str))),
    "an unknown unit": (FIRST, in_units(SP="blob")),
    "units of the means": (WITH_MEANS, units_of("SP", "hPa", "Pa")),
    "units that are spelled otherwise": (WITH_MEANS, units_of("U", "m s**-1", "m/s")),
    "a unit of a formula": (BOTH, in_units(SP="mbar", T="degrees_C"), FORMULA),
    "a static field of months": ("static", lambda d: d.expand_dims(time=MONTHS)),
    "a level that is near": ("", None, {f"{ERA5}levels": [1.0, 2.3]}),
    "a level that is very near": ("", None, {f"{ERA5}levels": [1.0, 2.00001]}),
    "no such level": ("", None, {f"{ERA5}levels": [1.0, 9.0]}),
    "a level twice": ("", None, {f"{ERA5}levels": [1.0, 1.1]}),
    "no level coordinate": (FIRST, lambda d: d.drop_vars("level")),
    "a level twice in a file": (FIRST, coords(level=[1.0, 5.0, 1.0])),
    "a level that is NaN": (FIRST, coords(level=[1.0, np.nan, 5.0])),
    "other levels, some chosen": (SECOND, coords(level=[1.0, 2.4, 5.0]), LOW),
    "other levels, all read": (SECOND, coords(level=[1.0, 2.0, 4.0]), DEEP),
    "a level dim of another name": (FIRST, lambda d: d.rename(level="lev")),
    "a 3-D variable as 2-D": ("", None, FLAT_T),
    "no such time coordinate": ("", None, {f"{ERA5}time_coord": "when"}),
    "no such type": ("", None, {f"{ERA5}dataset_type": "era5"}),
    "no such key of bad samples": ("", None, {"data__on_bad_sample": "ignore"}),
    "a batch of more than there is": ("", None, {"trainer__train_batch_size": 40}),
    "no value in the first sample": (FIRST, setting("T", AT_12, np.nan)),
    "a fill value of netCDF": (FIRST, setting("SP", MASKED, 9.96921e36)),
    "a fill value": (FIRST, setting("SP", MASKED, -9999.0, _FillValue=None)),
    "a declared fill value": (FIRST, setting("SP", MASKED, np.nan, _FillValue=-9999.0)),
    "a fill value in the last sample": (SECOND, setting("SP", LATER, -9999.0)),
    "a bad first sample is replaced": (FIRST, T_BAD, {**SKIP, **EXACT}),
    "no good sample": (BOTH, lambda d: d.assign(SP=d.SP * np.nan), SKIP),
    "nothing to say": ("", None, EXACT),
    "values in another unit": (BOTH, lambda d: d.assign(SP=d.SP / 100), EXACT),
    # Also where the mean is that of the file, and in the target only.
    "an input of deviation 0": ("std", lambda d: d.assign(SP=d.SP * 0), EXACT),
    "a target of deviation 0": ("std", lambda d: d.assign(TP=d.TP * 0), EXACT),
}
rows(opened, OPENED)
THIRD = {"data__forecast_len": 2, "data__on_outlier": "raise"}
FORCING = f"{SECOND} mean std"


def forcing(values):
    """A change of tsi, which is normalized too, at a time that is no sample's input."""

    def change(dataset):
        if "time" not in dataset.coords:
            return dataset.assign(tsi=1.0 if "std" in dataset.encoding["source"] else 0)
        return setting("tsi", np.s_[15, 3, : 6 if values < 0 else 1], values)(dataset)

    return change


OUTLIER = setting("T", np.s_[3, 2, 4, 7], 1e6)
THREADS = {"trainer__thread_workers": 2}
RAISE, REPLACE = {"data__on_outlier": "raise"}, {"data__on_outlier": "skip"}
READ = {
    "a value that is infinite": (SECOND, setting("TP", 4, np.inf), THREADS),
    "no values, by default": (SECOND, setting("SP", np.s_[3, 2], np.nan)),
    "the target in the next file": (SECOND, setting("TP", np.s_[0, 2], np.nan)),
    "a fill value between": (SECOND, setting("SP", np.s_[4, 2:4, :3], -9999.0)),
    "later forcing is NaN": (FORCING, forcing(np.nan), THIRD),
    "later forcing is a fill value": (FORCING, forcing(-9999.0), THIRD),
    "later forcing is an outlier": (FORCING, forcing(1e6), THIRD),
    "an outlier": (SECOND, OUTLIER, RAISE),
    "an outlier is no bad sample": (SECOND, OUTLIER, {**RAISE, **SKIP}),
    "an outlier is replaced": (SECOND, OUTLIER, REPLACE),
    "a bad sample is no outlier": (SECOND, setting("SP", np.s_[5, 2], np.nan), REPLACE),
}
rows(read, READ)


@CASES.case
def a_missing_year(folder):
    (folder / "w_2000.nc").rename(folder / "w_2001.nc")
    return lambda: load(folder)


@CASES.case
def a_file_that_is_cut_off(folder):
    path = folder / "w_1999.nc"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    return lambda: load(folder)


@CASES.case
def no_netCDF(folder):
    (folder / "w_1999.nc").write_bytes(b"nothing")
    return lambda: load(folder)


@CASES.case
def complex_numbers(folder):
    for name in YEARS:
        fields = xr.load_dataset(folder / f"{name}.nc").drop_encoding()
        fields["SP"] = fields["SP"].astype(np.complex128)
        fields.to_zarr(folder / f"{name}.zarr", zarr_format=2, consolidated=False)
    return lambda: load(folder, raw_config(folder, "zarr"))


@CASES.case
def an_accumulation_and_a_rate(folder):
    for name, unit in zip(YEARS, ("J m-2", "W m-2"), strict=True):
        rewrite(folder / f"{name}.nc", in_units(SP=unit))
    return lambda: load(folder)


@CASES.case
def statistics_of_other_levels(folder):
    raw = raw_config(folder)
    raw["preblocks"]["per_step"]["norm"]["args"].pop("levels")
    rewrite(folder / "mean.nc", coords(level=[1.0, 2.0, 5.0]))
    rewrite(folder / "std.nc", coords(level=[1.0, 2.0, 7.0]))
    return lambda: load(folder, raw)


@CASES.case
def levels_of_a_run_without_values(world, folder):
    like = open_data(parsed(raw_config(world, **DEEP)).data).coordinates()
    rewrite_all(folder, lambda d: d.drop_vars("level"))
    data = parsed(raw_config(folder, **DEEP)).data
    assert open_data(data).coordinates().sources["ERA5"].levels is None
    return lambda: open_data(data, like=like)


@CASES.case
def different_numbers_of_levels():
    common_count({"T": 3, "U": 2}, "data.source.ERA5")


@CASES.case
def no_common_start(world):
    raw = raw_config(world)
    sources = raw["data"]["source"]
    dates = {"start_datetime": "1999-12-25", "end_datetime": "1999-12-26"}
    sources["other"] = sources["ERA5"] | dates
    return lambda: load(world, raw)


def ranges(*dates, world):
    raw = raw_config(world, data__date_ranges=[*map(list, dates)])
    del raw["data"]["start_datetime"], raw["data"]["end_datetime"]
    return lambda: load(world, raw)


CASES.rows(
    ranges,
    (("2000-01-02", "2000-01-01"),),
    (("2000-01-01", "2000-01-04"), ("2000-01-03", "2000-01-05")),
    (("2000-01-01", "2000-01-03"), ("2000-01-04", "2000-01-04T01")),
    name="date_ranges",
)


def found(template, *names, tmp_path):
    """Files of a folder, and a template of paths."""
    for name in names:
        (tmp_path / name).touch()
    return lambda: discover(template.format(tmp=tmp_path), "path")


CASES.rows(
    found,
    ("{tmp}/a*.nc", "a1.nc", "a2.nc", "a2000.nc"),
    ("{tmp}/a%Y*.nc", "a1.nc", "a2.nc", "a2000.nc"),
    ("{tmp}/m*_%Y.nc", "m01_2000.nc", "m02_2000.nc", "m01_2001.nc"),
    # The root of the file system is no help; a folder on the way is.
    "/nowhere/a/e_%Y.nc",
    "/nowhere/e.nc",
    ("{tmp}/a/e.nc", "f.nc"),
    ("{tmp}/e_%Y.nc", "f.nc"),
    name="path",
)


def static(path, folder):
    return opened("", None, folder, **{f"{VARIABLES}static__path": f"{folder}/{path}"})


CASES.rows(static, "mask.nc", "deep/er/mask.nc", name="static.path")

CASES.rows(
    lambda **changes: sampler(**changes),
    {"local_dp_ranks": ()},
    {"local_dp_ranks": (0, 0), "dp_size": 2},
    {"local_dp_ranks": (1, 0), "dp_size": 2},
    {"local_dp_ranks": (4,), "dp_size": 2},
    {"batch_size": 24, "keep_partial": False},
    name="Sampler",
)
CASES.rows(lambda n: torch_randperm(n, 0), -1, 2**32 // 20, name="randperm")


@CASES.case
def a_window_of_less_than_two_steps(world):
    raw = raw_config(world, trainer__shuffle={"window": "11h"})
    return section_conflicts(parsed(raw))


def schema_file(content, tmp_path):
    path = tmp_path / "channel_schema.yaml"
    path.write_text(yaml.safe_dump(content))
    return lambda: ChannelSchema.load(path)


CASES.rows(
    schema_file,
    ({"schema_version": 2},),
    ({"schema_version": 1, "input": []},),
    ([],),
    name="channel_schema.yaml",
)


@CASES.case
def a_prognostic_variable_that_y_lacks():
    first, rain = (ChannelGroup(f"A/{name}", 1, 1) for name in ("prognostic/2d/T", "r"))
    x = np.zeros((1, 1, 1, 1, 1))
    ChannelSchema((first,), (rain,)).advance(x, x)


@CASES.case
def channels_of_a_model(world):
    schema = open_dataset(parsed(raw_config(world)).data).schema
    assert not [*channel_problems(schema, parse_model(MODEL))]
    return [*channel_problems(schema, parse_model({**MODEL, "surface_channels": 2}))]


def unfit(key, value, region):
    """A model of further inputs that the data do not fit."""
    raw = region_config(region)
    set_key(raw, key, value)
    return lambda: [*plan_problems(parsed(raw), num_devices=1)]


CASES.rows(
    unfit,
    ("model__time_encode_dim", 12),
    ("data__time_encoding", {}),
    ("data__time_encoding__x_more", ["input"]),
    ("data__source__AROUND__input", "x_other"),
    ("data__source__AROUND__history_len", 1),
    ("model__param_outside__channels", 2),
    ("model__param_outside__image_height", 13),
    ("data__time_encoding__x_extra", ["soon"]),
    ("data__source__AROUND__timestep", "5h"),
    ("data__source__AROUND__input", "x"),
    ("data__source__ERA5__input", "x_outside"),
    name="wrf:",
)


def around(value, folder):
    """Values of the fields around a region: errors as those of x are."""
    write_outside(folder)
    for name, number in (("mean", 0.0), ("std", 1.0)):
        rewrite(folder / f"{name}.nc", lambda d, number=number: d.assign(MSL=number))
    rewrite(folder / "o_2000.nc", setting("MSL", np.s_[12:20, 3, 7], value))
    loader = load(folder, region_config(folder, data__on_outlier="raise"))
    return lambda: [*loader.epoch(0)]


CASES.rows(around, np.nan, name="MSL around")
CASES.rows(around, 1e6, name="MSL around", marks=(pytest.mark.slow,))


def calendars(function, world):
    """Start dates in a calendar with more dates than the files are refused, always."""
    calendar = {f"{ERA5}calendar": "noleap", "data__calendar": "standard"}
    data = parsed(raw_config(world, **calendar)).data
    return lambda: function(data)


for name, function in {
    "forecast": lambda data: open_forecast_data(data, [START], 2),
    "truth": lambda data: open_truth(NamedData(data), np.array([START])),
    "training": open_dataset,
}.items():
    CASES.add(Case(f"noleap and standard, {name}", calendars, (function,)))


def persistent(start, world):
    """Fields of the last date of the config, whatever the start is."""
    raw = raw_config(world, data__source__ERA5__temporal_mode="persist")
    raw["data"] |= {"start_datetime": "1999-12-25", "end_datetime": "2000-01-02"}
    starts = np.array([start], "datetime64[ns]")
    data = open_forecast_data(parsed(raw).data, starts, 2)
    return [*data.notes_on_persistence(starts, 2)]


CASES.rows(persistent, "1999-12-30", "2000-01-05", name="persistent, at")
