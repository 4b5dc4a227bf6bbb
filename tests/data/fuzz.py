"""Data sets in other orders, with other labels, gaps and roundings, tried by seeds.

Each is a data set that `world` writes, with one to three changes. Where they leave the
meaning of a file as it was, every value that is read equals what numpy finds at its
coordinates in the unchanged data; where they do not, reading is refused by one error.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from glob import glob
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas as pd
import xarray as xr

from credit_jax.data import build_loader
from credit_jax.evaluation.comparison import compare
from credit_jax.evaluation.grid_file import Variable
from credit_jax.evaluation.references import open_truth
from credit_jax.forecast.forecast_data import open_forecast_data
from credit_jax.named_fields.coordinates import Coordinates
from tests.data.world import (
    FLAT,
    GRID,
    NUM_LAT,
    NUM_LON,
    make_fields,
    parsed,
    raw_config,
)

TIMES = pd.date_range("1999-12-30", "2000-01-02T18", freq="6h")
START = np.datetime64("2000-01-01T06", "ns")
# Files that a change may be made to.
PLACES = ("second", "all", "static", "truth")
DEEP_KEYS = ("ERA5/prognostic/3d/U", "ERA5/prognostic/3d/T")
Change = Callable[[xr.Dataset, np.random.Generator], xr.Dataset]


def shuffled(dim: str) -> Change:
    def change(dataset: xr.Dataset, rng: np.random.Generator) -> xr.Dataset:
        if dim not in dataset.dims:
            return dataset
        return dataset.isel({dim: rng.permutation(dataset.sizes[dim])})

    return change


def reversed_along(dim: str) -> Change:
    return lambda d, rng: d.isel({dim: slice(None, None, -1)}) if dim in d.dims else d


def western(dataset: xr.Dataset, rng: np.random.Generator) -> xr.Dataset:
    longitude = (dataset.longitude + 180) % 360 - 180
    return dataset.assign_coords(longitude=longitude).sortby("longitude")


def turned(dataset: xr.Dataset, rng: np.random.Generator) -> xr.Dataset:
    return dataset.roll(longitude=int(rng.integers(1, NUM_LON)), roll_coords=True)


def more_levels(dataset: xr.Dataset, rng: np.random.Generator) -> xr.Dataset:
    if "level" not in dataset.dims:
        return dataset
    further = [0.5, *dataset.level.values, 9.0]
    return dataset.reindex(level=rng.permutation(further), fill_value=-7.0)


def in_pascal(dataset: xr.Dataset, rng: np.random.Generator) -> xr.Dataset:
    if "level" not in dataset.dims:
        return dataset
    return dataset.assign_coords(level=dataset.level * 100)


def in_float32(dataset: xr.Dataset, rng: np.random.Generator) -> xr.Dataset:
    names = [
        name for name in ("latitude", "longitude", "level") if name in dataset.coords
    ]
    return dataset.assign_coords({k: dataset[k].astype(np.float32) for k in names})


def aliases(dataset: xr.Dataset, rng: np.random.Generator) -> xr.Dataset:
    return dataset.rename(latitude="lat", longitude="lon")


def rounded(dataset: xr.Dataset, rng: np.random.Generator) -> xr.Dataset:
    if "time" not in dataset.dims:
        return dataset
    off = rng.integers(-59, 60, dataset.sizes["time"]).astype("timedelta64[s]")
    return dataset.assign_coords(time=dataset.time.values + off)


# Changes of labels that mean other places, levels or times, and damage.
def moved(name: str, by: float) -> Change:
    def change(dataset: xr.Dataset, rng: np.random.Generator) -> xr.Dataset:
        values = dataset[name].values.copy()
        values[int(rng.integers(len(values)))] += by
        return dataset.assign_coords({name: values})

    return change


def gap(dataset: xr.Dataset, rng: np.random.Generator) -> xr.Dataset:
    lost = int(abs(dataset.time.values - START).argmin())
    return dataset.drop_isel(time=[lost])


def twice(dataset: xr.Dataset, rng: np.random.Generator) -> xr.Dataset:
    own = int(rng.integers(dataset.sizes["time"]))
    return xr.concat([dataset, dataset.isel(time=[own]) * 0 + 1], "time")


def late(dataset: xr.Dataset, rng: np.random.Generator) -> xr.Dataset:
    seconds = np.timedelta64(int(rng.integers(61, 9000)), "s")
    return dataset.assign_coords(time=dataset.time.values + seconds)


SAME: dict[str, Change] = {
    "rows": reversed_along("latitude"),
    "columns": reversed_along("longitude"),
    "levels": reversed_along("level"),
    "shuffled rows": shuffled("latitude"),
    "shuffled columns": shuffled("longitude"),
    "shuffled levels": shuffled("level"),
    "shuffled times": shuffled("time"),
    "from -180": western,
    "turned": turned,
    "more levels": more_levels,
    "Pa": in_pascal,
    "float32 labels": in_float32,
    "rounded times": rounded,
    # The last one, as the others know the dims by their first names.
    "aliases": aliases,
}
OTHER: dict[str, Change] = {
    "another row": moved("latitude", 3.0),
    "another column": moved("longitude", 7.0),
    "another level": moved("level", 0.3),
    "gap": gap,
    "twice": twice,
    "late": late,
}
# Damage of stores and folders, by functions of a folder.
FILES = {
    "nc": ("two files of one period", "unwritten chunk", "metadata bomb"),
    "zarr": ("missing chunk", "metadata bomb"),
}


@dataclass(frozen=True)
class DataSet:
    """A data set with changes.

    Attributes:
        kinds: the changes, in order.
        place: of `PLACES`.
        kind: "nc" or "zarr".
        zarr_format: 2 or 3.
    """

    kinds: tuple[str, ...]
    place: str
    kind: str
    zarr_format: int

    @property
    def is_refused(self) -> bool:
        return any(kind in OTHER or kind in FILES[self.kind] for kind in self.kinds)


def data_set(seed: int) -> DataSet:
    """The changes of a seed."""
    rng = np.random.default_rng(seed)
    place = PLACES[rng.integers(len(PLACES))]
    kind = ("nc", "zarr")[rng.integers(2)]
    kinds = list(rng.choice([*SAME], rng.integers(1, 4), replace=False))
    # Further levels of all files are levels of the run; in Pa they are other values.
    if "more levels" in kinds and (place == "all" or "Pa" in kinds):
        kinds.remove("more levels")
    kinds = kinds or ["rows"]
    if rng.random() < 0.4:
        others = [
            k
            for k in OTHER
            if place != "static" or k in ("another row", "another column")
        ]
        kinds.append(str(rng.choice(others)))
        if kinds[-1] == "another level":  # it must be one that is read
            kinds = [kind for kind in kinds if kind != "more levels"]
    elif rng.random() < 0.2 and place in ("second", "all"):
        kinds.append(str(rng.choice(FILES[kind])))
    if "aliases" in kinds:  # "another row" comes after it
        kinds.remove("aliases")
        kinds += ["aliases"] if not kinds or kinds[-1] in SAME else []
    return DataSet(tuple(map(str, kinds)), place, kind, int(rng.integers(2, 4)))


def base() -> dict[str, xr.Dataset]:
    """The unchanged data: fields, and a static field."""
    fields = make_fields(TIMES).astype(np.float32)
    fields = fields.assign_coords(level=[1.0, 2.0, 5.0])
    rng = np.random.default_rng(1)
    mask = (FLAT[1:], rng.random((NUM_LAT, NUM_LON)).astype(np.float32))
    return {"fields": fields, "static": xr.Dataset({"LSM": mask}, coords=GRID)}


def write(folder: Path, given: DataSet, seed: int) -> None:
    """Writes the files of a data set, and truth.nc or truth.zarr."""
    rng, known = np.random.default_rng(seed), base()

    def changed(dataset: xr.Dataset) -> xr.Dataset:
        for kind in given.kinds:
            change = SAME.get(kind) or OTHER.get(kind)
            dataset = dataset if change is None else change(dataset, rng)
        return dataset

    for year in (1999, 2000):
        part = known["fields"].sel(time=str(year))
        if given.place == "all" or (given.place == "second" and year == 2000):
            part = changed(part)
        save(part, folder / f"w_{year}.{given.kind}", given)
    static = known["static"]
    save(
        changed(static) if given.place == "static" else static,
        folder / "static.nc",
        given,
    )
    truth = known["fields"].sel(time="2000")
    save(
        changed(truth) if given.place == "truth" else truth,
        folder / f"truth.{given.kind}",
        given,
    )
    if "two files of one period" in given.kinds:
        shutil.copyfile(folder / "w_2000.nc", folder / "w_1_2000.nc")
    if "unwritten chunk" in given.kinds:
        leave_out(folder / "w_2000.nc", rng)
    if "metadata bomb" in given.kinds:
        make_bomb(folder / f"w_2000.{given.kind}")
    if "missing chunk" in given.kinds:
        chunks = [
            p
            for p in glob(f"{folder}/w_2000.zarr/T/**", recursive=True)
            if os.path.isfile(p)
        ]
        chunks = sorted(
            p for p in chunks if not Path(p).name.startswith((".z", "zarr."))
        )
        os.remove(chunks[int(rng.integers(len(chunks)))])


def leave_out(path: Path, rng: np.random.Generator) -> None:
    """Writes T anew without one of its times, which HDF5 reads as zeros."""
    with h5py.File(path, "a") as file:
        old, scales = file["T"][:], [dim[0] for dim in file["T"].dims]
        del file["T"]
        made = file.create_dataset(
            "T", old.shape, old.dtype, chunks=(1, *old.shape[1:])
        )
        for dim, scale in zip(made.dims, scales, strict=True):
            dim.attach_scale(scale)
        lost = int(rng.integers(len(old)))
        for time in range(len(old)):
            if time != lost:
                made[time] = old[time]


def make_bomb(path: Path) -> None:
    """Gives T chunks of terabytes, which take no place on disk."""
    if path.suffix == ".nc":
        with h5py.File(path, "a") as file:
            scales = [dim[0] for dim in file["T"].dims]
            shape = file["T"].shape
            del file["T"]
            made = file.create_dataset(
                "T", shape, "f8", maxshape=(None,) * 4, chunks=(256, 256, 256, 31)
            )
            for dim, scale in zip(made.dims, scales, strict=True):
                dim.attach_scale(scale)
        return
    (metadata,) = [
        path / "T" / name
        for name in (".zarray", "zarr.json")
        if (path / "T" / name).exists()
    ]
    content = json.loads(metadata.read_text())
    huge = [10**4] * 4
    if metadata.name == ".zarray":
        content["chunks"] = huge
    else:
        content["chunk_grid"]["configuration"]["chunk_shape"] = huge
    metadata.write_text(json.dumps(content))


def save(dataset: xr.Dataset, path: Path, given: DataSet) -> None:
    dataset = dataset.drop_encoding()
    if path.suffix != ".zarr":
        dataset.to_netcdf(path, engine="h5netcdf")
        return
    names = [str(name) for name in dataset.data_vars]
    # Without a fill value, a chunk that is not there has no value; v3 always has one.
    null = {name: {"_FillValue": None} for name in names}
    nan = {name: {"_FillValue": np.nan, "fill_value": np.nan} for name in names}
    encoding = null if given.zarr_format == 2 else nan
    chunks: Any = {"time": 2, "level": 2, "latitude": 4}
    dataset.chunk({k: v for k, v in chunks.items() if k in dataset.dims}).to_zarr(
        path,
        mode="w",
        zarr_format=given.zarr_format,
        encoding=encoding,
        consolidated=False,
    )


def config_of(folder: Path, given: DataSet) -> Any:
    raw = raw_config(
        folder,
        given.kind,
        data__start_datetime=str(TIMES[0]),
        data__end_datetime=str(TIMES[-1]),
        data__source__ERA5__levels=None,
        preblocks__per_step={"concat": {"type": "concat"}},
        trainer__train_batch_size=1,
    )
    if "two files of one period" in given.kinds:
        path = f"{folder}/w*_%Y.{given.kind}"
        for kind in ("prognostic", "dynamic_forcing", "diagnostic"):
            raw["data"]["source"]["ERA5"]["variables"][kind]["path"] = path
    return parsed(raw)


def field_at(name: str, time: np.datetime64, where: Coordinates) -> np.ndarray:
    """The levels of a variable of the unchanged data at some coordinates, by numpy."""
    known = base()
    array = known["static"][name] if name == "LSM" else known["fields"][name]
    values = array.values
    if "time" in array.dims:
        values = values[list(TIMES.values).index(time)]
    rows = [
        int(np.argmin(abs(array.latitude.values - own))) for own in where.latitude or ()
    ]
    columns = [
        int(np.argmin(abs((array.longitude.values - own + 180) % 360 - 180)))
        for own in where.longitude or ()
    ]
    values = values[..., rows, :][..., columns]
    if "level" not in array.dims:
        return values[None]
    levels = np.array(where.sources["ERA5"].levels)
    levels = levels / 100 if levels.max() > 90 else levels
    return values[[int(np.argmin(abs(array.level.values - own))) for own in levels]]


def differences(folder: Path, given: DataSet, like: Coordinates) -> Iterator[str]:
    """Reads a data set in all ways; yields what differs from the unchanged data.

    Raises:
        ValueError: the data are refused.
    """
    config = config_of(folder, given)
    loader = build_loader(config, split="train")
    own = loader.coordinates()
    for batch in loader.epoch(0):
        start, end = batch.input_times[0], batch.target_times[0, 0]
        for part, names, time, array in (
            ("x", ("U", "T", "SP", "LSM", "tsi"), start, batch.x),
            ("y", ("U", "T", "SP", "TP"), end, batch.y),
        ):
            expected = np.concatenate([field_at(name, time, own) for name in names])
            if not np.array_equal(array[0, :, 0], expected, equal_nan=True):
                yield f"{part} at {start}"
    data = open_forecast_data(config.data, [START], 2, like=like)
    if problems := data.problems(np.array([START]), 2):
        raise ValueError("; ".join(problems))
    for key, field in data.initial(START)["ERA5"].items():
        expected = field_at(key.split("/")[-1], START, like)
        if not np.array_equal(field[:, 0], expected):
            yield f"initial state: {key}"
    times = np.array([START, START + np.timedelta64(6, "h")])
    truth = open_truth(os.fspath(folder / f"truth.{given.kind}"), times)
    levels = np.array(like.sources["ERA5"].levels)
    variables = {"T": Variable(levels), "SP": Variable()}
    space = np.array(like.latitude), np.array(like.longitude)
    found = compare(variables, space, truth)
    if problems := truth.problems(times, ["T", "SP"]):
        raise ValueError("; ".join(problems))
    if len(found.channels) < len(levels) + 1:
        raise ValueError("; ".join(found.notes))
    for time in times:
        (fields,) = found.at(time).values()
        expected = np.concatenate([field_at(name, time, like) for name in ("T", "SP")])
        if not np.array_equal(fields, expected):
            yield f"truth at {time}"


def try_seeds(folder: Path, seeds: range) -> Iterator[tuple[int, str, str]]:
    """Yields seed, changes and result: "read", "refused", or what is wrong."""
    plain = DataSet((), "second", "nc", 2)
    first = folder / "plain"
    first.mkdir(parents=True)
    write(first, plain, 0)
    like = build_loader(config_of(first, plain), split="train").coordinates()
    for seed in seeds:
        given = data_set(seed)
        place = folder / str(seed)
        place.mkdir()
        write(place, given, seed)
        yield seed, kind_of(given), result_of(place, given, like)
        shutil.rmtree(place)


def kind_of(given: DataSet) -> str:
    """The change that decides: that for which data are refused, or the first one."""
    return given.kinds[-1] if given.is_refused else given.kinds[0]


def result_of(folder: Path, given: DataSet, like: Coordinates) -> str:
    """Reads a data set; see `try_seeds`."""
    what = (
        f"{', '.join(given.kinds)} of {given.place}, {given.kind} {given.zarr_format}"
    )
    try:
        wrong = [*differences(folder, given, like)]
    except (ValueError, OSError) as error:
        return "refused" if given.is_refused else f"{what}: refused: {error}"
    except Exception as error:
        return f"{what}: {type(error).__name__}: {error}"
    if wrong:
        return f"{what}: {len(wrong)} values differ, the first: {wrong[0]}"
    return f"{what}: read, expected an error" if given.is_refused else "read"
