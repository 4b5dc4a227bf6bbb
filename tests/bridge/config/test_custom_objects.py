"""`custom_objects` when a config is converted: entries here, classes in CREDIT."""

from pathlib import Path

import pytest

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
        ValueError, match=r"custom_objects.Loss: .* a loss here is a Lo"
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
