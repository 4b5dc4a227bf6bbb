"""Fixtures: a checkpoint, and the folder of a CREDIT run with it."""

import numpy as np
import pytest
import torch
import yaml

from credit_torch_bridge import to_torch
from tests.bridge.cli.runs import CONFIG, draw_checkpoint, earlier


@pytest.fixture(scope="module")
def checkpoint():
    """A checkpoint of epoch 2, 60 micro-batches."""
    return draw_checkpoint(np.random.default_rng(0))


@pytest.fixture(scope="module")
def credit_run_folder(checkpoint, tmp_path_factory):
    """The folder of a CREDIT run of three epochs, of which the first was the best.

    Tests must not change it.
    """
    folder = tmp_path_factory.mktemp("credit")
    files = {
        "": checkpoint,
        "best_": earlier(checkpoint, 0),
        "backup_": earlier(checkpoint, 1),
    }
    for prefix, content in files.items():
        written = to_torch(CONFIG, content)
        torch.save(written["checkpoint.pt"], folder / f"{prefix}checkpoint.pt")
    torch.save(
        written["checkpoint_ema.pt"] | {"epoch": 2}, folder / "checkpoint_ema.pt"
    )
    (folder / "model.yml").write_text(yaml.safe_dump(CONFIG))
    rows = (
        "index,epoch,train_loss,valid_loss\n0,0,3.0,1.5\n1,1,2.5,1.75\n2,2,2.0,1.625\n"
    )
    (folder / "training_log.csv").write_text(rows)
    return folder
