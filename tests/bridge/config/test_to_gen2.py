"""CREDIT itself accepts the converted configs."""

import copy
import warnings
from pathlib import Path

import pytest

from credit_jax.config.yaml_file import read_yaml
from credit_torch_bridge import convert_config
from credit_torch_bridge.compare.credit_import import import_credit

pytestmark = pytest.mark.reference

FOLDER = Path(__file__).parent / "configs"


@pytest.mark.parametrize("name", ["gen1", "gen2", "jax"])
def test_credit_builds_it(credit, name):
    """CREDIT builds mesh, model and blocks of gen2, and parses and builds gen1."""
    models = import_credit("models")
    mesh = import_credit("parallel.mesh")
    parser = import_credit("parser")
    blocks = import_credit("postblock")
    gen2, _ = convert_config(read_yaml(FOLDER / f"{name}.yml"), to="gen2")
    assert set(mesh.parse_parallelism_conf(gen2)) == {"data", "tensor", "domain"}
    built = copy.deepcopy(gen2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = models.load_model(built)
        blocks.build_postblocks(built, "per_step")
        shapes = {key: value.shape for key, value in model.state_dict().items()}
        if name == "jax":
            assert shapes
            return
        gen1, _ = convert_config(gen2, to="gen1")
        parsed = parser.credit_main_parser(copy.deepcopy(gen1), parse_predict=False)
        again = models.load_model(copy.deepcopy(parsed)).state_dict()
    assert {key: value.shape for key, value in again.items()} == shapes
    for side in ("pad_lat", "pad_lon"):
        padding = gen2["model"]["padding_conf"]
        assert parsed["model"]["padding_conf"][side] == padding[side]
