"""The stages in which programs are compiled, as activities of the log."""

from __future__ import annotations

from contextlib import ExitStack
from functools import cache
from typing import Any

import jax

from credit_jax.io.activity import (
    activity,
    duration_text,
    in_main_thread,
    is_silent,
    log_line,
)

# The stages of compiling, as `jax.monitoring` names them.
_STAGES = {
    "/jax/core/compile/jaxpr_trace_duration": "tracing",
    "/jax/core/compile/jaxpr_to_mlir_module_duration": "lowering",
    "/jax/core/compile/backend_compile_duration": "XLA",
}
_FIRST_STAGE, *_, _LAST_STAGE = _STAGES
_LONG = 10.0  # seconds, from which a program gets a line of the log


class _Stages:
    """Follows the stages in which JAX compiles a program.

    JAX announces each stage at its begin and at its end, also those of functions that
    are traced or compiled while another one is traced; the outermost one is reported.
    """

    def __init__(self) -> None:
        self._depth = 0
        self._name = ""
        self._seconds: dict[str, float] = {}
        self._activity = ExitStack()

    def begin(self, event: str, value: float, **details: Any) -> None:
        """Listens to the beginnings of stages (`jax.monitoring`)."""
        del value
        if event not in _STAGES or not in_main_thread():
            return
        self._depth += 1
        if self._depth > 1:
            return
        # Traced as `step`, compiled as `jit(step)`.
        name = str(details.get("fun_name", ""))
        name = name.removeprefix("jit(").removesuffix(")")
        if event == _FIRST_STAGE or name != self._name:
            self._name, self._seconds = name, {}
        stage = activity(f"compiling {name}, {_STAGES[event]}")
        self._activity.enter_context(stage)

    def end(self, event: str, duration_secs: float, **details: Any) -> None:
        """Listens to the durations of stages, at their ends."""
        del details
        if event not in _STAGES or not in_main_thread() or not self._depth:
            return
        self._depth -= 1
        if self._depth:
            return
        self._activity.close()
        self._seconds[_STAGES[event]] = duration_secs
        total = sum(self._seconds.values())
        if event == _LAST_STAGE and total >= _LONG and not is_silent():
            parts = (f"{k} {duration_text(v)}" for k, v in self._seconds.items())
            log_line(
                f"compiled {self._name} in {duration_text(total)} ({', '.join(parts)})"
            )


@cache
def report_stages() -> None:
    """Names the stages of compiling as activities, from now on in this process."""
    stages = _Stages()
    jax.monitoring.register_scalar_listener(stages.begin)
    jax.monitoring.register_event_duration_secs_listener(stages.end)
