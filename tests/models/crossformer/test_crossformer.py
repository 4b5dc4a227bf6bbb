"""What only the crossformers do; the rest is in `CASES`."""

from __future__ import annotations

from typing import Any

import pytest

from credit_jax import from_state_dict
from credit_jax.models.registry import build, parse_model
from credit_torch_bridge.compare.jax_side import import_credit
from tests.models.cases import BASE, CASES, ENSEMBLE, section
from tests.models.parity import assert_equals_credit, assert_round_trip


def test_four_frames_fail_in_credit_too(credit: Any, torch: Any) -> None:
    model = credit.build_credit({**CASES["camulator two frames"].block, "frames": 4})
    with pytest.raises(RuntimeError):
        model(torch.zeros(1, model.input_channels, 4, 32, 32))


def test_patches_of_a_padded_grid_are_accepted() -> None:
    """CREDIT's reshape fails there."""
    block = CASES["camulator patches"].block
    block = section(block, image_height=62, pad=("earth", [1, 1], [0, 0]))
    assert build(block).config.geometry().patched == (32, 32)


def test_one_number_pads_both_ends() -> None:
    """As CREDIT's older programs read it."""
    padding = {"activate": True, "mode": "mirror", "pad_lat": 8, "pad_lon": 4}
    config = parse_model({"type": "crossformer", "padding_conf": padding})
    assert config.pads == ((8, 8), (4, 4))


def test_what_is_trained_is_what_credit_trains(credit: Any) -> None:
    for name, case in ENSEMBLE.items():
        model = credit.build_credit(case.block)
        theirs = sum(p.numel() for p in model.parameters() if p.requires_grad)
        ours = sum(spec.size for spec in build(case.block).trainable.values())
        assert ours == theirs, name


@pytest.mark.reference
def test_weights_of_other_models_are_refused_with_every_key(credit: Any) -> None:
    mirror = CASES["crossformer mirror"].block
    deeper = BASE | {"depth": [1, 0, 3, 0]}
    for ours, theirs, word in (
        (mirror, mirror | {"type": "wxformer"}, "missing: up_block4.bias"),
        (BASE, deeper, "unexpected: layers.2.1.layers.2."),
    ):
        state = credit.build_credit(theirs).state_dict()
        arrays = {key: value.numpy() for key, value in state.items()}
        with pytest.raises(ValueError, match="does not fit the architecture") as caught:
            from_state_dict(build(ours), arrays)
        lines = str(caught.value).splitlines()[1:]
        assert any(word in line for line in lines)
        if ours is BASE:
            assert all(word in line for line in lines)
            assert len(lines) == sum(".2.1.layers.2." in key for key in arrays)


@pytest.fixture
def column(credit, torch, monkeypatch):
    """CREDIT's class of its pull request 478, with the strides in the decoder."""
    module = import_credit("models.wxformer.wxformer_next")
    block_class = module.UpBlockPS

    class Column(module.NextGenWXFormer):
        def __init__(self, cross_embed_strides, use_spectral_norm, **keys):
            first, *others = cross_embed_strides
            monkeypatch.setattr(
                module, "UpBlockPS", lambda *a: block_class(*a, scale=others.pop())
            )
            keys |= {"use_spectral_norm": use_spectral_norm}
            super().__init__(cross_embed_strides=cross_embed_strides, **keys)
            inputs, outputs = self.up_block4[0].in_channels, self.output_channels
            new = torch.nn.Conv2d(inputs, outputs * first**2, 3, padding=1)
            self.up_block4[0], self.up_block4[1] = new, torch.nn.PixelShuffle(first)
            if use_spectral_norm:
                module.apply_spectral_norm(torch.nn.Sequential(new))

    registry = import_credit("models")._MODEL_REGISTRY
    monkeypatch.setitem(registry, "wxformer_column", (Column, "column"))


@pytest.mark.slow
@pytest.mark.usefixtures("column")
def test_wxformer_column_equals_credit(credit):
    """The name of `nextgen_wxformer` in that pull request."""
    block = CASES["nextgen column"].block
    assert_equals_credit(credit, block, "wxformer_column")
    assert_round_trip(credit, block)
    equal = block | {"cross_embed_strides": [2] * 4}
    former = {"type": "nextgen_wxformer"}
    assert build(equal).param_specs == build(equal | former).param_specs
    assert build(block).param_specs != build(block | former).param_specs
