"""Training step and forward pass of further families, as their configs are shipped."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.gpu import step
from benchmarks.gpu.records import Results, Setting
from benchmarks.mesh_cases import NEIGHBORS, Case
from benchmarks.report import Table
from benchmarks.speed.cases import case_of, initial_weights, make_case
from benchmarks.speed.jax_side import JaxSide

TITLE = "Training step and forward pass of further families"
CONFIGS = {
    "swin": "swin_6h",
    "graph": "graph_1deg",
    "wxformer_moe": "wxformer_moe_1deg",
}


def items(setting: Setting) -> list[str]:
    """One a family."""
    del setting
    return [*CONFIGS]


def run(item: str, setting: Setting, save: Callable[[Any], None]) -> dict[str, Any]:
    """Returns seconds of a forward pass and a step, and bytes that the step needs."""
    if setting.rehearse:
        case = make_case("tiny", item)
    else:
        setting.scratch.mkdir(parents=True, exist_ok=True)
        section = Case(CONFIGS[item]).mapping(setting.scratch)["model"]
        case = case_of(CONFIGS[item], section, 1)
    # CREDIT has no experts, and no names for their weights.
    side = JaxSide(case, *initial_weights(case), dtype=setting.dtype)
    return step.measured(side, setting, save)


def tables(results: Results) -> Sequence[str | Table]:
    """One row a family."""
    return [
        "One sample, one device. The graph has the "
        f"{NEIGHBORS} nearest neighbors of each point.",
        step.table("Families", results),
    ]


def line(result: Mapping[str, Any]) -> str:
    """The result in a few words."""
    return step.line(result)
