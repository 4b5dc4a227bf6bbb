"""The input pipeline: processor time, page faults and bytes of a sample.

    python -m benchmarks.io [--stores plain zstd] [--threads 0 1 2 8]

The loader reads raw batches from a store on disk, as in training, where nothing is kept
of a data set much larger than memory. Processor time and page faults say what a read
takes also on a busy machine. Beside it a sample is copied in memory, TensorStore reads
the same chunks and drops them, and CREDIT's own loader reads the same files, in turns.
The stores are written to a temporary folder, or to --data, which is kept.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import resource
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd
import tensorstore
import xarray as xr
import yaml
from rich.console import Console

from benchmarks.compiled_step import CONFIGS
from benchmarks.report import Table, add_out_option, publish
from credit_jax.config import build_config
from credit_jax.config.yaml_file import read_yaml
from credit_jax.data import build_loader
from credit_jax.data.sources import reader
from credit_jax.extensions.preprocess import data_store

CONFIG, FOLDER = "wxformer_025deg.yaml", "era5/025deg"
HEADER = [
    "store",
    "times of x",
    "threads",
    "MB a sample",
    "samples/s",
    "processor, ms",
    "copies' worth",
    "page faults",
    "MB read",
    "TensorStore, ms",
    "CREDIT, ms",
    "CREDIT, samples/s",
]
# Store -> whether it is compressed, bits of values, times of x, `trainer.shuffle`.
STORES: Mapping[str, tuple[bool, int, int, Any]] = {
    "plain": (False, 32, 1, None),
    "zstd": (True, 32, 1, None),
    "plain, history 4": (False, 32, 4, None),
    "plain, window 4d": (False, 32, 1, {"window": "4d"}),
    "16 bits": (False, 16, 1, None),
    "16 bits, window 4d": (False, 16, 1, {"window": "4d"}),
}


@dataclass(frozen=True)
class Cost:
    """What a sample takes.

    Attributes:
        seconds: wall time.
        processor: user and system time of the process, s.
        faults: page faults.
        num_bytes: bytes read from files.
    """

    seconds: float
    processor: float
    faults: float
    num_bytes: float


def measured(run: Callable[[], int]) -> Cost:
    """Runs a function that returns a number of samples."""
    used, began = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    first = _bytes_read()
    count = run()
    after = resource.getrusage(resource.RUSAGE_SELF)
    seconds = time.perf_counter() - began
    processor = after.ru_utime - used.ru_utime + after.ru_stime - used.ru_stime
    faults = after.ru_minflt - used.ru_minflt
    values = seconds, processor, faults, _bytes_read() - first
    return Cost(*(value / count for value in values))


def _bytes_read() -> int:
    text = Path("/proc/self/io").read_text()
    return int(text.split("rchar: ")[1].split()[0])


def main(arguments: Sequence[str] | None = None) -> Path:
    """Measures every store, prints the table, writes the report; returns its path."""
    options = _parse(arguments)
    runs = []
    with _folder(options.data) as folder:
        for name in options.stores:
            config = _config(name, folder, options)
            runs += _runs(name, config, options)
    table = Table("A sample", HEADER, [_row(run) for run in runs])
    config = {"threads": options.threads, "times": options.times, "grid": options.grid}
    content: list[Any] = ["# Input", _INTRO, table]
    return publish("loader", content, {"runs": runs}, config=config, folder=options.out)


_INTRO = (
    "What the loader takes for a sample, from Zarr on disk to x and y of raw fields, "
    "with nothing kept but what a window keeps: medians of rounds in turns with the "
    "others. `copies' worth` is its processor time in copies of x and y within memory. "
    "`TensorStore` reads the same chunks of the state by itself and drops them. "
    "`CREDIT` is its own loader of gen2 on the same files, in its main process, "
    "without preblocks. Samples a second depend on what else the machine does."
)


def _runs(
    name: str, config: dict[str, Any], options: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    for threads in options.threads:
        config["trainer"] |= {"thread_workers": threads, "train_batch_size": 1}

        def opened() -> Any:
            """A loader that has read nothing that it keeps."""
            with mock.patch.object(reader, "CACHE_BYTES", 0):
                return build_loader(build_config(config), split="train").for_step()

        loader = opened()
        batch = loader.read([0])
        sides: dict[str, Callable[[Any], int]] = {
            "loader": _epoch,
            "copy": lambda _, batch=batch: _copies(batch),
            "tensorstore": _plain_reads,
        }
        if options.credit and threads == 0 and name in ("plain", "zstd"):
            sides["credit"] = lambda _: _credit_epoch(config)
        costs: dict[str, list[Cost]] = {side: [] for side in sides}
        for turn in range(options.rounds + 1):
            for side, run in sides.items():
                loader = opened() if side == "loader" else loader
                cost = measured(lambda run=run, loader=loader: run(loader))
                costs[side] += [cost] if turn else []
        run = {
            side: {
                key: float(np.median([getattr(cost, key) for cost in each]))
                for key in ("seconds", "processor", "faults", "num_bytes")
            }
            for side, each in costs.items()
        }
        size = batch.x.nbytes + batch.y.nbytes
        yield run | {
            "store": name.split(", history")[0],
            "history": batch.x.shape[2],
            "threads": threads,
            "sample_bytes": size,
        }


def _epoch(loader: Any) -> int:
    return sum(len(batch.indices) for batch in loader.epoch(0))


def _copies(batch: Any) -> int:
    """Copies x and y into memory that is mapped."""
    for x, room in zip((batch.x, batch.y), _room(batch), strict=True):
        for _ in range(4):
            np.copyto(room, x)
    return 4 * len(batch.x)


_ROOM: dict[Any, list[np.ndarray]] = {}


def _room(batch: Any) -> list[np.ndarray]:
    shapes = batch.x.shape, batch.y.shape
    if shapes not in _ROOM:
        _ROOM[shapes] = [np.ones(shape, np.float32) for shape in shapes]
    return _ROOM[shapes]


def _plain_reads(loader: Any) -> int:
    """TensorStore reads the chunks of the state of an epoch, sample by sample."""
    arrays = _arrays(loader.dataset)
    for index in range(len(loader.dataset)):
        futures = [
            array[time : time + 1].read()
            for array, places in arrays
            for time in places[index]
        ]
        for future in futures:
            future.result()
    return len(loader.dataset)


def _arrays(dataset: Any) -> list[tuple[Any, list[np.ndarray]]]:
    """Each array of prognostic variables, with the positions of each sample's times."""
    arrays = []
    for name, source in dataset.sources.items():
        variables = source.config.variables.prognostic
        window = dataset.window(name, "prognostic")
        for variable in variables.vars_3D + variables.vars_2D:
            for path in source.files["prognostic", variable].paths:
                folder = Path(path) / variable
                times = source.reader.open(path).times.to_numpy()
                driver = "zarr3" if (folder / "zarr.json").exists() else "zarr"
                store = {"driver": "file", "path": str(folder)}
                spec = {"driver": driver, "kvstore": store}
                array = tensorstore.open(spec, read=True, open=True).result()
                places = [np.flatnonzero(np.isin(times, when)) for when in window]
                arrays.append((array, places))
    return arrays


def _credit_epoch(config: Mapping[str, Any]) -> int:
    """An epoch of CREDIT's own loader, in this process."""
    from tests.data.credit_batches import credit_loader

    return sum(1 for _ in credit_loader(dict(config), 0, 1, True))


def _config(name: str, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """The config of a store with its data in `folder`, created if absent."""
    compressed, bits, history, shuffle = STORES[name]
    path = folder / ("zstd" if compressed else "plain")
    text = json.dumps(read_yaml(CONFIGS / CONFIG))
    config = json.loads(text.replace(FOLDER, str(path)))
    config["trainer"] |= {"parallelism": {"data": "none"}, "num_devices": 1}
    rows, columns = options.grid
    config["model"] |= {"image_height": rows, "image_width": columns}
    times = pd.date_range("2000-01-01", periods=options.times, freq="6h")
    config["data"] |= {"start_datetime": str(times[0]), "end_datetime": str(times[-1])}
    config["trainer"]["skip_validation"] = True
    if not path.exists():
        write_store(config, path, times, compressed=compressed)
    if bits == 16:
        text = data_store.write_store(
            build_config(config),
            folder / "bits16",
            bits=bits,
            num_threads=1,
            console=Console(file=StringIO()),
        )
        config = yaml.safe_load(text or "")
    config["data"]["history_len"] = history
    if shuffle is not None:
        config["trainer"]["shuffle"] = shuffle
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
        if not number:
            # A chunk is one time of a variable, as in CREDIT's stores.
            more["encoding"] = {
                name: {"chunks": (1, *(len(coords[dim]) for dim in dims[1:]))}
                | ({} if compressed else {"compressors": None})
                for name, dims in state.items()
            }
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


def _row(run: Mapping[str, Any]) -> list[str]:
    loader, credit = run["loader"], run.get("credit")
    shown = [run["store"], str(run["history"]), str(run["threads"])]
    shown += [f"{run['sample_bytes'] / 1e6:.0f}", f"{1 / loader['seconds']:.3g}"]
    copies = loader["processor"] / run["copy"]["processor"]
    shown += [f"{1e3 * loader['processor']:.0f}", f"{copies:.1f}"]
    shown += [f"{loader['faults']:.0f}", f"{loader['num_bytes'] / 1e6:.0f}"]
    shown += [f"{1e3 * run['tensorstore']['processor']:.0f}"]
    if credit is None:
        return [*shown, "", ""]
    return [*shown, f"{1e3 * credit['processor']:.0f}", f"{1 / credit['seconds']:.3g}"]


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
    add("--threads", nargs="+", type=int, default=[0, 1, 2, 8])
    add("--times", type=int, default=40, help="times in the store")
    add("--grid", nargs=2, type=int, default=[320, 640], metavar=("ROWS", "COLUMNS"))
    add("--rounds", type=int, default=3, help="epochs that count")
    add("--no-credit", dest="credit", action="store_false", help="leaves CREDIT out")
    add("--data", type=Path, help="folder of the stores; the default is thrown away")
    add_out_option(parser)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
