"""Renaming of keys of parallel wrappers and older layouts to the current names."""

import pytest

from credit_jax.models.crossformer.crossformer import WXFORMER
from credit_jax.state_dict.torch_model import current_names

# (name in a file, known names, renaming)
NAMES = [
    ("up_block1.conv.conv.weight", {"up_block1.conv.weight"}, "up_block1.conv.weight"),
    ("up_block1.conv.weight", {"up_block1.conv.weight"}, "up_block1.conv.weight"),
    ("a.convs.2.conv.weight_u", {"a.convs.2.1.weight_u"}, "a.convs.2.1.weight_u"),
    ("a.convs.2.conv.bias", {"a.convs.2.bias"}, "a.convs.2.bias"),
    ("a.convs.2.bias", {"a.convs.2.1.bias"}, "a.convs.2.1.bias"),
    ("a.convs.2.bias", {"a.convs.2.bias"}, "a.convs.2.bias"),
    ("module._orig_mod.a.bias", {"a.bias"}, "a.bias"),
    ("a._checkpoint_wrapped_module.bias", {"a.bias"}, "a.bias"),
    ("module.a.bias", {"b.bias"}, "a.bias"),
    ("x.conv.bias", {"y"}, "x.conv.bias"),
]


@pytest.mark.parametrize(("given", "wanted", "name"), NAMES)
def test_names(given, wanted, name):
    assert current_names([given], wanted, WXFORMER.renames)[0].name == name
