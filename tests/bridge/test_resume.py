"""A run that began in PyTorch resumes in JAX, and the reverse.

CREDIT builds the scheduler after it has loaded the optimizer, and the scheduler then
sets its first rate: the first batch after a resume trains at that rate (0 in a
warm-up). A converted checkpoint records this (`Progress.first_rate_at`), so that
credit_jax trains at the same rate.
"""

import numpy as np
import optax
import pytest

from credit_jax.checkpoint import Progress
from credit_jax.models.conversion import from_state_dict
from credit_torch_bridge import JaxCheckpoint, Moments
from credit_torch_bridge.checkpoint.orbax_run import write_run
from credit_torch_bridge.checkpoint.run_config import read_run_config
from tests.bridge.going_on import JaxRun, follow

pytestmark = [pytest.mark.reference, pytest.mark.slow]

NUM_STEPS = 20


def begin(folder, run_config, initial):
    """Writes a checkpoint from before the first step, with CREDIT's weights."""
    params, model_state = from_state_dict(run_config.model_def, initial)
    zeros = {path: np.zeros_like(array) for path, array in params.items()}
    folder.mkdir()
    checkpoint = JaxCheckpoint(params, model_state, moments=Moments(zeros, zeros, 0))
    write_run(folder, run_config, [checkpoint])


def test_runs_go_on_in_both_directions(
    credit_run,
    credit_folder,
    resumed_credit,
    continue_credit,
    bridge,
    tmp_path,
    monkeypatch,
):
    data, first = credit_run
    monkeypatch.chdir(data)
    given = "--to", "jax", "--checkpoint", credit_folder, "--out", tmp_path / "jax"
    code, text = bridge("convert", *given)
    assert code == 0, text
    assert "--resume goes on with epoch 2" in text
    run = JaxRun(tmp_path / "jax", NUM_STEPS)
    start = run.start(tmp_path / "jax")
    state = start.state
    assert start.progress.epoch == 1
    assert start.progress.best_step == NUM_STEPS
    updates = optax.tree.get(state.opt_state, "count")
    counts = state.micro_step, state.update_step, updates
    assert [int(count) for count in counts] == [NUM_STEPS] * 3
    assert start.progress.first_rate_at == NUM_STEPS
    assert resumed_credit.learning_rate[0] == 0.0, "CREDIT's first rate after a resume"
    losses, _ = run.train(state, 1, resumed_credit.x)
    follow(losses, resumed_credit.loss, "PyTorch, then JAX")

    begin(
        tmp_path / "ours",
        read_run_config(tmp_path / "jax" / "model.yml"),
        first.initial,
    )
    _, state = run.train(run.start(tmp_path / "ours").state, 0, first.x)
    run.save(tmp_path / "ours", state, Progress(epoch=1))
    given = "--to", "torch", "--checkpoint", tmp_path / "ours", "--out"
    code, text = bridge("convert", *given, tmp_path / "torch")
    assert code == 0, text
    there, printed = continue_credit(tmp_path / "torch")
    follow(there.loss, resumed_credit.loss, "JAX, then PyTorch")
    assert "All keys matched successfully" in printed
    assert f"Resumed EMA from {tmp_path}/torch/checkpoint_ema.pt (step 20)" in printed
    for line in printed.splitlines():
        assert not line.startswith("WARNING"), line
        assert "checkpoint" not in line.lower() or "warn" not in line.lower(), line
