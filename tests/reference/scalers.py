"""Scalers of a data set's variables, fitted by bridgescaler, and their blocks."""

import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import xarray as xr

from tests.reference.bridgescaler import import_bridgescaler

# Variable -> key of the predicted variables in `write_dataset`.
SCALED: Mapping[str, str] = MappingProxyType(
    {
        "T": "ERA5/prognostic/3d/T",
        "U": "ERA5/prognostic/3d/U",
        "SP": "ERA5/prognostic/2d/SP",
        "TP": "ERA5/diagnostic/2d/TP",
    }
)


def write_scalers(
    folder: Path, name: str = "d_2000.nc", levels: Any = slice(None)
) -> None:
    """`fit_scalers` of a file of `write_dataset`."""
    with xr.open_dataset(folder / name) as fields:
        fit_scalers(folder, fields.isel(level=levels))


def fit_scalers(
    folder: Path, fields: xr.Dataset, keys: Mapping[str, str] = SCALED
) -> None:
    """Writes a bridgescaler file with a standard scaler of each variable."""
    import torch

    import_bridgescaler()
    from bridgescaler import save_scaler_dict
    from bridgescaler.distributed_tensor import DStandardScalerTensor

    fitted: dict[str, dict[str, Any]] = {"input": {}, "target": {}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, key in keys.items():
            values = fields[name].to_numpy()
            if "time" not in fields[name].dims:
                values = values[None]
            values = values if "/3d/" in key else values[:, None]
            scaler = DStandardScalerTensor(channels_last=False)
            scaler.fit(torch.from_numpy(values[:, :, None]))
            if _is_predicted(key):
                fitted["target"][key] = scaler
            if "diagnostic" not in key:
                fitted["input"][key] = scaler
    scalers = {part: {"ERA5": own} for part, own in fitted.items()}
    save_scaler_dict(scalers, str(folder / "scaler.json"))


def scaler_blocks(
    keys: Iterable[str] = SCALED.values(),
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Returns blocks of scaler.json: a preblock, its inverse, and one of the target."""

    def block(**args: Any) -> dict[str, Any]:
        path = {"scaler_path": "./scaler.json"}
        return {"type": "bridgescaler_transform", "args": path | args}

    keys = list(keys)
    predicted = [key for key in keys if _is_predicted(key)]
    back: dict[str, Any] = {"variables": predicted, "method": "inverse_transform"}
    twin = block(**back, key="y_target_processed")
    return block(variables=keys, method="transform"), block(**back), twin


def _is_predicted(key: str) -> bool:
    return "/prognostic/" in key or "/diagnostic/" in key
