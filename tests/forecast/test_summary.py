"""Durations of campaigns: what waits for others is not counted as work."""

import time
from pathlib import Path

from credit_jax.cli.forecast import footer
from credit_jax.forecast.campaign import CampaignTimes, DeviceClock, Summary
from credit_jax.io.workers import Workers

SHORT = 0.05


class Slow:
    """A result that takes some time to compute."""

    def block_until_ready(self):
        time.sleep(SHORT)
        return self


def test_copies_to_the_host_do_not_count_the_steps_they_wait_for():
    clock, host = DeviceClock(), Workers(1, 2, "host")
    for _ in range(3):
        host.submit(lambda: clock.ready({"T": Slow()}))
    host.close()
    assert clock.awaited >= 3 * SHORT
    assert host.seconds >= clock.awaited
    assert host.seconds - clock.awaited < SHORT


def test_the_total_begins_with_the_end_of_the_first_step():
    clock, start = DeviceClock(), time.perf_counter()
    assert clock.total == 0.0
    for _ in range(2):
        clock.wait(start, Slow())
    assert SHORT <= clock.busy <= clock.total <= time.perf_counter() - start - SHORT


def test_time_for_which_a_full_queue_blocks():
    files = Workers(1, 1, "write")
    for _ in range(3):
        files.submit(lambda: time.sleep(SHORT))
    assert files.blocked >= 1.5 * SHORT
    files.close()
    assert files.seconds >= 3 * SHORT


def test_the_last_lines_of_a_forecast():
    times = CampaignTimes(unroll=9.0, read=0.5, write=3.25, total=10.0)
    lines = footer(Summary(3, 1, {"T": 7}, times), Path("out"))
    assert lines == [
        "3 forecasts made, in out, 1 found there",
        "unroll 9.00 s, read 0.50 s, write 3.25 s beside each other; devices idle "
        "10.0 % of the 10.00 s since the first step",
        "values that are not finite, written as missing: T 7",
    ]


def test_no_times_where_nothing_was_left_to_do():
    lines = footer(Summary(0, 4, {}, CampaignTimes(0.0, 0.0, 0.0, 0.0)), Path("out"))
    assert lines == ["0 forecasts made, in out, 4 found there"]
