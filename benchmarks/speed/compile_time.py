"""Seconds until a training step can run: tracing, compiling, without and with cache.

    python -m benchmarks.speed.compile_time [--models 1deg] [--depths 2,2,2,2 2,2,8,2]
    python -m benchmarks.speed.compile_time --start configs/tp2_domain2.yaml

The first compiles the step of a model, from shapes alone and without a cache, for
several depths. The second starts `credit_jax.train` with an empty cache folder, and
again with the cache of that start, and waits for the line that reports the first step.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from benchmarks.compiled_step import MODELS, model_block, trace_step
from benchmarks.meshes import num_devices
from benchmarks.report import Table, add_out_option, publish
from benchmarks.timing import Times
from credit_jax.config import load_config
from credit_jax.extensions.demo.dataset import ensure_demo_data
from credit_jax.parallel.compiler import compile_sooner
from credit_jax.parallel.mesh.devices import ensure_devices

DEPTHS = ("2,2,2,2", "2,2,8,2", "2,2,32,2")
HEADER = ["model", "depth", "mesh", "trace, s", "compile, s", "both, s"]
# The line that the command prints after the only step of a run.
_FIRST_STEP = re.compile(r"epoch 1/1 +1/1 +loss ")
STARTS = ["config", "first start, s", "with its cache, s (median, all)"]

# Number of starts with the cache of the first; their spread shows other load.
_WARM_STARTS = 3


def main(arguments: Sequence[str] | None = None) -> Path:
    """Compiles and starts, prints the tables, writes the report; returns its path."""
    options = _parse(arguments)
    compile_sooner()
    ensure_devices(max(map(num_devices, options.meshes)))
    runs = [
        _compile(name, depth, mesh, options.remat)
        for name in options.models
        for depth in options.depths
        for mesh in options.meshes
    ]
    starts = [_start(config) for config in options.start]
    rows = [
        [
            *(run[key] for key in ("model", "depth", "mesh")),
            *(f"{run[key]:.1f}" for key in ("trace", "compile")),
            f"{run['trace'] + run['compile']:.1f}",
        ]
        for run in runs
    ]
    sections = ["# Compile time", _INTRO, Table("Compile time", HEADER, rows)]
    if starts:
        cells = [_start_row(run) for run in starts]
        sections += [_STARTS, Table("Until the first step is done", STARTS, cells)]
    models = {name: model_block(name) for name in options.models}
    return publish(
        "compile_time",
        sections,
        {"runs": runs, "starts": starts},
        config={"remat": options.remat, "models": models},
        folder=options.out,
    )


_INTRO = (
    "Seconds to trace and to compile a whole training step (forward, backward, "
    "clipping, AdamW, spectral norm), without a cache. Equal blocks are one loop, so "
    "that a deeper model compiles as fast."
)
_STARTS = (
    "Seconds of `python -m credit_jax.train` from the command to the end of its first "
    "step, everything included (imports, checks, opening the data, initialization, "
    "tracing): with an empty cache of compiled programs, and with the cache of that "
    "start."
)


def _compile(name: str, depth: str, mesh: str, remat: str) -> dict[str, Any]:
    block = {**model_block(name), "depth": [int(n) for n in depth.split(",")]}
    jax.clear_caches()
    start = time.perf_counter()
    _, program = trace_step(block, mesh, batch=1, remat=remat, platform=None)
    lowered = program.lower()
    traced = time.perf_counter()
    lowered.compile()
    done = time.perf_counter()
    return {
        "model": name,
        "depth": depth,
        "mesh": mesh,
        "trace": traced - start,
        "compile": done - traced,
    }


def _start(config: str) -> dict[str, Any]:
    """Starts a run of one step repeatedly with one cache; the data are made before."""
    demo = load_config(config).demo
    if demo is not None:
        ensure_demo_data(demo)
    with tempfile.TemporaryDirectory() as folder:
        first, *warm = (
            _one_step(config, Path(folder), str(run)) for run in range(1 + _WARM_STARTS)
        )
    return {"config": config, "first": first, "warm": warm}


def _start_row(run: Mapping[str, Any]) -> list[str]:
    warm = Times(tuple(run["warm"]))
    each = ", ".join(f"{seconds:.1f}" for seconds in warm.seconds)
    return [run["config"], f"{run['first']:.1f}", f"{warm.median:.1f} ({each})"]


def _one_step(config: str, folder: Path, run: str) -> float:
    changes: Mapping[str, Any] = {
        "save_loc": folder / run,
        "trainer.epochs": 1,
        "trainer.batches_per_epoch": 1,
    }
    command = [sys.executable, "-m", "credit_jax.train", "--config", config]
    command += ["--cache", str(folder / "cache")]
    for key, value in changes.items():
        command += ["--set", f"{key}={value}"]
    begin = time.perf_counter()
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=environment
    ) as job:
        for line in job.stdout or ():
            if _FIRST_STEP.match(line):
                seconds = time.perf_counter() - begin
                job.kill()
                return seconds
    raise RuntimeError(f"no first step; status {job.returncode}: {command}")


def _parse(arguments: Sequence[str] | None) -> Any:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed.compile_time")
    add = parser.add_argument
    add("--models", nargs="*", choices=MODELS, default=["1deg", "025deg"])
    add("--depths", nargs="+", default=list(DEPTHS), metavar="N,N,N,N")
    add("--meshes", nargs="+", default=["1"], metavar="MESH")
    add("--remat", default="none", help="activation checkpointing")
    add("--start", nargs="*", default=[], metavar="FILE", help="configs to start")
    add_out_option(parser)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
