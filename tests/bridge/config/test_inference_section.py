"""Training of several steps feeds back in CREDIT what it feeds back here."""

import numpy as np
import xarray as xr
import yaml

from credit_jax.config import parse
from credit_jax.config.transforms import PostblocksConfig, PreblocksConfig
from credit_jax.transforms import Phase, build_pipeline, for_forecast
from credit_torch_bridge.config.inference_section import complete_inference
from tests.support import assert_close
from tests.support.processes import ROOT

KEYS = {"demo/prognostic/3d/T": 2, "demo/prognostic/2d/SP": 1}


def built(config):
    return build_pipeline(
        parse(PreblocksConfig, config["preblocks"]),
        parse(PostblocksConfig, config["postblocks"]),
    )


def after_step(pipeline, y):
    """The named fields of a prediction, from normalized channels."""
    channels, place = {}, 0
    for key, count in KEYS.items():
        channels[key], place = slice(place, place + count), place + count
    tree = {"y_pred": y, "y": y, "x": y, "channel_map": channels}
    return pipeline.run(Phase.AFTER_STEP, {**tree, "input_channel_map": channels})


def test_training_of_several_steps_has_the_inverse_as_a_postblock(tmp_path):
    paths = {f"{name}_path": str(tmp_path / f"{name}.nc") for name in ("mean", "std")}
    for path, scale in zip(paths.values(), (1.0, 0.1), strict=True):
        fields = {"T": ("level", [250.0 * scale, 280.0 * scale]), "SP": 1e5 * scale}
        xr.Dataset(fields).to_netcdf(path)
    config = yaml.safe_load((ROOT / "configs/demo.yaml").read_text())
    config["preblocks"]["per_step"]["normalize"]["args"] = paths
    variables = {"prognostic": {"vars_3D": ["T"], "vars_2D": ["SP"]}}
    config["data"]["source"]["demo"]["variables"] = variables
    config["model"]["levels"] = 2
    single = {**config, "data": dict(config["data"])}
    complete_inference(single, tmp_path, tmp_path)
    assert single["preblocks"] == config["preblocks"], (
        "a single step feeds nothing back"
    )

    several = {**config, "data": {**config["data"], "forecast_len": 2}}
    complete_inference(several, tmp_path, tmp_path)
    kinds = [block["type"] for block in several["postblocks"]["per_step"].values()]
    assert kinds == ["reconstruct", "bridgescaler_transform"] * 2
    y = np.random.default_rng(0).normal(size=(1, 3, 1, 2, 4)).astype(np.float32)
    ours = after_step(for_forecast(built(config)), y)["y_processed"]
    theirs = after_step(built(several), y)
    for key in KEYS:
        for entry in ("y_processed", "y_target_processed"):
            assert_close(theirs[entry]["demo"][key], ours["demo"][key], 1e-6, entry)
