"""Samples per second of the input pipeline and of the training step.

    python -m benchmarks.io [--stores demo 025deg] [--threads 0 1 2 4]

The loader runs alone, from the store on disk to input arrays of a step, for several
numbers of threads: a first epoch, later ones with as many fields cached as fit in
memory, and epochs without a cache, as of a data set much larger than memory. For
comparison, TensorStore reads the same chunks as often and discards them, alternating
with the loader, and a sample is copied in memory. The step is timed on random data. The
stores are written to a temporary folder, or to --data, which is kept.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd
import tensorstore
import xarray as xr

from benchmarks.compiled_step import CONFIGS
from benchmarks.report import Table, add_out_option, publish
from benchmarks.speed.cases import SIZES, initial_weights, make_case
from benchmarks.speed.jax_side import JaxSide
from benchmarks.timing import take_turns
from credit_jax.config import build_config
from credit_jax.config.yaml_file import read_yaml
from credit_jax.data import build_loader
from credit_jax.data.sources import reader
from credit_jax.demo.dataset import ensure_demo_data

HEADER = [
    "store",
    "MB a sample",
    "threads",
    "first epoch, samples/s",
    "later epochs",
    "none kept",
    "TensorStore alone",
    "none kept / TensorStore",
    "copy of memory",
    "first epoch / step",
    "later epochs / step",
    "none kept / step",
]


@dataclass(frozen=True)
class Store:
    """A data set and the model that reads it.

    Attributes:
        config: file in configs/.
        folder: prefix of its paths.
        size: one of `speed_cases.SIZES`, whose step is timed.
        parts: number of these steps per sample of the store.
        compressed: whether chunks are compressed; the data are noise.
    """

    config: str
    folder: str
    size: str
    parts: int
    compressed: bool = True


# The step of the whole 0.25 degree model does not fit in memory; that of a block is
# timed, and the globe has 16 blocks.
STORES: Mapping[str, Store] = {
    "demo": Store("demo.yaml", "demo_data/T21", "demo", 1),
    "025deg": Store("wxformer_025deg.yaml", "era5/025deg", "025deg_block", 16),
    "025deg_plain": Store(
        "wxformer_025deg.yaml", "era5/025deg", "025deg_block", 16, compressed=False
    ),
}


def main(arguments: Sequence[str] | None = None) -> Path:
    """Times every store, prints the table, writes the report; returns its path."""
    options = _parse(arguments)
    runs = []
    with _folder(options.data) as folder:
        for name in options.stores:
            runs.append(_run(name, folder / name, options))
    rows = [row for run in runs for row in _rows(run)]
    table = Table("Input beside the step", HEADER, rows)
    steps = [
        f"- {run['store']}: the step takes {run['step']:.3g} samples/s" for run in runs
    ]
    config = {
        "threads": options.threads,
        "times": options.times,
        "grid": options.grid,
        "seconds": options.seconds,
        "step size": options.size,
    }
    return publish(
        "loader",
        ["# Input", _INTRO, "\n".join(steps), table],
        {"runs": runs},
        config=config,
        folder=options.out,
    )


_INTRO = (
    "Samples a second that the loader delivers alone, from Zarr on disk through "
    "normalization to arrays, and how many times that is what the training step takes "
    "on the same machine. Above 1 the step never waits. `TensorStore alone` reads "
    "the same arrays of the same times, with the same number of samples at once, and "
    "drops them; `copy of memory` copies as many bytes as x and y have. The first "
    "epoch reads every field once; in later epochs those are in memory that fit there "
    "(1 GiB). `none kept` reads a field for every sample that has it, twice as a rule, "
    "as of a store much larger than memory. The step at 0.25 degrees is that of a "
    "sixteenth of the globe, times 16."
)


def _run(name: str, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    store = STORES[name]
    config = _config(store, folder, options)
    first: dict[int, float] = {}
    later: dict[int, float] = {}
    uncached: dict[int, float] = {}
    plain: dict[int, float] = {}
    for threads in options.threads:
        loader = _loader(config, threads)
        begin = time.perf_counter()
        count = sum(len(batch.x) for batch in loader.epoch(0))
        first[threads] = count / (time.perf_counter() - begin)
        later[threads] = _samples_per_second(loader, options.seconds)
        with mock.patch.object(reader, "CACHE_BYTES", 0):
            loader = _loader(config, threads)
        uncached[threads], plain[threads] = _in_turns(
            lambda loader=loader: _samples_per_second(loader, options.seconds),
            lambda loader=loader: _plain_read(loader, options.seconds),
        )
    batch = _loader(config, 0).read([0])
    side = _step(options.size or store.size)
    times = take_turns({"step": side.train}, warmup=2, rounds=5)["step"]
    step = len(side.x) / times.median / store.parts
    return {
        "store": name,
        "sample_bytes": batch.x.nbytes + batch.y.nbytes,
        "loader_first": first,
        "loader": later,
        "loader_none_kept": uncached,
        "tensorstore": plain,
        "copy": _copies_per_second(batch, options.seconds),
        "step": step,
        "step_spread": times.spread,
    }


def _step(size: str) -> JaxSide:
    case = make_case(size)
    return JaxSide(case, *initial_weights(case))


def _samples_per_second(loader: Any, seconds: float) -> float:
    """Samples per second of successive epochs, from the second batch on."""
    batches = (batch for epoch in range(1000) for batch in loader.epoch(epoch))
    next(batches)
    begin, count = time.perf_counter(), 0
    while time.perf_counter() - begin < seconds:
        count += len(next(batches).x)
    return count / (time.perf_counter() - begin)


def _in_turns(*rates: Callable[[], float], rounds: int = 3) -> list[float]:
    """The median of each rate, measured alternately, as the machine may be shared."""
    turns = [[rate() for rate in rates] for _ in range(rounds)]
    return [float(np.median(column)) for column in zip(*turns, strict=True)]


def _plain_read(loader: Any, seconds: float) -> float:
    """Samples per second that TensorStore reads, with the concurrency of the loader.

    They are dropped; fields that are not in a Zarr store (forcing, static) are omitted.
    """
    arrays = _arrays(loader.dataset)

    def read(index: int) -> None:
        futures = [
            array[time : time + 1].read()
            for array, places in arrays
            for time in places[index]
        ]
        for future in futures:
            future.result()

    threads = max(loader.num_threads, 1)
    count, begin = 0, time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        while time.perf_counter() - begin < seconds:
            chosen = np.arange(count, count + threads) % len(loader.dataset)
            list(pool.map(read, chosen.tolist()))
            count += len(chosen)
    return count / (time.perf_counter() - begin)


def _arrays(dataset: Any) -> list[tuple[Any, list[np.ndarray]]]:
    """Each array of prognostic variables, with the positions of each sample's times."""
    arrays = []
    for name, source in dataset.sources.items():
        prognostic = source.config.variables.prognostic
        window = dataset.window(name, "prognostic")
        for variable in prognostic.vars_3D + prognostic.vars_2D:
            for path in source.files["prognostic", variable].paths:
                times = source.reader.open(path).times.to_numpy()
                spec = {
                    "driver": "zarr",
                    "kvstore": {"driver": "file", "path": f"{path}/{variable}"},
                }
                array = tensorstore.open(spec, read=True, open=True).result()
                places = [
                    np.flatnonzero(np.isin(times, instants)) for instants in window
                ]
                arrays.append((array, places))
    return arrays


def _copies_per_second(batch: Any, seconds: float) -> float:
    """Copies per second of x and y, into allocated memory."""
    room = [np.empty_like(x) for x in (batch.x, batch.y)]
    count, begin = 0, time.perf_counter()
    while time.perf_counter() - begin < seconds:
        for to, x in zip(room, (batch.x, batch.y), strict=True):
            np.copyto(to, x)
        count += 1
    return count * len(batch.x) / (time.perf_counter() - begin)


def _loader(config: Mapping[str, Any], threads: int) -> Any:
    trainer = {**config["trainer"], "thread_workers": threads}
    return build_loader(
        build_config({**config, "trainer": trainer}),
        split="train",
        local_dp_ranks=(0,),
        dp_size=1,
    )


def _config(store: Store, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """The config of the store with its data in `folder`, created if absent."""
    text = json.dumps(read_yaml(CONFIGS / store.config))
    config = json.loads(text.replace(store.folder, str(folder)))
    config["trainer"] |= {"parallelism": {"data": "none"}, "num_devices": 1}
    if "demo" in config:
        days = options.days
        config["demo"] |= {"days": days, "spinup_days": 0, "held_out_days": days // 4}
        job = build_config(config)
        assert job.demo is not None
        ensure_demo_data(job.demo)
        end = pd.Timestamp("2000-01-01") + pd.Timedelta(days=days)
        config["data"]["end_datetime"] = str(end - pd.Timedelta(hours=6))
    else:
        rows, columns = options.grid
        config["model"] |= {"image_height": rows, "image_width": columns}
        times = pd.date_range("2000-01-01", periods=options.times, freq="6h")
        config["data"]["start_datetime"] = str(times[0])
        config["data"]["end_datetime"] = str(times[-1])
        if not folder.exists():
            write_store(config, folder, times, compressed=store.compressed)
    return config


def write_store(
    config: Mapping[str, Any],
    folder: Path,
    times: Any,
    *,
    forced: Any = None,
    compressed: bool,
) -> None:
    """Writes noise in CREDIT's layout, which compresses least and reads slowest.

    Args:
        config: says which variables, levels and grid.
        folder: folder of the files.
        times: times of the state.
        forced: times of the forcing; None for those of the state.
        compressed: whether to compress chunks of the state.
    """
    (source,) = config["data"]["source"].values()
    model, levels = config["model"], source["levels"]
    rows, columns = model["image_height"], model["image_width"]
    coords = {
        "time": times,
        "level": levels,
        "latitude": np.linspace(89.8, -89.8, rows),
        "longitude": np.arange(columns) * 360.0 / columns,
    }
    plane = ("latitude", "longitude")
    three, two = ("time", "level", *plane), ("time", *plane)
    variables = source["variables"]
    state = {
        **dict.fromkeys(variables["prognostic"]["vars_3D"], three),
        **dict.fromkeys(variables["prognostic"]["vars_2D"], two),
    }
    forcing = dict.fromkeys(variables["dynamic_forcing"]["vars_2D"], two)
    static = dict.fromkeys(variables["static"]["vars_2D"], plane)
    folder.mkdir(parents=True)
    year = times[0].year
    for number in range(len(times)):
        more: dict[str, Any] = {"append_dim": "time"} if number else {"mode": "w-"}
        if not number and not compressed:
            more["encoding"] = {name: {"compressors": None} for name in state}
        _noise(state, {**coords, "time": times[[number]]}).to_zarr(
            folder / f"prognostic_{year}.zarr", zarr_format=2, consolidated=True, **more
        )
    forced = times if forced is None else forced
    _noise(forcing, {**coords, "time": forced}).to_netcdf(
        folder / f"solar_irradiance_{year}.nc"
    )
    _noise(static, coords).to_netcdf(folder / "static.nc")
    numbers = {
        name: (("level",), np.ones(len(levels))) if dims == three else ((), 1.0)
        for name, dims in {**state, **forcing, **static}.items()
    }
    for file in ("mean", "std"):
        xr.Dataset(numbers, {"level": levels}).to_netcdf(folder / f"{file}.nc")


def _noise(
    fields: Mapping[str, tuple[str, ...]], coords: Mapping[str, Any]
) -> xr.Dataset:
    """Random fields of given dims."""
    rng = np.random.default_rng(0)
    variables = {
        name: (dims, rng.standard_normal([len(coords[d]) for d in dims], np.float32))
        for name, dims in fields.items()
    }
    used = {dim for dims in fields.values() for dim in dims}
    dataset = xr.Dataset(variables, {dim: coords[dim] for dim in coords if dim in used})
    if "time" in used:
        # The encoding chosen for the first time alone would be days, which do not fit
        # later ones.
        dataset["time"].encoding = {"units": "hours since 1900-01-01", "dtype": "int64"}
    return dataset


def _rows(run: Mapping[str, Any]) -> list[list[str]]:
    names = ("loader_first", "loader", "loader_none_kept")
    return [
        [
            run["store"],
            f"{run['sample_bytes'] / 1e6:.2f}",
            str(threads),
            *(f"{run[name][threads]:.3g}" for name in names),
            f"{run['tensorstore'][threads]:.3g}",
            f"{run['loader_none_kept'][threads] / run['tensorstore'][threads]:.2f}",
            f"{run['copy']:.3g}",
            *(f"{run[name][threads] / run['step']:.3g}" for name in names),
        ]
        for threads in run["loader"]
    ]


@contextlib.contextmanager
def _folder(named: Path | None) -> Iterator[Path]:
    if named is not None:
        yield named
        return
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def _parse(arguments: Sequence[str] | None) -> Any:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.io")
    add = parser.add_argument
    add("--stores", nargs="+", choices=tuple(STORES), default=list(STORES))
    add("--threads", nargs="+", type=int, default=[0, 1, 2, 4])
    add("--days", type=int, default=40, help="in the store of the demo")
    add("--times", type=int, default=6, help="times in the store of 0.25 degrees")
    add(
        "--grid",
        nargs=2,
        type=int,
        default=[640, 1280],
        metavar=("ROWS", "COLUMNS"),
        help="points of the store of 0.25 degrees",
    )
    add("--seconds", type=float, default=10.0, help="of reading, for each number")
    add("--size", choices=tuple(SIZES), help="another step than that of the store")
    add("--data", type=Path, help="folder of the stores; the default is thrown away")
    add_out_option(parser)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
