"""wrf and dscale, which have several inputs, against serial CREDIT and on meshes."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from credit_jax import from_state_dict, to_state_dict
from credit_jax.cli.check import main
from credit_jax.models.conversion import key_map_for
from credit_jax.models.registry import build, parse_model
from credit_jax.models.swin.fuxi import DscaleConfig, WRFConfig
from tests.models.mesh_parity import assert_equals_one_device
from tests.models.parity import (
    Networks,
    assert_equals_credit,
    assert_equals_credit_in_float64,
)
from tests.models.swin.cases import DSCALE, WRF
from tests.reference.training import GEN2_CONFIG
from tests.support.credit_modules import credit_attribute

BLOCKS = {"wrf": WRF, "dscale": DSCALE}


@pytest.mark.slow
@pytest.mark.parametrize("name", BLOCKS)
def test_equals_credit_in_float64(credit: Any, name: str) -> None:
    """Forward, and the gradients by every parameter and every input."""
    _, grads = assert_equals_credit_in_float64(Networks(credit), BLOCKS[name], name)
    assert not any("qkv" in key for key in grads)


@pytest.mark.parametrize("name", BLOCKS)
def test_equals_credit(credit: Any, name: str) -> None:
    assert_equals_credit(Networks(credit), BLOCKS[name], name)


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
@pytest.mark.parametrize("mesh", ["dp2_tp2_domain2", "domain3"])
@pytest.mark.parametrize("name", BLOCKS)
def test_equals_one_device(name: str, mesh: str) -> None:
    """Both fields are split by their own rows, and are added patch by patch."""
    assert_equals_one_device(BLOCKS[name], mesh, name)


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
        "0 channels around the region",
    ),
    "a missing part": (
        {k: v for k, v in WRF.items() if k != "param_outside"},
        "param_outside",
    ),
    "heads": ({**DSCALE, "num_heads": 3}, "num_heads has 3"),
    "a rate": (
        {**DSCALE, "attn_drop": 1.5},
        "attn_drop: must be less than 1.0, got 1.5",
    ),
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
        assert not any(config.problems())


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
    (tmp_path / "model.yml").write_text(yaml.safe_dump(raw, sort_keys=False))
    assert main(["--config", str(tmp_path / "model.yml"), "--no-data"]) == 1
    text = " ".join(capsys.readouterr().out.split())
    assert "set data.time_encoding: {x_extra: [...]}" in text
    assert ("the key input: x_outside" in text) == (name == "wrf")
