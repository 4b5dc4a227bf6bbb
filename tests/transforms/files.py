"""The files of these tests, by names relative to their folder."""

import warnings
from pathlib import Path

import numpy as np
import xarray as xr

from tests.transforms.cases import COLUMNS, ROWS, SP, T, fields

# T on six levels, SP, and TP without spread; numbers near 1, which float32 normalizes
# without loss of digits; two levels.
FILES = {"mean_path": "mean.nc", "std_path": "std.nc", "levels": [1, 2, 4, 6]}
MILD = {"mean_path": "mild_mean.nc", "std_path": "mild_std.nc"}
TWO = {"mean_path": "two_mean.nc", "std_path": "two_std.nc"}
LATITUDE, LONGITUDE = np.array([60.0, 0.0, -60.0]), np.array([0.0, 120.0])
LAT, LON, DEPTHS = 5, 4, 19
MASK_AXES = {"lat": np.linspace(-60, 60, LAT), "lon": np.arange(LON) * 90.0}


def statistics():
    """Name of a file -> variables."""

    def made(deep, flat, rain=None, **attrs):
        own = {} if rain is None else {"TP": ((), rain)}
        return {"T": ("level", np.asarray(deep)), "SP": ((), flat, attrs), **own}

    return {
        "mean": made(np.arange(6) + 270.0, 1e5, 0.5),
        "std": made(np.arange(6) + 3.0, 1e3, 0.0),
        "mild_mean": made(np.arange(4.0), 5.0, 0.5),
        "mild_std": made(np.arange(4.0) + 2, 1.5, 0.25),
        "mild_std_other": made(1.5 * (np.arange(4.0) + 2), 2.25, 0.375),
        "two_mean": made([250.0, 280.0], 9.5e4),
        "two_std": made([20.0, 15.0], 4e3),
        "nan_std": made(np.ones(6), np.nan),
        "negative_std": made(np.ones(6), -1.0),
        "mean_of_pa": made(np.ones(6), 1e5, units="Pa"),
        "std_of_k": made(np.ones(6), 1e3, units="K"),
    }


def weights(*, structured=True, curved=None):
    """Weights: each new point is a mean of old ones; one pair occurs twice."""
    rng = np.random.default_rng(1)
    old, new = ROWS * COLUMNS, len(LATITUDE) * len(LONGITUDE)
    row = np.concatenate([np.repeat(np.arange(new), 5), [0, 0]])
    col = np.concatenate([rng.integers(0, old, 5 * new), [3, 3]])
    order = rng.permutation(len(row))
    latitude, longitude = np.meshgrid(LATITUDE, LONGITUDE, indexing="ij")
    bend = np.arange(new)
    return {
        "row": ("n_s", row[order] + 1),
        "col": ("n_s", col[order] + 1),
        "S": ("n_s", rng.uniform(0, 0.4, len(row))),
        "dst_grid_dims": ("rank", [2, 3] if structured else [new]),
        "xc_b": ("n_b", longitude.ravel() + bend * (curved == "longitude")),
        "yc_b": ("n_b", latitude.ravel() + bend * (curved == "latitude")),
        "xc_a": ("n_a", np.zeros(old)),
    }


def sums_of_two(num_rows, num_columns):
    """Weights by which each point is the sum of two on a grid of twice the rows."""
    count = num_rows * num_columns
    return {
        "row": ("n_s", np.repeat(np.arange(count), 2) + 1),
        "col": ("n_s", np.arange(2 * count) + 1),
        "S": ("n_s", np.ones(2 * count)),
        "dst_grid_dims": ("rank", [num_columns, num_rows]),
        "xc_a": ("n_a", np.zeros(2 * count)),
        "xc_b": ("n_b", np.zeros(count)),
    }


def points(latitude, longitude):
    return {"latitude": ("values", latitude), "longitude": ("values", longitude)}


def write_files(folder):
    around, half = [9.0, 9, -9, -9], [0.0, 180, 0, 180]
    contents = statistics() | {
        "weights": weights(),
        "weights_to_points": weights(structured=False),
        "curved_latitude": weights(curved="latitude"),
        "curved_longitude": weights(curved="longitude"),
        "sums": sums_of_two(LAT, LON),
        "no_weights": {"row": ("n_s", [1])},
        "no_points": {"xc": ("values", [1.0])},
        "shifted": points(around, np.array(half) + 1),
        "upside_down": points([-9.0, -9, 9, 9], half),
    }
    for name, content in contents.items():
        xr.Dataset(content).to_netcdf(folder / f"{name}.nc", engine="h5netcdf")
    whole = (folder / "mean.nc").read_bytes()
    (folder / "empty.nc").write_bytes(b"")
    (folder / "cut.nc").write_bytes(whole[:100])
    wet = np.random.default_rng(0).integers(0, 2, (DEPTHS, LAT, LON)).astype(bool)
    dims, zeros = ("lat", "lon"), np.zeros((2, LAT, LON))
    names = ("hfds", "tauuo", "hfds_anomalies")
    masks = {f"mask_{depth}": (dims, own) for depth, own in enumerate(wet)}
    plain = xr.Dataset({"wetmask": (("lev", *dims), wet)})
    located = plain.assign_coords(MASK_AXES)
    turned = located.isel(lat=slice(None, None, -1)).roll(lon=1, roll_coords=True)
    stores = {
        "data": xr.Dataset(masks | dict.fromkeys(names, (("time", *dims), zeros))),
        "stats": xr.Dataset({"a": ((), 0.0)}),
        "lev": plain,
        "located": located,
        "turned": turned.assign_coords(lon=(turned.lon + 180) % 360 - 180),
        "moved": located.assign_coords(lat=MASK_AXES["lat"] + 3),
    }
    for name, store in stores.items():
        store.to_zarr(folder / f"{name}.zarr", zarr_format=2)


def masks_of(name="data", kind="thermo"):
    """The config that the block reads its masks from."""
    data = {"data_path": f"{name}.zarr", "prognostic_vars_key": kind}
    data |= {"mean_path": "stats.zarr", "std_path": "stats.zarr"}
    return {"data": data | {"dynamic_forcing_vars_key": "hfds_anom"}}


NORMAL, POINTS = {"distribution": "normal"}, "S/prognostic/2d"
FAST = {**NORMAL, "fast_transform": True, "n_knots": 64}
# Class, its parameters, variables that are scaled by grid point.
SCALERS = {
    "standard": ("Standard", {}, ""),
    "minmax": ("MinMax", {}, ""),
    "columns": ("Standard", {"channels_last": True}, ""),
    "quantile": ("Quantile", {"compression": 50}, ""),
    "normal": ("Quantile", {"compression": 50, **NORMAL}, ""),
    "logistic": ("Quantile", {"compression": 20, "distribution": "logistic"}, ""),
    "fast": ("Quantile", FAST, ""),
    "standard_by_point": ("Standard", {}, POINTS),
    "quantile_by_point": ("Quantile", {"compression": 50}, POINTS),
    "fast_by_point": ("Quantile", FAST, POINTS),
}


def scaler_arguments(name, **more):
    """Arguments of a block with scalers fitted by bridgescaler, once in a session."""
    kind, params, by_point = SCALERS[name]
    if not Path(f"{name}.json").exists():
        write_scalers(f"{name}.json", kind, params, by_point)
    by_points = {"spatial_variables": [by_point]} if by_point else {}
    return {"scaler_path": f"{name}.json", "variables": [], **by_points, **more}


def write_scalers(path, kind, params, by_point):
    import torch

    from tests.reference.bridgescaler import import_bridgescaler

    import_bridgescaler()
    from bridgescaler import distributed_tensor, save_scaler_dict

    made = {}
    samples = [fields(3 + i) for i in range(20)]
    for part, offset in (("input", 0.0), ("target", 0.25)):
        made[part] = {"S": {}}
        for key in (T, SP):
            data = torch.tensor(np.concatenate([own[key] for own in samples])) + offset
            if by_point and key.startswith(by_point):
                data = data.reshape(len(data), -1)
            cls = getattr(distributed_tensor, f"D{kind}ScalerTensor")
            made[part]["S"][key] = cls(**{"channels_last": False, **params})
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                made[part]["S"][key].fit(data)
    save_scaler_dict(made, path)
