"""Packages that are refused, and options of forecasts from them."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import struct
from pathlib import Path

import h5py
import numpy as np
import pytest
import xarray as xr
import yaml
from safetensors.numpy import load_file, save_file

from credit_jax.cli.forecast import main as forecast
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
from tests.messages.engine import *  # noqa: F403
from tests.messages.engine import Cases
from tests.support.processes import run_program

CASES = Cases("packages")
MEAN = "files/mean.nc"


def recorded(folder: Path, *names: str) -> None:
    """Records the current digests of files of a package."""
    path = folder / MANIFEST
    content = json.loads(path.read_text())
    content["files"] |= {name: vars(record_of(folder / name)) for name in names}
    path.write_text(json.dumps(content))


# Edits of the folder of a package.
def unlinked(name):
    return lambda folder: (folder / name).unlink()


def written(name, content, *, record=True):
    def edit(folder):
        (folder / name).write_bytes(content)
        if record:
            recorded(folder, name)

    return edit


def manifest(change):
    """Changes what package.json says."""

    def edit(folder):
        content = json.loads((folder / MANIFEST).read_text())
        change(content)
        (folder / MANIFEST).write_text(json.dumps(content))

    return edit


def listed(name):
    """Lists one more file."""
    return manifest(lambda m: m["files"].update({name: m["files"][GRID]}))


def config(change):
    """Changes model.yml and its digest."""

    def edit(folder):
        content = yaml.safe_load((folder / CONFIG).read_text())
        change(content)
        (folder / CONFIG).write_text(yaml.safe_dump(content))
        recorded(folder, CONFIG)

    return edit


def weights(change):
    """Changes the weights and their digest."""

    def edit(folder):
        state = load_file(folder / WEIGHTS)
        change(state)
        save_file(state, folder / WEIGHTS)
        recorded(folder, WEIGHTS)

    return edit


def linked(name):
    def edit(folder):
        (folder / name).rename(folder.parent / "moved")
        (folder / name).symlink_to(folder.parent / "moved")

    return edit


def with_link(link):
    def edit(folder):
        with h5py.File(folder / MEAN, "a") as file:
            file["link"] = link
        recorded(folder, MEAN)

    return edit


def twice(folder):
    """A key, and a channel."""
    content = json.loads((folder / CHANNELS).read_text())
    content["input"][1] = content["input"][0]
    written(CHANNELS, json.dumps(content).encode())(folder)


def key_twice(folder):
    text = (folder / MANIFEST).read_text()
    (folder / MANIFEST).write_text(text.replace("{", '{"step": 1,', 1))


def unlisted_weights(folder):
    (folder / WEIGHTS).unlink()
    manifest(lambda content: content["files"].pop(WEIGHTS))(folder)


def pipe(folder):
    (folder / "README.md").unlink()
    os.mkfifo(folder / "README.md")


def code(module):
    named = {"a": {"object_type": "model", "module_path": module}}
    return config(lambda content: content.update(custom_objects=named))


def norm(content):
    return content["preblocks"]["per_step"]["norm"]["args"]


def fields(content):
    return content["data"]["source"]["ERA5"]["variables"]["prognostic"]


PICKLE = pickle.dumps({"a": [1.0] * 3})
OUTSIDE = {"mean_path": "/etc/passwd"}
EDITS = {
    **{
        f"no {name}": unlinked(name) for name in (MANIFEST, WEIGHTS, CONFIG, GRID, MEAN)
    },
    "no folder": shutil.rmtree,
    "a file more": written("extra.txt", b"x", record=False),
    "weights that are not listed": unlisted_weights,
    "code in the package": code("files/code.py"),
    "code that is not installed": code("no_such_package.models"),
    **{
        f"schema {version}": manifest(lambda m, v=version: m.update(schema_version=v))
        for version in (3, None, "1", 0, True, 1.5)
    },
    **{
        f"a manifest of {text}": written(MANIFEST, text.encode(), record=False)
        for text in ("", "[]", "{", '{"schema_version": 1}', "nul\0")
    },
    "a key twice": key_twice,
    "a channel twice": twice,
    **{f"a link {name}": linked(name) for name in (WEIGHTS, CONFIG, MANIFEST, "files")},
    "a pipe": pipe,
    **{
        f"the name {name!r}": listed(name)
        for name in (
            *("../outside.nc", "files/../../outside.nc", "/etc/passwd", "files/.."),
            *("..\\outside.nc", "files/a.zarr/../../../outside", "code.py"),
            *("files/scaler.pkl", "weights.pt", "files/a.nc\n", "files/.nc/x"),
        )
    },
    **{
        f"pickle {name}": written(name, PICKLE)
        for name in (MEAN, GRID, CHANNELS, CONFIG)
    },
    "a soft link": with_link(h5py.SoftLink("/T")),
    "an external link": with_link(h5py.ExternalLink("/etc/passwd", "/x")),
    "a file outside": config(lambda c: norm(c).update(OUTSIDE)),
    "data": config(lambda c: fields(c).update(path="/home/someone/w_%Y.nc")),
    "another model": config(lambda c: c["model"].update(type="wxformer")),
    "no model": config(lambda c: c.pop("model")),
    "another shape": config(lambda c: c["model"].update(hidden=4)),
    "another dtype": weights(
        lambda s: s.update({"dense/bias": s["dense/bias"].astype(np.float64)})
    ),
    **{
        f"{value} as a weight": weights(lambda s, v=value: s["dense/up"].fill(v))
        for value in (np.nan, np.inf)
    },
    "other names": weights(lambda s: s.update(other=s.pop("dense/bias"))),
    **{
        f"weights of {len(content)} bytes": written(WEIGHTS, content)
        for content in (b"", b"\0" * 7, struct.pack("<Q", 1 << 40) + b"{}", PICKLE)
    },
    **{
        f"channels of {text}": written(CHANNELS, text.encode())
        for text in ("[]", "{}", '{"input": 1, "output": []}')
    },
}


def opened(name, copy):
    EDITS[name](copy)
    return lambda: bool(open_package(copy).weights)


CASES.rows(opened, *EDITS)


def test_a_package_is_checked_before_it_is_used(made, copy):
    assert open_package(made).weights
    for name in (WEIGHTS, MEAN, "README.md"):
        content = (copy / name).read_bytes()
        (copy / name).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        with pytest.raises(ValueError, match=rf"{name}: SHA-256 .*get the package ag"):
            open_package(copy)
        (copy / name).write_bytes(content)
    # The manifest is read before any other file.
    (copy / WEIGHTS).unlink()
    assert read_manifest(copy).step == 3


def test_a_reference_to_an_installed_module(copy, tmp_path, monkeypatch):
    text = "from credit_jax.losses import LOSSES\nmine = LOSSES['mse']\n"
    (tmp_path / "their_module.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    named = {"mine": {"object_type": "loss", "module_path": "their_module"}}
    config(lambda content: content.update(custom_objects=named))(copy)
    assert open_package(copy).weights
    assert is_registered("loss", "mine")


def forecasts(*options, run, made, data, tmp_path):
    """A forecast whose options name the package, the run and files of data."""
    nested = tmp_path / "data.yml"
    nested.write_text(yaml.safe_dump({"data": yaml.safe_load(data.read_text())}))
    fixed = ["--init-time=2000-01-01", "--steps=1", "--cache=none", "--format=zarr"]
    named = {"PACKAGE": made, "DATA": data, "RUN": run, "NESTED": nested}
    given = [str(named.get(word, word)) for word in options]
    return lambda: forecast([*given, *fixed, "--out", str(tmp_path / "out")])


PACKAGE, PROGNOSTIC = ("--package", "PACKAGE"), "data.source.ERA5.variables.prognostic"
CASES.rows(
    forecasts,
    (*PACKAGE, "--config", "model.yml"),
    (*PACKAGE, "--weights", "last"),
    (),
    ("--config", "model.yml", "--data", "d.yml"),
    ("--package", "no_such_folder"),
    PACKAGE,
    (*PACKAGE, "--data", "NESTED"),
    (*PACKAGE, "--data", "DATA", "--set", f"{PROGNOSTIC}.vars_3D=[T,U]"),
    ("--config", "RUN", "--checkpoint", "PACKAGE"),
    name="forecast",
)


@CASES.case
def data_of_another_grid(run, made, data, world, tmp_path):
    for year in (1999, 2000):
        with xr.open_dataset(world / f"w_{year}.nc") as part:
            turned = part.assign_coords(longitude=part.longitude + 1)
            turned.to_netcdf(tmp_path / f"w_{year}.nc")
    turned = tmp_path / "turned.yml"
    turned.write_text(data.read_text().replace(str(world), str(tmp_path)))
    options = *PACKAGE, "--data", str(turned)
    return forecasts(*options, run=run, made=made, data=data, tmp_path=tmp_path)


def packaged(*options, run, made, tmp_path):
    (tmp_path / "scores.csv").write_text("a,b\n1,2\n")
    files = {"MADE": made, "SCORES": tmp_path / "scores.csv", "NEW": tmp_path / "new"}
    given = ["--config", str(run), "--checkpoint", str(run.parent / "run")]
    return lambda: package.main([*given, *(str(files.get(o, o)) for o in options)])


CASES.rows(
    packaged,
    ("--out", "MADE"),
    ("--out", "NEW", "--scores", "SCORES"),
    name="package",
)


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [(0, 60), (60, 180)], ids=["short", "long"])
def test_mutations(made, tmp_path, seeds):
    """Mutated packages are read, or refused by one error."""
    folders = str(made), str(tmp_path)
    print(run_program("tests.packages.fuzz", *folders, *map(str, seeds)))
