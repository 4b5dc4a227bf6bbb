"""Adjoints of forecasts of the shipped configs, made small, with all their blocks."""

import itertools
import warnings
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import yaml

from credit_jax.config import build_config
from credit_jax.config.dates import date_label
from credit_jax.config.parallelism import parse_parallelism
from credit_jax.extensions.adjoint import inner_product, linearized, tangent_linear
from credit_jax.extensions.adjoint.maps import map_of_plan
from credit_jax.extensions.certification.small_config import (
    certified_mapping,
    fit_scalers,
    write_files,
)
from credit_jax.forecast import Forecaster
from credit_jax.parallel.params.precision import default_mp_policy
from credit_jax.plan.forecast import plan_forecast

pytestmark = pytest.mark.slow
CONFIGS = Path("configs").resolve()
MESHES = {
    "one": ("data=none", 1),
    "tp2": ("data=none,tensor=2", 2),
    "domain2": ("data=none,domain=2", 2),
    "domain3": ("data=none,domain=3", 3),
    "2x2": ("data=none,tensor=2,domain=2", 4),
    "fsdp2": ("data=fsdp2", 2),
}
FAMILIES = (
    *("camulator", "crossformer_wxformer_6h", "fuxi_6h", "graph_1deg"),
    *("nextgen_wxformer_6h", "swin_6h", "unet_1deg", "wxformer_moe_1deg"),
    *("crossformer_ensemble_1deg", "crossformer_diffusion_1deg", "unet_diffusion_1deg"),
)
CASES = [
    *itertools.product(["crossformer_wxformer_6h"], MESHES),
    *zip(FAMILIES, itertools.cycle(MESHES), strict=False),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "mesh"), dict.fromkeys(CASES))
def test_products(name, mesh, tmp_path, monkeypatch):
    """<M x, M x> = <x, M' M x> of two steps, float32."""
    monkeypatch.chdir(tmp_path)  # Its files have relative paths.
    forecast = small_forecast(CONFIGS / f"{name}.yaml", mesh, tmp_path)
    rng = np.random.default_rng(0)

    linear = linearized(forecast, forecast.state)
    size = {key: np.std(x) for key, x in forecast.state.items()}
    x = {
        key: (size[key] * rng.standard_normal(field.shape)).astype(np.float32)
        for key, field in sorted(forecast.state.items())
    }
    tangents = jax.device_get(linear.tangent_linear(x))
    left = inner_product(tangents, tangents)
    right = inner_product(x, linear.adjoint(tangents))
    print(f"{name}, {mesh}: {abs(right / left - 1):.1e} of {left:.1e}")
    assert 0 < left < np.inf
    assert left == pytest.approx(right, rel=1e-6)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["crossformer_wxformer_6h", "camulator", "fuxi_6h"])
def test_remainder_is_of_second_order(name, tmp_path, monkeypatch):
    """|F(x + h v) - F(x) - h M v| falls by 100 if h falls by 10, in float64."""
    monkeypatch.chdir(tmp_path)
    policy = default_mp_policy(
        "float64", reduce_dtype="float64", output_dtype="float64"
    )
    forecast = small_forecast(CONFIGS / f"{name}.yaml", "one", tmp_path, policy)
    with jax.enable_x64(True):
        wide = jax.tree.map(_wide, (forecast.weights, forecast.constants))
        state = jax.tree.map(_wide, dict(forecast.state))
        forecast = replace(forecast, weights=wide[0], constants=wide[1], state=state)
        rng = np.random.default_rng(0)
        v = {key: rng.standard_normal(x.shape) for key, x in state.items()}
        fields, tangents = tangent_linear(forecast, state, v)
        remainders = []
        for h in (1e-3, 1e-4):
            moved = forecast({key: x + h * v[key] for key, x in state.items()})
            rest = {k: moved[k] - fields[k] - h * tangents[k] for k in fields}
            remainders.append(np.sqrt(inner_product(rest, rest)))
    print(f"{name}: {remainders[0] / remainders[1]:.1f}")
    assert remainders[0] / remainders[1] == pytest.approx(100, rel=0.1)


def _wide(array):
    is_float = jnp.issubdtype(array.dtype, jnp.floating)
    return jnp.asarray(array, jnp.float64) if is_float else array


def small_forecast(path, mesh, folder, policy=None):
    """Two steps of random weights, as a function of the state in normalized units."""
    mapping = yaml.safe_load(path.read_text())
    small = certified_mapping(mapping, folder, num_samples=2, num_updates=1)
    text, num_devices = MESHES[mesh]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        config = build_config(small)
        write_files(config)
        fit_scalers(config)
        data = config.validation_data
        first = date_label(data.ranges[0][0])
        start = first + (data.history_len - 1) * data.time_step
        plan = plan_forecast(
            config,
            parse_parallelism(text),
            num_devices=num_devices,
            init_times=[str(start)],
            num_steps=2,
        )
        model = plan.model.build(jax.devices()[:num_devices], mp_policy=policy)
        weights = Forecaster(model, *model.init(jax.random.key(0))).weights
        return map_of_plan(plan, model, weights, 2, "normalized")
