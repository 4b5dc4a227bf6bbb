"""What limits a kernel on a GPU."""

from __future__ import annotations

import pytest

from benchmarks.accelerator.limits import (
    Launch,
    Resources,
    launches,
    limits,
    programs_at_once,
    resources,
)
from benchmarks.accelerator.ptx import Work
from benchmarks.accelerator.targets import TARGETS
from tests.benchmarks.accelerator.machine_code import LOG, METADATA, SEQUENCE

H100, A100 = TARGETS["h100"], TARGETS["a100"]
assert H100.chip is not None
CHIP = H100.chip
SMALL = Resources(32, 0, 0)


def test_what_ptxas_says() -> None:
    assert resources(LOG) == {
        "window_attention_backward": Resources(255, 652, 408),
        "input_reduce_fusion": Resources(30, 0, 0, 8320),
    }
    with pytest.raises(ValueError, match="nothing of the registers of linear"):
        resources("ptxas info : Function properties for linear\n  0 bytes stack")


def test_launches_have_the_names_of_instructions() -> None:
    found = launches(SEQUENCE, METADATA)
    assert list(found) == ["loop_pad_fusion", "pallas_call.3"]
    attention = found["pallas_call.3"]
    assert attention == Launch("window_attention_backward", (66, 4, 1), 256, 98304)
    assert (attention.programs, attention.warps) == (264, 8)


@pytest.mark.parametrize(
    ("threads", "registers", "shared", "expected"),
    [
        (256, 255, 0, 1),  # 8 warps x 32 threads x 256 registers are all
        (256, 128, 0, 2),
        (256, 32, 0, 8),  # 2,048 threads
        (256, 32, 96 * 1024, 2),  # 228 KB, 1 of each program the system's
        (128, 168, 0, 3),
        (32, 16, 0, 32),
    ],
)
def test_programs_of_a_multiprocessor(
    threads: int, registers: int, shared: int, expected: int
) -> None:
    launch = Launch("kernel", (1000,), threads, shared)
    assert programs_at_once(launch, Resources(registers, 0, 0), CHIP) == expected


def _limits(
    work: Work,
    moved: float,
    *,
    programs: int = CHIP.count * 64,
    resources: Resources = SMALL,
    pipelined: bool = False,
) -> tuple[str, float]:
    launch = Launch("kernel", (programs,), 256, 0)
    found = limits(launch, resources, work, moved, H100, pipelined=pipelined)
    return found.bound, found.seconds


def test_the_resource_that_is_needed_longest_is_the_bound() -> None:
    warps = CHIP.count * 64 * 8
    assert _limits(Work(), 3.35e9) == ("memory", pytest.approx(1e-3))
    products = Work(flops=H100.peak * 1e-3 / warps)
    assert _limits(products, 1e9) == ("products", pytest.approx(1e-3))
    clocks = CHIP.count * CHIP.clock
    busy = Work(instructions=4 * clocks * 1e-3 / warps)
    assert _limits(busy, 1e9) == ("issue slots", pytest.approx(1e-3))
    powers = Work(instructions=1, special=16 / 32 * clocks * 1e-3 / warps)
    assert _limits(powers, 1e9) == ("special functions", pytest.approx(1e-3))
    reads = Work(requested=CHIP.cache_bandwidth * 1e-3 / warps)
    assert _limits(reads, 1e9) == ("L2", pytest.approx(1e-3))


def test_one_program_alone_loads_and_computes_in_turn() -> None:
    warps = CHIP.count * 64 * 8
    work = Work(flops=H100.peak * 1e-3 / warps)
    many = Resources(255, 0, 0)
    assert _limits(work, 3.35e9, resources=many) == ("latency", pytest.approx(2e-3))
    found = _limits(work, 3.34e9, resources=many, pipelined=True)
    assert found == ("products", pytest.approx(1e-3))
    assert _limits(work, 3.34e9) == ("products", pytest.approx(1e-3))


def test_the_multiprocessor_with_most_programs_takes_longest() -> None:
    _, even = _limits(Work(), 1e9, programs=CHIP.count * 2)
    _, odd = _limits(Work(), 1e9, programs=CHIP.count * 2 + 1)
    assert odd == pytest.approx(even * 3 / 2 * (2 * CHIP.count) / (2 * CHIP.count + 1))


def test_a_program_must_fit() -> None:
    launch = Launch("kernel", (1,), 256, 200 * 1024)
    assert limits(launch, SMALL, Work(), 1.0, H100, pipelined=False).at_once == 1
    with pytest.raises(ValueError, match="fits into no multiprocessor of a100"):
        limits(launch, SMALL, Work(), 1.0, A100, pipelined=False)
