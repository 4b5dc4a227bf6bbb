"""`credit-jax init`: configs for one's own files, and what the files do not say."""

import re
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
from tests.support.custom_objects import no_objects_left

CASES = Cases("init")

__all__ = ["no_objects_left"]

LEVELS = [100.0, 500.0, 850.5]
CONFIGS = Path(__file__).parents[3] / "configs"


def fields(times, deep=(), flat=(), *, calendar=None, rows=32, level="level"):
    """Random fields on a grid of rows x 64 points."""
    rng = np.random.default_rng(0)
    coords = {
        "latitude": np.linspace(87, -87, rows),
        "longitude": np.arange(64) * 360 / 64,
    }
    space = {"latitude": rows, "longitude": 64}
    sizes = {"time": len(times), level: len(LEVELS)} if len(times) else {}
    if len(times):
        coords |= {"time": times}
    if deep:
        coords |= {level: LEVELS}
    data = xr.Dataset(coords=coords)
    data["latitude"].attrs["units"] = "degrees_north"
    for name, dims in {
        **dict.fromkeys(deep, ("time", level, *space)),
        **{name: (*(("time",) if len(times) else ()), *space) for name in flat},
    }.items():
        shape = [{**sizes, **space}[dim] for dim in dims]
        data[name] = (dims, rng.normal(size=shape).astype(np.float32))
    return data


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Two years of Zarr, and static fields; the names that the options take."""
    monkeypatch.chdir(tmp_path)
    for year in (2000, 2001):
        times = pd.date_range(f"{year}-01-01", periods=12, freq="6h")
        own = fields(times, ("T", "U"), ("SP", "tsi", "rain"))
        own.to_zarr(f"w_{year}.zarr", zarr_format=2, consolidated=True)
    fields((), flat=("Z",)).to_netcdf("static.nc")
    return ["w_2000.zarr", "w_2001.zarr", "static.nc"]


def init(*arguments):
    return main([*arguments, "--out", "my.yaml"])


def test_the_three_commands(files, capsys):
    """The config reads the files; preprocess fits its scalers; check finds no fault."""
    assert init("--data", *files, "--diagnostic", "rain") == OK
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2:] == [
        "credit-jax preprocess --config my.yaml",
        "credit-jax check --config my.yaml",
    ]
    config = load_config("my.yaml")
    source = config.data.source["data"]
    variables = source.variables
    assert source.levels == tuple(LEVELS)
    assert variables.prognostic.vars_3D == ("T", "U")
    assert variables.prognostic.vars_2D == ("SP",)
    assert variables.dynamic_forcing.vars_2D == ("tsi",)
    assert variables.diagnostic.vars_2D == ("rain",)
    assert variables.static.path == "static.nc"
    assert variables.prognostic.path == "w_%Y.zarr"
    assert config.data.timestep == "6h"
    assert config.data.start_datetime == "2000-01-01T00:00:00"
    assert config.data.end_datetime < config.validation_data.start_datetime
    assert config.validation_data.end_datetime == "2001-01-03T18:00:00"
    assert build(config.model).image_height == 32
    assert preprocess(["--config", "my.yaml"]) == OK
    report = check_config("my.yaml", num_devices=1)
    assert not report.problems
    text = Path("my.yaml").read_text()
    assert "w_%Y.zarr: 32 x 64 points, 3 levels, 24 times from 2000-01-01" in text
    assert "&id" not in text, "no aliases"


def test_what_the_files_do_not_say(files, capsys):
    """It is left out, and a note names the options."""
    assert init("--data", *files) == OK
    (line,) = (x for x in capsys.readouterr().out.splitlines() if "left out" in x)
    assert line.startswith("note: left out: rain; ")
    assert "(--prognostic NAME)" in line
    assert "(--forcing NAME)" in line
    assert "(--diagnostic NAME)" in line
    assert "rain" not in str(yaml.safe_load(Path("my.yaml").read_text())["data"])
    assert preprocess(["--config", "my.yaml"]) == OK
    assert not check_config("my.yaml", num_devices=1).problems


def test_all_that_the_files_do_not_say_at_once(tmp_path, monkeypatch, capsys):
    """And the usual names of CMIP and CESM, in any case, are known."""
    monkeypatch.chdir(tmp_path)
    times = pd.date_range("2000-01-01", periods=20, freq="6h")
    known = ("ps", "pr", "rsdt", "rlut", "solin")
    deep = ("ta", "hur", "potential_vorticity")
    fields(times, deep, (*known, "rain", "snow")).to_netcdf("all.nc")
    assert init("--data", "all.nc") == OK
    assert "left out: hur, potential_vorticity, rain, snow; " in capsys.readouterr().out
    Path("my.yaml").unlink()
    assert init("--data", "all.nc", "--diagnostic", "rain", "snow") == OK
    assert "left out: hur, potential_vorticity; " in capsys.readouterr().out
    source = yaml.safe_load(Path("my.yaml").read_text())["data"]["source"]["data"]
    flat = {role: own.get("vars_2D") for role, own in source["variables"].items()}
    assert flat == {
        "prognostic": ["ps"],
        "dynamic_forcing": ["rsdt", "solin"],
        "diagnostic": ["pr", "rlut", "rain", "snow"],
    }


def test_files_as_they_are_downloaded(tmp_path, monkeypatch):
    """Five days a file, columns before rows, z on levels and of the surface."""
    monkeypatch.chdir(tmp_path)
    for day in (16, 21, 26):
        times = pd.date_range(f"2000-12-{day}", periods=20, freq="6h")
        own = fields(times, ("z", "U"), ("sp", "tisr"), level="pressure_level")
        own = own.transpose("time", "pressure_level", "longitude", "latitude")
        own = own.rename(time="valid_time").assign_coords(number=0)
        own.to_netcdf(f"a.h1.2000-12-{day}-00000.nc")
    fields((), flat=("z",)).to_netcdf("static.nc")
    files = [path.name for path in tmp_path.glob("*.nc")]
    assert init("--data", *files) == OK
    assert preprocess(["--config", "my.yaml"]) == OK
    assert not check_config("my.yaml", num_devices=1).problems
    with xr.open_dataset("my_mean.nc") as mean:
        assert mean["z"].shape == (3,)
        assert mean["z_surface"].shape == ()


def test_files_of_their_own_for_the_surface(files, tmp_path):
    """Two groups with predicted variables are two sources; calendars and names too."""
    times = xr.date_range(
        "2000-01-01", periods=20, freq="12h", calendar="noleap", use_cftime=True
    )
    fields(times, ("T",), level="lev").to_netcdf("upper.nc")
    fields(times, flat=("PS",)).to_netcdf("surface.nc")
    fields(times, flat=("SOLIN",)).to_netcdf("solar.nc")
    assert init("--data", "upper.nc", "surface.nc", "solar.nc", files[-1]) == OK
    config = load_config("my.yaml")
    upper, surface = config.data.source.values()
    assert (upper.level_coord, upper.levels) == ("lev", tuple(LEVELS))
    assert upper.variables.prognostic.path == "upper.nc"
    assert surface.variables.prognostic.path == "surface.nc"
    assert upper.variables.dynamic_forcing.path == "solar.nc"
    assert upper.variables.static.path == "static.nc"
    assert config.data.timestep == "12h"
    report = check_config("my.yaml", num_devices=1)
    assert all("`credit-jax preprocess` fits it" in line for line in report.problems)


def test_gaps_between_files(files):
    """Ranges, so that no sample asks for a time that is missing."""
    times = pd.date_range("1997-06-01", periods=12, freq="6h")
    fields(times, ("T", "U"), ("SP", "tsi", "rain")).to_zarr(
        "w_1997.zarr", zarr_format=2, consolidated=True
    )
    assert init("--data", *files, "w_1997.zarr", "--diagnostic", "rain") == OK
    config = load_config("my.yaml")
    assert config.data.ranges == (
        ("1997-06-01T00:00:00", "1997-06-03T18:00:00"),
        ("2000-01-01T00:00:00", "2000-01-03T18:00:00"),
    )
    (valid,) = config.validation_data.ranges
    assert valid == ("2001-01-01T00:00:00", "2001-01-03T18:00:00")
    report = check_config("my.yaml", num_devices=1)
    assert all("`credit-jax preprocess` fits it" in line for line in report.problems)


def by_month():
    """A file a month, and a file a day."""
    for first, name in (("2000-01", "w_200001.nc"), ("2000-02", "w_200002.nc")):
        fields(pd.date_range(first, periods=12, freq="6h"), ("T",)).to_netcdf(name)
    for day in range(1, 4):
        for month in (1, 2):
            times = pd.date_range(f"2000-{month}-{day}", periods=4, freq="6h")
            flat = fields(times, flat=("SP",))
            flat.to_netcdf(f"sp.2000-{month:02}-{day:02}.nc")


def of_cesm():
    """Bounds, and coefficients of hybrid levels and of their edges."""
    times = xr.date_range(
        "2000-01-01", periods=20, freq="12h", calendar="julian", use_cftime=True
    )
    cesm = fields(times, ("T",), ("PS", "SOLIN"), level="lev")
    cesm["hyam"] = ("lev", np.zeros(len(LEVELS)))
    cesm["hyai"] = ("ilev", np.zeros(len(LEVELS) + 1))
    cesm["gw"] = ("latitude", np.zeros(32))
    cesm["lat_bnds"] = (("latitude", "nbnd"), np.zeros((32, 2)))
    cesm.to_netcdf("cam.nc")


def of_the_climate_data_store():
    """Other names, and coordinates that are scalars or text."""
    times = pd.date_range("2000-01-01", periods=20, freq="6h")
    era5 = fields(times, ("t",), ("tsi",), level="pressure_level")
    era5 = era5.rename(time="valid_time").assign_coords(number=0)
    era5["expver"] = ("valid_time", ["0001"] * 20)
    era5.set_coords("expver").to_netcdf("cds.nc")
    ground = fields(times[:1], flat=("z",)).rename(time="valid_time")
    ground.to_netcdf("ground.nc")


def of_levels_without_values():
    """Numbered levels, and a static field on them."""
    times = pd.date_range("2000-01-01", periods=20, freq="6h")
    whole = fields(times, ("T",), level="bottom_top").drop_vars("bottom_top")
    whole["P_BASE"] = whole["T"].isel(time=0)
    whole.to_netcdf("wrf.nc")


# Files of other conventions -> what the config has of them.
CONVENTIONS = {
    by_month: (
        ["w_200001.nc", "w_200002.nc", "sp.2000-*.nc"],
        {
            "data.variables.prognostic": {"vars_3D": ["T"], "path": "w_%Y%m.nc"},
            "data_2.variables.prognostic": {
                "vars_2D": ["SP"],
                "path": "sp.%Y-%m-%d.nc",
            },
        },
    ),
    of_cesm: (
        ["cam.nc"],
        {
            "data.levels": LEVELS,
            "data.level_coord": "lev",
            "data.variables.prognostic.vars_3D": ["T"],
            "data.variables.dynamic_forcing.vars_2D": ["SOLIN"],
        },
    ),
    of_the_climate_data_store: (
        ["cds.nc", "ground.nc"],
        {
            "data.time_coord": "valid_time",
            "data.level_coord": "pressure_level",
            "data.variables.static": {"vars_2D": ["z"], "path": "ground.nc"},
        },
    ),
    of_levels_without_values: (
        ["wrf.nc"],
        {
            "data.variables.prognostic.vars_3D": ["T"],
            "data.variables.static.vars_3D": ["P_BASE"],
        },
    ),
}


def test_check_judges_what_does_not_fit(files):
    times = pd.date_range("2000-01-01", periods=20, freq="6h")
    fields(times, ("T",), rows=16).to_netcdf("rows.nc")
    assert init("--data", "rows.nc", "static.nc") == OK
    # Statistics, which are not there yet, come first.
    blocks = ["preblocks.per_step={concat: {type: concat}}"]
    problems = "\n".join(check_config("my.yaml", blocks, num_devices=1).problems)
    assert re.search("static.nc.*32.*16|16.*32", problems), problems


@pytest.mark.slow(but=["of_cesm", "of_levels_without_values"])
@pytest.mark.parametrize("write", CONVENTIONS, ids=lambda write: write.__name__)
def test_other_conventions(write, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write()
    patterns, expected = CONVENTIONS[write]
    paths = [path.name for each in patterns for path in sorted(tmp_path.glob(each))]
    assert init("--data", *paths) == OK
    whole = yaml.safe_load(Path("my.yaml").read_text())
    for key, value in expected.items():
        found = whole["data"]["source"]
        for part in key.split("."):
            found = found[part]
        assert found == value, key
    assert whole["model"]["levels"] == len(LEVELS)
    report = check_config("my.yaml", num_devices=1)
    assert all("`credit-jax preprocess` fits it" in line for line in report.problems)


@pytest.mark.slow(but=["unet_1deg-32"])
@pytest.mark.parametrize(
    ("like", "shape"),
    [("wxformer_1deg", 32), ("camulator", 32), ("unet_1deg", 32)],
)
def test_like_other_examples(like, shape, files):
    assert init("--like", like, "--data", *files, "--diagnostic", "rain") == OK
    model = yaml.safe_load(Path("my.yaml").read_text())["model"]
    example = yaml.safe_load((CONFIGS / f"{like}.yaml").read_text())["model"]
    assert model["type"] == example["type"]
    assert (model["image_height"], model["levels"]) == (shape, 3)
    assert build(model)


@pytest.mark.usefixtures("no_objects_left")
def test_like_a_config_with_a_loss_of_ones_own(files, tmp_path):
    """The objects that are taken over are named by their absolute path."""
    (tmp_path / "mine.py").write_text(
        "from credit_jax.losses import LOSSES\nmine = LOSSES['mse']\n"
    )
    example = yaml.safe_load((CONFIGS / "demo.yaml").read_text())
    entry = {"object_type": "loss", "module_path": "mine.py"}
    example |= {"custom_objects": {"mine": entry}, "loss": {"training_loss": "mine"}}
    Path("like.yaml").write_text(yaml.safe_dump(example))
    options = ("--like", "like.yaml", "--diagnostic", "rain")
    assert init(*options, "--data", *files) == OK
    config = yaml.safe_load(Path("my.yaml").read_text())
    path = str(tmp_path / "mine.py")
    assert config["custom_objects"] == {"mine": entry | {"module_path": path}}
    assert config["loss"]["training_loss"] == "mine"


@pytest.mark.parametrize(
    "like",
    ["camulator", "wrf_1h", "graph_1deg", "dscale_1h", "wxformer_6h_curriculum"],
)
def test_without_files_it_is_the_example(files, like):
    assert init("--like", like) == OK
    assert Path("my.yaml").read_text() == (CONFIGS / f"{like}.yaml").read_text()


def refused(arguments, files, capsys):
    times = pd.date_range("2000-01-01", periods=4, freq="6h")
    fields(times, flat=("SP",)).to_netcdf("few.nc")
    fields(times, flat=("SP",), rows=16).to_netcdf("rows.nc")
    times = pd.date_range("2000-01-01", periods=20, freq="6h")
    fields(times, flat=("SP",)).to_netcdf("cycle.nc")
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
