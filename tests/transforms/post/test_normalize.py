"""The postblock `era5_normalizer`: the model's output is fed back unchanged."""

import numpy as np
import pytest
import xarray as xr

from credit_jax.config.base import parse
from credit_jax.config.transforms import PostblocksConfig, PreblocksConfig
from credit_jax.transforms import build_pipeline
from credit_jax.transforms.post.normalize import DenormalizerArgs, build_denormalizer
from credit_jax.transforms.pre.normalize import NormalizerArgs, build_normalizer
from tests.support import assert_close
from tests.transforms.cases import CONCAT

T, SP, MASK = "S/prognostic/3d/T", "S/prognostic/2d/SP", "S/static/2d/mask"


@pytest.fixture
def paths(tmp_path):
    values = {"mean": ([250.0, 280.0], 9.5e4), "std": ([20.0, 15.0], 4e3)}
    for name, (deep, flat) in values.items():
        fields = {"T": ("level", deep), "SP": flat}
        xr.Dataset(fields).to_netcdf(tmp_path / f"{name}.nc", engine="h5netcdf")
    return {f"{name}_path": str(tmp_path / f"{name}.nc") for name in values}


def tree():
    rng = np.random.default_rng(0)
    sizes = {T: 2, SP: 1, MASK: 1}
    return {
        "S": {
            key: rng.normal(size=(2, levels, 1, 3, 4)).astype(np.float32)
            for key, levels in sizes.items()
        }
    }


def test_it_undoes_the_preblock(paths):
    fields = tree()
    block = build_denormalizer(parse(DenormalizerArgs, paths))
    physical = block({"y_processed": fields, "y": 1})["y_processed"]["S"]
    assert np.array_equal(physical[MASK], fields["S"][MASK])
    assert_close(
        physical[SP], fields["S"][SP] * 4e3 + 9.5e4, 1e-7, "surface pressure, Pa"
    )
    normalizer = build_normalizer(parse(NormalizerArgs, paths))
    again = normalizer({"input": {"S": physical}})["input"]["S"]
    for key, field in fields["S"].items():
        assert_close(again[key], field, 3e-6, f"{key}: what is fed back")


def test_forecasts_denormalize_once(paths):
    """`for_forecast` inverts a normalizer that no postblock inverts."""
    norm = {"type": "era5_normalizer", "args": paths}
    after = {"reconstruct": {"type": "reconstruct"}}
    pre = parse(PreblocksConfig, {"per_step": {"norm": norm, "concat": CONCAT}})
    twin = {"type": "reconstruct", "args": {"in_key": "y", "out_key": "twin"}}
    undo = {**norm, "args": {**paths, "key": "twin"}}
    for own in ({}, {"undo": norm}, {"undo": norm, "twin": twin, "undo_twin": undo}):
        post = parse(PostblocksConfig, {"per_step": {**after, **own}})
        forecast = build_pipeline(pre, post).for_forecast()
        kinds = [type(each.transform).__name__ for each in forecast.transforms]
        assert kinds == ["Normalizer", "Concat", "Reconstruct", "Denormalizer"], own


def test_another_entry(paths):
    args = parse(DenormalizerArgs, {**paths, "key": "y_target_processed"})
    block = build_denormalizer(args)
    given = {"y_processed": tree(), "y_target_processed": tree()}
    out = block(given)
    assert out["y_processed"] is given["y_processed"]
    assert out["y_target_processed"]["S"][T].mean() > 200
    with pytest.raises(ValueError, match="'y_target_processed' names no fields"):
        block({"y_processed": tree()})
