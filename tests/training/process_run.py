"""One of the processes of a training run of the tiny model.

python -c "from tests.training.process_run import main; main(OPTIONS OF TRAIN ...)"
"""

from __future__ import annotations

import sys

from credit_jax.models import registry
from credit_jax.train import main as train
from tests.training.tiny import Tiny, TinyConfig


def main(*arguments: str) -> None:
    """Ends with the exit code of the command."""
    registry.MODELS["tiny"] = registry.ModelEntry(TinyConfig, Tiny)
    sys.exit(train(arguments))
