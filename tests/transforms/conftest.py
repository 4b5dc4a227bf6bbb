"""Fixtures: a folder of files, in which these tests run, and a batch."""

import numpy as np
import pytest

from credit_jax.transforms import TRANSFORMS
from tests.training.conftest import compiled_once as compiled_once
from tests.training.conftest import tiny_model as tiny_model
from tests.training.conftest import world as world
from tests.transforms.cases import LEVELS, LSM, SP, TP, TSI, T
from tests.transforms.files import scaler_arguments, write_files
from tests.transforms.toys import TOYS


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """Statistics, weights of regridding, masks and levels; tests do not change them."""
    folder = tmp_path_factory.mktemp("transforms")
    write_files(folder)
    return folder


@pytest.fixture(autouse=True)
def in_folder(folder, monkeypatch):
    monkeypatch.chdir(folder)


@pytest.fixture
def scalers(credit, folder):
    """(name, **arguments) -> arguments with a file of scalers of bridgescaler."""
    return scaler_arguments


@pytest.fixture
def toys(monkeypatch):
    """Registers transforms of every phase and place."""
    for section, transforms in TOYS.items():
        for name, transform in transforms.items():
            monkeypatch.setitem(TRANSFORMS[section], name, transform)


@pytest.fixture
def batch(rng):
    """A batch of two samples; keys are in the insertion order of a data set."""
    draw = lambda levels: rng.normal(280, 9, (2, levels, 1, 3, 5)).astype(np.float32)  # noqa: E731
    return {
        "input": {"S": {TSI: draw(1), LSM: draw(1), T: draw(LEVELS), SP: draw(1)}},
        "target": {"S": {T: draw(LEVELS), SP: draw(1), TP: draw(1)}},
        "input_times": np.arange(2),
    }
