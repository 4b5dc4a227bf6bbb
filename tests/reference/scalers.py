"""Scalers of the variables of `write_dataset`, fitted by bridgescaler."""

import warnings
from pathlib import Path
from typing import Any

import xarray as xr

SCALED = {
    "T": "ERA5/prognostic/3d/T",
    "U": "ERA5/prognostic/3d/U",
    "SP": "ERA5/prognostic/2d/SP",
    "TP": "ERA5/diagnostic/2d/TP",
}


def write_scalers(
    folder: Path, name: str = "d_2000.nc", levels: Any = slice(None)
) -> None:
    """bridgescaler's own file: a standard scaler of each variable."""
    import torch
    from bridgescaler import save_scaler_dict
    from bridgescaler.distributed_tensor import DStandardScalerTensor

    data = xr.open_dataset(folder / name).isel(level=levels)
    fitted: dict[str, dict[str, Any]] = {"input": {}, "target": {}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, key in SCALED.items():
            values = data[name].to_numpy()
            values = values if "/3d/" in key else values[:, None]
            scaler = DStandardScalerTensor(channels_last=False)
            scaler.fit(torch.from_numpy(values[:, :, None]))
            fitted["target"][key] = scaler
            if "prognostic" in key:
                fitted["input"][key] = scaler
    scalers = {part: {"ERA5": own} for part, own in fitted.items()}
    save_scaler_dict(scalers, str(folder / "scaler.json"))
