"""One of the processes of forecasts of the tiny model.

python -c "from tests.inference.process_forecast import main; main(OPTIONS ...)"
"""

from __future__ import annotations

import sys

from credit_jax.forecast import main as forecast
from credit_jax.models import registry
from tests.training.tiny import Tiny, TinyConfig


def main(*arguments: str) -> None:
    """Ends with the exit code of the command."""
    registry.MODELS["tiny"] = registry.ModelEntry(TinyConfig, Tiny)
    sys.exit(forecast(arguments))
