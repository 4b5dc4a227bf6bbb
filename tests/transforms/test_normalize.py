"""`era5_normalizer`, its inverse, a postblock, and statistics of batches."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr

from credit_jax.transforms import Phase, channel_units, for_forecast
from credit_jax.transforms.channels import join
from credit_jax.transforms.statistics import Digests, Extremes, MeanAndVariance
from tests.support import assert_close
from tests.transforms.cases import (
    CONCAT,
    LEVELS,
    SP,
    TP,
    T,
    build,
    credit_block,
    group,
    pipeline_of,
    preblocks,
    tensors,
)
from tests.transforms.files import FILES, TWO

MASK = "S/static/2d/mask"


@pytest.mark.reference
def test_bitwise_as_credit(credit, batch):
    theirs = {part: {"S": tensors(batch[part]["S"])} for part in ("input", "target")}
    norm = credit_block("era5_normalizer", FILES, "preblocks")
    x, y, _ = credit_block("concat", {}, "preblocks")(norm(theirs))
    blocks = preblocks(
        norm={"type": "era5_normalizer", "args": FILES},
        device={"type": "to_device", "args": {"device": "cuda"}},
        concat=CONCAT,
    )
    before = batch["input"]["S"][T].copy()
    ours = blocks.run(Phase.BEFORE_STEP, batch)
    assert ours["x"].tobytes() == x.detach().numpy().tobytes()
    assert ours["y"].tobytes() == y.detach().numpy().tobytes()
    assert ours["input_times"] is batch["input_times"]
    assert np.array_equal(batch["input"]["S"][T], before), "inputs are not changed"
    normalizer = blocks.blocks[0].transform

    @jax.jit
    def graph(fields):
        scaled = {key: normalizer.normalize(key, fields[key]) for key in fields}
        return join(scaled, [T, SP, TP])

    assert np.allclose(graph(batch["target"]["S"]), ours["y"], rtol=1e-5, atol=1e-5)


def test_denormalize_is_the_inverse(batch):
    chain = preblocks(norm={"type": "era5_normalizer", "args": FILES}, concat=CONCAT)
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
    ("units", "factor"),
    [(("K", "degC"), 1), (("Pa", "hPa"), 100), ((None, "hPa"), 1), (("Pa", None), 1)],
)
def test_a_std_is_in_the_unit_of_its_mean(tmp_path, units, factor):
    """Its unit has no offset, and is that of a mean which has none."""
    paths = {key: str(tmp_path / path) for key, path in TWO.items()}
    for (key, path), unit in zip(paths.items(), units, strict=True):
        dataset = xr.load_dataset(TWO[key])
        if unit is not None:
            dataset["SP"].attrs["units"] = unit
        dataset.to_netcdf(path)
    block = build("era5_normalizer", paths, "preblocks")
    mean, std = block.statistics(SP, 1)
    assert (*mean, *std) == (9.5e4, 4e3 * factor)
    assert block.unit_of(SP) == (units[0] or units[1])


@pytest.mark.parametrize("key", ["mean_path", "std_path"])
@pytest.mark.parametrize("path", ["empty.nc", "cut.nc"])
def test_a_file_that_is_empty_or_cut_is_named(key, path):
    with pytest.raises(ValueError, match=path):
        build("era5_normalizer", FILES | {key: path}, "preblocks")


def two_levels():
    rng = np.random.default_rng(0)
    sizes = {T: 2, SP: 1, MASK: 1}
    return {
        "S": {
            key: rng.normal(size=(2, levels, 1, 3, 4)).astype(np.float32)
            for key, levels in sizes.items()
        }
    }


def test_the_postblock_undoes_the_preblock():
    fields = two_levels()
    block = build("era5_normalizer", TWO)
    physical = block({"y_processed": fields, "y": 1})["y_processed"]["S"]
    assert np.array_equal(physical[MASK], fields["S"][MASK])
    assert_close(
        physical[SP], fields["S"][SP] * 4e3 + 9.5e4, 1e-7, "surface pressure, Pa"
    )
    normalizer = build("era5_normalizer", TWO, "preblocks")
    again = normalizer({"input": {"S": physical}})["input"]["S"]
    for key, field in fields["S"].items():
        assert_close(again[key], field, 3e-6, f"{key}: what is fed back")


def test_forecasts_denormalize_once():
    """`for_forecast` inverts a normalizer that no postblock inverts."""
    norm = {"type": "era5_normalizer", "args": TWO}
    after = {"reconstruct": {"type": "reconstruct"}}
    pre = {"per_step": {"norm": norm, "concat": CONCAT}}
    twin = {"type": "reconstruct", "args": {"in_key": "y", "out_key": "twin"}}
    undo = {**norm, "args": {**TWO, "key": "twin"}}
    for own in ({}, {"undo": norm}, {"undo": norm, "twin": twin, "undo_twin": undo}):
        forecast = for_forecast(pipeline_of(pre, {"per_step": {**after, **own}}))
        kinds = [type(each.transform).__name__ for each in forecast.blocks]
        assert kinds[:3] == ["Normalizer", "Concat", "Reconstruct"], own
    # Joining the fields to y_pred again makes no further ones to invert.
    joined = {**after, "join": {"type": "flatten_to_tensor"}}
    forecast = for_forecast(pipeline_of(pre, {"per_step": joined}))
    kinds = [type(each.transform).__name__ for each in forecast.blocks]
    assert kinds[2:] == ["Reconstruct", "Inverse", "FlattenToTensor"]


def test_the_inverse_of_another_entry():
    block = build("era5_normalizer", TWO | {"key": "y_target_processed"})
    given = {"y_processed": two_levels(), "y_target_processed": two_levels()}
    out = block(given)
    assert out["y_processed"] is given["y_processed"]
    assert out["y_target_processed"]["S"][T].mean() > 200


SHAPE = (6, 3, 2, 4, 5)


@pytest.fixture
def values(rng):
    """Returns six samples on three levels, one level far from 0, with some NaN."""
    x = rng.normal(0, 1, SHAPE) + np.array([0.0, 1e5, -3.0]).reshape(1, 3, 1, 1, 1)
    x[rng.random(SHAPE) < 0.1] = np.nan
    return x.astype(np.float32)


def merged(kind, parts, *args):
    total = kind.of(parts[0], *args)
    for part in parts[1:]:
        total = total.merged(kind.of(part, *args))
    return total


@pytest.mark.parametrize(("axis", "others"), [(1, (0, 2, 3, 4)), (-1, (0, 1, 2, 3))])
@pytest.mark.parametrize("size", [1, 4])
def test_merged_batches_are_the_whole(values, axis, others, size):
    parts = [values[i : i + size] for i in range(0, 6, size)]
    moments, extremes = (
        merged(kind, parts, axis) for kind in (MeanAndVariance, Extremes)
    )
    exact = values.astype(np.float64)
    assert np.array_equal(moments.count, np.isfinite(exact).sum(others))
    assert np.array_equal(extremes.count, moments.count)
    np.testing.assert_allclose(moments.mean, np.nanmean(exact, others), rtol=1e-13)
    np.testing.assert_allclose(moments.variance, np.nanvar(exact, others), rtol=1e-10)
    assert np.array_equal(extremes.low, np.nanmin(values, others))
    assert np.array_equal(extremes.high, np.nanmax(values, others))
    assert extremes.low.dtype == np.float32


def test_a_batch_without_values_changes_nothing(values):
    empty = values[:2].copy()
    empty[:, 1] = np.nan
    for kind, names in (
        (MeanAndVariance, ("count", "mean", "variance")),
        (Extremes, ("count", "low", "high")),
    ):
        alone, after = kind.of(values, 1), kind.of(empty, 1).merged(kind.of(values, 1))
        before = kind.of(values, 1).merged(kind.of(empty, 1))
        for name in names:
            for other in (after, before):
                assert getattr(other, name)[1] == getattr(alone, name)[1], name


def test_digests_keep_ends_and_counts(values):
    digests = merged(Digests, [values[:3], values[3:]], 1, 50)
    attributes = digests.attributes()
    assert np.array_equal(digests.count, MeanAndVariance.of(values, 1).count)
    assert np.array_equal(attributes["min_"], np.nanmin(values, (0, 2, 3, 4)))
    assert attributes["centroids_mean_stacked"].shape[0] == 3
    assert attributes["centroids_count"].max() < 100
