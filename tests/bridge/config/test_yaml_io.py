"""YAML of config files."""

from pathlib import Path

import yaml

from credit_jax.config.yaml_file import read_yaml
from credit_torch_bridge import convert_config
from credit_torch_bridge.config.convert import dump

FOLDER = Path(__file__).parent / "configs"


def test_yaml_of_a_converted_config():
    """Numbers, dates and strings keep their types, also in CREDIT's YAML reader."""
    config, _ = convert_config(read_yaml(FOLDER / "gen1.yml"), to="gen2")
    config["odd"] = {"small": 1e-8, "on": "on", "date": "1999-01-01"}
    again = yaml.load(dump(config), Loader=yaml.FullLoader)
    assert again == config
