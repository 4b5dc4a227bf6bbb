"""Command line of the bridge: `python -m credit_torch_bridge COMMAND`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from credit_jax.cli.commands import run_group
from credit_torch_bridge.commands import COMMANDS


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code: 0, 1 if `compare` finds a difference, 2 for errors of the user."""
    return run_group(
        COMMANDS,
        argv,
        prog="python -m credit_torch_bridge",
        description="CREDIT's PyTorch checkpoints to credit_jax and back.",
    )


if __name__ == "__main__":
    sys.exit(main())
