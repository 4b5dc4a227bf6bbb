"""CREDIT itself accepts the converted configs."""

import copy
import warnings
from pathlib import Path

import pytest

from benchmarks.configs.credit_verdict import TAKES, credit_forecasts, credit_verdict
from credit_jax.config.yaml_file import read_yaml
from credit_torch_bridge import convert_config
from credit_torch_bridge.checkpoint.jax_to_torch import config_for_credit
from credit_torch_bridge.checkpoint.run_config import read_run_config
from credit_torch_bridge.compare.jax_side import import_credit
from credit_torch_bridge.config.convert import dump
from credit_torch_bridge.config.inference_section import complete_inference
from credit_torch_bridge.config.to_gen2 import ONLY_WEIGHTS

pytestmark = pytest.mark.reference

FOLDER = Path(__file__).parent / "configs"
CONFIGS = sorted((Path(__file__).parents[3] / "configs").glob("*.yaml"))


@pytest.mark.parametrize("name", ["gen1", "gen2", "jax"])
def test_credit_builds_it(credit, name):
    """CREDIT builds mesh, model and blocks; the model is that of gen1's parser."""
    models = import_credit("models")
    mesh = import_credit("parallel.mesh")
    parser = import_credit("parser")
    blocks = import_credit("postblock")
    given = read_yaml(FOLDER / f"{name}.yml")
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


def test_the_target_is_unscaled_as_the_prediction():
    """CREDIT's metrics score it; what corrects the prediction is no part of it."""
    camulator = read_yaml(CONFIGS[0].with_name("camulator.yaml"))
    config, report = convert_config(camulator, to="gen2")
    steps = config["postblocks"]["per_step"]
    assert any("CREDIT's gradient is NaN" in change.text for change in report.changes)
    before = camulator["postblocks"]["per_step"]
    assert list(steps) == [*before, "reconstruct_target", "inverse_scale_target"]
    key = {"key": "y_target_processed"}
    scale = before["inverse_scale"]
    assert steps["inverse_scale_target"] == scale | {"args": scale["args"] | key}


def test_computed_diagnostics_are_not_scored():
    """No truth has them: CREDIT's metrics would ask for them."""
    given = read_yaml(FOLDER / "jax.yml")
    block = {"type": "geopotential_diagnostic", "args": {}}
    given["postblocks"] = {"per_step": {"reconstruct": {"type": "reconstruct"}}}
    given["postblocks"]["per_step"]["height"] = block
    converted, _ = convert_config(given, to="gen2")
    assert converted["metrics"]["args"]["include_computed_diagnostics"] is False
    assert list(converted["postblocks"]["per_step"])[2:] == ["reconstruct_target"]


@pytest.mark.parametrize(
    ("kind", "args", "message"),
    [
        ("global_energy_fixer_net", {}, "CREDIT has no postblock global_energy_fixer_"),
        (
            "mslp_diagnostic",
            {"surface_geopotential_file": "z.nc"},
            "CREDIT has no key surface_geopotential_file",
        ),
    ],
)
def test_blocks_that_credit_has_not(kind, args, message):
    """Training is refused; forecasts go without them."""
    blocks = {"per_step": {"block": {"type": kind, "args": args}}}
    given = read_yaml(FOLDER / "jax.yml")
    with pytest.raises(ValueError, match=f"per_step.block: {message}"):
        convert_config(given | {"postblocks": blocks}, to="gen2")
    section = {"postblocks": {"per_step": {"reconstruct": {"type": "reconstruct"}}}}
    section["postblocks"]["per_step"] |= blocks["per_step"]
    converted, report = convert_config(given | {"inference": section}, to="gen2")
    assert list(converted["inference"]["postblocks"]["per_step"]) == ["reconstruct"]
    assert any(message in change.text for change in report.changes)


@pytest.mark.parametrize("normed", [True, False])
def test_recomputation_of_spectral_norms(normed):
    """A power iteration more in every backward pass is no detail."""
    given = read_yaml(FOLDER / "gen2.yml")
    given["model"]["use_spectral_norm"] = normed
    _, report = convert_config(given, to="gen2")
    notes = [str(c) for c in report.changes if "power iteration" in c.text]
    assert len(notes) == normed


def test_forecasts_have_no_target():
    """CREDIT's rollout reads no target, and what it asks for is filled in."""
    given = read_yaml(FOLDER / "jax.yml")
    given["inference"] = {"single_forecast": {"forecast_length": "1d"}}
    converted, report = convert_config(given, to="gen2")
    assert converted["inference"] == {
        "single_forecast": {"forecast_length": "1d", "start_datetime": "2002-01-01"},
        "mode": "none",
        "save_forecast": "$SCRATCH/jax_run/forecast",
        "run_mode": "single",
        "postblocks": {"per_step": {"reconstruct": {"type": "reconstruct"}}},
    }
    assert "reconstruct_target" in converted["postblocks"]["per_step"]
    assert any("rollout has no target" in change.text for change in report.changes)


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
@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
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


def test_losses_that_credit_lacks():
    given = read_yaml(FOLDER / "jax.yml")
    given["loss"] = {"training_loss": "amse", "validation_loss": "spherical"}
    with pytest.raises(ValueError, match="CREDIT has no loss amse; ") as caught:
        convert_config(given, to="gen2")
    assert "loss.validation_loss: CREDIT has no loss spherical" in str(caught.value)


def test_arguments_that_credits_models_lack():
    """Converted with a checkpoint they are left out, else they are noted."""
    whole = read_yaml(CONFIGS[0].with_name("graph_1deg.yaml"))
    kept, report = convert_config(whole, to="gen2")
    assert kept["model"] == whole["model"]
    notes = [c.key for c in report.changes if "no such argument" in c.text]
    assert notes == ["model.image_height", "model.image_width"]
    left, lines = config_for_credit(read_run_config(whole))
    assert "image_height" not in left.raw["model"]
    assert "dropped: model.image_height: 192 (CREDIT's model has no such" in lines[0]


def test_a_note_says_that_credit_trains_all_weights():
    mapping = read_yaml(CONFIGS[0].with_name("finetune_demo.yaml"))
    converted, report = convert_config(mapping, to="gen2")
    (note,) = [str(change) for change in report.changes if "finetune" in str(change)]
    assert "CREDIT ignores it: it trains all weights" in note
    assert converted["trainer"]["finetune"] == mapping["trainer"]["finetune"]
