"""Synthetic forecasts in a store and in CREDIT's folders."""

import numpy as np
import pandas as pd
import xarray as xr

HOUR = np.timedelta64(1, "h")
STARTS = pd.to_datetime(["2004-02-28", "2004-03-01"])


def make_store(num_members=2, **names):
    """Writes a store of two start dates, lead times 0, 6 and 12 h, and two levels."""
    members = {"number": [*range(num_members)]} if num_members else {}
    coords = {
        "time": STARTS,
        **members,
        "prediction_timedelta": (6 * np.arange(3) * HOUR).astype("timedelta64[ns]"),
        "level": [500, 850],
        "latitude": np.linspace(-80, 80, 4),
        "longitude": np.arange(0, 360, 60.0),
    }
    shape = [len(values) for values in coords.values()]
    values = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    fields = {"T": (tuple(coords), values)}
    fields["SP"] = (tuple(n for n in coords if n != "level"), values[..., 0, :, :])
    store = xr.Dataset(fields, coords=coords)
    return store.rename({k: v for k, v in names.items() if k in store.dims})


def write_folder(store, folder, calendar="standard", group=False):
    """Writes the same in CREDIT's layout, without lead time 0."""
    for start in store["time"].values:
        stamp = pd.Timestamp(start)
        place = folder / stamp.strftime("%Y%m%d_%H%MZ")
        own = store.sel(time=start).isel(prediction_timedelta=slice(1, None))
        for number in own["number"].values if "number" in own.dims else [None]:
            files = place if number is None else place / f"member_{number:03d}"
            files.mkdir(parents=True)
            part = own if number is None else own.sel(number=number)
            times = xr.date_range(
                str(stamp), periods=3, freq="6h", calendar=calendar, use_cftime=True
            )[1:]
            part = part.drop_vars("time").rename(prediction_timedelta="time")
            part = part.assign_coords(time=times)
            for step in range(1 if group else 2):
                chosen = part if group else part.isel(time=[step])
                name = "2004" if group else times[step].strftime("%Y-%m-%d_T%H%MZ")
                chosen.to_netcdf(files / f"{name}.nc", engine="h5netcdf")
    return folder
