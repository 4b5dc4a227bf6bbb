"""What processes tell each other; with others it is tried in `test_joint`."""

from credit_jax.parallel.processes.coordinator import (
    num_processes,
    of_all,
    of_first,
    process_number,
    wait_for_all,
)


def test_a_process_alone_asks_nobody() -> None:
    assert (num_processes(), process_number()) == (1, 0)
    wait_for_all("anything")
    assert of_all("names", "one") == ["one"]
    assert of_first("leader", "one") == "one"
