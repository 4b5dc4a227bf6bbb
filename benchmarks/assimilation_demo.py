"""4D-Var on the demo climate, whose primitive equations are the truth.

    python -m benchmarks.assimilation_demo [--folder RUNS]

Trains the model of configs/assimilate_demo.yaml, fits the covariance, observes 5 % of
the points every 6 hours, and makes analyses in ten windows, beside a forecast that sees
no observations. Two windows are made again by a run that is killed and resumed, and the
first one on four devices.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from benchmarks.assimilation_bound import LEAD, bound
from benchmarks.assimilation_gradients import gradients, likeness, plot_spectra, spectra
from benchmarks.report import Table, add_out_option, publish
from credit_jax.config import load_config
from credit_jax.config.dates import duration
from credit_jax.extensions.assimilation.cycling import LOOKS
from credit_jax.extensions.plots.canvas import Chart, Line, panels_figure, save_figure

ROOT = Path(__file__).parents[1]
NAME, CONFIG = "assimilation_demo", ROOT / "configs" / "assimilate_demo.yaml"
DATA = ROOT / "demo_data" / "T21"
VARIABLES = ("T", "U", "V", "SP", "Q")
SYSTEMS = {"free run": {"color": "#888888", "linestyle": ":"}, **LOOKS}
SHARE, NOISE = 0.05, 0.1
_MESH = ("--parallelism", "data=none,tensor=2,domain=2", "--devices", "4")
_INTRO = f"""# Assimilation on the demo climate

4D-Var of `configs/assimilate_demo.yaml`. The truth is the demo climate on days that \
no training sample has seen; {SHARE:.0%} of the points of every variable and level \
are observed every 6 hours, with a noise of {NOISE:.0%} of the standard deviation in \
time. Errors are root mean squares over levels and area, at the start of each window. \
The free run is the forecast that is the first background, without observations. \
Settings were chosen on four other days, from 22 May. Tried there: `scale` 1 and 2.5 \
(T 0.80 and 0.79 K, with 1.5 0.75); a WXFormer (twice the errors); an `error` with \
that of the model at its lead (chi squared 1.1 to 1.3, errors 0 to 9 % smaller).

![Errors by window]({NAME}.png)"""


_BOUND = f"""## What the observations can say

The best linear estimate with the same B: errors of {LEAD} forecasts of training \
days, corrected by all observations of a day, {4 * SHARE:.0%} of the points, as if \
they were of one time and no forecast, nor its error, were between them."""
_GRADIENTS = """## The adjoint

The gradient of a mean of T (level 4 of 8, 40 to 60 N, 180 to 220 E) by the fields a \
day before, by the model, beside that by the demo's own equations: the cosine of the \
angle between them, of the gradients, of their parts to degree 21, which the equations \
resolve, and of B times the gradients, the increment that an observation of the mean \
would make; and the share of power of the model's gradient above degree 21, where that \
of the equations has none.

![Power of the gradients by degree](assimilation_demo_gradients.png)"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Makes what is missing, prints the tables and writes the report and its figure.

    Returns:
        1 if a resumed run differs, or analyses of four devices by more than 1e-5.
    """
    options = _parse(arguments)
    folder = (options.folder or Path(tempfile.mkdtemp())).absolute()
    seconds = _make(folder)
    errors = _errors(folder)
    bitwise = _same(folder / "killed", folder / "analyses")
    difference = _difference(folder / "mesh", folder / "analyses")
    (alike, powers), limit = _alike(folder), _limit(folder)
    options.out.mkdir(parents=True, exist_ok=True)
    _plot(errors, options.out / f"{NAME}.png")
    plot_spectra(powers, options.out / f"{NAME}_gradients.png")
    statistics = pd.read_csv(folder / "analyses" / "statistics.csv")
    verdict = (
        f"The windows took {seconds / 60:.1f} minutes. A run that was killed in its "
        f"second one and resumed is {'' if bitwise else 'not '}the same, bit for bit. "
        "On tp 2 x domain 2 the analysis of the first window differs from that of "
        f"one device by at most {difference:.1e} of its norm."
    )
    spread = statistics.groupby("variable")["spread"]
    results = {
        "errors": {name: table.to_dict("list") for name, table in errors.items()},
        "spread": {str(k): x.tolist() for k, x in spread},
        "chi_squared": statistics.groupby("window")["chi_squared"].first().tolist(),
        "seconds": seconds,
        "resumed_bitwise": bitwise,
        "mesh_difference": difference,
        "gradients": alike,
        "spectra": powers,
        "bound": limit,
    }
    tables = _table(errors, spread), _windows(errors, statistics)
    sections = [_INTRO, *tables, verdict, _BOUND, _bound_table(limit)]
    sections += [_GRADIENTS, _gradient_table(alike)]
    keys = ("start", "first_lead", "window", "cycles", "inner_iterations")
    section: Any = load_config(CONFIG).assimilation
    config = {key: getattr(section, key) for key in keys}
    config |= {"scale": section.background.scale, "share": SHARE, "noise": NOISE}
    publish(NAME, sections, results, config=config, folder=options.out)
    return 0 if bitwise and difference < 1e-5 else 1


def _make(folder: Path) -> float:
    """Runs the commands whose output is missing; returns the seconds of the windows."""
    section: Any = load_config(CONFIG).assimilation
    run, table = folder / "run", folder / "observations.csv"
    model = ("--config", str(CONFIG), "--checkpoint", str(run))
    files = {
        "observations": f"[{table}]",
        "background.file": folder / "background.nc",
        "background.forecasts": folder / "nmc",
    }
    sets = tuple(f"--set=assimilation.{key}={value}" for key, value in files.items())
    if not (run / "scores").is_dir():
        _command("train", "--config", str(CONFIG), "--save-loc", str(run), "--fresh")
    if not (folder / "nmc").is_dir():
        _command("forecast", *model, "--out", str(folder / "nmc"))
    if not (folder / "background.nc").is_file():
        _command("preprocess", "--config", str(CONFIG), *sets)
    days = section.cycles * duration(section.window)
    if not table.is_file():
        observe(pd.Timestamp(section.start), days).to_csv(table, index=False)
    if not (folder / "free").is_dir():
        lead = duration(section.first_lead)
        start = pd.Timestamp(section.start) - lead
        length = f"{(lead + days) / pd.Timedelta('1h'):.0f}h"
        dates = ("--init-time", str(start), "--length", length, "--format", "zarr")
        _command("forecast", *model, *dates, "--out", str(folder / "free"))
    assimilate = ("assimilate", *model, *sets, "--out")
    timing = folder / "seconds.txt"
    if not timing.is_file():
        began = time.perf_counter()
        _command(*assimilate, str(folder / "analyses"), "--resume")
        timing.write_text(f"{time.perf_counter() - began:.1f}")
    fewer = ("--set=assimilation.leave_out=[time]", "--set=assimilation.cycles=")
    if not (folder / "mesh").is_dir():
        cycles = (fewer[0], fewer[1] + "1")
        _command(*assimilate, str(folder / "mesh"), *cycles, *_MESH)
    if not (folder / "killed").is_dir():
        command = (*assimilate, str(folder / "killed"), fewer[0], fewer[1] + "2")
        _kill(command, folder / "killed" / "innovations")
        _command(*command, "--resume")
    return float(timing.read_text())


def _command(name: str, *options: str) -> None:
    command = [sys.executable, "-m", f"credit_jax.{name}", *options]
    subprocess.run(command, cwd=ROOT, check=True)


def _kill(command: Sequence[str], innovations: Path) -> None:
    """Starts a command, and kills it some time after the first window is written."""
    name, *options = command
    process = subprocess.Popen(
        [sys.executable, "-m", f"credit_jax.{name}", *options], cwd=ROOT
    )
    while process.poll() is None and not [*innovations.glob("*.nc")]:
        time.sleep(0.05)
    time.sleep(1.0)
    process.kill()
    process.wait()


def noise_sizes() -> dict[str, xr.DataArray]:
    """Name -> standard deviations of the noise, of each level."""
    climate, sizes = xr.open_zarr(DATA / "demo_2000.zarr"), {}
    for name in VARIABLES:
        spread = climate[name].load().var("time").mean(["latitude", "longitude"])
        sizes[name] = NOISE * np.sqrt(spread).astype(float)
    return sizes


def observe(start: pd.Timestamp, length: pd.Timedelta) -> pd.DataFrame:
    """Draws observations of the truth.

    Args:
        start, length: days.

    Returns:
        Columns of a file of `assimilation.observations`.
    """
    truth = xr.open_zarr(DATA / "demo_2001.zarr")
    truth = truth.sel(time=slice(start, start + length - pd.Timedelta("6h")))
    rng, tables = np.random.default_rng(0), []
    for name, sizes in noise_sizes().items():
        field = truth[name].load()
        both = xr.Dataset({"value": field, "error": sizes.broadcast_like(field)})
        rows = both.to_dataframe().reset_index()
        rows = rows[rng.random(len(rows)) < SHARE].assign(variable=name)
        rows["value"] += rows["error"] * rng.standard_normal(len(rows))
        tables.append(rows)
    return pd.concat(tables, ignore_index=True)


def _errors(folder: Path) -> dict[str, pd.DataFrame]:
    """System -> root mean square error of each variable (column) and window."""
    section: Any = load_config(CONFIG).assimilation
    truth = xr.open_zarr(DATA / "demo_2001.zarr")
    free = xr.open_zarr(folder / "free" / "forecast.zarr").isel(time=0)
    area, rows = np.cos(np.deg2rad(truth["latitude"])), {k: [] for k in SYSTEMS}
    for number in range(section.cycles):
        start = pd.Timestamp(section.start) + number * duration(section.window)
        true, before = truth.sel(time=start).load(), start - duration(section.window)
        background = free.sel(
            prediction_timedelta=start - pd.Timestamp(free.time.item())
        )
        systems = {"free run": background, "background": background}
        if number:
            systems["background"] = _fields(folder, "forecasts", before, start)
        systems["analysis"] = _fields(folder, "analyses", start, start)
        for name, fields in systems.items():
            squares = [(fields[v] - true[v]) ** 2 for v in VARIABLES]
            means = [float(x.weighted(area).mean()) for x in squares]
            rows[name].append(np.sqrt(means))
    return {k: pd.DataFrame(x, columns=[*VARIABLES]) for k, x in rows.items()}


def _fields(
    folder: Path, kind: str, start: pd.Timestamp, valid: pd.Timestamp
) -> xr.Dataset:
    name = f"{start:%Y%m%d_%H%MZ}/{valid:%Y-%m-%d_T%H%MZ}.nc"
    return xr.load_dataset(folder / "analyses" / kind / name).isel(time=0)


def _same(folder: Path, expected: Path) -> bool:
    """Whether all files of a folder are those of another one, bit for bit."""
    files = sorted(folder.rglob("*.nc"))
    pairs = [(path, expected / path.relative_to(folder)) for path in files]
    return bool(pairs) and all(
        xr.load_dataset(one).identical(xr.load_dataset(other)) for one, other in pairs
    )


def _difference(folder: Path, expected: Path) -> float:
    """The largest relative difference of a variable of the analyses of a folder."""
    differences = []
    for path in (folder / "analyses").rglob("*.nc"):
        ours = xr.load_dataset(path)
        theirs = xr.load_dataset(expected / path.relative_to(folder))
        for name in ours.data_vars:
            x, y = (np.float64(fields[name].values) for fields in (ours, theirs))
            differences.append(np.linalg.norm(x - y) / np.linalg.norm(y))
    return float(max(differences))


def _pooled(errors: pd.DataFrame, first: int = 0) -> pd.Series:
    """Root mean square over the windows from one on."""
    return np.sqrt((errors[first:] ** 2).mean())


def _table(errors: Mapping[str, pd.DataFrame], spread: Any) -> Table:
    """Errors over all windows, their ratios, and the spread of innovations."""
    pooled = {name: _pooled(table) for name, table in errors.items()}
    later = {name: _pooled(table, 2) for name, table in errors.items()}
    analysis, background, free = "analysis", "background", "free run"
    header = ["10 windows", *SYSTEMS, "/ background", "from the third on", "/ free run"]
    header += ["spread", "from the third on"]
    rows = []
    for name in VARIABLES:
        ratios = [
            pooled[analysis][name] / pooled[background][name],
            later[analysis][name] / later[background][name],
            pooled[analysis][name] / pooled[free][name],
        ]
        values = spread.get_group(name).to_numpy()
        rows.append(
            [
                name,
                *(f"{pooled[system][name]:.3g}" for system in SYSTEMS),
                *(f"{ratio:.2f}" for ratio in ratios),
                *(f"{x.min():.2f} to {x.max():.2f}" for x in (values, values[2:])),
            ]
        )
    return Table("Errors of ten windows", header, rows)


def _windows(errors: Mapping[str, pd.DataFrame], statistics: pd.DataFrame) -> Table:
    """Errors of background and analysis by window, and chi squared."""
    chi = statistics.groupby("window")["chi_squared"].first()
    header = ["window", *VARIABLES, "chi squared"]
    rows = []
    for number, (window, value) in enumerate(chi.items()):
        cells = [
            " -> ".join(
                f"{errors[s][name][number]:.3g}" for s in SYSTEMS if s != "free run"
            )
            for name in VARIABLES
        ]
        rows.append([str(window)[:10], *cells, f"{value:.2f}"])
    return Table("Background -> analysis", header, rows)


def _alike(folder: Path) -> tuple[dict[str, list[float]], dict[str, Any]]:
    """See `assimilation_gradients`: `likeness`, `spectra` at the start of windows."""
    section: Any = load_config(CONFIG).assimilation
    pair = gradients(folder / "run", DATA, pd.Timestamp(section.start))
    background = str(folder / "background.nc")
    return likeness(*pair, background), spectra(*pair, background)


def _limit(folder: Path) -> dict[str, tuple[float, float]]:
    """See `assimilation_bound.bound`, of the observations of a day."""
    noise = {name: sizes.values for name, sizes in noise_sizes().items()}
    store, data = folder / "nmc" / "forecast.zarr", DATA / "demo_2001.zarr"
    return bound(store, data, str(folder / "background.nc"), noise, 4 * SHARE)


def _bound_table(limit: Mapping[str, tuple[float, float]]) -> Table:
    header = ["errors", "before", "after", "ratio"]
    rows = [
        [name, f"{before:.3g}", f"{after:.3g}", f"{after / before:.2f}"]
        for name, (before, after) in limit.items()
    ]
    return Table("The best linear estimate", header, rows)


def _gradient_table(alike: Mapping[str, list[float]]) -> Table:
    header = ["by", "gradients", "to degree 21", "B times them", "power above"]
    rows = [
        [name, *(f"{x:.2f}" for x in cosines), f"{share:.1%}"]
        for name, (*cosines, share) in alike.items()
    ]
    return Table("Likeness of gradients", header, rows)


def _plot(errors: Mapping[str, pd.DataFrame], path: Path) -> None:
    """Draws the errors of three variables by window."""
    panels = []
    for name, unit in {"T": "K", "U": "m s⁻¹", "SP": "Pa"}.items():
        lines = [
            Line(system, 1.0 + np.arange(len(values)), values.to_numpy(), look)
            for system, look in SYSTEMS.items()
            for values in [errors[system][name]]
        ]
        label = f"error of {name} ({unit})"
        looks = {"y_label": label, "has_integer_x": True, "y_from": 0.0}
        panels.append(Chart(name, "window", lines, **looks).panel)
    save_figure(panels_figure(panels, title="Root mean square errors"), path)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--folder", type=Path, help="folder of the runs; what is there is not repeated"
    )
    add_out_option(parser)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
