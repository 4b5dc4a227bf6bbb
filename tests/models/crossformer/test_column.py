"""`wxformer_column`, the name of `nextgen_wxformer` in CREDIT's pull request 478."""

import pytest

from credit_jax.models.registry import build
from credit_torch_bridge.compare.jax_side import import_credit
from tests.models.cases import CASES
from tests.models.parity import assert_equals_credit
from tests.state_dict.round_trip import assert_round_trip

OLD = "nextgen_wxformer"
BLOCK = CASES["nextgen column"].block


@pytest.fixture
def column(credit, torch, monkeypatch):
    """CREDIT's class, whose blocks of the decoder undo the strides of the encoder."""
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


@pytest.mark.usefixtures("column")
def test_equals_credit(credit):
    assert_equals_credit(credit, BLOCK, "wxformer_column")
    assert_round_trip(credit, BLOCK)


def test_equal_strides_are_those_of_the_former_name():
    block = {**BLOCK, "cross_embed_strides": [2] * 4}
    new, former = (build({**block, "type": kind}) for kind in ("wxformer_column", OLD))
    assert new.param_specs == former.param_specs
    other = build({**BLOCK, "type": OLD})
    assert build(BLOCK).param_specs != other.param_specs
