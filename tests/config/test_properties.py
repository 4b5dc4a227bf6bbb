"""Random values give a config section or one ConfigError."""

from __future__ import annotations

import math
import warnings
from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from credit_jax.config import ConfigError, parse
from credit_jax.config.dates import duration
from credit_jax.config.inference import InferenceConfig
from credit_jax.config.parallelism import ParallelismConfig, parse_parallelism
from credit_jax.config.trainer import TrainerConfig
from credit_jax.parallel.mesh.dims import ParallelDims
from tests.support.properties import fixed

NUMBERS = st.one_of(
    st.integers(-2, 5), st.integers(), st.floats(allow_nan=True, allow_infinity=True)
)
SCALARS = st.one_of(st.none(), st.booleans(), NUMBERS, st.text(max_size=8))
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.text(max_size=8), inner, max_size=3),
    ),
    max_leaves=6,
)
SECTIONS = {
    section: sorted(section.model_fields)
    for section in (TrainerConfig, ParallelismConfig, InferenceConfig)
}


@pytest.mark.slow(but=["ParallelismConfig", "InferenceConfig"])
@pytest.mark.parametrize("section", SECTIONS, ids=lambda cls: cls.__name__)
@fixed
@given(data=st.data())
def test_any_value_of_any_key(section: Any, data: st.DataObject) -> None:
    keys = st.sampled_from(SECTIONS[section])
    values = data.draw(st.dictionaries(keys, VALUES, max_size=4))
    found: Any = None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found = parse(section, values)
        except ConfigError as error:
            found = error.problems
    assert isinstance(found, section) or found, "an error says what is wrong"


DEGREES = st.dictionaries(
    st.sampled_from(
        [
            "tensor",
            "domain",
            "dp_replicate",
            "dp_shard",
            "ep",
            "pp",
            "cp",
            "ulysses_degree",
        ]
    ),
    st.integers(-1, 6),
)


@fixed
@given(
    degrees=DEGREES,
    data=st.sampled_from([None, "fsdp2", "ddp", "none"]),
    world_size=st.integers(1, 24),
)
def test_degrees_make_up_the_devices(
    degrees: dict[str, int], data: str | None, world_size: int
) -> None:
    section: dict[str, Any] = {**degrees, **({} if data is None else {"data": data})}
    try:
        dims = ParallelDims.from_config(section, world_size)
    except ValueError:
        return
    names = ("dp_replicate", "dp_shard", "ep", "pp", "tp", "domain")
    used = math.prod(getattr(dims, name) for name in names)
    assert used == dims.world_size
    assert used <= world_size
    if data != "none":
        assert used == world_size, "none stays idle"
    for key in ("tensor", "domain"):
        if degrees.get(key, -1) > 0:
            assert getattr(dims, {"tensor": "tp"}.get(key, key)) == degrees[key]


@fixed
@given(text=st.text(max_size=30))
def test_any_text_of_the_command_line(text: str) -> None:
    found: Any = None
    try:
        found = parse_parallelism(text)
    except ValueError as error:
        found = str(error)
    assert isinstance(found, ParallelismConfig) or found


@fixed
@given(count=st.integers(1, 400), unit=st.sampled_from(["d", "D", "h", "min"]))
def test_durations(count: int, unit: str) -> None:
    expected = pd.Timedelta(count, {"d": "D"}.get(unit, unit))
    assert duration(f"{count}{unit}") == duration(f"{count} {unit}") == expected
