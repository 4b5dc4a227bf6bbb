"""CREDIT's key of a parameter, with the model and from its path alone."""

import re

import pytest

from benchmarks.speed.cases import make_case
from credit_jax.models.conversion import credit_key, key_map_for


@pytest.mark.slow(but=["fuxi", "graph", "debugger"])
@pytest.mark.filterwarnings("ignore:config. ignored here")  # as CREDIT ignores it
@pytest.mark.parametrize("name", ["wxformer", "fuxi", "unet", "graph", "debugger"])
def test_a_key_from_the_path_alone_is_that_of_the_model(name):
    """Where it depends on the model, the error lists the key."""
    model_def = make_case("tiny", name).model_def
    plan = key_map_for(model_def).parameters
    alone = 0
    for path in model_def.param_specs:
        keys = credit_key(path, model_def)
        assert sorted(keys) == sorted(e.key for e in plan.entries if e.path == path)
        try:
            alone_keys = credit_key(path)
        except ValueError as error:
            text = re.sub(r"\d+|\{layer\}", "#", str(error))
        else:
            assert alone_keys == keys
            alone += 1
            continue
        listed = {re.sub(r"\d+", "#", key) for key in keys}
        assert all(f"{key} (" in text for key in listed), (path, keys, text)
    assert alone or name == "wxformer"


def test_unknown_paths():
    with pytest.raises(ValueError, match="no model of CREDIT has a parameter 'a/b'"):
        credit_key("a/b")
    model_def = make_case("tiny", "debugger").model_def
    with pytest.raises(ValueError, match=r"no parameter 'linear/kernl'.*nearest"):
        credit_key("linear/kernl", model_def)
