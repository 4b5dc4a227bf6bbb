"""Fixtures of the bridge: a shared CREDIT run, and CREDIT runs that resume."""

import contextlib
import io
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def credit_folder(credit_run):
    """The `save_loc` of a finished CREDIT run of one epoch with 20 steps."""
    return credit_run[0] / "run"


@pytest.fixture(scope="session")
def model_config(credit_folder):
    """The config of that run."""
    return yaml.safe_load((credit_folder / "model.yml").read_text())


@pytest.fixture(scope="session")
def continue_credit(credit_run):
    """`continue_credit(folder)` -> CREDIT's next epoch as recorded, and its output.

    The folder holds a checkpoint and a `model.yml` with CREDIT's `load_*` keys.
    """
    from tests.reference.training import _read_run

    data = credit_run[0]

    def go_on(folder):
        config = yaml.safe_load((folder / "model.yml").read_text())
        config["trainer"]["epochs"] = 2
        path = folder.with_suffix(".yml")
        path.write_text(yaml.safe_dump(config, sort_keys=False))
        out = folder.with_name(f"{folder.name}_watched")
        command = [sys.executable, "-m", "tests.reference.trainer_driver"]
        run = subprocess.run(
            [*command, str(path), str(out)],
            cwd=data,
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
            check=False,
        )
        assert run.returncode == 0, run.stdout[-3000:]
        return _read_run(out), run.stdout

    return go_on


@pytest.fixture(scope="session")
def resumed_credit(credit_folder, continue_credit, tmp_path_factory):
    """The epoch that CREDIT itself trains after that run."""
    folder = tmp_path_factory.mktemp("resumed") / "run"
    shutil.copytree(credit_folder, folder)
    config = yaml.safe_load((folder / "model.yml").read_text())
    config["save_loc"] = str(folder)
    loads = ("load_weights", "load_optimizer", "load_scaler", "load_scheduler")
    config["trainer"] |= dict.fromkeys((*loads, "reload_epoch"), True)
    (folder / "model.yml").write_text(yaml.safe_dump(config, sort_keys=False))
    return continue_credit(folder)[0]


@pytest.fixture
def bridge():
    """`bridge("convert", ...)` -> exit code and output."""
    from credit_torch_bridge.__main__ import main

    def run(*arguments):
        seen = io.StringIO()
        with contextlib.redirect_stdout(seen), contextlib.redirect_stderr(seen):
            code = main([str(argument) for argument in arguments])
        return code, seen.getvalue()

    return run
