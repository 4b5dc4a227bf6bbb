"""Functions of the child processes of the matrix, imported before forking."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.kill_matrix import injected
from benchmarks.kill_matrix.moments import tell_at
from credit_jax.train import main


def train(options: Sequence[str]) -> int:
    """`credit-jax train` with these options; returns the exit code."""
    return main([*options])


def inject(fault: str) -> None:
    """Calls a function of `benchmarks.kill_matrix.injected`."""
    getattr(injected, fault)()


__all__ = ["inject", "tell_at", "train"]
