"""The harness of CREDIT: it runs, is deterministic, and records the trainer."""

import numpy as np
import pytest
import yaml

pytestmark = pytest.mark.reference


@pytest.fixture
def model_block(credit):
    return yaml.safe_load(credit.GEN2_CONFIG.read_text())["model"]


def test_a_case_repeats_itself_and_moves_every_parameter(credit, model_block):
    case, again = (credit.credit_case(model_block, seed=3) for _ in range(2))
    np.testing.assert_array_equal(case.y, again.y)
    assert case.x.shape == (2, 7, 1, 32, 64)
    assert case.y.shape == (2, 6, 1, 32, 64)
    idle = set(case.parameters) - set(case.gradients)
    assert {name.split(".")[0] for name in idle} == {"cube_embedding"}
    constant = [k for k in case.parameters if np.ptp(case.state[k]) == 0]
    several = [k for k in constant if case.state[k].size > 1]
    assert not several, f"still at their initial value: {several}"


def test_only_training_moves_the_vectors_of_spectral_norm(credit, model_block):
    for mode, moves in (("eval", False), ("train", True)):
        case = credit.credit_case(model_block, mode=mode)
        moved = {
            key
            for key, value in case.state.items()
            if not np.array_equal(value, case.state_after[key])
        }
        assert bool(moved) == moves
        assert all(key.endswith(("weight_u", "weight_v")) for key in moved)


def test_the_trainer_is_watched_step_by_step(credit_run):
    _, run = credit_run
    assert run.x.shape == (20, 2, 7, 1, 32, 64)
    assert run.y.shape == (20, 2, 6, 1, 32, 64)
    # The schedule starts at zero and warms up over ten steps.
    np.testing.assert_allclose(run.learning_rate[:11], np.arange(11) * 1e-4)
    assert len(run.loss) == len(run.gradient_norm) == 20
    assert np.isfinite(run.loss).all()
    assert run.loss[-1] < run.loss[0]
    assert run.valid_loss.shape == (1,)
    assert set(run.initial) == set(run.final)
    assert run.ema is not None
    assert not any(key.endswith("weight_u") for key in run.ema)
