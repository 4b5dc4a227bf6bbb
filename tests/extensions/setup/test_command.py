"""`credit-jax init`: configs for one's own files, and what the files do not say."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import xarray as xr
import yaml

from credit_jax.cli.check import check_config
from credit_jax.cli.commands import OK
from credit_jax.config import load_config
from credit_jax.extensions.preprocess.command import main as preprocess
from credit_jax.extensions.setup.command import main
from credit_jax.models.registry import build
from tests.messages.engine import *  # noqa: F403
from tests.messages.engine import Cases

CASES = Cases("init")

LEVELS = [100.0, 500.0, 850.5]
CONFIGS = Path(__file__).parents[3] / "configs"


def steps(start, count=20, freq="6h", calendar=None):
    if calendar is None:
        return pd.date_range(start, periods=count, freq=freq)
    dates = {"periods": count, "freq": freq, "calendar": calendar}
    return xr.date_range(start, use_cftime=True, **dates)


def fields(times=None, deep=(), flat=(), *, rows=32, level="level"):
    """Random fields on a grid of rows x 64 points."""
    space = {"latitude": np.linspace(87, -87, rows), "longitude": np.arange(64) * 5.625}
    coords = ({} if times is None else {"time": times}) | space
    data = xr.Dataset(coords=coords | ({level: LEVELS} if deep else {}))
    data["latitude"].attrs["units"] = "degrees_north"
    rng = np.random.default_rng(0)
    for name in (*deep, *flat):
        dims = [*coords]
        if name in deep:
            dims.insert(1, level)
        shape = [data.sizes[dim] for dim in dims]
        data[name] = (dims, rng.normal(size=shape).astype(np.float32))
    return data


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Two years of Zarr, and static fields; the names that the options take."""
    monkeypatch.chdir(tmp_path)
    for year in (2000, 2001):
        write_year(year)
    fields(flat=("Z",)).to_netcdf("static.nc")
    return ["w_2000.zarr", "w_2001.zarr", "static.nc"]


def write_year(year):
    whole = fields(steps(f"{year}-01-01", 12), ("T", "U"), ("SP", "tsi", "rain"))
    whole.to_zarr(f"w_{year}.zarr", zarr_format=2, consolidated=True)


def init(*arguments):
    return main([*arguments, "--out", "my.yaml"])


def written():
    return yaml.safe_load(Path("my.yaml").read_text())


def problems():
    """Those of the config but statistics, which are not there yet."""
    found = check_config("my.yaml", num_devices=1).problems
    return [line for line in found if "`credit-jax preprocess` fits it" not in line]


def said(capsys, *arguments):
    """What `init` prints, and the section `data` that it writes."""
    capsys.readouterr()
    assert init(*arguments) == OK
    assert not problems()
    whole = written()
    assert whole["model"]["levels"] == len(LEVELS)
    data = {key: whole[key] for key in ("data", "validation_data")}
    return [capsys.readouterr().out, yaml.safe_dump(data, sort_keys=False)]


def of_two_years(options, files, capsys):
    return said(capsys, "--data", *files, *options)


CASES.rows(of_two_years, ((),), (("--diagnostic", "rain"),), name="two years")


def test_the_three_commands(files):
    """The config reads the files; preprocess fits its scalers; check finds no fault."""
    assert init("--data", *files, "--diagnostic", "rain") == OK
    assert build(load_config("my.yaml").model).image_height == 32
    assert preprocess(["--config", "my.yaml"]) == OK
    assert not check_config("my.yaml", num_devices=1).problems
    text = Path("my.yaml").read_text()
    assert "w_%Y.zarr: 32 x 64 points, 3 levels, 24 times from 2000-01-01" in text
    assert "&id" not in text, "no aliases"


# Files of other conventions.


def by_month():
    """A file a month, and a file a day."""
    for month in (1, 2):
        first = f"2000-{month:02}"
        fields(steps(first, 12), ("T",)).to_netcdf(f"w_2000{month:02}.nc")
        for day in range(1, 4):
            date = f"{first}-{day:02}"
            fields(steps(date, 4), flat=("SP",)).to_netcdf(f"sp.{date}.nc")


def of_cesm():
    """Bounds, and coefficients of hybrid levels and of their edges."""
    times = steps("2000-01-01", freq="12h", calendar="julian")
    cesm = fields(times, ("T",), ("PS", "SOLIN"), level="lev")
    cesm["hyam"] = ("lev", np.zeros(len(LEVELS)))
    cesm["hyai"] = ("ilev", np.zeros(len(LEVELS) + 1))
    cesm["gw"] = ("latitude", np.zeros(32))
    cesm["lat_bnds"] = (("latitude", "nbnd"), np.zeros((32, 2)))
    cesm.to_netcdf("cam.nc")


def of_the_climate_data_store():
    """Other names, and coordinates that are scalars or text."""
    times = steps("2000-01-01")
    era5 = fields(times, ("t",), ("tsi",), level="pressure_level")
    era5 = era5.rename(time="valid_time").assign_coords(number=0)
    era5["expver"] = ("valid_time", ["0001"] * 20)
    era5.set_coords("expver").to_netcdf("cds.nc")
    fields(times[:1], flat=("z",)).rename(time="valid_time").to_netcdf("ground.nc")


def of_levels_without_values():
    """Numbered levels, and a static field on them."""
    whole = fields(steps("2000-01-01"), ("T",), level="bottom_top")
    whole = whole.drop_vars("bottom_top")
    whole["P_BASE"] = whole["T"].isel(time=0)
    whole.to_netcdf("wrf.nc")


def of_their_own_for_the_surface():
    """Two groups with predicted variables are two sources."""
    times = steps("2000-01-01", freq="12h", calendar="noleap")
    fields(times, ("T",), level="lev").to_netcdf("upper.nc")
    fields(times, flat=("PS",)).to_netcdf("surface.nc")
    fields(times, flat=("SOLIN",)).to_netcdf("solar.nc")
    fields(flat=("Z",)).to_netcdf("static.nc")


def with_gaps():
    """Ranges, so that no sample asks for a time that is missing."""
    for year in (1997, 2000, 2001):
        write_year(year)


def of_cmip():
    """The usual names of CMIP and CESM, in any case, are known."""
    flat = ("ps", "pr", "rsdt", "rlut", "solin", "rain", "snow")
    deep = ("ta", "hur", "potential_vorticity")
    fields(steps("2000-01-01"), deep, flat).to_netcdf("all.nc")


def convention(write, tmp_path, monkeypatch, capsys, options=()):
    monkeypatch.chdir(tmp_path)
    globals()[write]()
    names = sorted((path.name for path in tmp_path.iterdir()), reverse=True)
    return said(capsys, "--data", *names, *options)


CASES.rows(
    convention,
    *("of_cesm", "of_levels_without_values", "of_their_own_for_the_surface"),
    *("with_gaps", "of_cmip"),
    {"write": "of_cmip", "options": ("--diagnostic", "rain", "snow")},
)
SLOW = "by_month", "of_the_climate_data_store"
CASES.rows(convention, *SLOW, marks=[pytest.mark.slow])


def test_files_as_they_are_downloaded(tmp_path, monkeypatch):
    """Five days a file, columns before rows, z on levels and of the surface."""
    monkeypatch.chdir(tmp_path)
    for day in (16, 21, 26):
        times, level = steps(f"2000-12-{day}"), "pressure_level"
        own = fields(times, ("z", "U"), ("sp", "tisr"), level=level)
        own = own.transpose("time", level, "longitude", "latitude")
        own = own.rename(time="valid_time").assign_coords(number=0)
        own.to_netcdf(f"a.h1.2000-12-{day}-00000.nc")
    fields(flat=("z",)).to_netcdf("static.nc")
    assert init("--data", *(path.name for path in tmp_path.glob("*.nc"))) == OK
    assert preprocess(["--config", "my.yaml"]) == OK
    assert not check_config("my.yaml", num_devices=1).problems
    with xr.open_dataset("my_mean.nc") as mean:
        assert mean["z"].shape == (3,)
        assert mean["z_surface"].shape == ()


@CASES.case
def check_judges_what_does_not_fit(files):
    fields(steps("2000-01-01"), ("T",), rows=16).to_netcdf("rows.nc")
    assert init("--data", "rows.nc", "static.nc") == OK
    blocks = ["preblocks.per_step={concat: {type: concat}}"]
    return [*check_config("my.yaml", blocks, num_devices=1).problems]


# Examples.


@pytest.mark.slow(but=["unet_1deg"])
@pytest.mark.parametrize("like", ["wxformer_1deg", "camulator", "unet_1deg"])
def test_like_other_examples(like, files):
    assert init("--like", like, "--data", *files, "--diagnostic", "rain") == OK
    model = written()["model"]
    example = yaml.safe_load((CONFIGS / f"{like}.yaml").read_text())["model"]
    assert model["type"] == example["type"]
    assert (model["image_height"], model["levels"]) == (32, 3)
    assert build(model)


def test_like_a_config_with_a_loss_of_ones_own(files, tmp_path):
    """The objects that are taken over are named by their absolute path."""
    (tmp_path / "mine.py").write_text(
        "from credit_jax.losses import LOSSES\nmine = LOSSES['mse']\n"
    )
    example = yaml.safe_load((CONFIGS / "demo.yaml").read_text())
    entry = {"object_type": "loss", "module_path": "mine.py"}
    example |= {"custom_objects": {"mine": entry}, "loss": {"training_loss": "mine"}}
    Path("like.yaml").write_text(yaml.safe_dump(example))
    assert init("--like", "like.yaml", "--diagnostic", "rain", "--data", *files) == OK
    path = str(tmp_path / "mine.py")
    assert written()["custom_objects"] == {"mine": entry | {"module_path": path}}
    assert written()["loss"]["training_loss"] == "mine"


@pytest.mark.parametrize("like", ["camulator", "wrf_1h", "wxformer_6h_curriculum"])
def test_without_files_it_is_the_example(files, like):
    assert init("--like", like) == OK
    assert Path("my.yaml").read_text() == (CONFIGS / f"{like}.yaml").read_text()


def refused(arguments, files):
    fields(steps("2000-01-01", 4), flat=("SP",)).to_netcdf("few.nc")
    fields(steps("2000-01-01", 4), flat=("SP",), rows=16).to_netcdf("rows.nc")
    fields(steps("2000-01-01"), flat=("SP",)).to_netcdf("cycle.nc")
    Path("a.grib").write_bytes(b"GRIB" + bytes(20))
    if not {"--data", "camulatr"} & {*arguments}:
        arguments = [*arguments, "--data", *files, "--diagnostic", "rain"]
    return lambda: init(*arguments)


CASES.rows(
    refused,
    (["--like", "camulatr"],),
    (["--like", "wrf_1h"],),
    (["--like", "dscale_1h"],),
    (["--like", "graph_1deg"],),
    (["--like", "downscaling_conus404"],),
    (["--data", "none.nc"],),
    (["--data", "none_%Y.nc"],),
    (["--data", "static.nc"],),
    (["--data", "few.nc", "rows.nc"],),
    (["--data", "a.grib"],),
    (["--data", "cycle.nc", "--forcing", "SP"],),
    (["--data", "few.nc"],),
    (["--prognostic", "SPP"],),
    (["--timestep=-6h"],),
)
