"""Channels of a run, matched with those of its base."""

from __future__ import annotations

from typing import Any

import pytest

from credit_jax.config import ConfigError, parse
from credit_jax.config.finetune import FinetuneConfig
from credit_jax.data import ChannelGroup, ChannelSchema
from credit_jax.named_fields.units import unit_problems
from credit_jax.plan.channels import (
    ChannelMatch,
    level_differences,
    match_channels,
    num_in_common,
)

LEVELS = (500.0, 850.0, 1000.0)


def group(key: str, levels: tuple[float, ...] | None = None, n: int = 1) -> Any:
    return ChannelGroup(key, n if levels is None else len(levels), 1, levels)


PROGNOSTIC = (group("ERA5/prognostic/3d/T", LEVELS), group("ERA5/prognostic/2d/SP"))
BASE = ChannelSchema(
    (*PROGNOSTIC, group("ERA5/static/2d/LSM")),
    (*PROGNOSTIC, group("ERA5/diagnostic/2d/TP")),
)
# Levels in hPa of which one is new, in another order, from another source.
OURS = (
    group("CLIMATE/prognostic/2d/T2M"),
    group("CLIMATE/prognostic/3d/T", (1000.0, 700.0, 500.0)),
    group("CLIMATE/prognostic/2d/SP"),
)
NEW = ChannelSchema((*OURS, group("CLIMATE/dynamic_forcing/2d/tsi")), OURS)


def match(base: ChannelSchema, ours: ChannelSchema, new: Any) -> ChannelMatch:
    section = {"from": "RUN", "new_channels": new}
    chosen = parse(FinetuneConfig, section, "trainer.finetune").new_channels
    assert chosen is not None
    return match_channels(base, ours, chosen)


def test_names_and_levels_decide() -> None:
    matched = match(BASE, NEW, {"copy": {"T2M": "T 1000"}})
    change = matched.change
    assert change.input == (None, 2, None, 0, 3, None)
    assert change.output == (None, 2, None, 0, 3)
    assert (change.base_input, change.base_output) == (5, 5)
    assert (change.fill, change.copied) == ("copy", {0: 2})
    assert matched.report == (
        "input 0: T2M: new, begins with 0",
        "input 1: T 1000: channel 2 of the base",
        "input 2: T 700: new, begins with 0",
        "input 3: T 500: channel 0 of the base",
        "input 4: SP: channel 3 of the base",
        "input 5: tsi: new, begins with 0",
        "input: T 850 of the base is removed",
        "input: LSM of the base is removed",
        "output 0: T2M: new, a copy of T 1000",
        "output 1: T 1000: channel 2 of the base",
        "output 2: T 700: new, begins with 0",
        "output 3: T 500: channel 0 of the base",
        "output 4: SP: channel 3 of the base",
        "output: T 850 of the base is removed",
        "output: TP of the base is removed",
    )


def test_the_same_channels() -> None:
    change = match(BASE, BASE, "zero").change
    assert change.input == change.output == (0, 1, 2, 3, 4)
    assert {*change.input} - {None} == {*range(change.base_input)}
    mean = match(BASE, NEW, "mean").change
    assert len({*mean.output} - {None}) < mean.base_output


def test_levels_are_compared_by_their_values() -> None:
    lines = []
    for levels in (LEVELS, (1000.0, 850.0, 500.0), (300.0, 500.0, 850.0)):
        moved = (group("ERA5/prognostic/3d/T", levels), *PROGNOSTIC[1:])
        ours = ChannelSchema((*moved, BASE.input[-1]), (*moved, BASE.target[-1]))
        lines.append(level_differences(BASE, ours))
    assert not lines[0]
    assert lines[1:] == [
        [f"T has the levels {levels}, in the base [500.0, 850.0, 1000.0]"]
        for levels in ([1000.0, 850.0, 500.0], [300.0, 500.0, 850.0])
    ]


def test_levels_without_values_are_taken_in_order() -> None:
    unknown = (group("A/prognostic/3d/T", n=3),)
    matched = match(BASE, ChannelSchema(unknown, unknown), "zero")
    assert matched.change.input == (0, 1, 2)
    assert matched.report[0] == "input 0: T (level 1 of 3): channel 0 of the base"
    fewer = (group("A/prognostic/3d/T", n=2),)
    same = ChannelSchema(unknown, unknown)
    assert not level_differences(same, same)
    with pytest.raises(ConfigError, match="T has 2 levels, in the base 3, and the va"):
        match(BASE, ChannelSchema(fewer, fewer), "zero")


@pytest.mark.parametrize("first", [0, 1])
def test_numbers_are_no_levels_that_the_base_knows(
    first: int, caplog: pytest.LogCaptureFixture
) -> None:
    numbers = tuple(float(n + first) for n in range(3))
    numbered, known = (
        ChannelSchema((each,), (each,))
        for each in (group("A/prognostic/3d/T", numbers), PROGNOSTIC[0])
    )
    text = rf"T: has the levels \[{first}.0, .*, but T of the base has \[500.0, 850"
    with pytest.raises(ValueError, match=text):
        match(known, numbered, "zero")
    with pytest.raises(ValueError, match=text):
        level_differences(known, numbered)
    assert num_in_common(known, numbered) == -1
    assert not caplog.messages
    assert match(numbered, known, "zero").change.input == (0, 1, 2)
    assert "one side only numbers them" in caplog.text


@pytest.mark.parametrize(
    ("copy", "message"),
    [
        ({"SP": "TP"}, "copy.SP: no new output; there are: T2M, T"),
        ({"T2M": "Q"}, "copy.T2M: 'Q' is no output of the base, which has T, SP, TP"),
        ({"T2M": "T 300"}, "copy.T2M: 'T 300' is no output of the base"),
        ({"T2M": "T"}, "copy.T2M: 1 channels, 'T' has 3; name one of its levels"),
    ],
)
def test_copies_that_are_refused(copy: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        match(BASE, NEW, {"copy": copy})


def test_units_are_compared_by_the_names_of_variables() -> None:
    base = {
        "ERA5/prognostic/3d/T": ("K", "RUN"),
        "ERA5/prognostic/2d/SP": ("Pa", "RUN"),
        "ERA5/static/2d/Z": ("m2 s-2", "RUN"),
        "ERA5/prognostic/3d/Z": ("m2 s-2", "RUN"),
    }
    ours = {
        "CLIMATE/prognostic/3d/T": ("degC", "t.nc"),
        "CLIMATE/diagnostic/2d/SP": ("pascal", "sp.nc"),
        "CLIMATE/static/2d/Z": ("m", "z.nc"),
        "CLIMATE/prognostic/2d/T": ("degC", "t2m.nc"),
    }
    assert unit_problems(base, ours) == [
        "t.nc: variable 'T' has units 'degC', expected 'K' as in RUN; bring the file "
        "to that unit",
        "z.nc: variable 'Z' has units 'm', expected 'm2 s-2' as in RUN; bring the file "
        "to that unit",
    ]
    assert unit_problems(ours, ours) == unit_problems({}, ours) == []
