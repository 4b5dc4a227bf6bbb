"""A package contains bitwise equal weights and all that forecasts need but data."""

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import chex
import jax
import numpy as np
import pytest
import xarray as xr
import yaml
from safetensors.numpy import load_file

from credit_jax.checkpoint.run import open_run
from credit_jax.cli import forecast, model
from credit_jax.cli.commands import OK
from credit_jax.config.components import file_fields
from credit_jax.extensions.packaging import command as package
from credit_jax.models.registry import build
from credit_jax.packages.arrays import read_weights, write_weights
from credit_jax.packages.manifest import CONFIG, GRID, MANIFEST, WEIGHTS
from credit_jax.packages.package import open_package, restore
from credit_jax.transforms import TRANSFORMS
from tests.data.world import NUM_LAT, NUM_LON
from tests.forecast.tiny_run import make_run, read
from tests.models.graph.edges import write_edges
from tests.reference.training import GEN2_CONFIG
from tests.training.tiny import write_yaml

START = "--init-time=2000-01-01", "--steps=3", "--format=zarr"


def forecast_of(out, *options):
    """Forecasts by the command."""
    given = ["--out", os.fspath(out), "--cache", "none", *map(str, options)]
    assert forecast.main(given) == OK
    return read(out)


def weights_of(run):
    """Of the checkpoint of a run: its model, parameters and state of the model."""
    model_def = build(yaml.safe_load(run.read_text())["model"])
    return model_def, *open_run(run.parent / "run").on_host(model_def)


def test_the_weights_are_those_of_the_checkpoint_bit_for_bit(run, made, make_mesh):
    _, *expected = weights_of(run)
    found = open_package(made).weights
    chex.assert_trees_all_equal(found, tuple(expected))
    chex.assert_trees_all_equal_dtypes(found, tuple(expected))
    restored, params, _ = restore(made, make_mesh())
    assert restored.channels == open_package(made).schema
    chex.assert_trees_all_equal(jax.device_get(params), expected[0])


@pytest.mark.slow(but=["data=none,tensor=2,domain=2"])
@pytest.mark.parametrize("parallelism", ["data=none", "data=none,tensor=2,domain=2"])
def test_a_forecast_from_the_package_is_that_of_the_run(
    run, made, data, tmp_path, monkeypatch, parallelism
):
    mesh = ("--parallelism", parallelism)
    of_run = forecast_of(tmp_path / "a", "--config", run, *START, *mesh)
    # In another folder, without any file of the run.
    moved = shutil.copytree(made, tmp_path / "elsewhere")
    monkeypatch.chdir(tmp_path)
    given = "--package", moved, "--data", data
    of_package = forecast_of(tmp_path / "b", *given, *START, *mesh)
    xr.testing.assert_identical(of_run.drop_attrs(), of_package.drop_attrs())
    assert np.isfinite(of_package["T"].values).all()


def test_units_of_the_package_describe_what_data_files_do_not(
    made, data, tmp_path, monkeypatch
):
    """Such as those of diagnostic variables, whose files a forecast does not need."""
    opened = open_package(made)
    rain = {"units": "m", "long_name": "Precipitation"}
    known = {"T": {"units": "K"}, "TP": rain}
    output = opened.channels["output"]
    described = {each["key"]: known.get(each["variable"], {}) for each in output}
    opened = replace(opened, described=described)
    monkeypatch.setattr(model, "open_package", lambda *_: opened)
    store = forecast_of(tmp_path, "--package", made, "--data", data, *START)
    attributes = {name: store[name].attrs for name in ("T", "TP", "SP")}
    assert attributes == {**known, "SP": {}}


def test_the_files(made, world, tmp_path):
    """Their names and modes; none names the machine or what only training reads."""
    content = json.loads((made / MANIFEST).read_text())
    assert (content["schema_version"], content["step"]) == (1, 3)
    assert content["names"] == "credit_jax"
    assert content["provenance"]["training"]["timestep"] == "6h"
    files = {path for path in made.rglob("*") if path.is_file()}
    names = {path.relative_to(made).as_posix() for path in files}
    assert {*content["files"]} == names - {MANIFEST}
    (tmp_path / "new").touch()
    assert {path.stat().st_mode for path in files} == {
        (tmp_path / "new").stat().st_mode
    }
    for path in files:
        if path.suffix in (".json", ".yml", ".md", ".yaml"):
            assert str(world) not in path.read_text(), path
    written = yaml.safe_load((made / CONFIG).read_text())
    assert "path" not in written["data"]["source"]["ERA5"]["variables"]["prognostic"]
    norm = written["preblocks"]["per_step"]["norm"]["args"]
    assert norm["mean_path"] == "files/mean.nc"
    assert not {"trainer", "loss", "save_loc"} & written.keys()


def test_channels_grid_and_card(made, world):
    channels = json.loads((made / "channels.json").read_text())
    deep = [(name, level) for name in "UT" for level in (1.0, 4.6)]
    flat = [(name, None) for name in ("SP", "LSM", "tsi")]
    assert [(c["variable"], c["level"]) for c in channels["input"]] == [*deep, *flat]
    assert channels["output"][-1]["variable"] == "TP"
    with (
        xr.open_dataset(made / GRID) as grid,
        xr.open_dataset(world / "static.nc") as static,
        xr.open_dataset(made / "static/ERA5.nc") as copied,
    ):
        np.testing.assert_array_equal(grid.latitude, static.latitude)
        np.testing.assert_array_equal(copied.LSM, static.LSM)
        assert copied.LSM.dtype == static.LSM.dtype
    card = (made / "README.md").read_text()
    score = "| T at 500 hPa (K) | 1.25 |"
    for text in ("1999-12-28 to 2000-01-05", "license: CC-BY-4.0", "average", score):
        assert text in card
    assert "prognostic:" in card
    assert "diagnostic:" not in card.replace("prognostic:", ""), "no forecast reads it"
    assert "{" not in card


def test_weights_that_are_not_finite_are_not_packaged(run, tmp_path):
    model_def, params, state = weights_of(run)
    path = next(iter(params))
    params[path] = np.full_like(params[path], np.nan)
    with pytest.raises(ValueError, match="NaN or infinite weights"):
        write_weights(tmp_path / WEIGHTS, model_def, params, state)


def test_credit_s_names_come_back_bitwise(tmp_path):
    """Spectral norm vectors and stacked layers are converted to CREDIT's."""
    model_def = build(yaml.safe_load(GEN2_CONFIG.read_text())["model"])

    @jax.jit
    def init(keys):
        params = model_def.init(keys[0])
        return params, model_def.init_model_state(keys[1], params)

    weights = jax.device_get(init(jax.random.split(jax.random.key(0))))
    write_weights(tmp_path / WEIGHTS, model_def, *weights)
    assert "layers.1.1.layers.0.0.to_qkv.weight_orig" in load_file(tmp_path / WEIGHTS)
    found = read_weights(tmp_path / WEIGHTS, model_def)
    jax.tree.map(np.testing.assert_array_equal, found, weights)


def test_every_argument_that_is_a_path_is_marked():
    """Otherwise a package would lose its file."""
    endings = ("_path", "_file", "_physics")
    for section, transforms in TRANSFORMS.items():
        for name, transform in transforms.items():
            marked = {keys[-1] for keys, _ in file_fields(transform)}
            paths = {k for k in transform.model_fields if k.endswith(endings)}
            assert paths <= marked, f"{section}: {name}: make {paths - marked} FilePath"


@pytest.mark.slow
def test_forecasts_of_a_graph_need_nothing_else(world, data, tmp_path):
    """The edge file of the training is deleted before the package is used."""
    edges = tmp_path / "edges.nc"
    write_edges(edges, NUM_LAT, NUM_LON, 5)
    graph = {"type": "graph", "n_variables": 2, "n_surface_variables": 1}
    graph |= {"n_static_variables": 2, "levels": 2, "hidden_size": 8, "dim_head": 4}
    graph |= {"n_blocks": 1, "edge_path": str(edges)}
    graph |= {"image_height": NUM_LAT, "image_width": NUM_LON}
    run = Path(make_run(world, tmp_path / "graph", model=graph, data__history_len=2))
    raw = yaml.safe_load(run.read_text())
    del raw["data"]["source"]["ERA5"]["variables"]["diagnostic"]
    write_yaml(run, raw)
    own = ["--config", str(run), "--checkpoint", str(run.parent / "run")]
    assert package.main([*own, "--out", str(tmp_path / "made")]) == OK
    of_run = forecast_of(tmp_path / "of_run", *own)
    edges.unlink()
    options = "--package", tmp_path / "made", "--data", data, "--length=18h"
    start = "--init-time=1999-12-30T00"
    of_package = forecast_of(tmp_path / "of_package", *options, start)
    for name in of_package.data_vars:
        ours, theirs = (each[name].values[0] for each in (of_package, of_run))
        np.testing.assert_array_equal(ours, theirs, err_msg=str(name))
