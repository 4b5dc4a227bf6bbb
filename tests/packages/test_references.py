"""Files that a config names are found, copied and renamed."""

import copy
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
from credit_torch_bridge.config.editor import dotted, leaves
from tests.messages.engine import *  # noqa: F403
from tests.messages.engine import Cases

CASES = Cases("references")
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


@CASES.case
def what_a_package_holds_of_a_config(config, tmp_path):
    """Keys that forecasts need, and files by their kind: copied, and named anew."""
    before, folder = copy.deepcopy(config), tmp_path / "package"
    own = normalized(config)
    named = {kind: references(own, kind) for kind in (FILE, GRID, STATIC, PLACE)}
    _copy_files(own, folder)
    assert config == before
    for reference in references(own, FILE):
        assert (folder / reference.path).exists()
    sun = folder / own["data"]["source"]["sun"]["latlon_grid_path"]
    with xr.open_dataset(sun) as found:
        assert set(found.variables) == {"lat", "lon"}, "not the fields beside them"
    kinds = [f"{kind}: {each.dotted}" for kind in named for each in named[kind]]
    return kinds + [f"{dotted(path)} = {value!r}" for path, value in leaves(own)]


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
    table = {"type": "mine", "args": {"table": str(tmp_path / "a/grid.nc")}}
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
