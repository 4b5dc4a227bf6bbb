"""Command line of the bridge: `python -m credit_torch_bridge COMMAND`."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from credit_jax.commands import run_group

# Converting needs no accelerator.
os.environ.setdefault("JAX_PLATFORMS", "cpu")

COMMANDS: Mapping[str, str] = MappingProxyType(
    {
        "convert": "credit_torch_bridge.cli.convert",
        "inspect": "credit_torch_bridge.cli.inspect",
        "compare": "credit_torch_bridge.cli.compare",
        "config": "credit_torch_bridge.cli.config",
    }
)


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code.

    Args:
        argv: arguments without the program; None takes those of the process.

    Returns:
        0; 1 if `compare` finds a difference; 2 for an error of the user or of a file:
        nothing was written then.
    """
    return run_group(
        COMMANDS,
        argv,
        prog="python -m credit_torch_bridge",
        description="CREDIT's PyTorch checkpoints to credit_jax and back.",
    )


if __name__ == "__main__":
    sys.exit(main())
