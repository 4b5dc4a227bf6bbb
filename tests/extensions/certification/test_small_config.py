"""Small configs: what becomes of grids, ranks, and objects of a user's own."""

import pytest

from credit_jax.config import build_config
from credit_jax.config.custom_objects import register_objects
from credit_jax.config.yaml_file import read_yaml
from credit_jax.extensions.certification.command import small_config
from credit_jax.extensions.certification.small_config import (
    GRID,
    UNPADDED,
    for_any_mesh,
    grid_of,
    make_small,
    write_files,
)
from credit_jax.extensions.certification.subject import reference_of
from credit_jax.models.registry import build
from credit_jax.models.swin.swin import SwinConfig
from credit_jax.plan import plan_run
from tests.config.example import example
from tests.data.world import MODEL
from tests.support.configs import CONFIGS

OBJECTS = """
from typing import Literal

from credit_jax.config.sources.source import SourceConfig
from credit_jax.data.sources.local import open_local
from credit_jax.data.sources.registry import SourceEntry
from credit_jax.losses import LOSSES
from credit_jax.models.debugger import Debugger, DebuggerConfig
from credit_jax.models.registry import ModelEntry

class MyConfig(DebuggerConfig):
    type: Literal["my_model"] = "my_model"

class FolderConfig(SourceConfig):
    folder: str

my_loss = LOSSES["mse"]
my_model = ModelEntry(MyConfig, Debugger)
my_source = SourceEntry(FolderConfig, open_local)
"""
KINDS = {"my_loss": "loss", "my_model": "model", "my_source": "dataset"}
VARIABLES = {
    "prognostic": {"vars_3D": ["T", "U"], "vars_2D": ["SP"]},
    "dynamic_forcing": {"vars_2D": ["tsi"]},
    "static": {"vars_2D": ["LSM"]},
    "diagnostic": {"vars_2D": ["TP"]},
}


def test_objects_of_ones_own(tmp_path, monkeypatch):
    """The model keeps its sizes, the source is files; from any working folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "objects.py").write_text(OBJECTS)
    source = {"dataset_type": "my_source", "folder": "mine", "variables": VARIABLES}
    mapping = example(
        custom_objects={
            name: {"object_type": kind, "module_path": "objects.py"}
            for name, kind in KINDS.items()
        },
        data__source={"Mine": source},
        model={**MODEL, "type": "my_model"},
        loss={"training_loss": "my_loss"},
        preblocks={"per_step": {"concat": {"type": "concat"}}},
    )
    register_objects(mapping)
    folder = tmp_path / "small"
    folder.mkdir()
    small = make_small(mapping, folder)
    monkeypatch.chdir(folder)
    config = build_config(small)
    write_files(config)
    assert config.data.source["Mine"].dataset_type == "local"
    assert small["model"] == mapping["model"]
    assert "train" in plan_run(config).loaders


def test_sizes_of_a_model(tmp_path, monkeypatch):
    """A config of generation 1 pads a Swin by 80 rows; a model says its least sizes."""
    mapping = read_yaml(CONFIGS / "swin_6h.yaml")
    padding = {"activate": True, "mode": "earth", "pad_lat": [80, 80]}
    mapping["model"]["padding_conf"] = {**padding, "pad_lon": [80, 80]}
    model = make_small(mapping, tmp_path)["model"]
    assert grid_of(model) == GRID
    assert build(model).validate() == []
    del mapping["model"]["padding_conf"]
    assert grid_of(make_small(mapping, tmp_path)["model"]) == UNPADDED
    # Of a section inside of the model's, only the keys that it names change.
    small = {"embed_dim": 16, "post_conf": {"activate": False}}
    monkeypatch.setattr(SwinConfig, "small_keys", small)
    mapping["model"]["post_conf"] = {"activate": True, "other": 1}
    model = make_small(mapping, tmp_path)["model"]
    assert model["embed_dim"] == 16
    assert model["post_conf"] == {"activate": False, "other": 1}
    assert model["depths"] == mapping["model"]["depths"]
    model["post_conf"]["activate"] = True
    assert small["post_conf"] == {"activate": False}


@pytest.mark.parametrize(
    ("name", "loss", "members", "ranks"),
    [
        ("crossformer_ensemble_1deg", "KCRPS", 4, 4),
        ("crossformer_ensemble_1deg", "KCRPS", 1, None),
        ("crossformer_ensemble_1deg", "ring-crps", 2, 2),
        ("demo", "mse", 1, None),
    ],
)
def test_ranks_of_a_loss_that_depends_on_their_number(name, loss, members, ranks):
    mapping = read_yaml(CONFIGS / f"{name}.yaml")
    mapping["loss"] |= {"training_loss": loss}
    mapping["trainer"] |= {"ensemble_size": members}
    changed = for_any_mesh(mapping, num_samples=8, num_updates=3)
    assert changed["trainer"]["num_devices"] == ranks
    assert reference_of(ranks) == (f"ddp{ranks}" if ranks else "1")


def test_data_begin_after_blocks_that_change_the_grid(tmp_path, monkeypatch):
    """Blocks with files that are not there, and winds of vorticity and divergence."""
    deep, flat = "ERA5/prognostic/3d", "ERA5/prognostic/2d"
    winds = {"vorticity": f"{deep}/vorticity", "divergence": f"{deep}/divergence"}
    winds |= {k: f"{deep}/{k}_component_of_wind" for k in "uv"}
    spectral = {
        "grid_file": "grid.nc",
        "vector_vars": [winds],
        "scalar_vars": {
            f"{deep}/temperature": f"{deep}/temperature",
            f"{flat}/log_surface_pressure": f"{flat}/surface_pressure",
        },
    }
    names = ["u_component_of_wind", "v_component_of_wind", "t"]
    flat_names = ["log_surface_pressure", "t2m"]
    variables = {"prognostic": {"vars_3D": names, "vars_2D": flat_names}}
    regrid = {"weight_file": "weights.nc", "variables": [f"{flat}/2m_temperature"]}
    logs = {"variables": [f"{flat}/surface_pressure"]}
    source = {"dataset_type": "arco_era5_co", "levels": [1, 3], "variables": variables}
    model = {**MODEL, "levels": 2, "channels": 3, "surface_channels": 2}
    mapping = example(
        data__source={"ERA5": source},
        model={**model, "input_only_channels": 0, "output_only_channels": 0},
        preblocks={
            "per_step": {
                "spectral": {"type": "spectral_to_grid", "args": spectral},
                "regrid": {"type": "regrid", "args": regrid},
                "logs": {"type": "log_transform", "args": logs},
                "concat": {"type": "concat"},
            }
        },
    )
    monkeypatch.chdir(tmp_path)
    small = small_config(mapping, tmp_path)
    assert [*small["preblocks"]["per_step"]] == ["logs", "concat"]
    (fields,) = small["data"]["source"]["ERA5"]["variables"].values()
    assert fields["vars_3D"] == [*names[:2], "temperature"]
    assert fields["vars_2D"] == ["surface_pressure", "2m_temperature"]


def test_a_source_of_later_times_has_all_samples(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = build_config(small_config(read_yaml(CONFIGS / "wrf_1h.yaml"), tmp_path))
    dataset = plan_run(config, num_devices=1, begins=False).loaders["train"].dataset
    trainer = config.trainer
    assert len(dataset) == trainer.train_batch_size * trainer.batches_per_epoch
