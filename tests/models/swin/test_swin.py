"""What only models of the Swin family do; the rest is in `CASES`."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

from credit_jax.models.registry import build, parse_model
from credit_jax.models.swin import blocks
from credit_jax.models.swin.fuxi import FuxiConfig
from credit_jax.nn.context import Context
from credit_jax.parallel.mesh.model_fit import model_problems
from tests.models.cases import FUXI_BASE, SWIN, SWIN_BASE, section
from tests.models.parity import (
    FLOAT64,
    FORWARD,
    GRADIENT,
    assert_equals_credit,
    run_with_credits_weights,
)
from tests.support import assert_close, assert_trees_close
from tests.support.credit_modules import credit_attribute


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

    case = credit.credit_case(
        FUXI_BASE, seed=3, dtype=torch.float64, prepare=_raise_scales
    )
    with jax.enable_x64(True):
        y, _, by_input, gradients = run_with_credits_weights(FUXI_BASE, case)
        monkeypatch.setattr(blocks, "MASKED", -1e9)
        hidden, *_ = run_with_credits_weights(FUXI_BASE, case)
    assert_close(y, case.y, FLOAT64, "at the clamp: forward")
    assert_close(by_input["x"], case.x_gradient, FLOAT64, "at the clamp: input")
    ours = {key: gradients[key] for key in case.gradients}
    assert_trees_close(ours, case.gradients, FLOAT64, "at the clamp: gradients")
    untrained = [key for key in gradients if key.endswith("qkv.weight_orig")]
    assert len(untrained) == FUXI_BASE["depth"]
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
    from tests.state_dict.round_trip import assert_round_trip

    trained = {**FUXI_BASE, "train_qkv": True}
    assert_round_trip(credit, trained, FUXI_BASE)
    case = credit.credit_case(FUXI_BASE, seed=3, prepare=_train_qkv)
    plain = credit.credit_case(FUXI_BASE, seed=3)
    assert np.array_equal(case.y, plain.y)
    keys = case.gradients.keys() - plain.gradients.keys()
    assert len(keys) == FUXI_BASE["depth"]
    y, _, _, gradients = run_with_credits_weights(trained, case)
    assert_close(y, case.y, FORWARD, "train_qkv: forward")
    for key in sorted(keys):
        assert_close(gradients[key], case.gradients[key], GRADIENT, key)


def test_patches_fit_where_credit_runs() -> None:
    """Convolutions round halves up; Python rounds them to even numbers."""
    fit = []
    for size in range(8, 40):
        block = section(FUXI_BASE, image_height=size, patch_height=4)
        config = FuxiConfig(**{k: v for k, v in block.items() if k != "padding_conf"})
        if not any(config.problems()):
            fit.append(size)
    expected = [s for s in range(8, 40) if -(-(s // 4) // 2) == round(s / 4 / 2)]
    assert fit == expected
    assert 36 not in fit, "round(4.5) is 4, and nine patches make five"
    assert 12 in fit, "round(1.5) is 2"


def test_the_program_does_not_grow_with_depth() -> None:
    """Two blocks, without and with a shift, are one iteration of a loop."""

    def equations(depth: int) -> int:
        model_def = build({**FUXI_BASE, "depth": depth})
        weights = jax.eval_shape(model_def.init, jax.random.key(0))
        x = jax.ShapeDtypeStruct(model_def.inputs["x"].shape(1), "float32")

        def forward(weights: Any, x: Any) -> Any:
            return model_def.apply(weights, {"x": x}, Context())

        return str(jax.make_jaxpr(forward)(weights, x)).count(" = ")

    assert equations(4) == equations(40)
    assert equations(41) < 2 * equations(40)


@pytest.mark.slow
def test_padding_is_what_credits_source_means(
    credit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against CREDIT's forward with the padding layer that its constructor omits."""
    padding = credit_attribute("boundary_padding", "TensorPadding")
    model = credit_attribute("models.swin", "SwinTransformerV2Cr")
    made = padding(mode="earth", pad_lat=[2, 2], pad_lon=[4, 4])
    monkeypatch.setattr(model, "padding_opt", made, raising=False)
    assert_equals_credit(credit, SWIN["padded"].block, "padded")


def test_more_channels_out_than_in_are_what_credits_parts_give(
    credit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CREDIT's forward adds zeros of the shape of the input, and fails."""
    block = {**SWIN_BASE, "depths": [1], "output_only_channels": 3}
    with pytest.raises(RuntimeError, match=r"size of tensor a \(8\) must match"):
        credit.credit_case(block)
    model = credit_attribute("models.swin", "SwinTransformerV2Cr")

    def forward(self: Any, x: Any) -> Any:
        return self.forward_head(self.forward_features(x.squeeze(2))).unsqueeze(2)

    monkeypatch.setattr(model, "forward", forward)
    case = credit.credit_case(block, seed=3)
    y, *_ = run_with_credits_weights(block, case)
    assert_close(y, case.y, FORWARD, "more channels out than in")


def test_rates_of_drop_path_grow_from_block_to_block() -> None:
    block = {**SWIN_BASE, "depths": [2, 3], "num_heads": [2, 2], "drop_path_rate": 0.4}
    config: Any = parse_model(block)
    rates = [rate for stage in (0, 1) for rate in config.drop_path(stage)]
    expected = np.linspace(0, 0.4, 5, dtype=np.float32)
    np.testing.assert_allclose(rates, expected, rtol=1e-6)


@pytest.mark.parametrize("block", [FUXI_BASE, SWIN_BASE], ids=["fuxi", "swin"])
def test_tensor_degrees_that_do_not_fit(block: dict[str, Any]) -> None:
    (problem,) = model_problems(parse_model(block), {"tp": 4})
    assert "stage 0 has 2 heads, which tensor = 4 of the parallelism" in problem
