"""The gradient of a number of a forecast by its initial state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import jax
import numpy as np
import xarray as xr

from credit_jax.extensions.adjoint.linear import adjoint
from credit_jax.extensions.adjoint.maps import ForecastMap
from credit_jax.extensions.adjoint.target import SensitivityTarget
from credit_jax.forecast.forecaster import to_host
from credit_jax.forecast.netcdf import to_dataset
from credit_jax.forecast.outputs import Outputs


@dataclass(frozen=True, eq=False)
class Sensitivity:
    """A number of a forecast, and its gradient by the initial state.

    Attributes:
        target: what the number is.
        value: the number.
        gradient: the gradient by every prognostic variable: dims (time, [level],
            latitude, longitude), in units of the number by those of the variable.
    """

    target: SensitivityTarget
    value: float
    gradient: xr.Dataset


def sensitivity(
    forecast: ForecastMap,
    target: SensitivityTarget,
    outputs: Outputs,
    times: Sequence[np.datetime64],
) -> Sensitivity:
    """Computes a number of the last step of a forecast, and its gradient.

    Args:
        forecast: the forecast in physical units; its first sample counts.
        target: the number.
        outputs: all variables of the forecasts, with all levels.
        times: dates of the initial state, as many as the model has frames.

    Raises:
        ValueError: the forecast has no such channel, or the region no point.
        FloatingPointError: the number is not finite.
    """
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
    variables = tuple(v for v in outputs.variables if v.key in host)
    chosen = replace(outputs, variables=variables, attributes={})
    dataset = to_dataset(chosen, [*times], steps)
    (of_target,) = (v for v in outputs.variables if v.key == key)
    above = outputs.attributes_of(of_target).get("units")
    for variable in variables:
        attributes = {"long_name": f"gradient of {target.text} by {variable.name}"}
        below = outputs.attributes_of(variable).get("units")
        if above and below:
            attributes["units"] = f"({above}) / ({below})"
        dataset[variable.name].attrs = attributes
    dataset.attrs |= {"target": target.text, "value": float(value)}
    return Sensitivity(target, float(value), dataset)
