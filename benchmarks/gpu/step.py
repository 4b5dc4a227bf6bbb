"""Training step and forward pass: with kernels, without, and CREDIT's.

Same weights and batch. Each side has a process, and the device, of its own. Ours is
right if a step from the same state gives the same bits again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import jax

from benchmarks.gpu import draws
from benchmarks.gpu.records import Results, Setting
from benchmarks.gpu.turns import alone
from benchmarks.report import Table
from benchmarks.speed.cases import Case, make_case
from benchmarks.speed.jax_side import JaxSide
from benchmarks.timing import take_turns
from credit_jax.kernels import use_implementation
from credit_jax.models.conversion import from_state_dict

TITLE = "Training step and forward pass"
KERNELS, PLAIN = "credit_jax", "credit_jax, plain definitions"
COMPILED, EAGER = "CREDIT, torch.compile", "CREDIT, eager"
TORCH = (COMPILED, EAGER)
# Rounds that count, and seconds after which none begins.
_ROUNDS, _LIMIT = 30, 15.0
# The model of a rehearsal, which compiles soonest of those with attention.
REHEARSED = "fuxi"
# torch.compile of a rehearsal, which does not wait for a C++ compiler.
_TRACED_ALONE = "eager"


def items(setting: Setting) -> list[str]:
    """All sides, ours first."""
    del setting
    return [KERNELS, COMPILED, PLAIN, EAGER]


def environment(item: str) -> dict[str, str]:
    """Variables of the process: where torch has the GPU, JAX computes on the CPU."""
    return {"JAX_PLATFORMS": "cpu"} if item in TORCH else {}


def run(item: str, setting: Setting, save: Callable[[Any], None]) -> dict[str, Any]:
    """Returns seconds of a forward pass and a step, and bytes that the step needs."""
    with side_of(item, setting) as side:
        return measured(side, setting, save, device=item not in TORCH)


def measured(
    side: Any, setting: Setting, save: Callable[[Any], None], *, device: bool = True
) -> dict[str, Any]:
    """Returns the times of a side, its memory and, of ours, whether bits repeat."""
    result: dict[str, Any] = {}
    for name, call in (("step", side.train), ("forward", side.infer)):
        result[name] = _timed(call, setting)
        save(result)
    # Of a step; None of torch on a CPU.
    result["memory"] = side.peak_memory()
    if device:
        stats = jax.devices()[0].memory_stats() or {}
        result["most in use"] = stats.get("peak_bytes_in_use")
        result["flops"] = side.floating_point_operations()
        save(result)
        result["repeats"] = result["right"] = side.repeats()
    return result


@contextmanager
def side_of(item: str, setting: Setting, **options: Any) -> Iterator[Any]:
    """Context manager: one side with drawn weights, to be used within.

    Args:
        item: its name.
        setting: size and dtype.
        **options: further arguments of `JaxSide`.
    """
    case = make_case("tiny", REHEARSED) if setting.rehearse else make_case(setting.size)
    if item in TORCH:
        yield _torch_side(item, case, setting)
        return
    with use_implementation("xla") if item == PLAIN else nullcontext():
        yield jax_side(case, dtype=setting.dtype, **options)


def jax_side(case: Case, **options: Any) -> JaxSide:
    """The side of credit_jax with drawn weights."""
    weights = from_state_dict(case.model_def, draws.drawn_state(case.model_def))
    return JaxSide(case, *weights, **options)


def _torch_side(item: str, case: Case, setting: Setting) -> Any:
    import torch

    from benchmarks.speed.torch_side import TorchSide

    return TorchSide(
        case,
        draws.drawn_state(case.model_def),
        device="cuda" if torch.cuda.is_available() else "cpu",
        dtype=setting.dtype,
        compiled=item == COMPILED,
        backend=_TRACED_ALONE if setting.rehearse else "inductor",
    )


def _timed(call: Callable[[], object], setting: Setting) -> dict[str, Any]:
    """Seconds of the first call, beside other processes, and of further ones."""
    first = take_turns({"": call}, warmup=0, rounds=1)[""].median
    rounds = 3 if setting.rehearse else _ROUNDS
    with alone(setting):
        times = take_turns({"": call}, warmup=2, rounds=rounds, limit=_LIMIT)[""]
    return {
        "first": first,
        "median": times.median,
        "spread": times.spread,
        "rounds": len(times.seconds),
    }


def tables(results: Results) -> Sequence[str | Table]:
    """One row a side, and how many times as fast ours is."""
    return [
        "Goals: a step 1.5 times as fast as torch.compile and 2.5 times as eager, with "
        "no more memory.",
        table("Step", results),
    ]


def table(title: str, results: Results) -> Table:
    """One row an item, with its times as multiples of those of `KERNELS`, if any."""
    ours = results.get(KERNELS, {})
    rows = []
    for item, result in results.items():
        cells = [item]
        for name in ("step", "forward"):
            if name not in result:
                cells += ["", "", ""]
                continue
            times = result[name]
            ratio = ""
            if name in ours and item != KERNELS:
                ratio = f"{times['median'] / ours[name]['median']:.2f}"
            cells += [f"{1e3 * times['median']:.2f}", f"{times['spread']:.0%}", ratio]
        memory = result.get("memory")
        cells.append(f"{memory / 1e9:.1f}" if memory else "")
        repeats = {True: "yes", False: "**no**"}
        cells.append(repeats.get(result.get("repeats"), ""))
        rows.append(cells)
    header = ["", "step, ms", "spread", "ours is x as fast", "forward, ms", "spread"]
    header += ["ours is x as fast", "memory of a step, GB", "same bits again"]
    return Table(title, header, rows)


def line(result: Mapping[str, Any]) -> str:
    """The result in a few words."""
    memory = result["memory"]
    return (
        f"step {1e3 * result['step']['median']:.1f} ms, forward "
        f"{1e3 * result['forward']['median']:.1f} ms"
        + (f", {memory / 1e9:.1f} GB" if memory else "")
        + ("" if result.get("repeats", True) else ", and a repeat differs")
    )
