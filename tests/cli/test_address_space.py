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
from tests.support.processes import ROOT

SPARE = 2**32  # bytes
MOST = 2**30  # bytes of memory that an error may take
SIDE = 60_000  # rows and columns of a field of 14 GB


@pytest.fixture(scope="module")
def good(tmp_path_factory, tiny_model):
    """A data set, the config of a run, its checkpoint and a forecast."""
    folder = tmp_path_factory.mktemp("good")
    write_world(folder)
    config = make_run(folder, folder / "model")
    out = ["--out", str(folder / "forecast"), "--cache", "none"]
    assert main(["forecast", "--config", config, *out]) == 0
    return folder


@pytest.fixture
def limited(good, tmp_path):
    """A copy of it, whose config names its files."""
    folder = shutil.copytree(good, tmp_path / "world")
    for config in folder.rglob("*.yml"):
        config.write_text(config.read_text().replace(str(good), str(folder)))
    used = int(Path("/proc/self/statm").read_text().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    limit = used * os.sysconf("SC_PAGE_SIZE") + SPARE
    resource.setrlimit(resource.RLIMIT_AS, (limit, before[1]))
    yield folder
    resource.setrlimit(resource.RLIMIT_AS, before)


def create(file, name, dims, **options):
    """Adds a data set of some dims to a file."""
    data = file.create_dataset(name, **options)
    for dim, scale in zip(data.dims, dims, strict=True):
        dim.attach_scale(file[scale])
    return data


def huge_chunks(path):
    """Chunks of a terabyte, none of them written."""
    with h5py.File(path, "a") as file:
        dims, shape = ("time", "level", "latitude", "longitude"), file["T"].shape
        del file["T"]
        chunks, most = (2**10, 2**9, 2**9, 2**9), (None,) * 4
        create(file, "T", dims, shape=shape, dtype="f8", chunks=chunks, maxshape=most)


def long_axis(path):
    """A time axis of 1e9 values."""
    with h5py.File(path, "a") as file:
        long = {"shape": (10**9,), "chunks": (1000,)}
        other = file.create_dataset("other", dtype="i8", **long)
        other.attrs["units"] = file["time"].attrs["units"]
        del file["T"]
        file.move("time", "before")
        file.move("other", "time")
        file["time"].make_scale("time")
        create(file, "T", ["time"], dtype="f8", **long)


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
            data = create(file, name, dims, shape=shape, dtype="f4", chunks=chunks)
            data.attrs["_FillValue"] = np.float32(np.nan)


BOMBS = {"chunks": huge_chunks, "axis": long_axis, "fields": large_fields}
CONFIG, TRUTH = (
    "--config W/model/model.yml",
    "--forecast W/forecast --truth W/w_2000.nc",
)
COMMANDS = {
    "check": CONFIG,
    "train": f"{CONFIG} --save-loc W/other",
    "preprocess": f"{CONFIG} --overwrite",
    "forecast": f"{CONFIG} --out W/other --cache none",
    "score": f"{TRUTH} --out W/scores",
    "plot": f"{TRUTH} --variable T --level 1 --out W/map.png --init-time 2000-01-01",
    "init": "--data W/w_2000.nc --out W/new.yml --forcing tsi --prognostic T U SP "
    "--diagnostic TP",
}
# `init` reads no field, and writes a config of any grid.
TRIALS = [(c, b) for c in COMMANDS for b in BOMBS if (c, b) != ("init", "fields")]


@pytest.mark.slow(but=["check-chunks", "train-axis", "forecast-fields"])
@pytest.mark.parametrize(("command", "bomb"), TRIALS)
def test_files_that_ask_for_more_memory_than_there_is(command, bomb, limited, capsys):
    BOMBS[bomb](limited / "w_2000.nc")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    code = main([command, *COMMANDS[command].replace("W", str(limited)).split()])
    shown = capsys.readouterr()
    text = shown.out if command == "check" else shown.err
    print(code, text)
    assert code == (FAILED if command == "check" else USER_ERROR)
    assert text.count("error:") == (0 if command == "check" else 1)
    assert "w_2000.nc" in text
    grown = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    assert grown < MOST


START = "--config run/model.yml --init-time 2000-01-16"
# In this order, as each needs what those before it have written.
RUNS = {
    "demo": "--out data --days 20 --spinup-days 4 --held-out-days 6",
    "init": "--data data/demo_2000.zarr --timestep 24h --out new.yml --forcing tsi "
    "--prognostic T U V Q SP --diagnostic V500 TP Z500",
    "check": "--config small.yml",
    "preprocess": "--config small.yml --overwrite",
    "train": "--config small.yml --cache cache",
    "forecast": f"{START} --steps 3 --format zarr --out forecast --cache cache",
    "score": "--forecast forecast --out scores --cache cache",
    "plot": "--forecast forecast --variable V500 --out map.png",
    "sensitivity": f"{START} --lead 2d --of OF --out gradient.nc --cache cache",
    "package": "--checkpoint run --out package",
    "predict": "--config run/model.yml --checkpoint run --input x.npy --output y.npy "
    "--cache cache",
    "submit": "--config small.yml --cluster slurm --dry-run",
    "convert": "--to torch --checkpoint run --out torch",
    "inspect": "--checkpoint torch",
    "compare": "--checkpoint torch",
    "config": "run/model.yml --to gen2 --out gen2.yml",
}
# The shell sets the limit, in KiB: forking with a function of Python warns beside JAX.
LIMITED = ("bash", "-c", f'ulimit -Sv {SPARE // 1024} && exec "$@"', "bash")


@pytest.mark.slow
def test_commands_in_4_gib_of_address_space(tmp_path, subtests):
    """All commands on the data, of 10 MB, of a small form of the demo."""
    config = small_demo(tmp_path / "data", epochs=1)
    config["slurm"] = {"project": "P", "walltime": "01:00:00", "mem": "64G"}
    config["slurm"] |= {"nodes": 1, "ngpus": 1, "ncpus": 8}
    (tmp_path / "small.yml").write_text(yaml.safe_dump(config, sort_keys=False))
    np.save(tmp_path / "x.npy", np.zeros((1, 36, 1, 32, 64), np.float32))
    for command, options in RUNS.items():
        words = [word.replace("OF", "mean SP in tropics") for word in options.split()]
        with subtests.test(command):
            done = subprocess.run(
                [*LIMITED, sys.executable, "-m", "credit_jax", command, *words],
                cwd=tmp_path,
                env=os.environ | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"},
                capture_output=True,
                text=True,
            )
            print(done.stdout, done.stderr)
            assert done.returncode == 0
