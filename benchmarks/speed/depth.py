"""The training step of every model at two depths: equations, seconds to compile.

    python -m benchmarks.speed.depth [--models fuxi graph ...]

Equal blocks are one loop, so that the program and the time to compile it do not grow
with their number. Counted are the equations of the traced step on one device with the
plain definitions and with loops, as GPUs and TPUs have them for many blocks; XLA
compiles it for the CPU, with few optimizations.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
from jax.extend import core

from benchmarks.compiled_step import trace_step
from benchmarks.report import Table, add_out_option, publish
from benchmarks.speed.cases import make_case
from credit_jax.models.registry import MODELS
from credit_jax.parallel.compiler import compile_quickly

# Blocks of every stage.
BLOCKS = (4, 8)
# Keys of the number of blocks, of all stages or of each.
KEYS = ("depth", "depths", "n_blocks")
# Encoders of U-Nets that differ in the number of blocks of their layers alone.
ENCODERS = ("resnet50", "resnet152")
WITH_ENCODER = ("unet", "unet_downscaling")
# Models without equal blocks, by what they have.
NO_BLOCKS: Mapping[str, str] = {
    "debugger": "it has one layer",
    "unet-diffusion": "its levels (`dim_mults`) differ in channels and grid, the "
    "blocks of a level in their inputs",
}
HEADER = ["model", "blocks", "equations", "trace, CPU s", "compile, CPU s"]
_INTRO = (
    "The training step (forward, backward, clipping, AdamW, spectral norm) of a small "
    "model of every kind on one device, with the plain definitions and loops over "
    "equal blocks, traced and compiled without a cache, with few optimizations. "
    "`blocks` are those of every stage. Equations within loops count once. Each pair "
    "has equal numbers of equations (`tests/models/test_parallel_model.py`); seconds "
    "are processor time of all threads in one run."
)
_WITHOUT = (
    "What is no depth: stages of a model differ in channels, grid and windows, as do "
    "the levels and the decoder of a U-Net, so that each more of them is more program. "
    "On GPUs stages of at most `trainer.unroll_blocks` blocks (16 by default) are no "
    "loop: faster steps for a longer compilation; 0 brings the loops back. On meshes "
    "of CPU devices no stage is a loop (`parallel/compiler.py`). Without equal blocks: "
)


def main(arguments: Sequence[str] | None = None) -> Path:
    """Traces and compiles, prints the table, writes the report; returns its path."""
    options = _parse(arguments)
    compile_quickly()
    runs = [
        _compile(model, blocks, section)
        for model in options.models
        for blocks, section in at_two_depths(model).items()
    ]
    rows = [
        [
            *(str(run[key]) for key in ("model", "blocks", "equations")),
            *(f"{run[key]:.1f}" for key in ("trace", "compile")),
        ]
        for run in runs
    ]
    without = "; ".join(f"`{model}`: {why}" for model, why in NO_BLOCKS.items())
    return publish(
        "depth",
        [
            "# Compile time by depth",
            _INTRO,
            Table("Compile time by depth", HEADER, rows),
            f"{_WITHOUT}{without}.",
        ],
        {"runs": runs},
        config={"models": {run["model"]: run["section"] for run in runs}},
        folder=options.out,
    )


def at_two_depths(model: str) -> dict[str, dict[str, Any]]:
    """Small `model:` sections that differ in depth alone, by what is said of it.

    Args:
        model: its type, none of `NO_BLOCKS`.
    """
    section = make_case("tiny", model).block
    if model in WITH_ENCODER:
        architecture = section["architecture"]
        return {
            encoder: {
                **section,
                "architecture": {**architecture, "encoder_name": encoder},
            }
            for encoder in ENCODERS
        }
    (key,) = section.keys() & set(KEYS)
    return {
        str(blocks): {**section, key: _like(section[key], blocks)} for blocks in BLOCKS
    }


def _like(depth: int | Sequence[int], blocks: int) -> int | list[int]:
    """The number for all stages, or for each."""
    return blocks if isinstance(depth, int) else [blocks] * len(depth)


def trace(section: Mapping[str, Any]) -> Any:
    """The traced training step of a `model:` section."""
    return trace_step(section, "1", batch=1)[1]


def num_equations(jaxpr: Any) -> int:
    """Equations of a program, with those within them, as often as XLA gets them.

    Args:
        jaxpr: not closed, such as `traced.jaxpr.jaxpr`.
    """
    total = 0
    for equation in jaxpr.eqns:
        inner = sum(map(num_equations, core.jaxprs_in_params(equation.params)))
        is_loop = equation.primitive.name == "scan"
        total += 1 + inner * (equation.params["unroll"] if is_loop else 1)
    return total


def _compile(model: str, blocks: str, section: dict[str, Any]) -> dict[str, Any]:
    jax.clear_caches()
    start = time.process_time()
    traced = trace(section)
    done = time.process_time()
    lowered = traced.lower()
    lowered.compile()
    return {
        "model": model,
        "blocks": blocks,
        # Without the temporary file of a graph's edges.
        "section": {k: v for k, v in section.items() if k != "edge_path"},
        "equations": num_equations(traced.jaxpr.jaxpr),
        "trace": done - start,
        "compile": time.process_time() - done,
    }


def _parse(arguments: Sequence[str] | None) -> Any:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed.depth")
    models = [model for model in MODELS if model not in NO_BLOCKS]
    parser.add_argument("--models", nargs="+", choices=models, default=models)
    add_out_option(parser)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
