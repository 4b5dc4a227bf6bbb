"""Data sets in other orders, with other labels, gaps and roundings, made by seeds.

Each is a data set that `world` writes, with one to three changes of the files of one
place. Where they leave the meaning of a file as it was, every value that is read equals
what numpy finds at its coordinates in the unchanged data; where they do not, reading is
refused by one error. `tests.forecast.fuzz` tries them.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from glob import glob
from itertools import pairwise
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas as pd
import xarray as xr
import yaml

from tests.data.world import FLAT, GRID, NUM_LAT, NUM_LON, make_fields
from tests.training.tiny import tiny_config

TIMES = pd.date_range("1999-12-30", "2000-01-02T18", freq="6h")
START = np.datetime64("2000-01-01T06", "ns")
SCALED = ("U", "T", "SP", "TP")
HOURS = (0, 6, 12, 18)
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
    return dataset.reindex(level=rng.permutation(further), fill_value=7.0)


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
    off = rng.integers(-59, 60, dataset.sizes["time"]).astype("timedelta64[s]")
    return dataset.assign_coords(time=dataset.time.values + off)


def around(dataset: xr.Dataset, rng: np.random.Generator) -> xr.Dataset:
    off = 360.0 * rng.integers(-1, 2, dataset.sizes["longitude"])
    return dataset.assign_coords(longitude=dataset.longitude + off)


def whole_numbers(dataset: xr.Dataset, rng: np.random.Generator) -> xr.Dataset:
    return dataset.assign_coords(level=dataset.level.astype(np.int32))


def blurred(dataset: xr.Dataset, rng: np.random.Generator) -> xr.Dataset:
    off = {k: rng.uniform(-4e-3, 4e-3, dataset.sizes[k]) for k in GRID}
    return dataset.assign_coords({k: dataset[k] + own for k, own in off.items()})


def without(*names: str) -> Change:
    return lambda d, rng: d.drop_vars(names)


def since_1970(dataset: xr.Dataset, rng: np.random.Generator) -> xr.Dataset:
    """In single precision, which is off by up to half a minute."""
    seconds = dataset.time.values.astype("datetime64[s]").astype(np.float32)
    units = {"units": "seconds since 1970-01-01"}
    return dataset.assign_coords(time=("time", seconds, units))


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


def twice(dim: str) -> Change:
    """One label twice; the second field is 1 everywhere."""

    def change(dataset: xr.Dataset, rng: np.random.Generator) -> xr.Dataset:
        own = int(rng.integers(dataset.sizes[dim]))
        again = dataset.isel({dim: [own]})
        again = again.map(lambda field: field * 0 + 1 if dim in field.dims else field)
        both = xr.concat([dataset, again], dim, data_vars="minimal")
        return both.transpose(*dataset.dims)

    return change


def fewer(dim: str) -> Change:
    return lambda d, rng: d.drop_isel({dim: [int(rng.integers(d.sizes[dim]))]})


def nan_label(name: str) -> Change:
    def change(dataset: xr.Dataset, rng: np.random.Generator) -> xr.Dataset:
        values = dataset[name].values.astype(float)
        values[int(rng.integers(len(values)))] = np.nan
        return dataset.assign_coords({name: values})

    return change


def late(dataset: xr.Dataset, rng: np.random.Generator) -> xr.Dataset:
    seconds = np.timedelta64(int(rng.integers(61, 9000)), "s")
    return dataset.assign_coords(time=dataset.time.values + seconds)


def hour_moved(dataset: xr.Dataset, rng: np.random.Generator) -> xr.Dataset:
    return dataset.assign_coords(hour=dataset.hour + 24 * int(rng.integers(1, 3)))


def transposed(dataset: xr.Dataset, rng: np.random.Generator) -> xr.Dataset:
    return dataset.transpose(*rng.permutation([*dataset.dims]))


def noleap(dataset: xr.Dataset, rng: np.random.Generator) -> xr.Dataset:
    return dataset.convert_calendar("noleap", use_cftime=True)


# Each with the dim that it needs.
SAME: dict[str, tuple[str, Change]] = {
    "rows": ("latitude", reversed_along("latitude")),
    "columns": ("longitude", reversed_along("longitude")),
    "levels": ("level", reversed_along("level")),
    "times": ("time", reversed_along("time")),
    "hours": ("hour", reversed_along("hour")),
    "shuffled rows": ("latitude", shuffled("latitude")),
    "shuffled columns": ("longitude", shuffled("longitude")),
    "shuffled levels": ("level", shuffled("level")),
    "shuffled times": ("time", shuffled("time")),
    "shuffled hours": ("hour", shuffled("hour")),
    "from -180": ("longitude", western),
    "turned": ("longitude", turned),
    "around the globe": ("longitude", around),
    "more levels": ("level", more_levels),
    "Pa": ("level", in_pascal),
    "whole numbers": ("level", whole_numbers),
    "float32 labels": ("", in_float32),
    "blurred degrees": ("latitude", blurred),
    "rounded times": ("time", rounded),
    "seconds of float32": ("time", since_1970),
    "anchors": ("", lambda d, rng: d),
    # The last one, as the others know the dims by their first names.
    "aliases": ("latitude", aliases),
}
OTHER: dict[str, tuple[str, Change]] = {
    "another row": ("latitude", moved("latitude", 3.0)),
    "another column": ("longitude", moved("longitude", 7.0)),
    "another level": ("level", moved("level", 0.3)),
    "fewer rows": ("latitude", fewer("latitude")),
    "fewer columns": ("longitude", fewer("longitude")),
    "fewer levels": ("level", fewer("level")),
    "a row twice": ("latitude", twice("latitude")),
    "a column twice": ("longitude", twice("longitude")),
    "a level twice": ("level", twice("level")),
    "a row without a label": ("latitude", nan_label("latitude")),
    "a column without a label": ("longitude", nan_label("longitude")),
    "a level without a label": ("level", nan_label("level")),
    "gap": ("time", gap),
    "twice": ("time", twice("time")),
    "late": ("time", late),
    "an hour twice": ("hour", twice("hour")),
    "other hours": ("hour", hour_moved),
}
# What may be read or refused, but not read as anything else.
EITHER: dict[str, tuple[str, Change]] = {
    "noleap": ("time", noleap),
    "transposed": ("", transposed),
    "rows without labels": ("latitude", without("latitude")),
    "columns without labels": ("longitude", without("longitude")),
    "levels without labels": ("level", without("level")),
}
CHANGES = {**SAME, **OTHER, **EITHER}
# The files of a change, and their dims.
PLACES: dict[str, tuple[str, ...]] = {
    "second": ("time", "level", "latitude", "longitude"),
    "all": ("time", "level", "latitude", "longitude"),
    "static": ("latitude", "longitude"),
    "statistics": ("level",),
    "truth": ("time", "level", "latitude", "longitude"),
    "climatology": ("hour", "level", "latitude", "longitude"),
}
# Damage of stores, folders and configs, by functions of a folder.
FILES = {
    "nc": ("two files of one period", "unwritten chunk", "metadata bomb", "wide bomb"),
    "zarr": ("missing chunk", "metadata bomb", "wide bomb"),
}
BOMBS = ("alias bomb", "nested bomb")


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
    def must_fail(self) -> bool:
        if self.place == "truth" and self.lacks_a_level:
            return False  # the others are scored, with a note
        damage = (*FILES[self.kind], *BOMBS)
        return any(kind in OTHER or kind in damage for kind in self.kinds)

    @property
    def lacks_a_level(self) -> bool:
        """Whether a level of the unchanged data is missing."""
        return self.kinds[-1:] in (("fewer levels",), ("another level",))

    @property
    def may_fail(self) -> bool:
        return self.must_fail or any(kind in EITHER for kind in self.kinds)

    @property
    def decisive(self) -> str:
        """The change that decides: for which data are refused, or the first one."""
        return self.kinds[-1] if self.may_fail else self.kinds[0]


def data_set(seed: int) -> DataSet:
    """The changes of a seed."""
    rng = np.random.default_rng(seed)
    place = str(rng.choice([*PLACES], p=[0.3, 0.25, 0.1, 0.1, 0.15, 0.1]))
    kind = ("nc", "zarr")[rng.integers(2)]

    def some(changes: dict[str, tuple[str, Change]], count: int) -> list[str]:
        fit = [k for k, (dim, _) in changes.items() if dim in ("", *PLACES[place])]
        return list(map(str, rng.choice(fit, min(count, len(fit)), replace=False)))

    kinds = some(SAME, int(rng.integers(1, 4)))
    fate = rng.random()
    last: list[str] = []
    if fate < 0.35:
        last = some(OTHER, 1)
    elif fate < 0.45:
        last = some(EITHER, 1)
    elif fate < 0.55 and place in ("second", "all"):
        last = [str(rng.choice([*FILES[kind], *BOMBS]))]
    if last:  # the others know the dims by these names, and labels as they were
        unlike = {"aliases", "Pa", "whole numbers", "around the globe", "more levels"}
        unlike |= {"seconds of float32"}
        kinds = [own for own in kinds if own not in unlike]
    if last and last[0].endswith("without labels"):
        kinds = []  # what has no labels is taken in order
    # Further levels of all files are levels of the run; in Pa they are other values.
    if place == "all" or {"Pa", "whole numbers"} & {*kinds}:
        kinds = [own for own in kinds if own != "more levels"]
    if "Pa" in kinds:
        kinds = [own for own in kinds if own != "whole numbers"]
    if "rounded times" in kinds:
        kinds = [own for own in kinds if own != "seconds of float32"]
    kinds.sort(key=lambda own: own in ("seconds of float32", "aliases"))
    kinds = kinds or ([] if last else ["float32 labels"])
    return DataSet((*kinds, *last), place, kind, int(rng.integers(2, 4)))


@cache
def base() -> dict[str, xr.Dataset]:
    """The unchanged data: fields, a static field, statistics and a climatology."""
    fields = make_fields(TIMES).astype(np.float32)
    fields = fields.assign_coords(level=[1.0, 2.0, 5.0])
    rng = np.random.default_rng(1)
    mask = (FLAT[1:], rng.random((NUM_LAT, NUM_LON)).astype(np.float32))
    means = [fields.isel(time=i, drop=True)[[*SCALED]] for i in range(len(HOURS))]
    return {
        "fields": fields,
        "static": xr.Dataset({"LSM": mask}, coords=GRID),
        "mean": fields[[*SCALED]].mean(FLAT),
        "std": fields[[*SCALED]].std(FLAT),
        "climatology": xr.concat(means, pd.Index(HOURS, name="hour")),
    }


def write(folder: Path, given: DataSet, seed: int, plain: Path | None = None) -> None:
    """Writes the files of a data set, and c.yml.

    Args:
        folder: of the files.
        given: the changes.
        seed: of the changes.
        plain: a folder for files without changes, which later data sets are linked to;
            None writes all.
    """
    known = base()

    def put(dataset: xr.Dataset, name: str, *places: str) -> None:
        path = folder / name
        if given.place not in places or not given.kinds:
            if plain is None:
                return save(dataset, path, given)
            first = plain / str(given.zarr_format) / name
            if not first.exists():
                first.parent.mkdir(parents=True, exist_ok=True)
                save(dataset, first, given)
            return path.symlink_to(first)
        # Each file of a place has the same changes, at the same labels.
        rng = np.random.default_rng(seed)
        for kind in given.kinds:
            if kind in CHANGES:
                dataset = CHANGES[kind][1](dataset, rng)
        return save(dataset, path, given)

    for year in (1999, 2000):
        part = known["fields"].sel(time=str(year))
        places = ("all", "second") if year == 2000 else ("all",)
        put(part, f"w_{year}.{given.kind}", *places)
    put(known["static"], "static.nc", "static")
    for name in ("mean", "std"):
        put(known[name], f"{name}.nc", "statistics")
    put(known["fields"].sel(time="2000"), f"truth.{given.kind}", "truth")
    put(known["climatology"], f"climatology.{given.kind}", "climatology")
    write_config(folder, given)
    rng = np.random.default_rng(seed)
    if "two files of one period" in given.kinds:
        shutil.copyfile(folder / "w_2000.nc", folder / "w_1_2000.nc")
    if "unwritten chunk" in given.kinds:
        leave_out(folder / "w_2000.nc", rng)
    if "metadata bomb" in given.kinds:
        make_bomb(folder / f"w_2000.{given.kind}")
    if "wide bomb" in given.kinds:
        widen(folder / f"w_2000.{given.kind}")
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


def widen(path: Path) -> None:
    """Gives the file a coordinate of gigabytes, which takes no place on disk."""
    if path.suffix == ".nc":
        with h5py.File(path, "a") as file:
            del file["level"]
            file.create_dataset("level", (10**10,), "f8", chunks=(10**6,))
        return
    for name, key in ((".zarray", "chunks"), ("zarr.json", "chunk_grid")):
        metadata = path / "level" / name
        if metadata.exists():
            content = json.loads(metadata.read_text())
            content["shape"] = [10**11]
            if key == "chunks":
                content[key] = [10**11]
            else:
                content[key]["configuration"]["chunk_shape"] = [10**11]
            metadata.write_text(json.dumps(content))


def write_config(folder: Path, given: DataSet) -> None:
    """Writes c.yml; with anchors, a path is written once and named later."""
    raw = tiny_config(
        folder,
        folder / "run",
        data__start_datetime=str(TIMES[0]),
        data__end_datetime=str(TIMES[-1]),
        data__source__ERA5__levels=None,
        model__levels=3,
        model__use_spectral_norm=False,
        loss={"training_loss": "mse"},
        postblocks={"per_step": {"reconstruct": {"type": "reconstruct"}}},
        validation_data__start_datetime=str(TIMES[-4]),
        validation_data__end_datetime=str(TIMES[-1]),
        trainer__train_batch_size=1,
        trainer__batches_per_epoch=0,
        trainer__use_ema=False,
        trainer__thread_workers=1,
        preblocks__per_step__norm__args__levels=None,
    )
    path = f"{folder}/w_%Y.{given.kind}"
    if "two files of one period" in given.kinds:
        path = f"{folder}/w*_%Y.{given.kind}"
    for kind in ("prognostic", "dynamic_forcing", "diagnostic"):
        raw["data"]["source"]["ERA5"]["variables"][kind]["path"] = path
    text = yaml.safe_dump(raw, sort_keys=False)
    if "anchors" in given.kinds:
        first, *others = text.split(f"path: {path}")
        text = "path: *fields".join(
            [f"{first}path: &fields {path}{others[0]}", *others[1:]]
        )
    if "alias bomb" in given.kinds:
        names = "abcdefghijklmnop"
        lines = [f"- &a [{', '.join('0' * 10)}]"]
        lines += [
            f"- &{own} [{', '.join([f'*{before}'] * 10)}]"
            for before, own in pairwise(names)
        ]
        text += "\n".join(["bomb:", *lines]) + "\n"
    if "nested bomb" in given.kinds:
        text += "bomb: " + "[" * 4000 + "]" * 4000 + "\n"
    (folder / "c.yml").write_text(text)
