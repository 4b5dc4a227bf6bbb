"""Helpers that damage a data set and load it."""

import xarray as xr

from credit_jax.data import build_loader
from tests.data.world import parsed, raw_config, save

YEARS = ("w_1999", "w_2000")


def load(folder, raw=None, split="train", grid=None, **changes):
    """Returns the loader of one device."""
    config = parsed(raw or raw_config(folder, **changes))
    return build_loader(config, split=split, grid=grid)


def rewrite(path, change):
    """Changes a NetCDF file."""
    with xr.open_dataset(path) as dataset:
        new = change(dataset.load())
    save(new, path)


def rewrite_all(folder, change, names=YEARS):
    """Changes some files, of both years by default."""
    for name in names:
        rewrite(folder / f"{name}.nc", change)


def setting(name, index, value, **encoding):
    """A change of values of a variable."""

    def change(dataset):
        dataset[name][index] = value
        dataset[name].encoding.update(encoding)
        return dataset

    return change


def in_units(**units):
    """A change of the units that variables say."""
    return lambda d: d.assign({k: d[k].assign_attrs(units=u) for k, u in units.items()})
