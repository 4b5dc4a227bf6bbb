"""Configs with scalers to fit."""

from tests.data.world import parsed, raw_config

DEEP = ["ERA5/prognostic/3d"]
FIRST = {"channels_last": False}


def scaler(path, kind="standard", variables=(), params=FIRST, **args):
    """Returns a block of scalers."""
    return {
        "type": "bridgescaler_transform",
        "args": {
            "scaler_path": str(path),
            "variables": list(variables),
            "scaler_type": kind,
            "scaler_params": params,
            **args,
        },
    }


def raw(world, blocks, **changes):
    """Returns a raw config with given `per_step` preblocks before `concat`."""
    made = raw_config(world, **changes)
    made["preblocks"]["per_step"] = {**blocks, "concat": {"type": "concat"}}
    return made


def config(world, blocks, **changes):
    """Returns the same config, parsed."""
    return parsed(raw(world, blocks, **changes))


def all_kinds(folder):
    """Returns blocks of every kind of scaler, one of them after a `log`."""
    log = {"variables": ["ERA5/prognostic/2d/SP"]}
    point = "ERA5/dynamic_forcing/2d/tsi"
    return {
        "deep": scaler(folder / "deep.json", variables=DEEP),
        "log": {"type": "log_transform", "args": log},
        "flat": scaler(
            folder / "flat.json", "minmax", ["ERA5/prognostic/2d"], data_types=["input"]
        ),
        "points": scaler(
            folder / "points.json", variables=[point], spatial_variables=[point]
        ),
        # CREDIT's default.
        "columns": scaler(
            folder / "columns.json", "minmax", ["ERA5/static"], {"channels_last": True}
        ),
        "rain": scaler(
            folder / "rain.json",
            "quantile",
            ["ERA5/diagnostic", "ERA5/prognostic/3d/T"],
            {**FIRST, "compression": 40, "distribution": "normal"},
        ),
    }
