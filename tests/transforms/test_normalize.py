"""`era5_normalizer`: CREDIT's arithmetic, its errors, and its inverse, a postblock."""

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr

from credit_jax.config import parse
from credit_jax.config.transforms import PostblocksConfig, PreblocksConfig
from credit_jax.transforms import (
    Normalizer,
    Phase,
    build_pipeline,
    channel_units,
    for_forecast,
)
from credit_jax.transforms.channels import join
from credit_jax.transforms.normalize import Denormalizer
from tests.support import assert_close
from tests.transforms.cases import CONCAT, LEVELS, SP, TP, T, group, preblocks

MASK = "S/static/2d/mask"


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
    ours = blocks.run(Phase.BEFORE_STEP, batch)
    assert ours["x"].tobytes() == x.numpy().tobytes()
    assert ours["y"].tobytes() == y.numpy().tobytes()
    assert ours["input_times"] is batch["input_times"]


def test_in_the_graph_as_on_the_host(files, batch):
    blocks = preblocks(
        norm={"type": "era5_normalizer", "args": files},
        device={"type": "to_device", "args": {"device": "cuda"}},
        concat=CONCAT,
    )
    host = blocks.run(Phase.BEFORE_STEP, batch)["y"]
    normalizer = blocks.blocks[0].transform

    @jax.jit
    def graph(fields):
        scaled = {key: normalizer.normalize(key, fields[key]) for key in fields}
        return join(scaled, [T, SP, TP])

    assert np.allclose(graph(batch["target"]["S"]), host, rtol=1e-5, atol=1e-5)


def test_inputs_are_not_changed(files, batch):
    before = batch["input"]["S"][T].copy()
    chain = preblocks(norm={"type": "era5_normalizer", "args": files}, concat=CONCAT)
    chain.run(Phase.BEFORE_STEP, batch)
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
    normalizer = chain.blocks[0].transform
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
        preblocks(norm=norm, concat=CONCAT).check(layout)


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


@pytest.mark.parametrize(
    ("units", "factor"),
    [(("K", "degC"), 1), (("Pa", "hPa"), 100), ((None, "hPa"), 1), (("Pa", None), 1)],
)
def test_a_std_is_in_the_unit_of_its_mean(both_files, units, factor):
    """Its unit has no offset, and is that of a mean which has none."""
    for path, unit in zip(both_files.values(), units, strict=True):
        if unit is not None:
            dataset = xr.load_dataset(path)
            dataset["SP"].attrs["units"] = unit
            dataset.to_netcdf(path)
    block = opened(Normalizer, **both_files)
    mean, std = block.statistics(SP, 1)
    assert (*mean, *std) == (9.5e4, 4e3 * factor)
    assert block.unit_of(SP) == (units[0] or units[1])


def test_a_std_of_another_quantity_than_its_mean(both_files):
    for path, unit in zip(both_files.values(), ("Pa", "K"), strict=True):
        dataset = xr.load_dataset(path)
        dataset["SP"].attrs["units"] = unit
        dataset.to_netcdf(path)
    with pytest.raises(ValueError, match=r"std.nc: SP is in 'K', but its mean in .*Pa"):
        opened(Normalizer, **both_files)


@pytest.mark.parametrize("key", ["mean_path", "std_path"])
@pytest.mark.parametrize("size", [0, 100])
def test_a_file_that_is_empty_or_cut_is_named(files, tmp_path, key, size):
    cut = tmp_path / "cut.nc"
    cut.write_bytes(Path(files[key]).read_bytes()[:size])
    norm = {"type": "era5_normalizer", "args": files | {key: str(cut)}}
    with pytest.raises(ValueError, match=re.escape(str(cut))):
        preblocks(norm=norm, concat=CONCAT)


@pytest.fixture
def both_files(tmp_path):
    values = {"mean": ([250.0, 280.0], 9.5e4), "std": ([20.0, 15.0], 4e3)}
    for name, (deep, flat) in values.items():
        fields = {"T": ("level", deep), "SP": flat}
        xr.Dataset(fields).to_netcdf(tmp_path / f"{name}.nc", engine="h5netcdf")
    return {f"{name}_path": str(tmp_path / f"{name}.nc") for name in values}


def opened(kind, **args):
    block = parse(kind, args)
    block.open()
    return block


def two_levels():
    rng = np.random.default_rng(0)
    sizes = {T: 2, SP: 1, MASK: 1}
    return {
        "S": {
            key: rng.normal(size=(2, levels, 1, 3, 4)).astype(np.float32)
            for key, levels in sizes.items()
        }
    }


def test_the_postblock_undoes_the_preblock(both_files):
    fields = two_levels()
    block = opened(Denormalizer, **both_files)
    physical = block({"y_processed": fields, "y": 1})["y_processed"]["S"]
    assert np.array_equal(physical[MASK], fields["S"][MASK])
    assert_close(
        physical[SP], fields["S"][SP] * 4e3 + 9.5e4, 1e-7, "surface pressure, Pa"
    )
    normalizer = opened(Normalizer, **both_files)
    again = normalizer({"input": {"S": physical}})["input"]["S"]
    for key, field in fields["S"].items():
        assert_close(again[key], field, 3e-6, f"{key}: what is fed back")


def test_forecasts_denormalize_once(both_files):
    """`for_forecast` inverts a normalizer that no postblock inverts."""
    norm = {"type": "era5_normalizer", "args": both_files}
    after = {"reconstruct": {"type": "reconstruct"}}
    pre = parse(PreblocksConfig, {"per_step": {"norm": norm, "concat": CONCAT}})
    twin = {"type": "reconstruct", "args": {"in_key": "y", "out_key": "twin"}}
    undo = {**norm, "args": {**both_files, "key": "twin"}}
    for own in ({}, {"undo": norm}, {"undo": norm, "twin": twin, "undo_twin": undo}):
        post = parse(PostblocksConfig, {"per_step": {**after, **own}})
        forecast = for_forecast(build_pipeline(pre, post))
        kinds = [type(each.transform).__name__ for each in forecast.blocks]
        assert kinds[:3] == ["Normalizer", "Concat", "Reconstruct"], own
    # Joining the fields to y_pred again makes no further ones to invert.
    joined = {**after, "join": {"type": "flatten_to_tensor"}}
    forecast = for_forecast(
        build_pipeline(pre, parse(PostblocksConfig, {"per_step": joined}))
    )
    kinds = [type(each.transform).__name__ for each in forecast.blocks]
    assert kinds[2:] == ["Reconstruct", "Inverse", "FlattenToTensor"]


def test_the_inverse_of_another_entry(both_files):
    block = opened(Denormalizer, **both_files, key="y_target_processed")
    given = {"y_processed": two_levels(), "y_target_processed": two_levels()}
    out = block(given)
    assert out["y_processed"] is given["y_processed"]
    assert out["y_target_processed"]["S"][T].mean() > 200
    with pytest.raises(ValueError, match="'y_target_processed' names no fields"):
        block({"y_processed": two_levels()})
