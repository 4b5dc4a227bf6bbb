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
from tests.messages.engine import *  # noqa: F403
from tests.messages.engine import Cases
from tests.models.cases import CASES as MODELS
from tests.models.cases import DOWNSCALING, ENSEMBLE

CASES = Cases("compare")
BLOCK = MODELS["wxformer uneven"].block
FROZEN = {"finetune": {"from": "RUN", "freeze": ["layers.0.*"]}}


def save(case, folder):
    """Writes the checkpoint of a model of CREDIT; returns its path."""
    state = {key: torch.from_numpy(array) for key, array in case.state.items()}
    torch.save({"epoch": 0, "model_state_dict": state}, folder / "checkpoint.pt")
    return folder / "checkpoint.pt"


@pytest.fixture(scope="module")
def files(credit, tmp_path_factory):
    """A config and a checkpoint of CREDIT's model with 45 rows and three kernels."""
    folder = tmp_path_factory.mktemp("compared")
    save(credit.credit_case(BLOCK, seed=5), folder)
    (folder / "model.yml").write_text(yaml.safe_dump({"model": BLOCK}))
    frozen = {"model": BLOCK, "trainer": FROZEN}
    (folder / "finetuned.yml").write_text(yaml.safe_dump(frozen))
    return folder


def compare(files, *options):
    return main(["compare", "--checkpoint", str(files / "checkpoint.pt"), *options])


@pytest.mark.slow
def test_blocks_prediction_and_gradient_are_those_of_credit(files, capsys):
    """Gradients of all parameters, of a run that froze some, too."""
    config = "--config", str(files / "finetuned.yml")
    mesh = "--parallelism", "data=none,tensor=2,domain=3"
    assert compare(files, *config, *mesh, "--batches", "2") == 0
    text = capsys.readouterr().out
    for stage in range(4):
        assert f"output of layers.{stage}.0" in text
        assert f"output of layers.{stage}.1" in text
        assert f"gradient of layers.{stage}.1" in text
        assert f"output of up_block{stage + 1}" in text
    assert "2 batch(es), last weights" in text


def test_a_run_is_read_with_what_it_froze(files, monkeypatch):
    """Its optimizer has no moments of the rest."""
    frozen = []

    def read(run_config, path):
        frozen.extend(run_config.model_def.frozen)
        raise ValueError("seen")

    monkeypatch.setattr(comparison, "read_weights", read)
    with pytest.raises(ValueError, match="seen"):
        compare_with_credit({"model": BLOCK, "trainer": FROZEN}, files)
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
    assert compare(files) == 1
    assert "differ by more than rounding" in capsys.readouterr().err
    (found,) = comparisons
    assert not found.within_tolerance
    assert found.blocks["up_block1"] < 1e-5, "the block before it"
    assert found.blocks["up_block2"] > 1e-3, "the block itself"
    assert found.blocks["up_block3"] > 1e-4, "and those after it"


CASES.rows(
    lambda *options, files: compare(files, *options),
    ("--parallelism", "tensor=5"),
    ("--parallelism", "rows=2"),
    ("--batches", "0"),
    ("--weights", "average"),
    ("--config", "none.yml"),
    name="compare",
)


@CASES.case
def without_credit(files, monkeypatch):
    monkeypatch.setitem(sys.modules, "credit", None)
    return compare(files)


def test_blocks_of_equal_sides_are_compared_in_their_own_order():
    """Dims of equal length must not be mistaken for one another."""
    field = np.random.default_rng(0).normal(size=(1, 4, 4, 4))
    for array in (field, np.moveaxis(field, 1, -1), field[:, :, None]):
        assert comparison._block_error(field, array) == 0.0
    assert comparison._block_error(field, field + 1.0) > 0.1
    assert comparison._block_error(field, field[:, :2]) == float("inf")


@pytest.mark.slow
def test_noise_of_a_model_with_batch_norms():
    """The call sites of its noise are found without weights."""
    block = {**ENSEMBLE["frozen"].block, "attention_type": "coordinate"}
    with pytest.raises(ValueError, match="1 times, credit_jax 12 times"):
        noise_of(build(block), [np.zeros((1, 6))])


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (float("inf"), "values are not finite in float32"),
        (1e-3, "these weights amplify rounding"),
    ],
)
def test_what_float64_decides_is_said(error, line):
    agreed = comparison.Comparison({}, 1e-14, {}, 1e-14, "1")
    found = comparison.Comparison({}, error, {}, error, "1", wide=agreed)
    assert found.within_tolerance
    assert list(found.lines())[-1].startswith(line)


@pytest.mark.slow
def test_weights_that_amplify_rounding(credit, tmp_path):
    """Rounding to float32 changes a fresh model's gradient beyond the tolerance."""
    block = DOWNSCALING["mirror"].block
    state = credit.build_credit(block, seed=5).state_dict()
    torch.save({"model_state_dict": state}, tmp_path / "checkpoint.pt")
    found = compare_with_credit({"model": block}, tmp_path / "checkpoint.pt")
    print(*found.lines(), sep="\n")
    assert found.gradient > comparison.GRADIENT
    assert max(found.wide.prediction, found.wide.gradient) < 1e-10
    assert found.within_tolerance


@pytest.mark.slow
@pytest.mark.parametrize("name", ENSEMBLE)
@pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad")
def test_a_model_that_draws_noise_gets_that_of_credit(credit, tmp_path, name):
    block, mesh = ENSEMBLE[name].block, {"data": "none", "domain": 3}
    path = save(credit.credit_case(block, seed=5), tmp_path)
    found = compare_with_credit({"model": block}, path, parallelism=mesh)
    print(*found.lines(), sep="\n")
    assert found.within_tolerance
