"""Compiler options of whole steps."""

from __future__ import annotations

import jax

# XLA on CPU compiles each of a step's thousands of small kernels through its fusion
# emitters and LLVM's costly passes; without them a WXFormer step compiles in about half
# the time and runs as fast (measured 2026-11, jax 0.10.2, 2 cores).
_CPU = {
    "xla_cpu_use_fusion_emitters": False,
    "xla_llvm_disable_expensive_passes": True,
}


def compiler_options() -> dict[str, bool]:
    """Options for `jax.jit` of a step on the default backend."""
    return dict(_CPU) if jax.default_backend() == "cpu" else {}
