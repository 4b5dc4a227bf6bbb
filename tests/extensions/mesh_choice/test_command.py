"""`credit-jax mesh`: its table, its trainer section, and its errors."""

import json
from pathlib import Path

import pytest
import yaml

from credit_jax.cli.commands import OK, USER_ERROR
from credit_jax.config import load_config
from credit_jax.extensions.mesh_choice import command as mesh
from credit_jax.extensions.mesh_choice.accelerators import ACCELERATORS
from credit_jax.extensions.mesh_choice.command import main
from credit_jax.extensions.mesh_choice.search import MeshChoice, Ranked
from credit_jax.parallel.mesh.dims import ParallelDims

CONFIGS = Path(__file__).parents[3] / "configs"


@pytest.fixture
def config(tmp_path):
    """The demo's config with the smallest model."""
    mapping = yaml.safe_load((CONFIGS / "demo.yaml").read_text())
    keys = "image_height", "image_width", "frames", "levels", "channels"
    keys += "surface_channels", "input_only_channels", "output_only_channels"
    section = {key: mapping["model"][key] for key in keys}
    mapping["model"] = {"type": "debugger", **section}
    path = tmp_path / "small.yaml"
    path.write_text(yaml.safe_dump(mapping, sort_keys=False))
    return path


def test_the_section_of_the_first_mesh(config, tmp_path, capsys):
    out = tmp_path / "mesh.yaml"
    options = ["--devices", "4", "--nodes", "2", "--batch", "8", "--out", str(out)]
    assert main(["--config", str(config), *options]) == OK
    printed = capsys.readouterr().out
    assert "samples/s" in printed
    assert "nothing was measured" in printed
    assert "activations of debugger are not estimated" in printed
    assert printed.endswith(out.read_text())
    section = yaml.safe_load(out.read_text())["trainer"]
    mapping = yaml.safe_load(config.read_text())
    config.write_text(
        yaml.safe_dump(mapping | {"trainer": mapping["trainer"] | section})
    )
    trainer = load_config(config).trainer
    assert trainer.num_devices == 4
    assert trainer.train_batch_size * trainer.grad_accum_every in (2, 4, 8)


def test_a_device_that_was_measured(config, capsys):
    options = ["--devices", "1", "--device", "h200"]
    assert main(["--config", str(config), *options]) == OK
    assert "a step that was timed on one device" in capsys.readouterr().out


def test_a_table_is_as_wide_as_its_rows(capsys):
    """Neither names of meshes nor numbers are cut off."""
    degrees = {"dp_replicate": 4, "dp_shard": 2, "ep": 2, "tp": 2, "domain": 2}
    dims = ParallelDims(**degrees, ulysses_degree=2, world_size=64)
    choice = MeshChoice(dims, "selective", over_domain=True, reshard=False)
    ranked = [Ranked(choice, 123.4e9, rate=56789.0, loses="recomputation")]
    mesh._print(ranked, 64, ACCELERATORS["h100"])
    printed = capsys.readouterr().out
    row = "ddp4xfsdp2xep2xtp2xdomain2xulysses2 selective over domain, kept 1 x 1 123.4"
    assert f"{row} 5.679e+04 recomputation" in " ".join(printed.split())


def test_the_document(config, capsys):
    given = ["--config", str(config), "--devices", "4", "--batch", "6", "--json"]
    assert main(given) == OK
    document = json.loads(capsys.readouterr().out)
    assert document["batch"] == 6
    first, *others = document["choices"]
    assert first["loses_by"] is None
    assert first["samples_per_second"] > 0
    assert first["trainer"]["num_devices"] == 4
    assert {"batch"} < {choice["loses_by"] for choice in others}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--devices", "0"], "--devices: must be greater than 0, got 0"),
        (["--nodes", "3"], "--nodes: 3 nodes cannot share 4 devices equally"),
        (["--memory", "-1"], "--memory: must be greater than 0.0, got -1.0"),
        (["--batch", "0"], "--batch: must be at least 1, got 0"),
        (["--out", "nowhere/mesh.yaml"], "--out: there is no folder nowhere"),
        (["--set", "model.levels=-1"], "levels -1"),
        (["--memory", "1e-9"], "no mesh of 4 devices fits"),
    ],
)
def test_errors(config, capsys, options, message):
    assert main(["--config", str(config), "--devices", "4", *options]) == USER_ERROR
    assert message in capsys.readouterr().err
