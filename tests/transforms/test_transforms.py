"""Preblocks and postblocks: CREDIT's arithmetic, and their errors."""

import re
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr

from credit_jax.config.base import ConfigError, parse
from credit_jax.config.transforms import PostblocksConfig, PreblocksConfig
from credit_jax.transforms import (
    Units,
    apply_transforms,
    build_postblocks,
    build_preblocks,
    channel_units,
    check_transforms,
    find_normalizer,
)
from credit_jax.transforms.post.reconstruct import Reconstruct, ReconstructArgs
from credit_jax.transforms.pre.concat import join

LEVELS = 4
T, SP, LSM = "S/prognostic/3d/T", "S/prognostic/2d/SP", "S/static/2d/LSM"
TSI, TP = "S/dynamic_forcing/2d/tsi", "S/diagnostic/2d/TP"
CONCAT = {"type": "concat"}


@pytest.fixture
def files(tmp_path):
    """Statistics of T on six levels, of SP, and of TP without spread."""
    mean = {"T": ("level", np.arange(6) + 270.0), "SP": ((), 1e5), "TP": ((), 0.5)}
    std = {"T": ("level", np.arange(6) + 3.0), "SP": ((), 1e3), "TP": ((), 0.0)}
    xr.Dataset(mean).to_netcdf(tmp_path / "mean.nc")
    xr.Dataset(std).to_netcdf(tmp_path / "std.nc")
    return {
        "mean_path": str(tmp_path / "mean.nc"),
        "std_path": str(tmp_path / "std.nc"),
        "levels": [1, 2, 4, 6],
    }


@pytest.fixture
def batch(rng):
    """Two samples; keys in the order in which a data set inserts them."""
    draw = lambda levels: rng.normal(280, 9, (2, levels, 1, 3, 5)).astype(np.float32)  # noqa: E731
    return {
        "input": {"S": {TSI: draw(1), LSM: draw(1), T: draw(LEVELS), SP: draw(1)}},
        "target": {"S": {T: draw(LEVELS), SP: draw(1), TP: draw(1)}},
        "input_times": np.arange(2),
    }


def preblocks(**blocks):
    return build_preblocks(parse(PreblocksConfig, {"per_step": blocks}))


def postblocks(**blocks):
    return build_postblocks(parse(PostblocksConfig, {"per_step": blocks}))


def group(key, levels):
    return SimpleNamespace(var_key=key, n_levels=levels)


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
    ours = apply_transforms(blocks, batch)
    assert ours["x"].tobytes() == x.numpy().tobytes()
    assert ours["y"].tobytes() == y.numpy().tobytes()
    assert ours["input_times"] is batch["input_times"]


def test_in_the_graph_as_on_the_host(files, batch):
    blocks = preblocks(
        norm={"type": "era5_normalizer", "args": files},
        device={"type": "to_device", "args": {"device": "cuda"}},
        concat=CONCAT,
    )
    host = apply_transforms(blocks, batch)["y"]
    normalizer = find_normalizer(blocks)

    @jax.jit
    def graph(fields):
        scaled = {key: normalizer.normalize(key, fields[key]) for key in fields}
        return join(scaled, [T, SP, TP])

    assert np.allclose(graph(batch["target"]["S"]), host, rtol=1e-5, atol=1e-5)


def test_inputs_are_not_changed(files, batch):
    before = batch["input"]["S"][T].copy()
    apply_transforms(
        preblocks(norm={"type": "era5_normalizer", "args": files}, concat=CONCAT), batch
    )
    assert np.array_equal(batch["input"]["S"][T], before)


def test_denormalize_is_the_inverse(files, batch):
    chain = preblocks(norm={"type": "era5_normalizer", "args": files}, concat=CONCAT)
    groups = [group(T, LEVELS), group(SP, 1), group("S/diagnostic/2d/other", 1)]
    units = channel_units(find_normalizer(chain), groups)
    assert units.mean.tolist() == [270, 271, 273, 275, 1e5, 0]
    assert units.std.tolist() == [3, 4, 6, 8, 1e3, 1]
    fields = batch["target"]["S"]
    flat = np.concatenate([fields[T], fields[SP], fields[TP]], axis=1)
    for array in (flat, jnp.asarray(flat), flat[:, :, 0]):
        back = units.normalize(units.denormalize(array))
        assert np.allclose(back, array, rtol=2e-5)
    normalizer = find_normalizer(chain)
    physical = normalizer.denormalize(T, normalizer.normalize(T, fields[T]))
    assert np.allclose(physical, fields[T], rtol=1e-6)


def test_units_without_a_normalizer():
    units = channel_units(find_normalizer(preblocks(concat=CONCAT)), [group(T, 2)])
    assert isinstance(units, Units)
    assert units.std.tolist() == [1, 1]


@pytest.mark.reference
@pytest.mark.parametrize("dims", [4, 5])
def test_reconstruct_as_credit(credit, rng, dims):
    import torch
    from credit.postblock.reconstruct import Reconstruct as Theirs

    y = rng.normal(size=(2, LEVELS + 2, 1, 3, 5)).astype(np.float32)
    y = y if dims == 5 else y[:, :, 0]
    slices = {T: slice(0, 4), SP: slice(4, 5), TP: slice(5, 6)}
    shapes = {T: (4, 1), SP: (1, 1), TP: (1, 1)}
    described = {k: {"slice": slices[k], "orig_shape": shapes[k]} for k in slices}
    theirs = Theirs()(
        {
            "y_pred": torch.tensor(y),
            "metadata": {"target": {"_channel_map": described}},
        }
    )["y_processed"]
    chain = postblocks(reconstruct={"type": "reconstruct"})
    ours = apply_transforms(chain, {"y_pred": y, "channel_map": slices})["y_processed"]
    assert list(ours["S"]) == list(theirs["S"])
    for key, field in ours["S"].items():
        assert np.array_equal(field, theirs["S"][key].numpy()), key


@pytest.mark.parametrize("detach", [True, False])
def test_reconstruct_stops_gradients_if_asked(detach):
    block = Reconstruct(ReconstructArgs(detach=detach))

    def total(y):
        done = block({"y_pred": y, "channel_map": {SP: slice(0, 1)}})
        return done["y_processed"]["S"][SP].sum()

    gradient = jax.grad(total)(jnp.ones((1, 1, 1, 2, 2)))
    assert float(gradient.sum()) == (0.0 if detach else 4.0)


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        ({"channel_map": {}}, "has no 'y_pred'; it has: ['channel_map']"),
        (
            {"y_pred": np.zeros((1, 3, 1, 2, 2)), "channel_map": {SP: slice(0, 2)}},
            "'y_pred' has 3 channels, the channel map 2",
        ),
    ],
)
def test_reconstruct_errors(entry, text):
    with pytest.raises(ValueError, match=re.escape(text)):
        Reconstruct(ReconstructArgs())(entry)


@pytest.mark.parametrize(
    ("blocks", "texts"),
    [
        (
            {"norm": {"type": "era5_normalizer"}, "concat": CONCAT},
            [
                "preblocks.per_step.norm.type",
                "there are: concat, era5_normalizer, to_device",
                "nearest: 'era5_normalizer'",
            ],
        ),
        (
            {
                "regrid": {"type": "regrid"},
                "concat": {"type": "concat", "args": {"x": 1}},
            },
            [
                "preblocks.per_step.regrid.type",
                "'regrid' is not available",
                "preblocks.per_step.concat.args.x: unknown key",
            ],
        ),
        (
            {"norm": {"type": "era5_normalizer", "args": {"mean_pth": "m"}}},
            ["the nearest known key is 'mean_path'", "std_path"],
        ),
    ],
)
def test_all_config_errors_at_once(blocks, texts):
    with pytest.raises(ConfigError, match="problem") as error:
        preblocks(**blocks)
    for text in texts:
        assert text in str(error.value)


def test_unknown_postblock():
    with pytest.raises(
        ConfigError, match="'tracer_fixer' is not available; there are:"
    ):
        postblocks(fix={"type": "tracer_fixer"})


@pytest.mark.parametrize(
    "blocks",
    [{}, {"concat": CONCAT, "late": {"type": "to_device"}}, {"a": CONCAT, "b": CONCAT}],
)
def test_the_chain_ends_with_concat(blocks):
    with pytest.raises(ValueError, match="must end with one block of type concat"):
        preblocks(**blocks)


def test_two_normalizers(files):
    norm = {"type": "era5_normalizer", "args": files}
    with pytest.raises(ValueError, match="normalize twice"):
        find_normalizer(preblocks(a=norm, b=norm, concat=CONCAT))


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
    with pytest.raises(kind, match=re.escape(text)):
        check_transforms(preblocks(norm=norm, concat=CONCAT), [group(T, LEVELS)])


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


def test_fields_of_different_grids(batch):
    batch["input"]["S"][SP] = batch["input"]["S"][SP][..., :4]
    with pytest.raises(ValueError, match="must agree in all but the levels"):
        apply_transforms(preblocks(concat=CONCAT), batch)
