"""`custom_objects` when a config is converted: entries here, classes in CREDIT."""

import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from credit_jax.config import custom_objects
from credit_jax.config.yaml_file import read_yaml
from credit_torch_bridge import convert_config
from tests.support.custom_objects import no_objects_left

__all__ = ["no_objects_left"]
pytestmark = pytest.mark.usefixtures("no_objects_left")

CONFIG = read_yaml(Path(__file__).parent / "configs/gen2.yml")
OURS = """
from credit_jax.losses import LOSSES
from credit_jax.models.registry import MODELS
crps = LOSSES["mse"]
net = MODELS["wxformer"]
"""
THEIRS = """
import torch
class Loss(torch.nn.Module):
    pass
"""


def with_objects(path, text, **names):
    path.write_text(text)
    objects = {
        name: {"object_type": kind, "module_path": str(path)}
        for name, kind in names.items()
    }
    return {**CONFIG, "custom_objects": objects}


def test_entries_are_read_here(tmp_path):
    config = with_objects(tmp_path / "ours.py", OURS, crps="loss")
    config["loss"] = {"training_loss": "crps"}
    new, _ = convert_config(config, to="jax")
    assert new["custom_objects"] == config["custom_objects"]


def test_classes_of_pytorch_are_refused_here_and_kept_for_credit(tmp_path):
    config = with_objects(tmp_path / "theirs.py", THEIRS, Loss="loss")
    with pytest.raises(
        ValueError, match=r"custom_objects.Loss: .* a loss here is a subclass"
    ):
        convert_config(config, to="jax")
    new, _ = convert_config(config, to="gen2")
    assert new["custom_objects"] == config["custom_objects"]


def test_credit_gets_no_entries(tmp_path):
    """Of a model it has the PyTorch class; of a loss it has nothing."""
    config = with_objects(tmp_path / "ours.py", OURS, net="model")
    new, report = convert_config(config, to="gen2")
    assert "custom_objects" not in new
    assert any("custom_models names files" in line for line in report.lines())
    config = with_objects(tmp_path / "ours.py", OURS, crps="loss")
    with pytest.raises(ValueError, match=r"custom_objects.crps: a loss of credit_jax"):
        convert_config(config, to="gen2")


def test_entries_of_installed_packages(tmp_path, monkeypatch):
    """A config names them without a section; a variable of that name is none."""
    (tmp_path / "offers.py").write_text(OURS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "offers", raising=False)
    points = (
        EntryPoint("crps", "offers", "credit_jax.loss"),
        EntryPoint("U", "offers:crps", "credit_jax.metric"),
        EntryPoint("net", "offers", "credit_jax.model"),
    )
    monkeypatch.setattr(custom_objects, "_entry_points", lambda: points)
    config = {**CONFIG, "loss": {"training_loss": "crps"}}
    with pytest.raises(ValueError, match="crps: a loss of an installed") as caught:
        convert_config(config, to="gen2")
    assert "1 problem" in str(caught.value)
    config = {**CONFIG, "model": {**CONFIG["model"], "type": "net"}}
    assert [*custom_objects.offered_objects(config)] == [("model", "net")]
