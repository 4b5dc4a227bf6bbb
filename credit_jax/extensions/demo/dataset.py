"""Generates the demo data set: 6-hourly fields of a moist Held-Suarez climate.

The dynamical core of dinosaur computes the fields on a Gaussian grid:

- prognostic: U, V, T, Q on 8 sigma levels; SP
- diagnostic: V500, Z500 (meridional wind and geopotential at 500 hPa) and TP (rain of
  the last 6 hours). They are functions of the state; V500 and Z500 are smooth, and rain
  is 0 except where the air is saturated
- dynamic forcing: tsi (solar radiation), which depends on season and time of day
- static: Z_GDS4_SFC and LSM (mountains and land), which the climate model also uses

The same arguments give the same fields on the same machine and versions. The state
after the spin-up of the default climate comes with the package: spectral coefficients
in float32, as the model has them, so that what follows is what followed the spin-up on
the machine that made the file. `python -m tools.spin_up` makes it anew, after a change
of the climate.
"""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
import pandas as pd
from jaxtyping import Array, Float
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from credit_jax.config.config import DemoConfig, ForcingConfig
from credit_jax.extensions.demo import write
from credit_jax.io.activity import activity, live_display
from credit_jax.io.mirror import local_path

if TYPE_CHECKING:
    from credit_jax.extensions.demo.dynamics import Climate

DAYS_AT_ONCE = 10
OUTPUTS_PER_DAY = 4
FILE = Path(__file__).with_name("spun_up.npz")
LAYOUT = 1  # version of the data set and of the climate, raised at any change
# What the state depends on; the other settings begin after the spin-up.
SETTINGS = {
    "truncation": "T21",
    "spinup_days": 200,
    "seed": 0,
    "forcing": ForcingConfig(),
}


def ensure_demo_data(demo: DemoConfig, console: Console | None = None) -> Path:
    """Generates the data set unless its folder already has it."""
    folder = Path(local_path(demo.out))
    expected = manifest(demo)
    if folder.exists():
        actual = write.read_manifest(folder)
        if actual == expected:
            return folder
        if actual is None:
            raise ValueError(
                f"{folder} exists and is not a demo data set (it has no demo.json); "
                "choose another folder"
            )
        differences = ", ".join(
            f"{key} {actual.get(key)} instead of {expected.get(key)}"
            for key in sorted({*actual, *expected})
            if actual.get(key) != expected.get(key)
        )
        raise ValueError(
            f"{folder} holds another demo data set: {differences}. Remove the folder "
            "to make it anew, or choose another one"
        )
    console = console or Console(stderr=True)
    spin_up = "the spin-up that comes with the package"
    if not is_spun_up(demo):
        spin_up = f"{demo.spinup_days} days of spin-up"
    console.print(
        f"Making {demo.days} days of {demo.truncation} demo data in {folder} "
        f"(after {spin_up}); they are kept for later runs.",
        markup=False,
        highlight=False,
    )
    # dinosaur needs rank promotion, which the caller may have disabled.
    displayed = live_display() if console.is_terminal else nullcontext()
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
    )
    days = demo.days if is_spun_up(demo) else demo.spinup_days + demo.days
    with jax.numpy_rank_promotion("allow"), displayed, progress:
        task = progress.add_task("days", total=days)
        with write.new_dataset(folder, expected) as partial:
            _make(demo, partial, lambda days: progress.advance(task, days))
    return folder


def manifest(demo: DemoConfig) -> dict[str, Any]:
    """The content of demo.json, which identifies a data set without its folder."""
    settings = demo.model_dump(exclude={"out", "forcing"})
    # The default is not named, as before there were others.
    if demo.forcing != ForcingConfig():
        settings["forcing"] = demo.forcing.model_dump()
    return {"layout": LAYOUT, **settings}


def _make(demo: DemoConfig, folder: Path, advance: Callable[[int], None]) -> None:
    """Writes all files except the manifest; reports progress by `advance(days)`."""
    # dinosaur is an optional dependency, and slow to import.
    try:
        from credit_jax.extensions.demo.dynamics import build_climate
    except ModuleNotFoundError as error:
        raise ValueError(
            f"making demo data needs {error.name}, which is not installed; install it "
            "with: pip install 'credit-jax[demo]'"
        ) from error
    climate = build_climate(demo.truncation, demo.seed, demo.forcing)
    axes = write.DemoCoordinates(climate.sigma, climate.latitude, climate.longitude)
    statistics = write.LevelStatistics()
    training_end = write.FIRST_TIME + pd.Timedelta(days=demo.days - demo.held_out_days)
    for times, fields in _chunks(demo, climate, advance):
        fields["tsi"] = write.solar_fields(axes, times)
        write.append_times(folder, axes, times, fields)
        training = times < training_end
        for name, field in fields.items():
            if training.any():
                statistics.add(name, field[training])
    for name, field in climate.static.items():
        statistics.add(name, field[None])
    statistics.write(folder, axes)
    write.write_static(folder, axes, climate.static)


def _chunks(
    demo: DemoConfig, climate: "Climate", advance: Callable[[int], None]
) -> Iterator[tuple[pd.DatetimeIndex, dict[str, np.ndarray]]]:
    """Runs the climate; yields times and fields by `DAYS_AT_ONCE`, after spin-up."""
    state: Any = climate.initial
    rain: Any = np.zeros((climate.latitude.size, climate.longitude.size), np.float32)
    if is_spun_up(demo):
        state, rain = read_spun_up(climate)
    all_days = demo.days if is_spun_up(demo) else demo.spinup_days + demo.days
    for start in range(demo.days - all_days, demo.days, DAYS_AT_ONCE):
        num_days = min(DAYS_AT_ONCE, demo.days - start)
        times: Any = pd.date_range(
            write.FIRST_TIME + pd.Timedelta(days=start),
            periods=num_days * OUTPUTS_PER_DAY,
            freq="6h",
        )
        outputs: list[dict[str, Any]] = []
        done = start - demo.days + all_days
        with activity(f"demo data, {done} of {all_days} days"):
            for time, day in zip(times, write.days_of_year(times), strict=True):
                if time >= write.FIRST_TIME:
                    outputs.append({**climate.fields(state), "TP": rain})
                state, rain = climate.advance(state, day)
            jax.block_until_ready(state)
        advance(num_days)
        if outputs:
            fields = {
                name: np.stack([np.asarray(output[name]) for output in outputs])
                for name in outputs[0]
            }
            times = times[times >= write.FIRST_TIME]
            for variable, field in fields.items():
                if not np.isfinite(field).all():
                    raise RuntimeError(
                        f"the climate model became unstable: {variable} is not finite "
                        f"between {times[0]} and {times[-1]}; another --seed may do"
                    )
            yield times, fields


def is_spun_up(demo: DemoConfig) -> bool:
    """Whether the state after the spin-up of a data set comes with the package."""
    settings = {name: getattr(demo, name) for name in SETTINGS}
    with np.load(FILE, allow_pickle=False) as arrays:
        return settings == SETTINGS and int(arrays["layout"]) == LAYOUT


def read_spun_up(climate: "Climate") -> tuple[Any, Float[np.ndarray, "lat lon"]]:
    """Returns the state at the first time of the data set, and the rain before it."""
    leaves, structure = jax.tree.flatten(climate.initial)
    with np.load(FILE, allow_pickle=False) as arrays:
        state = [arrays[f"state_{number}"] for number in range(len(leaves))]
        return jax.tree.unflatten(structure, state), arrays["rain"]


def write_spun_up(state: Any, rain: Float[Array, "lat lon"], file: Path = FILE) -> None:
    """Writes the file that `read_spun_up` reads; rain is in m of water, of 6 hours."""
    leaves = enumerate(jax.tree.leaves(state))
    arrays: dict[str, Any] = {"layout": LAYOUT, "rain": np.asarray(rain)}
    arrays |= {f"state_{number}": np.asarray(leaf) for number, leaf in leaves}
    np.savez_compressed(file, **arrays)
