"""The command `assimilate`, and the fit of its covariance by `preprocess`."""

import shutil
from contextlib import chdir

import numpy as np
import pandas as pd
import pytest
import xarray as xr
import yaml

from credit_jax.cli.commands import OK, USER_ERROR
from credit_jax.cli.score import main as score
from credit_jax.extensions.assimilation.command import main
from credit_jax.extensions.assimilation.cycling import Cycling
from credit_jax.extensions.packaging import command as package
from credit_jax.extensions.preprocess import command as preprocess
from tests.data.world import GRID
from tests.extensions.adjoint.conftest import *  # noqa: F403
from tests.forecast.tiny_run import forecast, read
from tests.messages.engine import *  # noqa: F403
from tests.messages.engine import Cases
from tests.support import assert_close
from tests.support.processes import on_processes

CASES = Cases("assimilation")
SP, VARIABLES = "ERA5/prognostic/2d/SP", "data.source.ERA5.variables"
START, WINDOWS = pd.Timestamp("2000-01-01"), 2
MESHES = {
    "domain2": ("--parallelism", "data=none,domain=2", "--devices", "2"),
    "dp2xdomain2": ("--parallelism", "data=ddp,domain=2", "--devices", "4"),
}


@pytest.fixture(scope="module")
def config(run, initial, tmp_path_factory):
    """A config with a fitted covariance and observations of two windows of 12 hours."""
    out = tmp_path_factory.mktemp("assimilate")
    assert forecast(str(run), out / "forecasts") == OK
    rng, count = np.random.default_rng(0), 80
    names = rng.choice(["T", "U", "SP"], count)
    points = xr.Dataset(
        {
            "latitude": ("obs", rng.uniform(-75, 75, count)),
            "longitude": ("obs", rng.uniform(0, 324, count)),
            "level": ("obs", rng.uniform(1, 4.6, count)),
        }
    )
    near = initial.isel(time=0).interp(points).to_dataframe()
    sizes = pd.Series(names).map({"T": 5.0, "U": 2.0, "SP": 500.0}).to_numpy()
    table = pd.DataFrame(
        {
            "time": START + pd.to_timedelta(rng.uniform(0, 24, count), "h"),
            **{name: points[name] for name in points},
            "variable": names,
            "value": [near[name].iloc[k] for k, name in enumerate(names)],
            "error": sizes,
        }
    )
    table.loc[0, "error"] = 0.0
    table.to_csv(out / "obs.csv", index=False)
    raw = yaml.safe_load(run.read_text())
    raw["assimilation"] = {
        "observations": ["obs.csv"],
        "background": {
            "file": "background.nc",
            "forecasts": "forecasts",
            "leads": ["6h", "18h"],
            "truncation": 2,
        },
        "start": str(START),
        "window": "12h",
        "cycles": WINDOWS,
        "inner_iterations": 3,
        "leave_out": ["error"],
    }
    path = out / "model.yml"
    path.write_text(yaml.safe_dump(raw, sort_keys=False))
    with chdir(out):
        assert preprocess.main(["--config", str(path)]) == OK
    return path


def call(config, out, *options, **changes):
    """Runs the command in the folder of the config, with changes of its section."""
    sets = [f"--set=assimilation.{key}={value}" for key, value in changes.items()]
    arguments = ["--config", str(config), "--out", str(out), "--cache", "none"]
    with chdir(config.parent):
        return main([*arguments, *options, *sets])


@pytest.fixture(scope="module")
def analyses(config, tmp_path_factory):
    """The folder of both windows."""
    out = tmp_path_factory.mktemp("analyses") / "out"
    assert call(config, out) == OK
    return out


def contents(folder):
    """Path -> variables of all NetCDF files."""
    paths = sorted(folder.rglob("*.nc"))
    return {str(path.relative_to(folder)): xr.load_dataset(path) for path in paths}


def assert_same_files(folder, other, tolerance=0.0):
    """Asserts equal files of some windows of `other`, or states that are close."""
    actual, expected = contents(folder), contents(other)
    assert actual
    for path, dataset in actual.items():
        if not tolerance:
            xr.testing.assert_identical(dataset, expected[path])
        elif "innovations" not in path:
            for name in dataset.data_vars:
                what = f"{path} {name}"
                assert_close(dataset[name], expected[path][name], tolerance, what)
    return len(actual) / len(expected)


def error_of(capsys):
    return " ".join(capsys.readouterr().err.split())


def test_the_files(analyses, config, run, initial, tmp_path):
    """Analyses and forecasts in the layout of forecasts, innovations, statistics."""
    files = contents(analyses)
    start = "20000101_0000Z"
    analysis = files[f"analyses/{start}/2000-01-01_T0000Z.nc"]
    assert set(analysis.data_vars) == {"T", "U", "SP"}
    increment = analysis["T"].isel(time=0) - initial["T"].isel(time=0)
    assert float(abs(increment).max()) > 0.1
    assert f"forecasts/{start}/2000-01-01_T1200Z.nc" in files
    assert "analyses/20000101_1200Z/2000-01-01_T1200Z.nc" in files
    innovations = [
        files[f"innovations/{name}.nc"] for name in (start, "20000101_1200Z")
    ]
    assert sum(len(x["observation"]) for x in innovations) == 79, "one is left out"
    table = pd.read_csv(analyses / "statistics.csv")
    assert (analyses / "statistics.png").stat().st_size > 10_000
    assert len(table) == 6
    for dataset in innovations:
        assert dataset.attrs["analysis_cost"] < dataset.attrs["background_cost"]
        cost = dataset["cost"].values
        assert (np.diff(cost[dataset["outer"] == 1]) < 0).all()
        rows = table[table["window"] == dataset.attrs["window"]].set_index("variable")
        part = dataset.isel(observation=dataset["variable"].values == "T")
        rms = np.sqrt(np.square(part["value"] - part["background"]).mean())
        assert rows.loc["T", "background_rms"] == pytest.approx(float(rms))
        expected = np.square(part["error"]) + part["background_variance"]
        spread = float(rms / np.sqrt(expected.mean()))
        assert rows.loc["T", "spread"] == pytest.approx(spread)
    # Sums of squares of departures and increments.
    first = innovations[0]
    departures = (first["value"] - first["background"]) / first["error"]
    cost = float(np.square(departures).sum()) / 2
    assert first.attrs["background_cost"] == pytest.approx(cost, rel=1e-5)
    chi = 2 * first.attrs["analysis_cost"] / len(first["observation"])
    assert first.attrs["chi_squared"] == pytest.approx(chi)


def test_the_next_background_is_the_forecast_of_the_analysis(analyses, run, config):
    """Where it is observed, at points of the grid, it is in the file before."""
    files = contents(analyses)
    end = files["forecasts/20000101_0000Z/2000-01-01_T1200Z.nc"]
    analysis = files["analyses/20000101_1200Z/2000-01-01_T1200Z.nc"]
    for name in ("T", "U", "SP"):
        assert not np.array_equal(analysis[name], end[name]), name
    # Smooth increments: of the largest scales alone.
    increment = (analysis["T"] - end["T"]).isel(time=0, level=0).values
    waves = abs(np.fft.rfft(increment, axis=-1)).max(0)
    assert waves[3:].max() < 1e-4 * waves[:3].max()


@pytest.mark.slow
def test_forecasts_can_be_scored(analyses, world, tmp_path):
    options = ["--forecast", str(analyses / "forecasts"), "--out", str(tmp_path / "s")]
    truth = ["--truth", str(world / "w_2000.nc"), "--climatology", "none"]
    assert score([*options, *truth]) == OK


@pytest.mark.slow
def test_a_killed_run_is_resumed_bitwise(config, analyses, tmp_path, monkeypatch):
    out, write = tmp_path / "out", Cycling._write

    def killed(self, number, *arguments):
        if number == 1:
            raise KeyboardInterrupt
        write(self, number, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Cycling, "_write", killed)
        assert call(config, out) != OK
    assert not (out / "analyses/20000101_1200Z").exists()
    assert call(config, out) == USER_ERROR, "without --resume"
    assert call(config, out, "--resume") == OK
    assert assert_same_files(out, analyses) == 1
    texts = [(x / "statistics.csv").read_text() for x in (analyses, out)]
    assert texts[0] == texts[1]


@pytest.mark.slow
def test_windows_are_added(config, analyses, tmp_path):
    out, leave_out = tmp_path / "out", "[error, time]"
    assert call(config, out, leave_out=leave_out, cycles=1) == OK
    assert call(config, out, "--resume", leave_out=leave_out) == OK
    assert assert_same_files(out, analyses) == 1


@pytest.mark.slow(but=["dp2xdomain2"])
@pytest.mark.parametrize("mesh", MESHES)
def test_meshes_make_the_same_analyses(config, analyses, tmp_path, mesh):
    assert call(config, tmp_path / "out", *MESHES[mesh]) == OK
    assert assert_same_files(tmp_path / "out", analyses, 1e-5) == 1


@pytest.mark.parametrize(
    ("mesh", "count"),
    [("domain2", 2), ("dp2xdomain2", 2), ("dp2xdomain2", 4)],
)
@pytest.mark.slow
def test_processes_make_the_same_analyses(config, analyses, tmp_path, mesh, count):
    """Process 0 alone speaks and writes; one process goes on with what they wrote."""
    folder, cycles = config.parent, 1 if count == 2 else WINDOWS
    changes = {
        "observations": f"[{folder}/obs.csv]",
        "background.file": folder / "background.nc",
        "background.forecasts": folder / "forecasts",
        "leave_out": "[error, time]",
        "cycles": cycles,
    }
    sets = [f"--set=assimilation.{key}={value}" for key, value in changes.items()]
    options = ["--config", str(config), "--out", str(tmp_path / "out"), *sets]
    options += MESHES[mesh]
    texts = on_processes(count, "credit_jax.extensions.assimilation.command", *options)
    assert [text.count("written: ") for text in texts] == [1] + [0] * (count - 1)
    share = assert_same_files(tmp_path / "out", analyses, 1e-5)
    assert share == cycles / WINDOWS


def test_processes_but_the_first_write_nothing(config, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("jax.process_index", lambda *_: 1)
    changes = {"cycles": 1, "leave_out": "[error, time]"}
    assert call(config, tmp_path / "out", **changes) == OK
    assert not (tmp_path / "out").exists()
    assert "written" not in capsys.readouterr().out


@pytest.mark.slow
def test_the_first_background_is_a_forecast(config, run, tmp_path):
    """It is the end of it at a point of the grid, which is observed at the start."""
    row, column, later = 2, 3, START + pd.Timedelta("12h")
    place = {"latitude": GRID["latitude"][row], "longitude": GRID["longitude"][column]}
    value = {"variable": "SP", "value": 1e5, "error": 500.0}
    pd.DataFrame([{"time": later, **place, **value}]).to_csv(tmp_path / "one.csv")
    changes = {"start": later, "first_lead": "12h", "cycles": 1}
    changes["observations"] = f"[{tmp_path / 'one.csv'}]"
    assert call(config, tmp_path / "out", **changes) == OK
    innovations = contents(tmp_path / "out" / "innovations")["20000101_1200Z.nc"]
    dates = ["--init-time", str(START), "--length", "12h"]
    assert forecast(str(run), tmp_path / "free", *dates) == OK
    expected = read(tmp_path / "free")["SP"].values[0, -1, row, column]
    np.testing.assert_allclose(innovations["background"], expected, rtol=1e-6)


@pytest.mark.slow
def test_only_the_first_state_is_read(config, analyses, world, tmp_path, capsys):
    """Of later windows the forcing alone; the data may have no state there."""
    whole = xr.load_dataset(world / "w_2000.nc")
    whole.isel(time=slice(1)).to_netcdf(tmp_path / "state_2000.nc")
    state = f"{VARIABLES}.prognostic.path={tmp_path}/state_%Y.nc"
    assert call(config, tmp_path / "out", "--set", state) == OK
    assert assert_same_files(tmp_path / "out", analyses) == 1
    whole.isel(time=slice(2)).to_netcdf(tmp_path / "forcing_2000.nc")
    forcing = f"--set={VARIABLES}.dynamic_forcing.path={tmp_path}/forcing_%Y.nc"
    missing, no = "times are missing in", tmp_path / "no"
    assert call(config, no, "--set", state, forcing) == USER_ERROR
    assert f"dynamic_forcing: 2 of 4 {missing}" in error_of(capsys)
    assert call(config, no, "--set", state, start="2000-01-01T06") == USER_ERROR
    assert f"prognostic: 1 of 1 {missing}" in error_of(capsys)
    # The first forecast reads the state before the window, and the forcing from there.
    keep = [time for time in range(len(whole["time"])) if time != 1]
    whole.isel(time=keep).to_netcdf(tmp_path / "gap_2000.nc")
    forcing = f"--set={VARIABLES}.dynamic_forcing.path={tmp_path}/gap_%Y.nc"
    changes = {"start": "2000-01-01T12", "first_lead": "12h", "cycles": 1}
    changes |= {"leave_out": "[time, error]"}
    assert call(config, tmp_path / "later", "--set", state, **changes) == OK
    assert call(config, no, "--set", state, forcing, **changes) == USER_ERROR
    assert f"dynamic_forcing: 1 of 2 {missing}" in error_of(capsys)


@pytest.mark.slow
def test_observations_of_missing_fields(config, world, tmp_path, capsys):
    """Refused, or left out, and the others of the variable are used."""
    hole = xr.load_dataset(world / "w_2000.nc")
    hole["SP"].values[:, :3] = np.nan
    hole.to_netcdf(tmp_path / "hole_2000.nc")
    raw, path = yaml.safe_load(config.read_text()), tmp_path / "model.yml"
    fill = {"rules": [{"search": "nan", "fill": 1e5}], "variables": [SP]}
    steps = raw["preblocks"]["per_step"]
    raw["preblocks"]["per_step"] = {
        "fill": {"type": "fill_values", "args": fill}
    } | steps
    files = raw["data"]["source"]["ERA5"]["variables"]["prognostic"]
    files["path"] = f"{tmp_path}/hole_%Y.nc"
    section = raw["assimilation"]
    section["observations"] = [str(config.parent / "obs.csv")]
    section["background"]["file"] = str(config.parent / "background.nc")
    section |= {"cycles": 1, "leave_out": ["time", "error"], "inner_iterations": 1}
    path.write_text(yaml.safe_dump(raw, sort_keys=False))
    assert call(path, tmp_path / "out") == USER_ERROR
    assert "the background lacks SP at 30 of 60 points" in error_of(capsys)
    assert call(path, tmp_path / "out", leave_out="[time, error, missing]") == OK
    (note,) = (
        line
        for line in capsys.readouterr().out.splitlines()
        if "left out: missing" in line
    )
    table = pd.read_csv(config.parent / "obs.csv").iloc[1:]
    table = table[pd.to_datetime(table["time"]) < START + pd.Timedelta("12h")]
    first_step = pd.to_datetime(table["time"]) < START + pd.Timedelta("6h")
    north = table["latitude"] > GRID["latitude"][3]
    missing = (table["variable"] == "SP") & first_step & north
    assert f"missing: {missing.sum()} of {len(table)} observations, the first" in note
    (innovations,) = contents(tmp_path / "out" / "innovations").values()
    assert len(innovations["observation"]) == len(table) - missing.sum()


@pytest.mark.slow
def test_a_package(config, run, analyses, world, tmp_path):
    """The same analyses as of the run; the section is in a file, with an operator."""
    raw = yaml.safe_load(config.read_text())
    section, data = tmp_path / "section.yml", tmp_path / "data.yml"
    (tmp_path / "mine.py").write_text(
        "from credit_jax.extensions.assimilation.operators import *\n"
        "key = 'ERA5/prognostic/3d/T'\n"
        "mine = OperatorEntry(lambda variable, grid: Interpolation(key, variable))\n"
    )
    entry = {"object_type": "operator", "module_path": str(tmp_path / "mine.py")}
    written = {"custom_objects": {"mine": entry}, **raw["assimilation"]}
    section.write_text(yaml.safe_dump({**written, "operators": {"T": "mine"}}))
    data.write_text(yaml.safe_dump({"source": raw["data"]["source"]}))
    made, out = tmp_path / "package", tmp_path / "out"
    run_options = ["--config", str(run), "--checkpoint", str(run.parent / "run")]
    assert package.main([*run_options, "--out", str(made)]) == OK
    options = ["--package", str(made), "--data", str(data), "--out", str(out)]
    with chdir(config.parent):
        assert main([*options, "--cache", "none"]) == USER_ERROR, "no section"
        options += ["--assimilation", str(section)]
        assert main([*options, "--cache", "none"]) == OK
    for name, dataset in contents(analyses).items():
        for variable in dataset.data_vars:
            np.testing.assert_array_equal(
                contents(out)[name][variable], dataset[variable]
            )


CASES.rows(
    lambda change, config, analyses: (
        lambda: call(config, analyses, "--resume", "--set", f"assimilation{change}")
    ),
    *(".first_lead=9h", ".window=9h", ".leave_out=[]", ".background.file=b.nc"),
    *(".start=never", ".operators={T: mine}", ".inner_iterations=4", "=null"),
)


def test_a_fit_keeps_what_is_there(config, tmp_path, capsys):
    copy = shutil.copytree(config.parent, tmp_path / "copy")
    before = (copy / "background.nc").read_bytes()
    assert fit(copy) == OK
    assert "background.nc is there and kept" in capsys.readouterr().out
    assert (copy / "background.nc").read_bytes() == before
    assert fit(copy, "--overwrite") == OK
    assert "Fitted to 4 differences, to degree 2" in capsys.readouterr().out
    assert len([*copy.glob("background*.nc")]) == 2


def fit(folder, *options):
    with chdir(folder):
        return preprocess.main(["--config", "model.yml", *options])


CASES.rows(
    lambda change, config: fit(
        config.parent, "--overwrite", "--set", f"assimilation.background.{change}"
    ),
    *("leads=[6h, 24h]", "winds=[U, V]", "forecasts=nowhere"),
    name="fit",
)
