"""Helpers that damage a data set, and assert that loading it fails."""

import re

import pytest
import xarray as xr

from credit_jax.data import build_loader
from tests.data.world import parsed, raw_config, save

VARIABLES = "data__source__ERA5__variables"


def load(folder, raw=None, split="train", grid=None, **changes):
    """Returns the loader of one device."""
    config = parsed(raw or raw_config(folder, **changes))
    return build_loader(config, split=split, grid=grid)


def refused(folder, *texts, error=ValueError, raw=None, grid=None, **changes):
    """Asserts that loading raises an error whose message contains all the texts."""
    with pytest.raises(error, match=re.escape(texts[0])) as caught:
        load(folder, raw, grid=grid, **changes)
    print(caught.value)
    for text in texts:
        assert text in str(caught.value)


def rewrite(path, change):
    """Changes a NetCDF file."""
    with xr.open_dataset(path) as dataset:
        new = change(dataset.load())
    save(new, path)


def zstd_without_size(size):
    """A frame of blocks of one repeated byte, which does not say how many there are."""
    blocks = [(2**17 << 3 | 2).to_bytes(3, "little") + b"\0"] * (size >> 17)
    blocks[-1] = (2**17 << 3 | 3).to_bytes(3, "little") + b"\0"
    return b"\x28\xb5\x2f\xfd\0\x38" + b"".join(blocks)
