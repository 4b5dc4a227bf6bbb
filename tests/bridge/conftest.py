"""Fixtures of the bridge: a shared CREDIT run, and CREDIT runs that resume."""

import contextlib
import io
import shutil
from functools import partial

import pytest
import yaml

from tests.bridge.going_on import credit_goes_on


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
    return partial(credit_goes_on, data=credit_run[0])


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
