"""Tables of NOAA's archives of stations as the observations of `assimilate`.

GHCN-hourly (NCEI, https://www.ncei.noaa.gov/products/global-historical-climatology-network-hourly)
has a row for each report and a column for each element, with a column of quality codes;
NNJA (https://psl.noaa.gov/data/nnja_obs) a row for each BUFR report.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import pandas as pd

from credit_jax.named_fields.units import conversion

# What is observed -> names of that variable in forecasts, in lower case.
NAMES: Mapping[str, str] = {
    "2 m temperature": "t2m 2t 2m_temperature var_2t trefht tas t_2m",
    "2 m dew point": "d2m 2d 2m_dewpoint_temperature var_2d tdps td_2m",
    "surface pressure": "sp ps surface_pressure pressfc psfc",
    "sea level pressure": "msl mslp mean_sea_level_pressure prmsl psl",
    "10 m u": "u10 10u 10m_u_component_of_wind var_10u u10m uas u_10m",
    "10 m v": "v10 10v 10m_v_component_of_wind var_10v v10m vas v_10m",
}
# Layout -> column -> what it observes, and units; winds are a speed and a direction.
# Values are given in SI units: a forecast that does not name its units has these.
_GHCN: Mapping[str, tuple[str, str]] = {
    "temperature": ("2 m temperature", "degC"),
    "dew_point_temperature": ("2 m dew point", "degC"),
    "station_level_pressure": ("surface pressure", "hPa"),
    "sea_level_pressure": ("sea level pressure", "hPa"),
    "wind_speed": ("", "m/s"),
    "wind_direction": ("", "degree"),
}
_NNJA: Mapping[str, tuple[str, str]] = {
    "tmpsq1.tmdb": ("2 m temperature", "K"),
    "tmpsq1.tmdp": ("2 m dew point", "K"),
    "prssq1.pres": ("surface pressure", "Pa"),
    "prssq1.pmsl": ("sea level pressure", "Pa"),
    "wndsq1.wspd": ("", "m/s"),
    "wndsq1.wdir": ("", "degree"),
}
# Codes of values that passed, or that no check was made of; GHCN-hourly has numbers of
# ISD (2, 3, 6 and 7 are suspect or erroneous), and letters for each check that failed.
_PASSED = ("", "0", "1", "4", "5", "9")
_MISSING = -999.0  # and all below, such as -9999


def observations_of(
    table: pd.DataFrame, variables: Collection[str], failed: Counter[str]
) -> pd.DataFrame:
    """A table as `read_observations` has it, of any of the layouts."""
    raw = table.rename(columns=lambda name: str(name).strip().lower())
    if {"variable", "value"} <= {*raw}:
        return table
    if {"obs_timestamp", "lat", "lon"} <= {*raw}:
        network, columns, height = "NNJA", _NNJA, "selv"
        station = raw["rpid"] if "rpid" in raw else pd.Series("", raw.index)
        time: Any = pd.to_datetime(raw["obs_timestamp"], utc=True, errors="coerce")
        raw = raw.rename(columns={"lat": "latitude", "lon": "longitude"})
    elif {"latitude", "longitude"} <= {*raw} and {"station", "station_id"} & {*raw}:
        network, columns, height = "GHCNh", _GHCN, "elevation"
        station = raw["station" if "station" in raw else "station_id"]
        if "date" in raw:
            time = pd.to_datetime(
                raw["date"], utc=True, errors="coerce", format="ISO8601"
            )
        else:
            parts = raw[["year", "month", "day", "hour", "minute"]]
            time = pd.to_datetime(parts, utc=True, errors="coerce")
    else:
        return table
    shared = pd.DataFrame(
        {
            "time": time,
            "latitude": raw["latitude"],
            "longitude": raw["longitude"],
            "elevation": _numbers(raw.get(height, pd.Series(np.nan, raw.index))),
            "station": station.astype(str).str.strip(),
            "network": network,
        }
    )
    values = {}
    for column in columns:
        if column not in raw:
            continue
        numbers = _numbers(raw[column])
        code, texts = f"{column}_quality_code", pd.Series("", raw.index)
        if code in raw:
            texts = raw[code].where(raw[code].notna(), "").astype(str).str.strip()
        passed = texts.str.removesuffix(".0").isin(_PASSED)
        # Values that failed the quality control of a network.
        failed[network] += int((numbers.notna() & ~passed).sum())
        values[column] = numbers.where(passed)
    observed = {}
    for column, numbers in values.items():
        subject, units = columns[column]
        si = {"degC": "K", "hPa": "Pa"}.get(units, units)
        factor, offset = conversion(units, si) or (1.0, 0.0)
        observed[subject] = factor * numbers + offset, si
    speed, direction = (
        next((v for k, v in values.items() if k in names), None)
        for names in (("wind_speed", "wndsq1.wspd"), ("wind_direction", "wndsq1.wdir"))
    )
    observed.pop("", None)
    if speed is not None and direction is not None:
        # The direction is that from which the wind comes; a calm may have none.
        angle = np.deg2rad(direction.where(speed != 0, 0.0))
        observed["10 m u"] = -speed * np.sin(angle), "m/s"
        observed["10 m v"] = -speed * np.cos(angle), "m/s"
    if not observed:
        raise ValueError(f"{network}: it has none of {', '.join(columns)}")
    parts = []
    for subject, (numbers, units) in observed.items():
        names = [v for v in variables if v.lower() in NAMES[subject].split()]
        name = names[0] if names else subject
        part = shared.assign(variable=name, value=numbers, units=units)
        parts.append(part[numbers.notna()])
    return pd.concat(parts, ignore_index=True)


def _numbers(texts: Any) -> pd.Series:
    numbers: Any = pd.to_numeric(texts, errors="coerce")
    return numbers.where(numbers > _MISSING)
