"""Timing of several functions in alternation."""

import time

import pytest

from benchmarks.timing import Times, ratio, take_turns


def test_sides_take_turns_and_ratios_are_theirs_by_ours():
    order = []
    sides = {name: lambda name=name: order.append(name) for name in ("a", "b")}
    found = take_turns(sides, warmup=1, rounds=4)
    assert order == ["a", "b"] * 5
    assert all(len(times.seconds) == 4 for times in found.values())
    order.clear()
    sides["slow"] = lambda: (time.sleep(0.05), order.append("slow"))
    found = take_turns(sides, warmup=0, rounds=4, limit=0.01)
    assert order == ["a", "b", "slow", "a", "b", "a", "b"]
    assert ratio(found["slow"], found["a"]) > 1
    fast, slow = Times((1.0, 1.0, 2.0)), Times((2.0, 2.0, 4.0))
    assert ratio(slow, fast) == 2
    assert slow.median == 2
    assert slow.spread == pytest.approx(0.5)
