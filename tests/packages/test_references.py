"""Files that a config names are found, copied and renamed."""

import pickle
import shutil

import numpy as np
import pytest
import xarray as xr
import yaml

from credit_jax.config.components import FilePath
from credit_jax.extensions.packaging.write import _copy_files
from credit_jax.packages.references import (
    FILE,
    GRID,
    PLACE,
    STATIC,
    normalized,
    references,
)
from credit_jax.transforms import TRANSFORMS, Transform


def block(kind: str, **args):
    return {"type": kind, "args": args}


CONFIG = """
save_loc: /somewhere
trainer: {epochs: 3}
model: {type: wxformer, post_conf: {std_path: TMP/a/grid.nc}}
data:
  mean_path: never read
  source:
    ERA5:
      dataset_type: local
      mode: ignored
      variables:
        prognostic: {vars_2D: [p], path: TMP/p_%Y.nc}
        static: {vars_2D: [s], path: TMP/s.nc}
    sun:
      dataset_type: tisr
      latlon_grid_path: TMP/earth.nc
      variables: {dynamic_forcing: {vars_2D: [tisr]}}
    WB:
      dataset_type: weatherbench2_era5
      store: gs://bucket/store
      variables: {prognostic: {vars_2D: [q]}}
    GFS:
      dataset_type: gfs
      base_path: TMP
      store: TMP/copy
      variables: {prognostic: {vars_2D: [r]}}
preblocks:
  per_step:
    names: {type: rename, args: {mapping_file: TMP/map.yml}}
    scaler: {type: bridgescaler_transform, args: {scaler_path: TMP/scaler}}
postblocks:
  per_step:
    mass: {type: global_mass_fixer, args: {save_loc_physics: TMP/b/grid.nc}}
    height: {type: geopotential_diagnostic}
    sea:
      type: wet_mask_samudra
      args: {conf: {data: {data_path: TMP/a/masks.zarr, mean_path: TMP/none.nc}}}
inference: {save_forecast: /somewhere/else, output: {metadata: era5.yaml}}
"""


@pytest.fixture
def config(tmp_path):
    """A config with files of every kind, two of them with the same name."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        numbers = xr.Dataset({"x": ("i", np.arange(3.0))})
        numbers.to_netcdf(tmp_path / name / "grid.nc")
        numbers.to_zarr(tmp_path / name / "masks.zarr", consolidated=False)
    (tmp_path / "map.yml").write_text("old: new\n")
    (tmp_path / "scaler").write_text('{"a": 1}')
    grid = xr.Dataset(coords={"lat": [1.0, 2.0], "lon": [3.0]})
    grid.assign(big=("i", np.zeros(1000))).to_netcdf(tmp_path / "earth.nc")
    text = CONFIG.replace("TMP", str(tmp_path))
    return yaml.safe_load(text)


def test_only_what_forecasts_need_is_kept(config):
    own = normalized(config)
    assert set(own) == {"model", "data", "preblocks", "postblocks", "inference"}
    assert set(own["inference"]) == {"output"}
    assert "mean_path" not in own["data"]
    assert "mode" not in own["data"]["source"]["ERA5"]
    height = own["postblocks"]["per_step"]["height"]["args"]
    assert height == {"level_info_file": "ERA5_Lev_Info.nc"}
    wet = own["postblocks"]["per_step"]["sea"]["args"]["conf"]["data"]
    assert set(wet) == {"data_path"}, "CREDIT's mean_path is never read"
    assert config["trainer"] == {"epochs": 3}, "the config is not changed"


def test_places_of_data_are_told_from_files(config):
    own = normalized(config)
    places = {r.dotted for r in references(own, PLACE)}
    assert places == {
        "data.source.ERA5.variables.prognostic.path",
        "data.source.GFS.base_path",
        "data.source.GFS.store",
    }
    static, grid = "ERA5.variables.static.path", "sun.latlon_grid_path"
    for kind, key in ((STATIC, static), (GRID, grid)):
        assert [r.dotted for r in references(own, kind)] == [f"data.source.{key}"]


def test_files_are_copied_and_named_anew(config, tmp_path):
    own, folder = normalized(config), tmp_path / "package"
    _copy_files(own, folder)
    named = {r.dotted: r.path for r in references(own, FILE)}
    steps = "postblocks.per_step"
    assert named == {
        "model.post_conf.std_path": "files/grid.nc",
        "preblocks.per_step.names.args.mapping_file": "files/map.yaml",
        "preblocks.per_step.scaler.args.scaler_path": "files/scaler.json",
        f"{steps}.mass.args.save_loc_physics": "files/grid_1.nc",
        f"{steps}.height.args.level_info_file": "files/ERA5_Lev_Info.nc",
        f"{steps}.sea.args.conf.data.data_path": "files/masks.zarr",
        "inference.output.metadata": "files/era5.yaml",
    }
    for path in named.values():
        assert (folder / path).exists()
    sun = folder / own["data"]["source"]["sun"]["latlon_grid_path"]
    with xr.open_dataset(sun) as found:
        assert set(found.variables) == {"lat", "lon"}, "not the fields beside them"


def test_references_to_code_are_kept_for_forecasts_alone(config):
    section = {
        name: {"object_type": kind, "module_path": "their.module"}
        for name, kind in {"net": "model", "crps": "loss", "skill": "metric"}.items()
    }
    own = normalized({**config, "custom_objects": section})
    assert own["custom_objects"] == {"net": section["net"]}
    section["net"]["module_path"] = "net.py"
    with pytest.raises(ValueError, match=r"custom_objects.net.module_path: .* no code"):
        normalized({**config, "custom_objects": section})


def test_files_of_blocks_of_ones_own_are_copied(config, tmp_path, monkeypatch):
    class Mine(Transform):
        table: FilePath

    monkeypatch.setitem(TRANSFORMS["preblocks"], "mine", Mine)
    table = block("mine", table=str(tmp_path / "a/grid.nc"))
    config["preblocks"]["per_step"] = {"mine": table}
    own = normalized(config)
    _copy_files(own, tmp_path / "package")
    assert own["preblocks"]["per_step"]["mine"]["args"]["table"].startswith("files/")


def test_files_that_are_not_packaged(config, tmp_path):
    for content in (pickle.dumps({}), b"\0\1", b"just a text"):
        (tmp_path / "scaler").write_bytes(content)
        with pytest.raises(ValueError, match="neither NetCDF nor JSON nor a YAML"):
            _copy_files(normalized(config), tmp_path / "package")
        shutil.rmtree(tmp_path / "package", ignore_errors=True)
    (tmp_path / "map.yml").unlink()
    with pytest.raises(FileNotFoundError, match=r"names\.args\.mapping_file"):
        _copy_files(normalized(config), tmp_path / "package")
