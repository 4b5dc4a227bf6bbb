"""Models and training against CREDIT, with the compiler flags of `credit_jax.train`.

The other tests run with XLA's optimizations disabled (`tests/conftest.py`).
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from tests.reference.training import GEN2_CONFIG
from tests.support import assert_close
from tests.training.credit_trajectory import assert_follows
from tests.training.flags_process import Results, Task

pytestmark = pytest.mark.slow

# Ten times the measured differences.
FORWARD, GRADIENT = 6e-6, 8e-6
ROOT = Path(__file__).parents[2]
# Not by `python -m`, which would pickle classes of the module as those of `__main__`.
PROCESS = (
    "import sys; from tests.training.flags_process import main; main(*sys.argv[1:])"
)


def test_wxformer_equals_credit_with_trainings_own_flags(
    credit: Any, credit_run: Any, tmp_path: Path
) -> None:
    """Forward, gradients and 20 training steps on dp 2 x tp 2 x domain 2."""
    folder, run = credit_run
    _compare(credit, GEN2_CONFIG, run, tmp_path, folder)


def test_crossformer_equals_credit_with_trainings_own_flags(
    credit: Any, tmp_path: Path
) -> None:
    """The same with another run of CREDIT."""
    config = yaml.safe_load(GEN2_CONFIG.read_text())
    config["model"]["type"] = "crossformer"
    path = tmp_path / "model.yml"
    path.write_text(yaml.safe_dump(config, sort_keys=False))
    credit.write_dataset(tmp_path)
    run = credit.credit_train(path, tmp_path)
    _compare(credit, path, run, tmp_path, tmp_path)


def _compare(credit: Any, path: Path, run: Any, folder: Path, data: Path) -> None:
    """Compares both passes and the steps of a config with CREDIT's run of it."""
    block = yaml.safe_load(path.read_text())["model"]
    kind, case = block["type"], credit.credit_case(block, seed=3)
    results = _run(Task(path, run, case), folder, data)
    assert "disable_loop_unrolling" in results.flags, "the flags of training"
    assert "optimization_level" not in results.flags, "not those of the tests"
    assert_close(results.y, case.y, FORWARD, f"{kind}: forward")
    assert_close(results.loss, case.loss, FORWARD, f"{kind}: loss")
    ours, theirs = (
        np.concatenate([gradients[key].ravel() for key in case.gradients])
        for gradients in (results.gradients, case.gradients)
    )
    assert_close(ours, theirs, GRADIENT, f"{kind}: gradient of all parameters")
    assert_follows(results.trajectory, run, path, kind)


def _run(task: Task, folder: Path, data: Path) -> Results:
    """Runs the task in a process without the tests' flags, in the folder `data`."""
    given, out = folder / "task.pickle", folder / "results.pickle"
    given.write_bytes(pickle.dumps(task))
    done = subprocess.run(
        [sys.executable, "-c", PROCESS, str(given), str(out)],
        cwd=data,
        env=os.environ | {"XLA_FLAGS": "", "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    return pickle.loads(out.read_bytes())
