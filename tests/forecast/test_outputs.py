"""The level coordinates of fields that blocks make."""

import numpy as np

from credit_jax.config import parse
from credit_jax.config.inference import OutputConfig
from credit_jax.config.transforms import PostblocksConfig, PreblocksConfig
from credit_jax.forecast.outputs import Outputs, choose_outputs
from credit_jax.transforms import build_pipeline
from tests.transforms.test_full_levels import ARGS, KIND, LEVELS

SOURCE = "A/derived_diagnostic/3d"


def test_fields_of_blocks_have_their_own_levels():
    """Also where there are as many as the data have."""
    args = {
        key: value.replace("S/", "A/") if isinstance(value, str) else value
        for key, value in ARGS.items()
    }
    args["interp_fields"] = ["A/prognostic/3d/T"]
    args["pressure_levels"] = [500.0 + n for n in range(len(LEVELS))]
    pipeline = build_pipeline(
        parse(PreblocksConfig, {"per_step": {"concat": {"type": "concat"}}}),
        parse(
            PostblocksConfig,
            {
                "per_step": {
                    "fields": {"type": "reconstruct"},
                    "levels": {"type": KIND, "args": args},
                }
            },
        ),
    )
    shapes = {
        "A/prognostic/3d/T": len(LEVELS),
        f"{SOURCE}/T_PRES": len(LEVELS),
        f"{SOURCE}/P": len(LEVELS),
        f"{SOURCE}/T_HEIGHT": len(ARGS["height_levels"]),
    }
    variables = choose_outputs(OutputConfig(), shapes, {"A": LEVELS}, pipeline)
    dims = {variable.name: variable.level_dim for variable in variables}
    assert dims == {
        "T": "level",
        "T_PRES": "pressure",
        "P": "level",
        "T_HEIGHT": "height_agl",
    }
    levels = {variable.name: [*variable.levels] for variable in variables}
    assert levels["T_PRES"] == args["pressure_levels"]
    assert levels["T_HEIGHT"] == ARGS["height_levels"]
    outputs = Outputs(variables, np.zeros(1), np.zeros(1))
    assert outputs.attributes_of_levels("pressure") == {"units": "hPa"}
    assert outputs.attributes_of_levels("height_agl")["units"] == "m"
