"""What may differ between a run and the config that its weights are used for."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import xarray as xr

from credit_jax.config import ConfigError, build_config
from credit_jax.config.data import DataConfig
from credit_jax.plan.run_record import RunRecord, static_files
from tests.data.world import raw_config, set_key
from tests.training.tiny import tiny_config

NORM = "preblocks.per_step.norm"


@pytest.fixture
def raw(tmp_path):
    """A config with the files of its normalizer, and others beside them."""
    for name, value in (("mean", 1.0), ("std", 2.0), ("other", 3.0)):
        xr.Dataset({"T": ("level", np.full(4, value))}).to_netcdf(
            tmp_path / f"{name}.nc"
        )
    return raw_config(tmp_path)


def compared(raw, changed, **options):
    run, here = (RunRecord.of(build_config(each)) for each in (raw, changed))
    return replace(run, where="RUN/checkpoints/3").compare(here, **options)


def changed_by(raw, key, value):
    changed = copy.deepcopy(raw)
    set_key(changed, key, value)
    return changed


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("data__timestep", "12h", r"data.timestep \('6h' there, '12h' here\)"),
        ("data__history_len", 2, r"data.history_len \(1 there, 2 here\)"),
        ("model__dim", [8, 16, 32, 64], r"model.dim \(\["),
        (f"{NORM.replace('.', '__')}__args__levels", [0, 1], rf"{NORM}.args.levels \("),
    ],
)
def test_what_may_not_differ_is_an_error_with_both_values(raw, key, value, text):
    for options in ({}, {"forecasts": True}):
        with pytest.raises(ConfigError, match=text):
            compared(raw, changed_by(raw, key, value), **options)
    if key.startswith("data"):
        section = changed_by(raw, key, value)["data"]
        other = {**raw, "inference": {"data": section}}
        assert not compared(raw, other)
        with pytest.raises(ConfigError, match=rf"inference\.{text}"):
            compared(raw, other, forecasts=True)
    # A new run may begin with these weights, which is said.
    (note,) = compared(raw, changed_by(raw, key, value), begins=True)
    assert note.startswith("not as RUN/checkpoints/3 was trained: ")


def test_blocks_are_compared_by_order_type_arguments_and_files(raw, tmp_path):
    changed = copy.deepcopy(raw)
    blocks = changed["preblocks"]["per_step"]
    norm = blocks.pop("norm")
    with pytest.raises(ConfigError, match=r"\('era5_normalizer, concat' there"):
        compared(raw, changed)
    changed["preblocks"]["per_step"] = {"renamed": norm, **blocks}
    assert not compared(raw, changed)
    norm["args"]["std_path"] = f"{tmp_path}/other.nc"
    with pytest.raises(ConfigError, match=r"renamed.args.std_path \('SHA-256 "):
        compared(raw, changed)
    # The same contents at another path; and defaults that are written out.
    (tmp_path / "copy.nc").write_bytes((tmp_path / "std.nc").read_bytes())
    norm["args"]["std_path"] = f"{tmp_path}/copy.nc"
    # Forecasts undo what preblocks do, whether the config says so or not.
    undone = {"reconstruct": {"type": "reconstruct"}, "back": copy.deepcopy(norm)}
    changed["postblocks"] = {"per_step": undone}
    changed["data"]["history_len"] = None
    changed["data"]["timestep"] = "360min"
    assert not compared(raw, changed)
    norm["args"]["std_path"] = f"{tmp_path}/nowhere.nc"
    (note,) = compared(raw, changed)
    assert f"not compared, as there is no {tmp_path}/nowhere.nc" in note


def test_what_may_differ_is_said_once(raw):
    changed = changed_by(raw, "trainer__train_batch_size", 2)
    changed = changed_by(changed, "data__end_datetime", "2000-01-04")
    changed = changed_by(changed, "model__attn_dropout", 0.1)
    changed["data"]["source"]["ERA5"]["variables"]["static"]["path"] = "elsewhere.nc"
    (note,) = compared(raw, changed)
    assert "trainer.train_batch_size (3 there, 2 here)" in note
    assert note.count("there") == 3
    (note,) = compared(raw, changed, forecasts=True)
    assert "data.end_datetime" in note
    assert "trainer" not in note


def test_files_of_static_fields_alone(tmp_path):
    raw = tiny_config(tmp_path, tmp_path / "run")["data"]
    kinds = raw["source"]["ERA5"]["variables"]
    named = static_files(DataConfig(**raw), "data")
    assert named == {
        "data.source.ERA5.variables.static.path": kinds["static"]["path"],
    }
    kinds["static"]["path"] = kinds["prognostic"]["path"]
    assert static_files(DataConfig(**raw), "data") == {}, "times are added to it"
    del kinds["static"]
    assert static_files(DataConfig(**raw), "data") == {}
