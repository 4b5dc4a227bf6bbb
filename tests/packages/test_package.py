"""A package contains bitwise equal weights and all that forecasts need but data."""

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest
import xarray as xr
import yaml
from safetensors.numpy import load_file

from credit_jax.checkpoint.run import open_run
from credit_jax.cli import forecast, model
from credit_jax.cli.commands import OK, USER_ERROR
from credit_jax.config.components import file_fields
from credit_jax.extensions.packaging import command as package
from credit_jax.models.registry import build
from credit_jax.packages.manifest import CONFIG, GRID, MANIFEST, WEIGHTS
from credit_jax.packages.package import open_package, restore
from credit_jax.packages.weights import read_weights, write_weights
from credit_jax.transforms import TRANSFORMS

START = ("--init-time", "2000-01-01", "--steps", "3", "--format", "zarr")


def run_forecast(out, *options):
    """Runs the command; returns its exit code."""
    return forecast.main(["--out", os.fspath(out), "--cache", "none", *options])


def test_the_weights_are_those_of_the_checkpoint_bit_for_bit(run, made):
    raw = yaml.safe_load(run.read_text())
    model_def = build(raw["model"])
    params, state = open_run(run.parent / "run").on_host(model_def)
    found, own = open_package(made).weights
    assert found.keys() == params.keys()
    for path, array in params.items():
        assert found[path].dtype == array.dtype
        np.testing.assert_array_equal(found[path], array)
    for name, collection in state.items():
        for path, leaves in collection.items():
            for leaf, array in leaves.items():
                np.testing.assert_array_equal(own[name][path][leaf], array)


@pytest.mark.slow(but=["data=none,tensor=2,domain=2"])
@pytest.mark.parametrize("parallelism", ["data=none", "data=none,tensor=2,domain=2"])
def test_a_forecast_from_the_package_is_that_of_the_run(
    run, made, data, world, tmp_path, monkeypatch, parallelism
):
    mesh = ("--parallelism", parallelism)
    assert run_forecast(tmp_path / "a", "--config", str(run), *START, *mesh) == OK
    # In another folder, without any file of the run.
    moved = shutil.copytree(made, tmp_path / "elsewhere")
    monkeypatch.chdir(tmp_path)
    given = ("--package", str(moved), "--data", str(data))
    assert run_forecast(tmp_path / "b", *given, *START, *mesh) == OK
    a, b = (xr.open_dataset(tmp_path / name / "forecast.zarr").load() for name in "ab")
    xr.testing.assert_identical(a.drop_attrs(), b.drop_attrs())
    assert np.isfinite(b["T"].values).all()


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
    given = ("--package", str(made), "--data", str(data), *START)
    assert run_forecast(tmp_path, *given) == OK
    with xr.open_dataset(tmp_path / "forecast.zarr") as store:
        assert store["T"].attrs == {"units": "K"}
        assert store["TP"].attrs == rain
        assert store["SP"].attrs == {}


def test_nothing_in_the_package_names_the_machine(made, world):
    for path in made.rglob("*"):
        if path.suffix in (".json", ".yml", ".md", ".yaml"):
            assert str(world) not in path.read_text(), path
    written = yaml.safe_load((made / CONFIG).read_text())
    assert "path" not in written["data"]["source"]["ERA5"]["variables"]["prognostic"]
    norm = written["preblocks"]["per_step"]["norm"]["args"]
    assert norm["mean_path"] == "files/mean.nc"
    assert not {"trainer", "loss", "save_loc"} & written.keys()


def test_all_may_read_what_a_new_file_lets_them_read(made, tmp_path):
    (tmp_path / "new").touch()
    mode = (tmp_path / "new").stat().st_mode
    files = [path for path in made.rglob("*") if path.is_file()]
    assert made / WEIGHTS in files
    assert {path.stat().st_mode for path in files} == {mode}


def test_channels_grid_and_card(made, world):
    channels = json.loads((made / "channels.json").read_text())
    own = [(c["variable"], c["level"]) for c in channels["input"]]
    assert own == [
        ("U", 1.0),
        ("U", 4.6),
        ("T", 1.0),
        ("T", 4.6),
        ("SP", None),
        ("LSM", None),
        ("tsi", None),
    ]
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
    for text in ("1999-12-28 to 2000-01-05", "license: unknown", "moving average"):
        assert text in card
    assert "prognostic:" in card
    assert "diagnostic:" not in card.replace("prognostic:", ""), "no forecast reads it"
    assert "{" not in card


def test_the_scores_are_in_the_card(run, tmp_path):
    scores = tmp_path / "given.csv"
    head = "metric,system,channel,variable,level,level_units,units,region,lead_hours,"
    head += "value\n"
    row = "rmse,forecast,T500,T,500.0,hPa,K,global,{},{}\n"
    scores.write_text(head + row.format(6.0, 1.25) + row.format(24.0, 2.5))
    options = ["--config", str(run), "--checkpoint", str(run.parent / "run")]
    options += ["--scores", str(scores), "--license", "CC-BY-4.0"]
    assert package.main([*options, "--out", str(tmp_path / "scored")]) == OK
    card = (tmp_path / "scored/README.md").read_text()
    assert "license: CC-BY-4.0" in card
    assert "| RMSE, global | 6 h | 24 h |" in card
    assert "| T at 500 hPa (K) | 1.25 | 2.5 |" in card
    scores.write_text("a,b\n1,2\n")
    again = [*options, "--out", str(tmp_path / "again")]
    assert package.main(again) == USER_ERROR
    assert not (tmp_path / "again").exists()


def test_a_package_needs_data(made, data, tmp_path, capsys):
    given = ("--package", str(made))
    assert run_forecast(tmp_path / "a", *given, *START) == USER_ERROR
    error = capsys.readouterr().err
    assert "path: missing" in error
    assert "--data" in error


def test_a_package_is_restored_on_a_mesh(made, make_mesh):
    model, params, _ = restore(made, make_mesh())
    expected, _ = open_package(made).weights
    assert model.channels == open_package(made).schema
    assert all(np.array_equal(params[path], x) for path, x in expected.items())


def test_a_package_in_place_of_a_checkpoint(run, made, tmp_path, capsys):
    options = ("--config", str(run), "--checkpoint", str(made))
    assert run_forecast(tmp_path / "a", *options, *START) == USER_ERROR
    text = f"--checkpoint: {made} is a package, which has its config and weights; give"
    assert text in " ".join(capsys.readouterr().err.split())


def test_data_that_are_no_data_section_are_refused(made, data, tmp_path, capsys):
    own = tmp_path / "data.yml"
    own.write_text(yaml.safe_dump({"data": yaml.safe_load(data.read_text())}))
    given = ("--package", str(made), "--data", str(own))
    assert run_forecast(tmp_path / "a", *given, *START) == USER_ERROR
    text = "data.yml: data: unknown key of a data section, whose keys the file has at"
    assert text in capsys.readouterr().err


def test_data_of_another_grid_are_refused(made, data, world, tmp_path, capsys):
    for year in (1999, 2000):
        fields = xr.open_dataset(world / f"w_{year}.nc")
        turned = fields.assign_coords(longitude=fields.longitude + 1)
        turned.to_netcdf(tmp_path / f"w_{year}.nc")
    text = data.read_text().replace(str(world), str(tmp_path))
    (tmp_path / "data.yml").write_text(text)
    given = ("--package", str(made), "--data", str(tmp_path / "data.yml"))
    assert run_forecast(tmp_path / "out", *given, *START) == USER_ERROR
    assert "longitude" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_data_of_other_channels_are_refused(made, data, tmp_path, capsys):
    swapped = "data.source.ERA5.variables.prognostic.vars_3D=[T,U]"
    given = ("--package", str(made), "--data", str(data), "--set", swapped)
    assert run_forecast(tmp_path / "out", *given, *START) == USER_ERROR
    error = capsys.readouterr().err
    assert "input channels are ERA5/prognostic/3d/T x 2, ERA5/prognostic/3d/U" in error


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--package", "P", "--config", "model.yml"), "leave out --config"),
        (("--package", "P", "--weights", "last"), "leave out --weights"),
        ((), "--config FILE or --package DIR is needed"),
        (("--config", "model.yml", "--data", "d.yml"), "--data belongs to --package"),
        (("--package", "no_such_folder"), "no_such_folder: no such folder; "),
    ],
)
def test_options_that_do_not_go_together(options, text, tmp_path, capsys):
    assert run_forecast(tmp_path / "out", *options) == USER_ERROR
    assert text in capsys.readouterr().err


def test_a_folder_that_is_not_empty_is_not_written_to(run, made, capsys):
    options = ["--config", str(run), "--checkpoint", str(run.parent / "run")]
    assert package.main([*options, "--out", str(made)]) == USER_ERROR
    assert "exists; give another folder" in capsys.readouterr().err


def test_weights_that_are_not_finite_are_not_packaged(run, tmp_path):
    model_def = build(yaml.safe_load(run.read_text())["model"])
    params, state = open_run(run.parent / "run").on_host(model_def)
    path = next(iter(params))
    params[path] = np.full_like(params[path], np.nan)
    with pytest.raises(ValueError, match="NaN or infinite weights"):
        write_weights(tmp_path / WEIGHTS, model_def, params, state)


def test_credit_s_names_come_back_bitwise(tmp_path):
    """Spectral norm vectors and stacked layers are converted to CREDIT's."""
    gen2 = Path(__file__).parents[1] / "reference/gen2.yml"
    model_def = build(yaml.safe_load(gen2.read_text())["model"])

    @jax.jit
    def init(keys):
        params = model_def.init(keys[0])
        return params, model_def.init_model_state(keys[1], params)

    params, state = jax.device_get(init(jax.random.split(jax.random.key(0))))
    write_weights(tmp_path / WEIGHTS, model_def, params, state)
    assert "layers.1.1.layers.0.0.to_qkv.weight_orig" in load_file(tmp_path / WEIGHTS)
    found, own = read_weights(tmp_path / WEIGHTS, model_def)
    jax.tree.map(np.testing.assert_array_equal, (found, own), (params, state))


def test_every_argument_that_is_a_path_is_marked():
    """Otherwise a package would lose its file."""
    endings = ("_path", "_file", "_physics")
    for section, transforms in TRANSFORMS.items():
        for name, transform in transforms.items():
            marked = {keys[-1] for keys, _ in file_fields(transform)}
            paths = {k for k in transform.model_fields if k.endswith(endings)}
            assert paths <= marked, f"{section}: {name}: make {paths - marked} FilePath"


def test_a_field_of_manifest_names_the_run(made):
    content = json.loads((made / MANIFEST).read_text())
    assert content["schema_version"] == 1
    assert content["step"] == 3
    assert content["names"] == "credit_jax"
    assert content["provenance"]["training"]["timestep"] == "6h"
    assert set(content["files"]) == {
        path.relative_to(made).as_posix()
        for path in made.rglob("*")
        if path.is_file() and path.name != MANIFEST
    }
