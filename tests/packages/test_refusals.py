"""Packages that are refused."""

from __future__ import annotations

import json
import os
import pickle
import struct
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import yaml
from safetensors.numpy import load_file, save_file

from credit_jax.cli.commands import OK
from credit_jax.cli.forecast import main as forecast
from credit_jax.config import ConfigError
from credit_jax.config.custom_objects import is_registered
from credit_jax.extensions.packaging import command as package
from credit_jax.io.digests import record_of
from credit_jax.packages.manifest import (
    CHANNELS,
    CONFIG,
    GRID,
    MANIFEST,
    WEIGHTS,
    read_manifest,
)
from credit_jax.packages.package import open_package
from tests.data.world import NUM_LAT, NUM_LON
from tests.forecast.tiny_run import make_run, read
from tests.models.graph.edges import write_edges
from tests.support.custom_objects import no_objects_left
from tests.support.processes import run_program
from tests.training.tiny import write_yaml

__all__ = ["no_objects_left"]


def change(folder: Path, **keys) -> None:
    """Replaces keys of package.json."""
    path = folder / MANIFEST
    path.write_text(json.dumps(json.loads(path.read_text()) | keys))


def record(folder: Path, *names: str) -> None:
    """Records the current digests of files of a package."""
    path = folder / MANIFEST
    content = json.loads(path.read_text())
    for name in names:
        content["files"][name] = vars(record_of(folder / name))
    path.write_text(json.dumps(content))


def edit_config(folder: Path, edit) -> None:
    """Changes model.yml and its digest."""
    path = folder / CONFIG
    config = yaml.safe_load(path.read_text())
    edit(config)
    path.write_text(yaml.safe_dump(config))
    record(folder, CONFIG)


def edit_weights(folder: Path, edit) -> None:
    """Changes the weights and their digest."""
    state = load_file(folder / WEIGHTS)
    edit(state)
    save_file(state, folder / WEIGHTS)
    record(folder, WEIGHTS)


def refused(folder: Path, *texts: str) -> None:
    """Asserts that opening the package or loading its weights raises one error."""
    with pytest.raises((ValueError, FileNotFoundError)) as caught:
        _ = open_package(folder).weights
    assert type(caught.value) in (ValueError, FileNotFoundError, ConfigError)
    for text in texts:
        assert text in str(caught.value)


def test_it_opens_as_it_is(made):
    assert open_package(made).weights


def test_no_package(tmp_path):
    refused(tmp_path, "no file package.json", "credit-jax package")
    refused(tmp_path / "nothing", "no such folder")


@pytest.mark.parametrize("name", [WEIGHTS, CONFIG, GRID, "files/mean.nc"])
def test_a_missing_file(copy, name):
    (copy / name).unlink()
    refused(copy, f"{name} is missing", "incomplete")


def test_a_file_that_is_not_listed(copy):
    (copy / "extra.txt").write_text("x")
    refused(copy, "extra.txt is not listed", "Remove it")


def test_a_required_file_that_is_not_listed(copy):
    files = json.loads((copy / MANIFEST).read_text())["files"]
    del files[WEIGHTS]
    (copy / WEIGHTS).unlink()
    change(copy, files=files)
    refused(copy, f"{WEIGHTS} is not listed")


@pytest.mark.parametrize("name", [WEIGHTS, "files/mean.nc", "README.md"])
def test_another_digest(copy, name):
    content = bytearray((copy / name).read_bytes())
    content[-1] ^= 1
    (copy / name).write_bytes(content)
    refused(copy, name, "SHA-256", "expected", "get the package again")


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("files/code.py", "a package runs no code of its own: got the file"),
        ("no_such_package.models", "there is no module 'no_such_package'; install"),
    ],
)
def test_references_to_code(copy, module, text):
    named = {"a": {"object_type": "model", "module_path": module}}
    edit_config(copy, lambda config: config.update(custom_objects=named))
    refused(copy, f"{CONFIG}", "custom_objects.a", text)


def test_a_reference_to_an_installed_module(
    copy, tmp_path, monkeypatch, no_objects_left
):
    text = "from credit_jax.losses import LOSSES\nmine = LOSSES['mse']\n"
    (tmp_path / "their_module.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    named = {"mine": {"object_type": "loss", "module_path": "their_module"}}
    edit_config(copy, lambda config: config.update(custom_objects=named))
    assert open_package(copy).weights
    assert is_registered("loss", "mine")


def test_a_newer_schema(copy):
    change(copy, schema_version=3)
    refused(copy, "schema_version is 3", "up to 2", "update credit_jax")


@pytest.mark.parametrize("version", [None, "1", 0, True, 1.5])
def test_a_schema_that_is_none(copy, version):
    change(copy, schema_version=version)
    refused(copy, "schema_version is", "expected 1")


@pytest.mark.parametrize("text", ["", "[]", "{", '{"schema_version": 1}', "nul\0"])
def test_a_manifest_that_is_none(copy, text):
    (copy / MANIFEST).write_text(text)
    refused(copy, MANIFEST)


def test_a_key_that_is_there_twice(copy):
    text = (copy / MANIFEST).read_text()
    (copy / MANIFEST).write_text(text.replace("{", '{"step": 1,', 1))
    refused(copy, "'step' occurs twice")


@pytest.mark.parametrize("name", [WEIGHTS, CONFIG, MANIFEST])
def test_a_link(copy, tmp_path, name):
    (copy / name).rename(tmp_path / "moved")
    (copy / name).symlink_to(tmp_path / "moved")
    refused(copy, name)


def test_a_folder_that_is_a_link(copy, tmp_path):
    (copy / "files").rename(tmp_path / "moved")
    (copy / "files").symlink_to(tmp_path / "moved")
    refused(copy, "files", "is a link")


@pytest.mark.parametrize(
    "name",
    [
        "../outside.nc",
        "files/../../outside.nc",
        "/etc/passwd",
        "files/..",
        "..\\outside.nc",
        "files/a.zarr/../../../outside",
    ],
)
def test_a_name_that_leads_out(copy, name):
    files = json.loads((copy / MANIFEST).read_text())["files"]
    files[name] = files[GRID]
    change(copy, files=files)
    refused(copy, "leads out of the package", "Do not use")


@pytest.mark.parametrize(
    "name", ["code.py", "files/scaler.pkl", "weights.pt", "files/a.nc\n", "files/.nc/x"]
)
def test_a_name_that_no_package_has(copy, name):
    files = json.loads((copy / MANIFEST).read_text())["files"]
    files[name] = files[GRID]
    change(copy, files=files)
    refused(copy, "a package has no file")


@pytest.mark.parametrize("name", ["files/mean.nc", GRID, CHANNELS, CONFIG])
def test_a_pickle_under_another_name(copy, name):
    (copy / name).write_bytes(pickle.dumps({"a": np.ones(3)}))
    record(copy, name)
    refused(copy, name, "its content is not that of a")


@pytest.mark.parametrize(
    "link", [h5py.SoftLink("/T"), h5py.ExternalLink("/etc/passwd", "/x")]
)
def test_a_file_with_links(copy, link):
    with h5py.File(copy / "files/mean.nc", "a") as file:
        file["link"] = link
    record(copy, "files/mean.nc")
    refused(copy, "files/mean.nc", "/link is a link to")


def test_a_config_that_names_a_file_outside(copy):
    def edit(config):
        args = config["preblocks"]["per_step"]["norm"]["args"]
        args["mean_path"] = "/etc/passwd"

    edit_config(copy, edit)
    refused(copy, "norm.args.mean_path", "'/etc/passwd' is no file of the package")


def test_a_config_that_names_data(copy):
    def edit(config):
        variables = config["data"]["source"]["ERA5"]["variables"]
        variables["prognostic"]["path"] = "/home/someone/w_%Y.nc"

    edit_config(copy, edit)
    refused(copy, "prognostic.path: a package names no data")


def test_a_config_of_another_model(copy):
    edit_config(copy, lambda config: config["model"].update(type="wxformer"))
    refused(copy, "model.type is 'wxformer'", "'tiny'")


def test_a_config_without_a_model(copy):
    edit_config(copy, lambda config: config.pop("model"))
    refused(copy, "model: missing")


def test_weights_of_another_shape(copy):
    edit_config(copy, lambda config: config["model"].update(hidden=4))
    refused(copy, "shape: dense/up is (7, 8), expected (7, 4)", "not the weights of")


def test_weights_of_another_dtype(copy):
    def edit(state):
        state["dense/bias"] = state["dense/bias"].astype(np.float64)

    edit_weights(copy, edit)
    refused(copy, "dtype: dense/bias is float64, expected float32")


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_not_finite(copy, value):
    def edit(state):
        state["dense/up"][0, 0] = value

    edit_weights(copy, edit)
    refused(copy, "not finite: dense/up")


def test_weights_that_are_missing_or_unknown(copy):
    def edit(state):
        state["other"] = state.pop("dense/bias")

    edit_weights(copy, edit)
    refused(copy, "missing: dense/bias", "unexpected: other")


@pytest.mark.parametrize(
    "content",
    [b"", b"\0" * 7, struct.pack("<Q", 1 << 40) + b"{}", pickle.dumps([1] * 50)],
)
def test_weights_that_are_no_safetensors(copy, content):
    (copy / WEIGHTS).write_bytes(content)
    record(copy, WEIGHTS)
    refused(copy, WEIGHTS, "not a whole safetensors file")


def test_a_channel_that_is_there_twice(copy):
    channels = json.loads((copy / CHANNELS).read_text())
    channels["input"][1] = channels["input"][0]
    (copy / CHANNELS).write_text(json.dumps(channels))
    record(copy, CHANNELS)
    refused(copy, "input channels 0 and 1 are both ERA5/prognostic/3d/U at level 1.0")


@pytest.mark.parametrize("text", ["[]", "{}", '{"input": 1, "output": []}'])
def test_channels_of_another_content(copy, text):
    (copy / CHANNELS).write_text(text)
    record(copy, CHANNELS)
    refused(copy, CHANNELS, "no list of channels")


def test_a_pipe_in_place_of_a_file(copy):
    (copy / "README.md").unlink()
    os.mkfifo(copy / "README.md")
    refused(copy, "README.md", "is a link or a device")


def test_the_manifest_is_read_before_any_other_file(copy):
    (copy / WEIGHTS).unlink()
    assert read_manifest(copy).step == 3


# The package of a graph model contains its edge file.


@pytest.mark.slow
def test_forecasts_need_nothing_else(world: Path, data: Path, tmp_path: Path) -> None:
    """The edge file of the training is deleted before the package is used."""
    edges = tmp_path / "edges.nc"
    write_edges(edges, NUM_LAT, NUM_LON, 5)
    graph: dict[str, Any] = {
        "type": "graph",
        "n_variables": 2,
        "n_surface_variables": 1,
        "n_static_variables": 2,
        "levels": 2,
        "hidden_size": 8,
        "dim_head": 4,
        "n_blocks": 1,
        "edge_path": str(edges),
        "image_height": NUM_LAT,
        "image_width": NUM_LON,
    }
    run = Path(make_run(world, tmp_path / "graph", model=graph, data__history_len=2))
    raw = yaml.safe_load(run.read_text())
    del raw["data"]["source"]["ERA5"]["variables"]["diagnostic"]
    write_yaml(run, raw)
    saved = os.fspath(run.parent / "run")
    own = ["--config", str(run), "--checkpoint", saved]
    assert package.main([*own, "--out", str(tmp_path / "made")]) == OK
    assert forecast([*own, "--out", str(tmp_path / "of_run"), "--cache", "none"]) == OK
    edges.unlink()
    options = ["--package", str(tmp_path / "made"), "--data", str(data)]
    times = [o for d in ("1999-12-30T00",) for o in ("--init-time", d)]
    out = ["--out", str(tmp_path / "of_package"), "--cache", "none"]
    assert forecast([*options, *times, "--length", "18h", *out]) == OK
    ours, theirs = (read(tmp_path / name) for name in ("of_package", "of_run"))
    for name in ours.data_vars:
        np.testing.assert_array_equal(
            ours[name].values[0], theirs[name].values[0], err_msg=str(name)
        )


# Mutated packages are read, or refused by one error.


@pytest.mark.slow
@pytest.mark.parametrize(
    "seeds",
    [(0, 60), (60, 180)],
    ids=["short", "long"],
)
def test_mutations(made: Path, tmp_path: Path, seeds: tuple[int, int]) -> None:
    folders = str(made), str(tmp_path)
    print(run_program("tests.packages.fuzz", *folders, *map(str, seeds)))
