"""`var_weighting: learnable` of `type: base` against CREDIT's BaseLoss."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from credit_jax.config.loss import LossConfig
from credit_jax.losses import build_loss, initial_parameters, value_and_parts
from credit_jax.losses.build import LOG_VARIANCE
from credit_jax.named_fields import target_variances
from tests.losses.test_by_variable import (
    CHANNELS,
    LAT,
    LATITUDE,
    channels,
    named,
    scaler_path,
)
from tests.support import assert_close, make_mesh
from tests.support.whole_fields import field_context, field_spec, run_on_mesh

__all__ = ["scaler_path"]

ARGS = {
    "var_weighting": "learnable",
    "include_computed_diagnostics": False,
    "variable_weights": {"S/prognostic/2d/SP": 3.0},
    "use_latitude_weights": True,
}
LEARNED = np.array([0.7, 12.0, -9.0], np.float32)
MESHES: list[dict[str, int]] = [{}, {"dp": 2}, {"domain": 4}, {"dp": 2, "domain": 4}]


def built(path: Any, lat: int = LAT, **settings: Any) -> Any:
    latitude = LATITUDE if lat == LAT else np.linspace(80.0, -80.0, lat)
    return build_loss(
        LossConfig(type="base", args=ARGS | settings),
        CHANNELS,
        latitude=latitude,
        variances=target_variances(path),
    )


def ours(
    loss: Any, learned: np.ndarray | None, mesh: Any = None, lat: int = LAT
) -> Any:
    """Returns ((value, parts), (gradients by fields, gradients by parameters))."""
    parameters = {} if learned is None else {LOG_VARIANCE: jnp.asarray(learned)}

    def local(prediction: Any, target: Any) -> Any:
        context = field_context(lat, mesh)

        def of(prediction: Any, parameters: Any) -> Any:
            fields = {
                "y_processed": named(prediction, lambda x: x[0]),
                "y_target_processed": named(target, lambda x: x[0]),
            }
            return value_and_parts(
                loss, fields, replace(context, loss_parameters=parameters)
            )

        both = jax.value_and_grad(of, argnums=(0, 1), has_aux=True)
        (value, parts), (field, own) = both(prediction, parameters)
        return (value, parts, own), field

    prediction, target = channels(lat)
    if mesh is None:
        found, field = jax.jit(local)(prediction, target)
    else:
        specs = (P(), field_spec(mesh))
        found, field = run_on_mesh(local, mesh, prediction, target, out_specs=specs)
    return *found, np.asarray(field)[..., :lat, :]


def credit(path: Any, folder: Any, learned: np.ndarray | None) -> Any:
    import torch
    import xarray as xr
    from credit.losses.base import BaseLoss

    latitude = folder / "latitude.nc"
    xr.Dataset(coords={"latitude": LATITUDE}).to_netcdf(latitude)
    files = {"scaler_path": str(path), "latitude_weights": str(latitude)}
    schema = SimpleNamespace(target_layout=[{"var_key": key} for key in CHANNELS])
    criterion = BaseLoss(**ARGS, **files, channel_schema=schema)
    initial = criterion.log_variance.detach().numpy().copy()
    if learned is not None:
        criterion.log_variance.data = torch.tensor(learned)
    prediction, target = channels()
    own = torch.tensor(prediction, requires_grad=True)
    value = criterion(
        {
            "y_processed": named(own, lambda x: x[0]),
            "y_target_processed": named(torch.tensor(target), lambda x: x[0]),
        }
    )
    value.backward()
    gradients = criterion.log_variance.grad.numpy(), own.grad.numpy()
    return initial, value.item(), criterion.last_var_losses, *gradients


@pytest.mark.parametrize("learned", [None, LEARNED], ids=["initial", "learned"])
@pytest.mark.usefixtures("credit")
def test_equals_credit(learned: Any, scaler_path: Any, tmp_path: Any) -> None:
    loss = built(scaler_path)
    initial, expected, scores, own, field = credit(scaler_path, tmp_path, learned)
    assert_close(initial_parameters(loss)[LOG_VARIANCE], initial, 1e-6, "initial")
    given = initial if learned is None else learned
    value, parts, gradient, own_field = ours(loss, given)
    assert_close(value, expected, 1e-6, "learnable")
    assert set(parts) == {f"loss_var/{key}" for key in scores}
    for key, score in scores.items():
        assert_close(parts[f"loss_var/{key}"], score, 1e-6, key)
    assert_close(gradient[LOG_VARIANCE], own, 1e-5, "gradient by log-variances")
    assert_close(own_field, field, 1e-5, "gradient by the prediction")
    if learned is None:
        # CREDIT's validation has a separate loss, whose parameters are never trained.
        assert_close(ours(loss, None)[0], expected, 1e-6, "in validation")


@pytest.mark.slow(but=["16-{'dp': 2, 'domain': 4}", "13-{'domain': 4}"])
@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.parametrize("lat", [16, 13])
def test_same_on_every_mesh(mesh: dict[str, int], lat: int, scaler_path: Any) -> None:
    loss = built(scaler_path, lat)
    value, parts, own, field = ours(loss, LEARNED, make_mesh(**mesh), lat)
    serial, serial_parts, serial_own, serial_field = ours(loss, LEARNED, lat=lat)
    assert_close(value, serial, 1e-5, f"learnable on {mesh}")
    for name, part in serial_parts.items():
        assert_close(parts[name], part, 1e-5, name)
    assert_close(own[LOG_VARIANCE], serial_own[LOG_VARIANCE], 1e-5, "log-variances")
    assert_close(field, serial_field, 1e-5, "gradient by the prediction")


def test_computed_variables_are_refused(scaler_path: Any) -> None:
    loss = built(scaler_path, include_computed_diagnostics=True)
    with pytest.raises(ValueError, match=r"learnable has parameters .*compute S/compu"):
        ours(loss, LEARNED)
    with pytest.raises(ValueError, match=r"learnable needs loss\.args\.scaler_path"):
        build_loss(LossConfig(type="base", args=ARGS), CHANNELS, latitude=LATITUDE)
