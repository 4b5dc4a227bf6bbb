"""Jobs of the trajectory benchmark: the modules and files they name exist."""

import pytest

from benchmarks.trajectory.cases import CASES, NUM_EPOCHS, write_case
from credit_jax.config import load_config
from credit_jax.plan import plan_run

pytestmark = pytest.mark.reference


@pytest.mark.slow(but=["two steps, gradients of both"])
@pytest.mark.parametrize("name", CASES)
def test_every_case_can_be_trained(credit, tmp_path, monkeypatch, name):
    del credit
    monkeypatch.chdir(tmp_path)
    plan = plan_run(load_config(write_case(CASES[name], tmp_path)), num_devices=1)
    assert plan.config.trainer.epochs == NUM_EPOCHS
    num_steps = plan.objective.rollout.num_steps
    assert num_steps == {"two": 2, "three": 3}.get(name.split(" steps")[0], 1)
