"""Every format of CREDIT gives the same checkpoint, and round-trips bit for bit."""

import chex
import numpy as np
import pytest
import torch

from credit_torch_bridge import from_torch, to_torch
from tests.bridge.checkpoint.formats import (
    AVERAGE,
    BARE,
    MAIN,
    WHOLE,
    by_name,
    load,
)

pytestmark = pytest.mark.reference


@pytest.fixture
def write(credit, credit_folder, model_config, tmp_path):
    def write_it(format_):
        model = credit.build_credit(model_config["model"])
        return format_(credit_folder, tmp_path, model)

    return write_it


@pytest.fixture(scope="session")
def reference(credit_folder, model_config):
    return from_torch(model_config, credit_folder)


def assert_equal(actual, expected, what="content"):
    """Asserts equal structure, types, dtypes, bits and order of keys."""
    assert type(actual) is type(expected), what
    if isinstance(expected, torch.Tensor):
        assert actual.dtype == expected.dtype, what
        assert torch.equal(actual, expected), what
    elif isinstance(expected, dict):
        assert list(actual) == list(expected), what
        for key, value in expected.items():
            assert_equal(actual[key], value, f"{what}.{key}")
    else:
        assert actual == expected, what


def same(actual, expected):
    chex.assert_trees_all_equal(actual, expected)


@pytest.mark.slow(but=["none", "fsdp2", "domain", "module."])
@pytest.mark.parametrize("name", WHOLE)
def test_everything_comes_back_bitwise(
    write, reference, credit_folder, model_config, name
):
    checkpoint = from_torch(model_config, write(WHOLE[name]))
    same(checkpoint.params, reference.params)
    same(checkpoint.model_state, reference.model_state)
    same(checkpoint.ema, reference.ema)
    same(vars(checkpoint.moments), vars(reference.moments))
    places = [
        (s.micro_step, s.update_step, s.settings) for s in (checkpoint, reference)
    ]
    assert places[0] == places[1] == (20, 20, {})
    assert checkpoint.progress.epoch == 1
    files = to_torch(model_config, checkpoint)
    assert set(files) == {MAIN, AVERAGE}
    for file, content in files.items():
        assert_equal(content, load(credit_folder, file), file)


def test_fsdp2_comes_back_by_name(write, credit_folder, model_config):
    config = model_config | {
        "trainer": model_config["trainer"]
        | {"parallelism": {"data": "fsdp2", "tensor": 1, "domain": 1}}
    }
    checkpoint = from_torch(config, write(WHOLE["fsdp2"]))
    assert_equal(to_torch(config, checkpoint)[MAIN], by_name(load(credit_folder)))


@pytest.mark.parametrize("name", BARE)
def test_weights_alone(write, reference, model_config, name):
    checkpoint = from_torch(model_config, write(BARE[name]))
    same(checkpoint.params, reference.params)
    same(checkpoint.model_state, reference.model_state)
    assert checkpoint.moments is None
    assert checkpoint.ema is None


def test_an_average_by_itself_takes_the_vectors_beside_it(
    write, reference, model_config, tmp_path
):
    folder = write(WHOLE["none"])
    checkpoint = from_torch(model_config, folder / AVERAGE)
    same(checkpoint.params, reference.ema)
    same(checkpoint.model_state, reference.model_state)
    (folder / MAIN).unlink()
    with pytest.raises(ValueError, match="an average has no vectors of spectral norm"):
        from_torch(model_config, folder / AVERAGE)


def test_averaged_vectors_of_old_files_are_left_out(
    write, reference, model_config, credit_folder
):
    folder = write(WHOLE["none"])
    content = load(folder, AVERAGE)
    stored = load(folder)["model_state_dict"]
    shadow = {k: v for k, v in stored.items() if k.endswith(("_u", "_v"))}
    content["model_state_dict"]["shadow"] |= shadow
    torch.save(content, folder / AVERAGE)
    same(from_torch(model_config, folder).ema, reference.ema)


def test_half_precision_is_widened(write, reference, model_config, tmp_path):
    state = {
        key: value.to(torch.bfloat16)
        for key, value in load(write(WHOLE["none"]))["model_state_dict"].items()
    }
    torch.save(state, tmp_path / "half.pt")
    checkpoint = from_torch(model_config, tmp_path / "half.pt")
    path = "head/out/kernel"
    assert checkpoint.params[path].dtype == np.float32
    np.testing.assert_array_equal(
        checkpoint.params[path],
        torch.from_numpy(reference.params[path]).to(torch.bfloat16).float().numpy(),
    )
