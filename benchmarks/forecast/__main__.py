"""Compares forecasts of many steps with CREDIT's rollout, and CREDIT with itself.

    python -m benchmarks.forecast [--sizes small large] [--steps 40] [--updates 60]
        [--out FOLDER]

CREDIT trains a WXFormer on traveling waves, at two sizes, and `rollout_gen2.py` rolls
it out with one thread, and again with two and with other roundings of its own.
`credit-jax forecast` runs with the same weights on several meshes.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
import yaml

from benchmarks.accuracy.credit_run import write_data
from benchmarks.report import Table, add_out_option, publish
from tests.forecast.credit_forecast import credit_rollout, raw_config, write_checkpoints
from tests.reference import credit_train
from tests.reference.scalers import write_scalers

ROOT = Path(__file__).parents[2]
MESHES = {
    "credit_jax, one device": "data=none",
    "credit_jax, domain 3": "data=none,domain=3",
    "credit_jax, tp 2 x domain 2": "data=none,tensor=2,domain=2",
}
THREADED, SERIAL = "CREDIT, two threads", "CREDIT, one thread"
# Settings of `tests.reference.rollout_driver`: threads, then arithmetic.
CREDIT: Mapping[str, tuple[Any, ...]] = {
    SERIAL: (1,),
    THREADED: (2,),
    "CREDIT, convolutions without oneDNN": (1, "native"),
    "CREDIT, sigma in float64": (1, "sigma"),
    "CREDIT, each operation in float64": (1, "operations"),
    "CREDIT, both in float64": (1, "sigma", "operations"),
}
START, VARIABLES = "2000-01-02", ("T", "U", "SP", "TP")
# Changes of the model of the tests, by size of the case; (rows, columns) of its grid.
SIZES: Mapping[str, tuple[tuple[int, int], dict[str, Any]]] = {
    "small": ((32, 64), {}),
    "large": (
        (64, 128),
        {
            "dim": [32, 64, 128, 256],
            "dim_head": 16,
            "global_window_size": [4, 4, 2, 1],
        },
    ),
}
# Largest distance from CREDIT after the first step.
TOLERANCE = 1e-5
LEADS = (1, 5, 10, 20, 40)
ArraysByName = dict[str, np.ndarray]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs both sides, prints the tables, writes the report.

    Returns:
        1 if the first step is too far from CREDIT.
    """
    options = _parse(arguments)
    measurements = {size: _measured(size, options) for size in options.sizes}
    models = {k: yaml.safe_load(config_text(options, k))["model"] for k in measurements}
    publish(
        "forecast",
        [
            "# Forecasts",
            _INTRO,
            *(part for measurement in measurements.values() for part in measurement[0]),
        ],
        {size: measurement[1] for size, measurement in measurements.items()},
        config={"steps": options.steps, "updates": options.updates, "models": models},
        folder=options.out,
    )
    firsts = [measurement[1]["from_serial"] for measurement in measurements.values()]
    return int(
        max(measurement[name][0] for measurement in firsts for name in MESHES)
        > TOLERANCE
    )


def _measured(
    size: str, options: argparse.Namespace
) -> tuple[list[Any], dict[str, Any]]:
    """Runs both sides at one size; returns the sections of the report, and numbers."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        config = _prepare(folder, options, size)
        truth = _credit(config, "double", 1, "float64")
        runs = {
            name: _credit(config, _file_name(name), *settings)
            for name, settings in CREDIT.items()
        }
        for name, mesh in MESHES.items():
            out = folder / _file_name(name)
            _forecast(config, out, "--parallelism", mesh)
            runs[name] = _read(out)
    errors = {k: _distances(run, runs[SERIAL]) for k, run in runs.items()}
    exact = {k: _distances(run, truth) for k, run in runs.items()}
    (rows, columns), _ = SIZES[size]
    sections = [
        f"## {size.capitalize()}: {rows} x {columns} points",
        _table("Distance from CREDIT, one thread", errors),
        _verdict("CREDIT on one thread", errors),
        _EXACT,
        _table("Distance from CREDIT in float64", exact),
        _verdict("CREDIT in float64", exact),
    ]
    return sections, {"from_serial": errors, "from_float64": exact}


def config_text(options: argparse.Namespace, size: str) -> str:
    """CREDIT's YAML of the forecasts."""
    raw = raw_config(
        run_mode="single",
        save_forecast="./theirs",
        single_forecast={
            "start_datetime": START,
            "forecast_length": f"{6 * options.steps}h",
        },
        output={"group_by": "full"},
    )
    raw["trainer"] |= {"batches_per_epoch": options.updates}
    (rows, columns), changes = SIZES[size]
    raw["model"] |= {"image_height": rows, "image_width": columns, **changes}
    return yaml.safe_dump(raw, sort_keys=False)


def _prepare(folder: Path, options: argparse.Namespace, size: str) -> Path:
    """Writes the data, trains with CREDIT, and writes a checkpoint of each side."""
    (rows, columns), _ = SIZES[size]
    write_data(folder, rows, num_columns=columns, waves=True)
    write_scalers(folder)
    config = folder / "case.yml"
    config.write_text(config_text(options, size))
    raw = yaml.safe_load(config.read_text())
    run = credit_train(config, folder)
    write_checkpoints(folder / "run", raw["model"], run.final)
    return config


def _file_name(run: str) -> str:
    return re.sub(r"\W+", "_", run)


def _credit(config: Path, name: str, threads: int, *arithmetic: str) -> ArraysByName:
    raw = yaml.safe_load(config.read_text())
    raw["inference"]["save_forecast"] = f"./{name}"
    path = config.with_name(f"{name}.yml")
    path.write_text(yaml.safe_dump(raw, sort_keys=False))
    credit_rollout(path, threads, *arithmetic)
    return _read(config.parent / name)


def _forecast(config: Path, out: Path, *options: str) -> None:
    """Runs the command."""
    command = [sys.executable, "-m", "credit_jax.forecast", "--config", str(config)]
    subprocess.run(
        [*command, "--out", str(out), "--cache", "none", *options],
        cwd=config.parent,
        env={**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"},
        check=True,
    )


def _read(folder: Path) -> ArraysByName:
    (path,) = folder.rglob("full.nc")
    with xr.open_dataset(path) as dataset:
        return {name: dataset[name].to_numpy() for name in VARIABLES}


def _distances(fields: ArraysByName, base: ArraysByName) -> list[float]:
    """The largest relative distance of a variable, for every step.

    It is relative to the variable's deviations from its global mean, as a mean of 280 K
    would hide all differences.
    """
    steps = len(base[VARIABLES[0]])
    return [
        max(_distance(fields[name][k], base[name][k]) for name in VARIABLES)
        for k in range(steps)
    ]


def _distance(field: np.ndarray, base: np.ndarray) -> float:
    wide = base.astype(np.float64)
    spread = wide - wide.mean(axis=(-2, -1), keepdims=True)
    return float(np.linalg.norm(field - wide) / np.linalg.norm(spread))


_INTRO = (
    "Distance from the forecast of CREDIT's `rollout_gen2.py` on one process with one "
    "thread in float32, relative to the deviations of the field from its global mean, "
    "of the variable that is furthest away. The first rows are CREDIT's distances from "
    "itself: with two threads; with another implementation of convolutions; with sigma "
    "of spectral norm, and the weights divided by it, rounded from double precision; "
    "with every operation of the model computed in double precision and rounded, so "
    "that its sums have no order; and with both."
)
_EXACT = (
    "Two threads change the order of few of torch's sums, so that the two runs of "
    "CREDIT share most of their rounding. How right each of them is says the distance "
    "from the same forecast in double precision."
)


def _table(title: str, errors: Mapping[str, Sequence[float]]) -> Table:
    steps = len(errors[THREADED])
    leads = [lead for lead in LEADS if lead <= steps]
    rows = [
        [name, *(f"{values[lead - 1]:.1e}" for lead in leads)]
        for name, values in errors.items()
        if any(values)
    ]
    return Table(title, ["run", *(f"step {lead}" for lead in leads)], rows)


def _verdict(base: str, errors: Mapping[str, Sequence[float]]) -> str:
    worst = max(errors[name][-1] for name in MESHES)
    rounding = errors[THREADED][-1]
    return (
        f"After {len(errors[THREADED])} steps credit_jax is {worst:.1e} from {base}, "
        f"CREDIT with two threads {rounding:.1e}: {worst / rounding:.2f} times as far."
    )


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.forecast")
    add = parser.add_argument
    add("--sizes", nargs="+", choices=SIZES, default=[*SIZES], help="of the models")
    add("--steps", type=int, default=40, help="of the forecasts")
    add("--updates", type=int, default=60, help="of the training by CREDIT")
    add_out_option(parser)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
