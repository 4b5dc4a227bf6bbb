"""CREDIT itself accepts the converted configs."""

import copy
import warnings

import pytest

from benchmarks.configs.credit_verdict import TAKES, credit_forecasts, credit_verdict
from credit_torch_bridge import convert_config
from credit_torch_bridge.checkpoint.jax_checkpoint import read_run_config
from credit_torch_bridge.checkpoint.jax_to_torch import config_for_credit
from credit_torch_bridge.compare.jax_side import import_credit
from credit_torch_bridge.config.convert import dump
from credit_torch_bridge.config.credit_blocks import complete_inference
from credit_torch_bridge.config.to_gen2 import ONLY_WEIGHTS
from tests.bridge.config.conversions import config_of
from tests.support.configs import CONFIGS

pytestmark = pytest.mark.reference


@pytest.mark.parametrize("name", ["gen1", "gen2", "jax"])
def test_credit_builds_it(credit, name):
    """CREDIT builds mesh, model and blocks; the model is that of gen1's parser."""
    models = import_credit("models")
    mesh = import_credit("parallel.mesh")
    parser = import_credit("parser")
    blocks = import_credit("postblock")
    given = config_of(name)
    gen2, _ = convert_config(given, to="gen2")
    assert set(mesh.parse_parallelism_conf(gen2)) == {"data", "tensor", "domain"}
    built = copy.deepcopy(gen2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = models.load_model(built)
        blocks.build_postblocks(built, "per_step")
        shapes = {key: value.shape for key, value in model.state_dict().items()}
        assert shapes
        if name != "gen1":
            return
        parsed = parser.credit_main_parser(copy.deepcopy(given), parse_predict=False)
        again = models.load_model(copy.deepcopy(parsed)).state_dict()
    assert {key: value.shape for key, value in again.items()} == shapes
    for side in ("pad_lat", "pad_lon"):
        padding = gen2["model"]["padding_conf"]
        assert parsed["model"]["padding_conf"][side] == padding[side]


# Files of configs/ that CREDIT has no words for, and the reason that is given.
REFUSED = {
    "crossformer_wxformer_1h": "model.gen1_post_conf: tracer_fixer active: gen1 ",
    "assimilate_demo": "model.type: CREDIT has no model spectral_tendency",
    "wxformer_moe_1deg": "model.type: CREDIT has no model wxformer_moe",
    "wxformer_6h_curriculum": "trainer.curriculum: CREDIT trains with one forecast_len",
}
# What CREDIT says of models of which it gets weights alone.
CREDIT_FAILS = {
    "wrf": "missing 2 required positional arguments: 'x_outside' and 'x_extra'",
    "dscale": "missing 1 required positional argument: 'x_extra'",
    "crossformer-diffusion": "isinstance expected 2 arguments, got 1",
    "unet-diffusion": "isinstance expected 2 arguments, got 1",
}


@pytest.mark.slow(but=["demo", "fuxi_6h", "wxformer_1deg"])
@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda p: p.stem)
def test_credit_takes_every_file_of_configs(credit, tmp_path, path):
    """CREDIT's `train_gen2` and `rollout_gen2` take it, or one line says why not."""
    run_config = read_run_config(path)
    if path.stem in REFUSED:
        with pytest.raises(ValueError, match=REFUSED[path.stem]):
            config_for_credit(run_config)
        return
    credit_config, lines = config_for_credit(run_config)
    config = dict(credit_config.raw)
    complete_inference(config, tmp_path, tmp_path)
    written = tmp_path / "model.yml"
    written.write_text(dump(config))
    assert credit_forecasts(written) == TAKES
    why = ONLY_WEIGHTS.get(config["model"]["type"])
    if why is None:
        assert credit_verdict(written) == TAKES
        return
    assert CREDIT_FAILS[config["model"]["type"]] in credit_verdict(written)
    assert [line for line in lines if why in line] == [f"note: model.type: {why}"]
