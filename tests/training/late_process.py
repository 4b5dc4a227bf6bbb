"""A process of a training run that is late: where it compiles, and where it reads."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from jax._src import compiler

from credit_jax.cli.train import main as train
from credit_jax.training.setup import Setup

# Gloo waits for 30 seconds.
LATE = 35.0
PROGRAMS = ("jit_step", "jit_evaluate")


def main(options: Sequence[str]) -> int:
    """`credit-jax train`; process 1 is late three times."""
    if options[options.index("--process") + 1] == "1":
        _compile_late()
        _read_late()
    return train(options)


def _compile_late() -> None:
    """Before the first compilation of the training and of the evaluation step."""
    compiled, late = compiler.compile_or_get_cached, set[str]()

    def compile_late(backend: Any, computation: Any, *args: Any, **options: Any) -> Any:
        name = str(computation.operation.attributes["sym_name"]).strip('"')
        if name in PROGRAMS and name not in late:
            late.add(name)
            _be_late(f"compiling {name}")
        return compiled(backend, computation, *args, **options)

    compiler.compile_or_get_cached = compile_late


def _read_late() -> None:
    """Before the third training step: its batch comes late."""
    place, calls = Setup.place_train, list[int]()

    def place_late(setup: Setup, group: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            _be_late("reading")
        return place(setup, group)

    Setup.place_train = place_late  # type: ignore[method-assign]


def _be_late(where: str) -> None:
    print(f"late: {where}", flush=True)
    time.sleep(LATE)
