"""A request of one process is executed by all at the same step, in any order."""

from __future__ import annotations

import numpy as np
import pytest

from credit_jax.training.loop import SaveSchedule
from credit_jax.training.signals import Agreement

NUM_STEPS = 60


class Store:
    """A stand-in for the coordinator's key-value store."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self.reads = 0

    def key_value_set(self, key: str, value: str) -> None:
        if key in self.values:
            raise RuntimeError(f"ALREADY_EXISTS: {key}")
        self.values[key] = value

    def key_value_try_get(self, key: str) -> str:
        self.reads += 1
        if key not in self.values:
            raise RuntimeError(f"NOT_FOUND: {key}")
        return self.values[key]


def decisions(wishes: dict[tuple[int, int], str], seed: int) -> list[list[tuple]]:
    """Returns decisions (step, what) of three processes, at most two steps apart.

    Args:
        wishes: (process, step) -> the request from that step until it is decided.
        seed: seed of the order in which the processes make steps.
    """
    store, rng = Store(), np.random.default_rng(seed)
    agreements = [Agreement(0, 3, lambda: store) for _ in range(3)]
    steps, wanted = [0, 0, 0], [None, None, None]
    found: list[list[tuple]] = [[], [], []]
    while min(steps) < NUM_STEPS:
        process = rng.integers(3)
        if steps[process] > min(steps) + 1 or steps[process] == NUM_STEPS:
            continue
        steps[process] += 1
        wanted[process] = wishes.get((process, steps[process]), wanted[process])
        what = agreements[process].reached(steps[process], wanted[process])
        if what is not None:
            found[process].append((steps[process], what))
            wanted[process] = None if what == wanted[process] else wanted[process]
    return found


@pytest.mark.parametrize("seed", range(20))
def test_all_do_it_at_the_same_step(seed: int) -> None:
    wishes = {(1, 7): "save", (0, 8): "SIGTERM", (2, 9): "SIGTERM", (0, 40): "save"}
    one, two, three = decisions(wishes, seed)
    assert one == two == three
    assert {what for _, what in one} == {"save", "SIGTERM"}
    assert all(step <= 60 for step, _ in one)
    assert one[0][0] <= 7 + 2 + 4, "soon"


def test_nothing_is_wanted() -> None:
    assert decisions({}, 0) == [[], [], []]


def test_a_process_alone_asks_nobody() -> None:
    agreement = Agreement(0, 1, lambda: pytest.fail("there is no store"))
    assert agreement.reached(1, None) is None
    assert agreement.reached(2, "save") == "save"


def test_an_error_of_the_store_is_one() -> None:
    class Broken(Store):
        def key_value_try_get(self, key: str) -> str:
            raise RuntimeError("UNAVAILABLE: the coordinator is gone")

    with pytest.raises(RuntimeError, match="UNAVAILABLE"):
        Agreement(0, 2, Broken).reached(1, None)


def test_saves_by_updates_and_by_the_clock() -> None:
    now = 0.0
    schedule = SaveSchedule(3, 15, clock=lambda: now)
    now = 3600.0
    assert not schedule.due_by_clock, "nothing was trained yet"
    schedule.updated()
    assert schedule.due_by_clock
    assert not schedule.due_by_steps
    schedule.updated()
    schedule.updated()
    assert schedule.due_by_steps
    assert schedule.minutes_ago("ago") == {}, "nothing was saved yet"
    with schedule.saving():
        now += 12
    assert schedule.minutes_ago("ago") == {"ago": 0}
    assert not schedule.due_by_steps
    assert not schedule.due_by_clock
    assert schedule.minutes == 0
    assert schedule.seconds() == 12
    assert schedule.seconds() == 0
    now += 15 * 60
    schedule.updated()
    assert schedule.due_by_clock
    other = SaveSchedule(None, 15, leads=False, clock=lambda: now)
    now += 3600
    other.updated()
    assert not other.due_by_clock
    assert not other.due_by_steps
