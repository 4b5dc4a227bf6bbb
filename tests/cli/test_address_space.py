"""Commands in a limited address space: 4 GiB beyond what the data need."""

import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
import xarray as xr
import yaml

from benchmarks.kill_matrix.small_demo import small_demo
from credit_jax.cli.commands import FAILED, USER_ERROR
from credit_jax.cli.console import main
from tests.data.world import write_world
from tests.forecast.tiny_run import make_run
from tests.training.conftest import compiled_once, tiny_model

__all__ = ["compiled_once", "tiny_model"]

SPARE = 2**32  # bytes
MOST = 2**30  # bytes of memory that an error may take
SIDE = 60_000  # rows and columns of a field of 14 GB


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """A data set, the config of a run, its checkpoint and a forecast."""
    with pytest.MonkeyPatch.context() as patch:
        from credit_jax.models import registry
        from tests.training.tiny import Tiny, TinyConfig

        entry = registry.ModelEntry(TinyConfig, Tiny)
        patch.setitem(registry.MODELS, "tiny", entry)
        folder = tmp_path_factory.mktemp("good")
        write_world(folder)
        config = make_run(folder, folder / "model")
        out = ["--out", str(folder / "forecast"), "--cache", "none"]
        assert main(["forecast", "--config", config, *out]) == 0
    return folder


@pytest.fixture
def world(good, tmp_path, monkeypatch, tiny_model):
    """A copy of it, whose config names its files."""
    folder = tmp_path / "world"
    shutil.copytree(good, folder)
    for config in folder.rglob("*.yml"):
        config.write_text(config.read_text().replace(str(good), str(folder)))
    used = int(Path("/proc/self/statm").read_text().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    limit = used * os.sysconf("SC_PAGE_SIZE") + SPARE
    resource.setrlimit(resource.RLIMIT_AS, (limit, before[1]))
    yield folder
    resource.setrlimit(resource.RLIMIT_AS, before)


def huge_chunks(path):
    """Chunks of a terabyte, none of them written."""
    with h5py.File(path, "a") as file:
        scales, shape = [dim[0] for dim in file["T"].dims], file["T"].shape
        del file["T"]
        chunks, most = (2**10, 2**9, 2**9, 2**9), (None,) * 4
        data = file.create_dataset("T", shape, "f8", chunks=chunks, maxshape=most)
        for dim, scale in zip(data.dims, scales, strict=True):
            dim.attach_scale(scale)


def long_axis(path):
    """A time axis of 1e9 values."""
    with h5py.File(path, "a") as file:
        attributes = dict(file["time"].attrs)
        other = file.create_dataset("other", (10**9,), "i8", chunks=(1000,))
        other.attrs["units"] = attributes["units"]
        del file["T"]
        file.move("time", "before")
        file.move("other", "time")
        file["time"].make_scale("time")
        data = file.create_dataset("T", (10**9,), "f8", chunks=(1000,))
        data.dims[0].attach_scale(file["time"])


def large_fields(path):
    """Fields of 60,000 x 60,000 points, with a chunk of each in the file."""
    with xr.open_dataset(path) as found:
        times, level = found["time"].values, found["level"].values
    grid = {"latitude": np.linspace(89, -89, SIDE), "longitude": np.arange(SIDE) / 200}
    xr.Dataset(coords={"time": times, "level": level, **grid}).to_netcdf(path)
    with h5py.File(path, "a") as file:
        for name in ("T", "U", "SP", "tsi", "TP"):
            dims = ["time", *(["level"] if name in "TU" else []), *grid]
            shape = tuple(len(file[dim]) for dim in dims)
            chunks = (*[1] * (len(dims) - 2), 100, 100)
            data = file.create_dataset(name, shape, "f4", chunks=chunks)
            data.attrs["_FillValue"] = np.float32(np.nan)
            for dim, scale in zip(data.dims, dims, strict=True):
                dim.attach_scale(file[scale])


BOMBS = {"chunks": huge_chunks, "axis": long_axis, "fields": large_fields}
COMMANDS = {
    "check": lambda w: ["--config", f"{w}/model/model.yml"],
    "train": lambda w: ["--config", f"{w}/model/model.yml", "--save-loc", f"{w}/other"],
    "preprocess": lambda w: ["--config", f"{w}/model/model.yml", "--overwrite"],
    "forecast": lambda w: [
        *("--config", f"{w}/model/model.yml", "--out", f"{w}/other", "--cache", "none")
    ],
    "score": lambda w: [
        *("--forecast", f"{w}/forecast", "--truth", f"{w}/w_2000.nc"),
        *("--out", f"{w}/scores"),
    ],
    "plot": lambda w: [
        *("--forecast", f"{w}/forecast", "--truth", f"{w}/w_2000.nc"),
        *("--variable", "T", "--level", "1", "--out", f"{w}/map.png"),
        *("--init-time", "2000-01-01"),
    ],
    "init": lambda w: [
        *("--data", f"{w}/w_2000.nc", "--out", f"{w}/new.yml", "--forcing", "tsi"),
        *("--prognostic", "T", "U", "SP", "--diagnostic", "TP"),
    ],
}


# `init` reads no field, and writes a config of any grid.
TRIALS = [(c, b) for c in COMMANDS for b in BOMBS if (c, b) != ("init", "fields")]


@pytest.mark.slow(but=["check-chunks", "train-axis", "forecast-fields"])
@pytest.mark.parametrize(("command", "bomb"), TRIALS)
def test_files_that_ask_for_more_memory_than_there_is(command, bomb, world, capsys):
    BOMBS[bomb](world / "w_2000.nc")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    code = main([command, *COMMANDS[command](world)])
    shown = capsys.readouterr()
    text = shown.out if command == "check" else shown.err
    print(code, text)
    assert code == (FAILED if command == "check" else USER_ERROR)
    assert text.count("error:") == (0 if command == "check" else 1)
    assert "w_2000.nc" in text
    grown = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    assert grown < MOST


CACHE = ["--cache", "cache"]
RUN, FORECAST = ["--checkpoint", "run"], ["--forecast", "forecast"]
SOLUTIONS = ["--days", "20", "--spinup-days", "4", "--held-out-days", "6"]
# In this order, as each needs what those before it have written.
RUNS = {
    "demo": ["--out", "data", *SOLUTIONS],
    "init": [
        *("--data", "data/demo_2000.zarr", "--timestep", "24h", "--out", "new.yml"),
        *("--prognostic", "T", "U", "V", "Q", "SP", "--forcing", "tsi"),
        *("--diagnostic", "V500", "TP", "Z500"),
    ],
    "check": ["--config", "small.yml"],
    "preprocess": ["--config", "small.yml", "--overwrite"],
    "train": ["--config", "small.yml", *CACHE],
    "forecast": [
        *("--config", "run/model.yml", "--init-time", "2000-01-16", "--steps", "3"),
        *("--format", "zarr", "--out", "forecast", *CACHE),
    ],
    "score": [*FORECAST, "--out", "scores", *CACHE],
    "plot": [*FORECAST, "--variable", "V500", "--out", "map.png"],
    "sensitivity": [
        *("--config", "run/model.yml", "--init-time", "2000-01-16", "--lead", "2d"),
        *("--of", "mean SP in tropics", "--out", "gradient.nc", *CACHE),
    ],
    "package": [*RUN, "--out", "package"],
    "predict": [
        *("--config", "run/model.yml", *RUN, "--input", "x.npy", "--output", "y.npy"),
        *CACHE,
    ],
    "submit": ["--config", "small.yml", "--cluster", "slurm", "--dry-run"],
    "convert": ["--to", "torch", *RUN, "--out", "torch"],
    "inspect": ["--checkpoint", "torch"],
    "compare": ["--checkpoint", "torch"],
    "config": ["run/model.yml", "--to", "gen2", "--out", "gen2.yml"],
}


# The shell sets the limit, in KiB: forking with a function of Python warns beside JAX.
LIMITED = ("bash", "-c", f'ulimit -Sv {SPARE // 1024} && exec "$@"', "bash")


@pytest.mark.slow
def test_commands_in_4_gib_of_address_space(tmp_path, subtests):
    """All commands on the data, of 10 MB, of a small form of the demo."""
    config = small_demo(tmp_path / "data", epochs=1)
    config["slurm"] = {
        **{"project": "P", "walltime": "01:00:00", "mem": "64G"},
        **{"nodes": 1, "ngpus": 1, "ncpus": 8},
    }
    (tmp_path / "small.yml").write_text(yaml.safe_dump(config, sort_keys=False))
    np.save(tmp_path / "x.npy", np.zeros((1, 36, 1, 32, 64), np.float32))
    root = str(Path(__file__).parents[2])
    for command, options in RUNS.items():
        with subtests.test(command):
            done = subprocess.run(
                [*LIMITED, sys.executable, "-m", "credit_jax", command, *options],
                cwd=tmp_path,
                env=os.environ | {"PYTHONPATH": root, "JAX_PLATFORMS": "cpu"},
                capture_output=True,
                text=True,
            )
            print(done.stdout, done.stderr)
            assert done.returncode == 0
