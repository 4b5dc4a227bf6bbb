"""Functions of the child processes of the matrix, imported before forking."""

from __future__ import annotations

from collections.abc import Sequence

import credit_jax.cli.train  # noqa: F401  # before forking: its imports take seconds
from benchmarks.kill_matrix import injected
from benchmarks.kill_matrix.moments import tell_at
from credit_jax.cli.console import main


def run(options: Sequence[str]) -> int:
    """`credit-jax` with a subcommand and its options; returns the exit code."""
    return main([*options])


def inject(fault: str) -> None:
    """Calls a function of `benchmarks.kill_matrix.injected`."""
    getattr(injected, fault)()


__all__ = ["inject", "run", "tell_at"]
