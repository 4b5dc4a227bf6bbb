"""`compare` of serial CREDIT with credit_jax, from a file to an exit code."""

import sys

import numpy as np
import pytest
import torch
import yaml

from credit_jax.models.registry import build
from credit_torch_bridge import compare_with_credit
from credit_torch_bridge.__main__ import main
from credit_torch_bridge.compare import comparison
from credit_torch_bridge.compare.jax_side import noise_of
from tests.models.cases import CASES, DOWNSCALING, ENSEMBLE

BLOCK = CASES["wxformer uneven"].block


@pytest.fixture(scope="module")
def files(credit, tmp_path_factory):
    """A config and a checkpoint of CREDIT's model with 45 rows and three kernels."""
    folder = tmp_path_factory.mktemp("compared")
    case = credit.credit_case(BLOCK, seed=5)
    state = {key: torch.from_numpy(array) for key, array in case.state.items()}
    torch.save({"epoch": 0, "model_state_dict": state}, folder / "checkpoint.pt")
    (folder / "model.yml").write_text(yaml.safe_dump({"model": BLOCK}))
    return folder


@pytest.mark.slow
def test_blocks_prediction_and_gradient_are_those_of_credit(files, capsys):
    """Gradients of all parameters, of a run that froze some, too."""
    mesh = "data=none,tensor=2,domain=3"
    path, config = str(files / "checkpoint.pt"), files / "finetuned.yml"
    finetune = {"from": "RUN", "freeze": ["layers.0.*"]}
    sections = {
        "model": BLOCK,
        "trainer": {"finetune": finetune},
    }
    config.write_text(yaml.safe_dump(sections))
    arguments = ["compare", "--checkpoint", path, "--config", str(config)]
    arguments += ["--parallelism", mesh]
    code = main([*arguments, "--batches", "2"])
    text, error = capsys.readouterr()
    print(text, error)
    assert code == 0, error
    for stage in range(4):
        assert f"output of layers.{stage}.0" in text
        assert f"output of layers.{stage}.1" in text
        assert f"gradient of layers.{stage}.1" in text
    assert all(f"output of up_block{number}" in text for number in (1, 2, 3, 4))
    assert "2 batch(es), last weights" in text


def test_a_run_is_read_with_what_it_froze(files, monkeypatch):
    """Its optimizer has no moments of the rest."""
    frozen = []

    def read(run_config, path):
        frozen.extend(run_config.model_def.frozen)
        raise ValueError("seen")

    monkeypatch.setattr(comparison, "read_weights", read)
    finetune = {"from": "RUN", "freeze": ["layers.0.*"]}
    config = {
        "model": BLOCK,
        "trainer": {"finetune": finetune},
    }
    with pytest.raises(ValueError, match="seen"):
        compare_with_credit(config, files)
    assert frozen


@pytest.mark.slow
def test_a_difference_is_found(files, capsys, monkeypatch):
    """With changed weights in one block, all blocks before it still agree."""
    compile_pass, comparisons = comparison.compile_pass, []

    def other(model, params, model_state, blocks):
        bias = "up_blocks/1/sharp/bias"
        changed = {**params, bias: params[bias] + 0.1}
        return compile_pass(model, changed, model_state, blocks)

    def recorded(*args, **options):
        comparisons.append(compare_with_credit(*args, **options))
        return comparisons[-1]

    monkeypatch.setattr(comparison, "compile_pass", other)
    monkeypatch.setattr(comparison, "compare_with_credit", recorded)
    code = main(["compare", "--checkpoint", str(files / "checkpoint.pt")])
    captured = capsys.readouterr()
    assert code == 1
    assert "differ by more than rounding" in captured.err
    (found,) = comparisons
    assert not found.within_tolerance
    assert found.blocks["up_block1"] < 1e-5, "the block before it"
    assert found.blocks["up_block2"] > 1e-3, "the block itself"
    assert found.blocks["up_block3"] > 1e-4, "and those after it"


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--parallelism", "tensor=5"], "does not divide"),
        (["--parallelism", "rows=2"], "unknown key"),
        (["--batches", "0"], "compare at least 1"),
        (["--weights", "average"], "has no moving average of the weights"),
        (["--config", "none.yml"], "none.yml"),
    ],
)
def test_mistakes(files, capsys, flags, words):
    code = main(["compare", "--checkpoint", str(files / "checkpoint.pt"), *flags])
    assert code == 2
    assert words in capsys.readouterr().err


def test_without_credit_one_line_says_how_to_get_it(files, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "credit", None)
    code = main(["compare", "--checkpoint", str(files / "checkpoint.pt")])
    assert code == 2
    text = capsys.readouterr().err
    assert "pip install miles-credit" in text
    assert len(text.splitlines()) == 1


def test_blocks_of_equal_sides_are_compared_in_their_own_order():
    """Dims of equal length must not be mistaken for one another."""
    field = np.random.default_rng(0).normal(size=(1, 4, 4, 4))
    for array in (field, np.moveaxis(field, 1, -1)):
        assert comparison._block_error(field, array) == 0.0
    assert comparison._block_error(field, field[:, :, None]) == 0.0
    assert comparison._block_error(field, field + 1.0) > 0.1
    assert comparison._block_error(field, field[:, :2]) == float("inf")


@pytest.mark.slow
def test_noise_of_a_model_with_batch_norms():
    """The call sites of its noise are found without weights."""
    block = {**ENSEMBLE["frozen"].block, "attention_type": "coordinate"}
    model_def = build(block)
    with pytest.raises(ValueError, match="1 times, credit_jax 12 times"):
        noise_of(model_def, [np.zeros((1, 6))])


def test_values_that_are_not_finite_are_said_to_be_so():
    def last_line(error):
        agreed = comparison.Comparison({}, 1e-14, {}, 1e-14, "1")
        found = comparison.Comparison({}, error, {}, error, "1", wide=agreed)
        assert found.within_tolerance
        return list(found.lines())[-1]

    assert last_line(float("inf")).startswith("values are not finite in float32")
    assert last_line(1e-3).startswith("these weights amplify rounding")


@pytest.mark.slow
def test_weights_that_amplify_rounding(credit, tmp_path):
    """Rounding to float32 changes a fresh model's gradient beyond the tolerance."""
    block = DOWNSCALING["mirror"].block
    case = credit.build_credit(block, seed=5)
    torch.save({"model_state_dict": case.state_dict()}, tmp_path / "checkpoint.pt")
    found = compare_with_credit({"model": block}, tmp_path / "checkpoint.pt")
    print(*found.lines(), sep="\n")
    assert found.gradient > comparison.GRADIENT
    assert found.wide is not None
    assert max(found.wide.prediction, found.wide.gradient) < 1e-10
    assert found.within_tolerance


@pytest.mark.slow
@pytest.mark.parametrize("name", ENSEMBLE)
@pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad")
def test_a_model_that_draws_noise_gets_that_of_credit(credit, tmp_path, name):
    case = credit.credit_case(ENSEMBLE[name].block, seed=5)
    state = {key: torch.from_numpy(array) for key, array in case.state.items()}
    torch.save({"epoch": 0, "model_state_dict": state}, tmp_path / "checkpoint.pt")
    config = {"model": ENSEMBLE[name].block}
    mesh = {"data": "none", "domain": 3}
    path = tmp_path / "checkpoint.pt"
    found = compare_with_credit(config, path, parallelism=mesh)
    print(*found.lines(), sep="\n")
    assert found.within_tolerance
