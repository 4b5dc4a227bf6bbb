"""Data sets in other orders, with other labels, gaps and roundings, made by seeds.

Each is a data set that `world` writes, with one to three changes of the files of one
place. Where they leave the meaning of a file as it was, every value that is read equals
what numpy finds at its coordinates in the unchanged data; where they do not, reading is
refused by one error. `tests.forecast.fuzz` tries them.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

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


def at(name, change):
    """A change of the labels of a dim or coordinate, where there is one."""

    def of(dataset, rng):
        if name not in dataset.coords:
            return dataset
        return dataset.assign_coords({name: change(dataset[name].values, rng)})

    return of


def ordered(dim, order):
    """Fields in another order along a dim, where there is one."""

    def of(dataset, rng):
        if dim not in dataset.dims:
            return dataset
        return dataset.isel({dim: order(dataset.sizes[dim], rng)})

    return of


def reversed_along(dim):
    return ordered(dim, lambda size, rng: slice(None, None, -1))


def shuffled(dim):
    return ordered(dim, lambda size, rng: rng.permutation(size))


def western(dataset, rng):
    longitude = (dataset.longitude + 180) % 360 - 180
    return dataset.assign_coords(longitude=longitude).sortby("longitude")


def more_levels(dataset, rng):
    if "level" not in dataset.dims:
        return dataset
    further = [0.5, *dataset.level.values, 9.0]
    return dataset.reindex(level=rng.permutation(further), fill_value=7.0)


def in_float32(dataset, rng):
    for name in ("latitude", "longitude", "level"):
        dataset = at(name, lambda values, rng: values.astype(np.float32))(dataset, rng)
    return dataset


def blurred(dataset, rng):
    off = {k: rng.uniform(-4e-3, 4e-3, dataset.sizes[k]) for k in GRID}
    return dataset.assign_coords({k: dataset[k] + own for k, own in off.items()})


def since_1970(dataset, rng):
    """In single precision, which is off by up to half a minute."""
    seconds = dataset.time.values.astype("datetime64[s]").astype(np.float32)
    units = {"units": "seconds since 1970-01-01"}
    return dataset.assign_coords(time=("time", seconds, units))


# Changes of labels that mean other places, levels or times, and damage.
def moved(name, by):
    """One label that is moved; NaN takes it away."""

    def change(values, rng):
        values = values.astype(float)
        values[int(rng.integers(len(values)))] += by
        return values

    return at(name, change)


def gap(dataset, rng):
    return dataset.drop_isel(time=[int(abs(dataset.time.values - START).argmin())])


def twice(dim):
    """One label twice; the second field is 1 everywhere."""

    def change(dataset, rng):
        again = dataset.isel({dim: [int(rng.integers(dataset.sizes[dim]))]})
        again = again.map(lambda field: field * 0 + 1 if dim in field.dims else field)
        both = xr.concat([dataset, again], dim, data_vars="minimal")
        return both.transpose(*dataset.dims)

    return change


def fewer(dim):
    return lambda d, rng: d.drop_isel({dim: [int(rng.integers(d.sizes[dim]))]})


def seconds(count):
    return np.asarray(count).astype("timedelta64[s]")


AXES = {"row": "latitude", "column": "longitude", "level": "level"}
AND_TIMES = {**AXES, "time": "time", "hour": "hour"}
# Each with the dim that it needs.
SAME = {
    **{f"{name}s": (dim, reversed_along(dim)) for name, dim in AND_TIMES.items()},
    **{f"shuffled {name}s": (dim, shuffled(dim)) for name, dim in AND_TIMES.items()},
    "from -180": ("longitude", western),
    "turned": (
        "longitude",
        lambda d, rng: d.roll(
            longitude=int(rng.integers(1, NUM_LON)), roll_coords=True
        ),
    ),
    "around the globe": (
        "longitude",
        at("longitude", lambda x, rng: x - 360.0 * rng.integers(0, 2, len(x))),
    ),
    "more levels": ("level", more_levels),
    "Pa": ("level", at("level", lambda values, rng: values * 100)),
    "whole numbers": ("level", at("level", lambda x, rng: x.astype(np.int32))),
    "float32 labels": ("", in_float32),
    "blurred degrees": ("latitude", blurred),
    "rounded times": (
        "time",
        at("time", lambda x, rng: x + seconds(rng.integers(-59, 60, len(x)))),
    ),
    "seconds of float32": ("time", since_1970),
    "anchors": ("", lambda d, rng: d),
    # The last one, as the others know the dims by their first names.
    "aliases": ("latitude", lambda d, rng: d.rename(latitude="lat", longitude="lon")),
}
OTHER = {
    "another row": ("latitude", moved("latitude", 3.0)),
    "another column": ("longitude", moved("longitude", 7.0)),
    "another level": ("level", moved("level", 0.3)),
    **{f"fewer {name}s": (dim, fewer(dim)) for name, dim in AXES.items()},
    **{f"a {name} twice": (dim, twice(dim)) for name, dim in AXES.items()},
    **{
        f"a {name} without a label": (dim, moved(dim, np.nan))
        for name, dim in AXES.items()
    },
    "gap": ("time", gap),
    "twice": ("time", twice("time")),
    "late": ("time", at("time", lambda x, rng: x + seconds(rng.integers(61, 9000)))),
    "an hour twice": ("hour", twice("hour")),
    "other hours": (
        "hour",
        at("hour", lambda values, rng: values + 24 * int(rng.integers(1, 3))),
    ),
}
# What may be read or refused, but not read as anything else.
EITHER = {
    "noleap": ("time", lambda d, rng: d.convert_calendar("noleap", use_cftime=True)),
    "transposed": ("", lambda d, rng: d.transpose(*rng.permutation([*d.dims]))),
    **{
        f"{name}s without labels": (dim, lambda d, rng, dim=dim: d.drop_vars(dim))
        for name, dim in AXES.items()
    },
}
CHANGES = {**SAME, **OTHER, **EITHER}
# The files of a change, and their dims.
PLACES = {
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
    """A data set with changes, in order, of the files of one of `PLACES`."""

    kinds: tuple[str, ...]
    place: str
    kind: str  # "nc" or "zarr"
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

    def some(changes, count):
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

    In the folder `plain` are files without changes, which later data sets are linked
    to; None writes all.
    """
    known = base()

    def put(dataset, name, *places):
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
        files = [p for p in (folder / "w_2000.zarr/T").rglob("*") if p.is_file()]
        chunks = sorted(p for p in files if not p.name.startswith((".z", "zarr.")))
        chunks[int(rng.integers(len(chunks)))].unlink()


def anew(path, *shape, **options):
    """The variable T of a file, made anew without values, and its old ones."""
    with h5py.File(path, "a") as file:
        old, scales = file["T"][:], [dim[0] for dim in file["T"].dims]
        del file["T"]
        made = file.create_dataset("T", old.shape, *shape, **options)
        for dim, scale in zip(made.dims, scales, strict=True):
            dim.attach_scale(scale)
        yield made, old


def leave_out(path, rng):
    """Writes T anew without one of its times, which HDF5 reads as zeros."""
    with h5py.File(path) as file:
        chunks = (1, *file["T"].shape[1:])
    for made, old in anew(path, "f4", chunks=chunks):
        lost = int(rng.integers(len(old)))
        for time in {*range(len(old))} - {lost}:
            made[time] = old[time]


def change_metadata(array, shape):
    """Gives an array of a store other chunks, and its axis another length."""
    for name in (".zarray", "zarr.json"):
        path = array / name
        if path.exists():
            content = json.loads(path.read_text())
            if name == ".zarray":
                content["chunks"] = shape
            else:
                content["chunk_grid"]["configuration"]["chunk_shape"] = shape
            if len(shape) == 1:
                content["shape"] = shape
            path.write_text(json.dumps(content))


def make_bomb(path):
    """Gives T chunks of terabytes, which take no place on disk."""
    if path.suffix == ".zarr":
        return change_metadata(path / "T", [10**4] * 4)
    options = {"maxshape": (None,) * 4, "chunks": (256, 256, 256, 31)}
    return [*anew(path, "f8", **options)]


def widen(path):
    """Gives the file a coordinate of gigabytes, which takes no place on disk."""
    if path.suffix == ".zarr":
        return change_metadata(path / "level", [10**11])
    with h5py.File(path, "a") as file:
        del file["level"]
        return file.create_dataset("level", (10**10,), "f8", chunks=(10**6,))


def save(dataset, path, given):
    dataset = dataset.drop_encoding()
    if path.suffix != ".zarr":
        dataset.to_netcdf(path, engine="h5netcdf")
        return
    names = [str(name) for name in dataset.data_vars]
    # Without a fill value, a chunk that is not there has no value; v3 always has one.
    null = {name: {"_FillValue": None} for name in names}
    nan = {name: {"_FillValue": np.nan, "fill_value": np.nan} for name in names}
    encoding = null if given.zarr_format == 2 else nan
    chunks = {"time": 2, "level": 2, "latitude": 4}
    chunked = dataset.chunk({k: v for k, v in chunks.items() if k in dataset.dims})
    options = {"mode": "w", "consolidated": False, "zarr_format": given.zarr_format}
    chunked.to_zarr(path, encoding=encoding, **options)


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
