"""FuXi against serial CREDIT, and its `model:` section."""

from __future__ import annotations

import inspect
from typing import Any

import jax
import numpy as np
import pytest

from credit_jax.models.registry import build, parse_model
from credit_jax.models.swin import blocks
from credit_jax.models.swin.fuxi import FuxiConfig
from credit_jax.nn.context import Context
from credit_jax.parallel.mesh.model_fit import model_problems
from tests.models.parity import (
    FLOAT64,
    FORWARD,
    GRADIENT,
    assert_equals_credit,
    assert_equals_credit_in_float64,
    assert_training_forward_equals_credit,
    run_with_credits_weights,
)
from tests.models.swin.cases import BASE
from tests.models.swin.cases import FUXI_CASES as CASES
from tests.support import assert_close, assert_trees_close
from tests.support.credit_modules import credit_attribute


@pytest.mark.slow(but=["shifted"])
@pytest.mark.parametrize("name", [name for name in CASES if name != "dropout"])
@pytest.mark.filterwarnings("ignore:.*does not see")
def test_equals_credit(credit: Any, name: str) -> None:
    assert_equals_credit(credit, CASES[name], name)


@pytest.mark.slow
def test_plain_definitions_equal_credit(credit: Any) -> None:
    """Accelerators run these; the other tests run the implementations for CPU."""
    assert_equals_credit(credit, BASE, "shifted, plain", "xla")


@pytest.mark.slow
def test_equals_credit_array_by_array_in_float64(credit: Any) -> None:
    assert_equals_credit_in_float64(credit, BASE, "shifted")


def test_training_forward_moves_the_state_like_credit(credit: Any) -> None:
    """u and v of qkv are part of the state, and are constant in both."""
    assert_training_forward_equals_credit(credit, BASE)
    case = credit.credit_case(BASE, seed=1, mode="train")
    for key in case.state:
        if key.endswith(("qkv.weight_u", "qkv.weight_v")):
            assert np.array_equal(case.state[key], case.state_after[key]), key


def _raise_scales(model: Any) -> None:
    """Sets logit scales below, above and at the clamp."""

    import torch

    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("logit_scale"):
                parameter[0], parameter[1] = 9.0, blocks.MAX_LOGIT_SCALE


@pytest.mark.slow
def test_the_mask_leaks_at_the_clamp_as_in_credit(
    credit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Logits reach +-100, so that tokens masked by -100 still get attention."""

    import torch

    case = credit.credit_case(BASE, seed=3, dtype=torch.float64, prepare=_raise_scales)
    with jax.enable_x64(True):
        y, _, by_input, gradients = run_with_credits_weights(BASE, case)
        monkeypatch.setattr(blocks, "MASKED", -1e9)
        hidden, *_ = run_with_credits_weights(BASE, case)
    assert_close(y, case.y, FLOAT64, "at the clamp: forward")
    assert_close(by_input["x"], case.x_gradient, FLOAT64, "at the clamp: input")
    ours = {key: gradients[key] for key in case.gradients}
    assert_trees_close(ours, case.gradients, FLOAT64, "at the clamp: gradients")
    untrained = [key for key in gradients if key.endswith("qkv.weight_orig")]
    assert len(untrained) == BASE["depth"]
    assert not any(np.any(gradients[key]) for key in untrained)
    leak = np.abs(hidden - y).max() / np.abs(y).max()
    print(f"what the leak changes: {leak:.1e}")
    assert leak > 1e-4, "the case must have a leak to say much"


def _train_qkv(model: Any) -> None:
    """Makes CREDIT's layers use the parameter itself, so that it gets a gradient."""
    for name, module in model.named_modules():
        if name.endswith("qkv"):
            del module.weight
            module.__dict__["weight"] = module.weight_orig


@pytest.mark.slow
def test_trained_qkv(credit: Any) -> None:
    """With `train_qkv`: equal prediction, and the gradient that CREDIT omits."""
    case = credit.credit_case(BASE, seed=3, prepare=_train_qkv)
    plain = credit.credit_case(BASE, seed=3)
    assert np.array_equal(case.y, plain.y)
    keys = case.gradients.keys() - plain.gradients.keys()
    assert len(keys) == BASE["depth"]
    y, _, _, gradients = run_with_credits_weights({**BASE, "train_qkv": True}, case)
    assert_close(y, case.y, FORWARD, "train_qkv: forward")
    for key in sorted(keys):
        assert_close(gradients[key], case.gradients[key], GRADIENT, key)


# changes of the section, the error
WRONG = {
    "frames of two patches": (
        {"frames": 4},
        "frames is 4 and model.frame_patch_size 2; .* frame_patch_size from 3 to 4",
    ),
    "frames of no patch": ({"frames": 1}, "frame_patch_size from 1 to 1"),
    "heads": ({"num_heads": 3}, r"num_heads has 3, .* dim 8; would fit: .*2"),
    "groups": ({"num_groups": [2, 3]}, "num_groups has 3, which does not divide dim 8"),
    "a window of one token": ({"window_size": 1}, "window_size is 1; .* at least 2"),
    "an oblong window": ({"window_size": [3, 4]}, r"window_size is \[3, 4\]; .*equal"),
    "no depth": ({"depth": -1}, "depth: must be at least 0, got -1"),
    "half a patch": (
        {"patch_width": 4, "padding_conf": None},
        r"patch_width is 4: 36 points make 9 patches, whose half is 5, .*"
        r"round\(36 / 4 / 2\) = 4 and fails; pad to 40 points",
    ),
    "a patch beyond the grid": (
        {"patch_height": 32},
        "patch_height is 32, more than the 28 points",
    ),
    "too much padding": (
        {"padding_conf": {"mode": "mirror", "pad_lat": [22, 22], "pad_lon": [2, 2]}},
        "padding_conf.pad_lat",
    ),
    "flat padding": (
        {"padding_conf": None, "pad_lat": 80, "pad_lon": 80},
        r"mode: mirror, pad_lat: \[80, 80\], pad_lon: \[80, 80\]",
    ),
    "off the grid": (
        {"interp": False, "image_height": 24, "padding_conf": None, "image_width": 38},
        "interp is false and patches make 24 x 40 points of the 24 x 38",
    ),
    "no channels": (
        {"channels": 0, "surface_channels": 0, "output_only_channels": 0},
        "0 output channels",
    ),
    "a rate": ({"drop_path": 1.0}, "drop_path: must be less than 1.0, got 1.0"),
    "noise": ({"use_noise": True}, "use_noise: .*not available.*scheduler"),
    "freezing": ({"freeze": True}, "freeze: .*nothing is left to train"),
    "unknown key": ({"windowsize": 7}, "nearest known key is 'window_size'"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_run_is_refused(name: str) -> None:
    change, message = WRONG[name]
    with pytest.raises(ValueError, match=message):
        build({**BASE, **change})


def test_tensor_degrees_that_do_not_fit() -> None:
    (problem,) = model_problems(parse_model(BASE), {"tp": 4})
    assert "stage 0 has 2 heads, which tensor = 4 of the parallelism" in problem


def test_patches_fit_where_credit_runs() -> None:
    """Convolutions round halves up; Python rounds them to even numbers."""
    fit = []
    for size in range(8, 40):
        block = {**BASE, "image_height": size, "patch_height": 4, "padding_conf": None}
        config = FuxiConfig(**{k: v for k, v in block.items() if v is not None})
        if not any(config.problems()):
            fit.append(size)
    expected = [s for s in range(8, 40) if -(-(s // 4) // 2) == round(s / 4 / 2)]
    assert fit == expected
    assert 36 not in fit, "round(4.5) is 4, and nine patches make five"
    assert 12 in fit, "round(1.5) is 2"


def test_the_defaults_are_those_of_credit(credit: Any) -> None:
    model = credit_attribute("models.fuxi", "Fuxi")
    parameters = inspect.signature(model.__init__).parameters.values()
    theirs = {
        p.name: p.default
        for p in parameters
        if p.default is not inspect.Parameter.empty
    }
    assert theirs.pop("num_groups") == 32
    assert theirs.pop("window_size") == 7
    unread = {"use_noise", "freeze", "noise_latent_dim", "noise_factor"}
    unread.add("noise_scheduler")
    theirs = {key: value for key, value in theirs.items() if key not in unread}
    config = FuxiConfig()
    assert (config.num_groups, config.window_size) == ((32, 32), (7, 7))
    assert {key: getattr(config, key) for key in theirs} == theirs


@pytest.mark.parametrize("key", ["output_frames", "noise_factor"])
def test_keys_that_only_credit_accepts_are_named_in_a_warning(key: str) -> None:
    with pytest.warns(UserWarning, match=f"model.{key} "):
        parse_model({**BASE, key: 1})


def test_what_changes_nothing_is_named_in_a_warning() -> None:
    with pytest.warns(UserWarning, match="does not see the others"):
        parse_model({**BASE, "frames": 3})
    with pytest.warns(UserWarning, match="train_qkv .without spectral norm"):
        parse_model({**BASE, "use_spectral_norm": False, "train_qkv": True})
    with pytest.warns(UserWarning, match="pad_lat .padding_conf is there"):
        parse_model({**BASE, "pad_lat": 80})


def test_the_program_does_not_grow_with_depth() -> None:
    """Two blocks, without and with a shift, are one iteration of a loop."""

    def equations(depth: int) -> int:
        model_def = build({**BASE, "depth": depth})
        weights = jax.eval_shape(model_def.init, jax.random.key(0))
        x = jax.ShapeDtypeStruct(model_def.inputs["x"].shape(1), "float32")

        def forward(weights: Any, x: Any) -> Any:
            return model_def.apply(weights, {"x": x}, Context())

        return str(jax.make_jaxpr(forward)(weights, x)).count(" = ")

    assert equations(4) == equations(40)
    assert equations(41) < 2 * equations(40)
