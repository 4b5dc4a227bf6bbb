"""Compiled programs are dropped above a memory limit."""

import jax
import pytest

from tests import bounded_memory


@pytest.mark.slow
def test_programs_are_dropped_above_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    used, drops = [0.0], []
    monkeypatch.setattr(bounded_memory, "resident", lambda: used[0])
    monkeypatch.setattr(bounded_memory, "_after_last_time", 0.0)
    monkeypatch.setattr(jax, "clear_caches", lambda: drops.append(used[0]))
    for used[0] in (4e9, 5.5e9, 6e9, 6.6e9, 5.2e9):
        bounded_memory.drop_programs()
    assert drops == [5.5e9, 6.6e9]


def test_memory_of_programs_goes_back_to_the_system() -> None:
    """Also memory freed between objects that are still in use."""
    blocks = [b"x" * (100_000 + number) for number in range(2000)]
    before = bounded_memory.resident()
    kept = blocks[::20]
    del blocks
    bounded_memory.return_freed_memory()
    assert len(kept) == 100
    assert bounded_memory.resident() < before - 1e8
