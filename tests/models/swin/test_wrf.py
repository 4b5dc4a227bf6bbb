"""wrf and dscale, which have several inputs, against serial CREDIT and on meshes."""

from __future__ import annotations

import inspect
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import yaml

from credit_jax import from_state_dict, to_state_dict
from credit_jax.cli.check.command import main
from credit_jax.models.conversion import key_map_for
from credit_jax.models.parallel_model import build_parallel_model
from credit_jax.models.registry import build, parse_model
from credit_jax.models.swin.dscale import DscaleConfig
from credit_jax.models.swin.wrf import WRFConfig
from credit_jax.nn import spectral_norm
from credit_jax.nn.context import Context
from credit_jax.nn.model_state import BATCH_STATS, SPECTRAL_NORM
from credit_jax.parallel.params.precision import Precision
from credit_jax.parallel.placement import place_batch
from tests.models.parity import FLOAT64, FORWARD, GRADIENT
from tests.models.swin.cases import DSCALE, WRF
from tests.reference.training import GEN2_CONFIG
from tests.support import assert_close, assert_trees_close, make_mesh
from tests.support.credit_modules import credit_attribute

BLOCKS = {"wrf": WRF, "dscale": DSCALE}


def _inputs(name: str, batch: int, dtype: str) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    specs = parse_model(BLOCKS[name]).inputs
    return {k: rng.normal(size=s.shape(batch)).astype(dtype) for k, s in specs.items()}


@cache
def _credit(credit: Any, name: str, dtype: str) -> tuple[Any, Any, Any, Any]:
    """Returns CREDIT's state, prediction, and gradients by parameters and inputs."""

    import torch

    from credit_torch_bridge.compare.credit_side import cast_credit

    torch_dtype = getattr(torch, dtype)
    model = cast_credit(credit.build_credit(BLOCKS[name], seed=1), torch_dtype)
    generator = torch.Generator().manual_seed(0)
    arrays = {k: torch.from_numpy(x) for k, x in _inputs(name, 2, dtype).items()}
    with torch.no_grad():
        for parameter in model.parameters():
            shape = parameter.shape
            drawn = torch.randn(shape, generator=generator, dtype=torch_dtype)
            parameter.add_(drawn * 0.1)
        for _ in range(5):
            model.train()(**arrays)
    state = {k: v.numpy().copy() for k, v in model.eval().state_dict().items()}
    for array in arrays.values():
        array.requires_grad_()
    y = model(**arrays)
    (y**2).mean().backward()
    named = model.named_parameters()
    grads = {k: p.grad.numpy() for k, p in named if p.grad is not None}
    by_input = {k: array.grad.numpy() for k, array in arrays.items()}
    return state, y.detach().numpy(), grads, by_input


def _ours(name: str, dtype: str, state: Any) -> tuple[Any, Any, Any]:
    model_def = build(BLOCKS[name])
    params, model_state = jax.device_put(from_state_dict(model_def, state))
    inputs = jax.tree.map(jnp.asarray, _inputs(name, 2, dtype))

    def loss(params: Any, inputs: Any) -> Any:
        vectors = model_state[SPECTRAL_NORM]
        weights = spectral_norm.normalize(params, vectors, model_def.matrices)
        context = Context(precision=Precision.of(dtype))
        y = model_def.apply(weights, inputs, context, model_state[BATCH_STATS])
        return (y**2).mean(), y

    step = jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))
    (_, y), (by_param, by_input) = step(params, inputs)
    named = to_state_dict(model_def, *jax.device_get((by_param, model_state)))
    return np.asarray(y), named, jax.device_get(by_input)


@pytest.mark.slow
@pytest.mark.parametrize("name", BLOCKS)
def test_equals_credit_in_float64(credit: Any, name: str) -> None:
    """Forward, and the gradients by every parameter and every input."""
    state, y, grads, by_input = _credit(credit, name, "float64")
    with jax.enable_x64(True):
        ours, named, ours_by_input = _ours(name, "float64", state)
    assert_close(ours, y, FLOAT64, f"{name}: forward")
    mine = {key: named[key] for key in grads}
    assert_trees_close(mine, grads, FLOAT64, f"{name}: gradients")
    assert_trees_close(ours_by_input, by_input, FLOAT64, f"{name}: of the inputs")
    assert not any("qkv" in key for key in grads)


@pytest.mark.parametrize("name", BLOCKS)
def test_equals_credit(credit: Any, name: str) -> None:
    state, y, grads, _ = _credit(credit, name, "float32")
    ours, named, _ = _ours(name, "float32", state)
    assert_close(ours, y, FORWARD, f"{name}: forward")
    joined = [np.concatenate([g[k].ravel() for k in grads]) for g in (named, grads)]
    assert_close(*joined, GRADIENT, f"{name}: gradient, all")


@pytest.mark.parametrize("name", BLOCKS)
def test_the_round_trip_of_credit_s_state_dict_is_bitwise(
    credit: Any, name: str
) -> None:
    model = credit.build_credit(BLOCKS[name], seed=1)
    state = {key: value.numpy() for key, value in model.state_dict().items()}
    model_def = build(BLOCKS[name])
    params, model_state = from_state_dict(model_def, state)
    back = to_state_dict(model_def, params, model_state)
    assert list(back) == list(state), "the keys, or their order, differ"
    for key, value in state.items():
        np.testing.assert_array_equal(back[key], value, err_msg=key)
    names = [name for name, _ in model.named_parameters()]
    assert key_map_for(model_def).parameters.keys == names
    assert "film.weight" in names, "made after spectral norm"


@pytest.mark.slow
@pytest.mark.parametrize("degrees", [{"dp": 2, "tp": 2, "domain": 2}, {"domain": 3}])
@pytest.mark.parametrize("name", BLOCKS)
def test_equals_one_device(name: str, degrees: dict[str, int]) -> None:
    """Both fields are split by their own rows, and are added patch by patch."""

    def run(degrees: dict[str, int]) -> Any:
        model = build_parallel_model(BLOCKS[name], make_mesh(**degrees))
        params, model_state = model.init(jax.random.key(0))
        inputs = place_batch(_inputs(name, 2, "float32"), model.mesh)

        def loss(params: Any) -> Any:
            y = model.apply(params, model_state, inputs)
            y = y[..., : model.model_def.image_height, :]
            return jnp.mean(y**2), y

        (_, y), grads = jax.jit(jax.value_and_grad(loss, has_aux=True))(params)
        return np.asarray(y), grads

    actual, expected = run(degrees), _one(run, name)
    what = f"{name} on {degrees}"
    assert_close(actual[0], expected[0], FORWARD, f"{what}: forward")
    joined = [
        np.concatenate([np.ravel(grads[k]) for k in sorted(expected[1])])
        for grads in (actual[1], expected[1])
    ]
    assert_close(*joined, GRADIENT, f"{what}: gradient of all parameters")


_KEPT: dict[str, Any] = {}


def _one(run: Any, name: str) -> Any:
    if name not in _KEPT:
        _KEPT[name] = run({})
    return _KEPT[name]


def _changed(block: dict[str, Any], **parts: Any) -> dict[str, Any]:
    new = {k: {**block[k], **v} for k, v in parts.items() if isinstance(v, dict)}
    return {**block, **parts, **new}


WRONG = {
    "patches": (
        _changed(WRF, param_outside={"image_height": 12}),
        "param_outside makes 12 x 12 patches of 12 x 24 points, param_interior 14 x 12",
    ),
    "widths": (
        _changed(WRF, param_outside={"dim": 4}),
        "param_outside.dim is 4 and param_interior.dim 8",
    ),
    "frames around": (
        _changed(WRF, param_outside={"frames": 4}),
        r"frames is 4 and model.frame_patch_size 1; .*param_outside",
    ),
    "frames": (
        _changed(WRF, param_interior={"frames": 1}),
        "frames is 1 and model.frame_patch_size 2",
    ),
    "no channels": (
        _changed(WRF, param_outside={"channels": 0, "surface_channels": 0}),
        "0 around it",
    ),
    "a missing part": (
        {k: v for k, v in WRF.items() if k != "param_outside"},
        "param_outside",
    ),
    "heads": ({**DSCALE, "num_heads": 3}, "num_heads is 3"),
    "a rate": ({**DSCALE, "attn_drop": 1.5}, "attn_drop is 1.5"),
    "unknown key": ({**DSCALE, "input_channels": 3}, "input_channels"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_run_is_refused(name: str) -> None:
    block, message = WRONG[name]
    with pytest.raises(ValueError, match=message):
        build(block)


def test_the_defaults_are_those_of_credit(credit: Any) -> None:
    for module, cls, ours, config in (
        ("models.dscale_wrf", "DscaleTransformer", DscaleConfig, DscaleConfig()),
        ("models.swin_wrf", "WRFTransformer", WRFConfig, parse_model(WRF)),
    ):
        model = credit_attribute(module, cls)
        for p in inspect.signature(model.__init__).parameters.values():
            if p.name in ("self", "kwargs"):
                continue
            assert p.name in ours.model_fields, p.name
            default = ours.model_fields[p.name].default
            if p.name in ("num_groups", "window_size"):
                assert default == (p.default, p.default)
            elif p.default is not inspect.Parameter.empty:
                assert default == p.default, p.name
        assert config.problems() == []


def test_keys_that_only_credit_accepts_are_named_in_a_warning() -> None:
    with pytest.warns(UserWarning, match="model.proj_drop .CREDIT's wrf ignores"):
        parse_model({**WRF, "proj_drop": 0.1})
    with pytest.warns(UserWarning, match="model.levels .CREDIT's dscale ignores"):
        parse_model({**DSCALE, "levels": 3})


@pytest.mark.parametrize("name", BLOCKS)
def test_that_no_data_source_has_the_other_inputs_is_said_with_the_keys(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    raw = yaml.safe_load(GEN2_CONFIG.read_text()) | {"model": BLOCKS[name]}
    (tmp_path / "model.yml").write_text(yaml.safe_dump(raw))
    assert main(["--config", str(tmp_path / "model.yml"), "--no-data"]) == 1
    text = " ".join(capsys.readouterr().out.split())
    assert "set data.time_encoding: {x_extra: [...]}" in text
    assert ("the key input: x_outside" in text) == (name == "wrf")
