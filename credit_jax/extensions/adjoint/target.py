"""Numbers of a forecast and their gradients by the initial state."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import jax
import numpy as np
import xarray as xr
from jaxtyping import Float

from credit_jax.config import not_available
from credit_jax.evaluation.regions import REGIONS, Region, region_weights
from credit_jax.extensions.adjoint.maps import ForecastMap, adjoint
from credit_jax.forecast.forecaster import to_host
from credit_jax.forecast.netcdf import to_dataset
from credit_jax.forecast.outputs import Outputs

_FORM = "mean CHANNEL [in REGION], such as 'mean T500 in 45..60N 10W..20E'"
_TARGET = re.compile(r"mean\s+(?P<channel>\S+)(?:\s+in\s+(?P<region>.+))?")
_NUMBER = r"\d+(?:\.\d+)?"
_RANGE = re.compile(rf"({_NUMBER})([NSEW]?)\.\.({_NUMBER})([NSEW])")
_SIGN = {"N": 1.0, "E": 1.0, "S": -1.0, "W": -1.0}


@dataclass(frozen=True)
class SensitivityTarget:
    """The mean over a region of a predicted variable, weighted by area."""

    text: str
    channel: str  # with the value of its level: "T500", "SP"
    region: Region

    def place(self, outputs: Outputs) -> tuple[str, int, str]:
        """Key of the variable, position of its level, and its name."""
        indices: dict[str, tuple[str, int, str]] = {}
        for variable in sorted(outputs.variables, key=lambda v: v.levels is not None):
            values, name = variable.levels, variable.name
            levels = [""] if values is None else [f"{value:g}" for value in values]
            chosen = variable.chosen or range(len(levels))
            for level, position in zip(levels, chosen, strict=True):
                # U10 may be the wind at 10 m; then U_10 is that at level 10.
                between = "_" if name + level in indices else ""
                indices[name + between + level] = variable.key, position, name
        if self.channel not in indices:
            raise not_available("--of: the channel", self.channel, indices)
        return indices[self.channel]

    def weights(self, outputs: Outputs) -> Float[np.ndarray, "lat lon"]:
        """The weight of every point in the mean; their sum is 1."""
        grid = outputs.latitude, outputs.longitude
        (weights,) = region_weights([self.region], *grid)
        if not weights.any():
            raise ValueError(
                f"--of: no point of the grid is in {self.region.name}; latitudes go "
                f"from {grid[0].min():g} to {grid[0].max():g}, longitudes from "
                f"{grid[1].min():g} to {grid[1].max():g}"
            )
        return weights


def parse_target(text: str) -> SensitivityTarget:
    """Parses the text of a target.

    >>> parse_target("mean T500 in 45..60N 10W..20E").region.longitudes
    ((350.0, 360.0), (0.0, 20.0))
    """
    match = _TARGET.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"--of: got {text!r}, expected {_FORM}")
    named = match["region"]
    region = REGIONS[0] if named is None else _region(named.strip())
    return SensitivityTarget(text.strip(), match["channel"], region)


def _region(text: str) -> Region:
    regions = {region.name: region for region in REGIONS}
    if text in regions:
        return regions[text]
    ranges = [_RANGE.fullmatch(part) for part in text.split()]
    if not ranges or None in ranges or len(ranges) > 2:
        raise ValueError(
            f"--of: the region {text!r} is neither ranges such as 45..60N 10W..20E nor "
            f"one of {', '.join(regions)}"
        )
    bounds = dict(_bounds(match) for match in ranges if match is not None)
    if len(bounds) < len(ranges):
        raise ValueError(
            f"--of: the region {text!r} has two ranges of {', '.join(bounds)}; "
            "expected one of latitudes, one of longitudes, or both"
        )
    latitudes, longitudes = REGIONS[0].latitudes, None
    if "latitude" in bounds:
        latitudes = ((min(bounds["latitude"]), max(bounds["latitude"])),)
    if "longitude" in bounds:
        west, east = bounds["longitude"]
        # From 0 to 360, eastward; a whole circle is no range.
        if west == east or (west - east) % 360:
            west, east = west % 360, east % 360
            around = (west, 360.0), (0.0, east)
            longitudes = ((west, east),) if west <= east else around
    return Region(text, latitudes, longitudes)


def _bounds(match: re.Match[str]) -> tuple[str, tuple[float, float]]:
    """The coordinate of a range, and its ends in degrees north or east."""
    first, of_first, last, of_last = match.groups()
    letters = of_first or of_last, of_last
    name, largest = ("latitude", 90) if of_last in "NS" else ("longitude", 360)
    values = float(first) * _SIGN[letters[0]], float(last) * _SIGN[of_last]
    if (letters[0] in "NS") != (of_last in "NS") or max(map(abs, values)) > largest:
        raise ValueError(
            f"--of: the range {match[0]!r} is not between two latitudes from 90S to "
            "90N, or two longitudes from 360W to 360E"
        )
    # Numbers of longitudes west grow to the west.
    if letters == ("W", "W"):
        values = min(values), max(values)
    return name, values


def sensitivity(
    forecast: ForecastMap,
    target: SensitivityTarget,
    outputs: Outputs,
    times: Sequence[np.datetime64],
) -> xr.Dataset:
    """The gradient of a number of the last step of a forecast, an attribute of it."""
    # By every prognostic variable: (time, [level], latitude, longitude), in units of
    # the number by those of the variable.
    key, level, _ = target.place(outputs)
    arrays = forecast.weights, forecast.constants, dict(forecast.state)
    shape = jax.eval_shape(forecast.function, *arrays)[key].shape
    cotangents = np.zeros(shape, np.float32)
    cotangents[-1, 0, level] = target.weights(outputs)
    fields, gradient = adjoint(forecast, forecast.state, {key: cotangents})
    # Elsewhere a field may have missing values.
    inside = cotangents != 0
    value = np.vdot(np.float64(to_host(fields[key])[inside]), cotangents[inside])
    if not np.isfinite(value):
        raise FloatingPointError(
            f"{target.text} is {value}: the forecast has values there that are missing "
            "or not finite"
        )
    host = {name: to_host(field)[0] for name, field in gradient.items()}
    steps = [
        {name: field[:, index] for name, field in host.items()}
        for index in range(len(times))
    ]
    chosen = replace(outputs.only(host), attributes={})
    dataset = to_dataset(chosen, [*times], steps)
    (of_target,) = (v for v in outputs.variables if v.key == key)
    above = outputs.attributes_of(of_target).get("units")
    for variable in chosen.variables:
        attributes = {"long_name": f"gradient of {target.text} by {variable.name}"}
        below = outputs.attributes_of(variable).get("units")
        if above and below:
            attributes["units"] = f"({above}) / ({below})"
        dataset[variable.name].attrs = attributes
    dataset.attrs |= {"target": target.text, "value": float(value)}
    return dataset
