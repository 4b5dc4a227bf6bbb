"""Files of the command against those of CREDIT's own `preprocess`."""

import copy
import json
import logging
import os
import sys
import warnings

import numpy as np
import pytest
import yaml

from credit_jax.named_fields import read_scalers
from credit_jax.training.scaler_fitting import fit_scalers
from credit_torch_bridge.compare.jax_side import import_torchvision
from tests.cli.preprocess.configs import all_kinds, config, raw
from tests.data.credit_batches import credit_loader
from tests.support import assert_close

pytestmark = pytest.mark.reference

NAMES = ("deep", "flat", "points", "columns", "rain")
# A partial last batch, and batches of 2 times.
CHANGES = {"trainer__train_batch_size": 4, "data__forecast_len": 2}


def credit_preprocess(raw_config, folder):
    """Runs CREDIT's command in this process."""
    path = folder / "config.yml"
    path.write_text(yaml.safe_dump(raw_config, sort_keys=False))
    handlers, level = logging.root.handlers[:], logging.root.level
    arguments, sys.argv = sys.argv, ["credit-preprocess", "-c", str(path)]
    environment = dict(os.environ)
    import torch

    deterministic = torch.are_deterministic_algorithms_enabled()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import_torchvision()
            from credit.applications.preprocess import main

            main()
    finally:
        sys.argv = arguments
        logging.root.handlers[:], logging.root.level = handlers, level
        os.environ.clear()
        os.environ.update(environment)
        torch.use_deterministic_algorithms(deterministic)


@pytest.fixture(scope="module")
def fitted(credit, world, tmp_path_factory):
    """Folders with CREDIT's files and with ours."""
    theirs, ours = (tmp_path_factory.mktemp(name) for name in ("theirs", "ours"))
    made = raw(world, all_kinds(theirs), **CHANGES, save_loc=str(theirs))
    credit_preprocess(copy.deepcopy(made), theirs)
    fit_scalers(config(world, all_kinds(ours), **CHANGES), num_threads=2)
    return theirs, ours


def test_layout_of_the_files(fitted):
    for name in NAMES:
        theirs, ours = (json.loads((f / f"{name}.json").read_text()) for f in fitted)
        assert _keys(theirs) == _keys(ours)
        for one, other in zip(_scalers(theirs), _scalers(ours), strict=True):
            one, other = json.loads(one), json.loads(other)
            assert list(one) == list(other), name
            for key, value in one.items():
                if isinstance(value, dict):
                    for which in ("dtype", "shape"):
                        assert value[which] == other[key][which], (name, key)
                elif key not in ("centroids_mean_tensor", "centroids_weight_tensor"):
                    assert value == other[key], (name, key)


@pytest.mark.parametrize("name", ["flat", "columns", "rain"])
def test_the_same_text(fitted, name):
    theirs, ours = ((folder / f"{name}.json").read_text() for folder in fitted)
    assert theirs == ours


def test_moments(fitted):
    for name in ("deep", "points"):
        theirs, ours = (read_scalers(folder / f"{name}.json") for folder in fitted)
        for part, sources in theirs.items():
            for source, own in sources.items():
                for key, scaler in own.items():
                    mine = ours[part][source][key]
                    where = f"{name}, {part}, {key}"
                    assert mine.mean.dtype == scaler.mean.dtype
                    assert_close(mine.mean, scaler.mean, 2e-6, f"mean of {where}")
                    assert_close(mine.variance, scaler.variance, 2e-6, f"var, {where}")


def test_credit_reads_ours(fitted, world):
    from credit.preblock import apply_preblocks, build_preblocks

    made = [raw(world, all_kinds(folder), **CHANGES) for folder in fitted]
    for own in made:
        own["data"]["forecast_len"] = 1
    batch = next(iter(credit_loader(made[0], 0, 1, True)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs, ours = (apply_preblocks(build_preblocks(own), batch) for own in made)
    for which in ("x", "y"):
        error = np.abs(theirs[which].numpy() - ours[which].numpy()).max()
        print(which, error)
        assert error < 2e-6


def _keys(nested):
    return [(k, _keys(v) if isinstance(v, dict) else None) for k, v in nested.items()]


def _scalers(nested):
    for own in nested.values():
        yield from _scalers(own) if isinstance(own, dict) else [own]
