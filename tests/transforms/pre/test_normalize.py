"""`era5_normalizer`: CREDIT's arithmetic, and its errors."""

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr

from credit_jax.transforms import check_schema
from credit_jax.transforms.pre.concat import join
from credit_jax.transforms.units import channel_units
from tests.transforms.cases import CONCAT, LEVELS, SP, TP, T, group, preblocks


@pytest.mark.reference
def test_bitwise_as_credit(credit, files, batch):
    import torch
    from credit.preblock.concat import ConcatToTensor
    from credit.preblock.norm import ERA5Normalizer

    theirs = {
        part: {"S": {k: torch.tensor(a) for k, a in batch[part]["S"].items()}}
        for part in ("input", "target")
    }
    x, y, _ = ConcatToTensor()(ERA5Normalizer(**files)(theirs))
    blocks = preblocks(norm={"type": "era5_normalizer", "args": files}, concat=CONCAT)
    ours = blocks.before_step(batch)
    assert ours["x"].tobytes() == x.numpy().tobytes()
    assert ours["y"].tobytes() == y.numpy().tobytes()
    assert ours["input_times"] is batch["input_times"]


def test_in_the_graph_as_on_the_host(files, batch):
    blocks = preblocks(
        norm={"type": "era5_normalizer", "args": files},
        device={"type": "to_device", "args": {"device": "cuda"}},
        concat=CONCAT,
    )
    host = blocks.before_step(batch)["y"]
    normalizer = blocks.transforms[0].transform

    @jax.jit
    def graph(fields):
        scaled = {key: normalizer.normalize(key, fields[key]) for key in fields}
        return join(scaled, [T, SP, TP])

    assert np.allclose(graph(batch["target"]["S"]), host, rtol=1e-5, atol=1e-5)


def test_inputs_are_not_changed(files, batch):
    before = batch["input"]["S"][T].copy()
    chain = preblocks(norm={"type": "era5_normalizer", "args": files}, concat=CONCAT)
    chain.before_step(batch)
    assert np.array_equal(batch["input"]["S"][T], before)


def test_denormalize_is_the_inverse(files, batch):
    chain = preblocks(norm={"type": "era5_normalizer", "args": files}, concat=CONCAT)
    groups = [group(T, LEVELS), group(SP, 1), group("S/diagnostic/2d/other", 1)]
    units = channel_units(chain, groups)
    ends = np.broadcast_to([[0.0], [1.0]], (2, 6))[..., None, None].astype(np.float32)
    mean, one = units.denormalize(ends)[..., 0, 0]
    assert mean.tolist() == [270, 271, 273, 275, 1e5, 0]
    assert (one - mean).tolist() == [3, 4, 6, 8, 1e3, 1]
    fields = batch["target"]["S"]
    flat = np.concatenate([fields[T], fields[SP], fields[TP]], axis=1)
    for array in (flat, jnp.asarray(flat), flat[:, :, 0]):
        back = units.normalize(units.denormalize(array))
        assert np.allclose(back, array, rtol=2e-5)
    normalizer = chain.transforms[0].transform
    physical = normalizer.denormalize(T, normalizer.normalize(T, fields[T]))
    assert np.allclose(physical, fields[T], rtol=1e-6)


@pytest.mark.parametrize(
    ("changes", "kind", "text"),
    [
        ({"mean_path": "nowhere.nc"}, FileNotFoundError, "mean_path: no file 'nowhere"),
        ({"levels": [1, 9]}, ValueError, "levels 1 to 6, but `levels` asks for [9]"),
        ({"levels": None}, ValueError, "T has shape (6,), but the data have 4 levels"),
    ],
)
def test_statistics_errors(files, changes, kind, text):
    norm = {"type": "era5_normalizer", "args": {**files, **changes}}
    layout = {"input": [], "target": [group(T, LEVELS)]}
    with pytest.raises(kind, match=re.escape(text)):
        check_schema(preblocks(norm=norm, concat=CONCAT), layout)


@pytest.mark.parametrize(
    ("value", "text"),
    [(np.nan, "std.nc has 1 of 1 values that are not finite"), (-1.0, "negative std")],
)
def test_bad_statistics(files, tmp_path, value, text):
    path = str(tmp_path / "bad_std.nc")
    xr.Dataset({"T": ("level", np.ones(6)), "SP": ((), value)}).to_netcdf(path)
    norm = {"type": "era5_normalizer", "args": {**files, "std_path": path}}
    with pytest.raises(ValueError, match=text):
        preblocks(norm=norm, concat=CONCAT)


@pytest.mark.parametrize("key", ["mean_path", "std_path"])
@pytest.mark.parametrize("size", [0, 100])
def test_a_file_that_is_empty_or_cut_is_named(files, tmp_path, key, size):
    cut = tmp_path / "cut.nc"
    cut.write_bytes(Path(files[key]).read_bytes()[:size])
    norm = {"type": "era5_normalizer", "args": files | {key: str(cut)}}
    with pytest.raises(ValueError, match=re.escape(str(cut))):
        preblocks(norm=norm, concat=CONCAT)
