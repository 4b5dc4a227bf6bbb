from typing import Any, ClassVar, Literal

import pytest
from pydantic import Field

from credit_jax.config import StrictModel, not_available, parse
from credit_jax.config.base import Unavailable


class Inner(StrictModel):
    """A section nested in another."""

    size: int = Field(1, ge=1)
    kind: Literal["a", "b"] = "a"

    ignored: ClassVar = {"old": "of no use"}


class Outer(StrictModel):
    """A section with a field of every kind."""

    name: str
    rate: float = 1.0
    inner: Inner = Inner()
    parts: tuple[Inner, ...] = ()
    named: dict[str, Inner] = Field(default_factory=dict)
    free: dict[str, Any] = Field(default_factory=dict)
    maybe: Inner | None = None

    unavailable: ClassVar = {"later": Unavailable("use rate", (0,))}


def test_defaults_and_values():
    section = parse(Outer, {"name": "x", "inner": {"size": 3}, "free": {"a": [1]}})
    assert section.inner.size == 3, section
    assert section.free == {"a": [1]}, section
    assert section.maybe is None, section


def test_is_frozen():
    section = parse(Outer, {"name": "x"})
    with pytest.raises(ValueError, match="frozen"):
        section.name = "y"


def test_the_error_names_its_source_and_counts():
    with pytest.raises(ValueError, match=r"(?s)^my\.yaml: 1 problem\n  name: missing"):
        parse(Outer, {}, source="my.yaml")


def test_null_is_the_default():
    section = parse(Outer, {"name": "x", "rate": None, "inner": None})
    assert (section.rate, section.inner.size) == (1.0, 1), section


def test_a_harmless_value_of_an_unavailable_key_is_accepted():
    assert parse(Outer, {"name": "x", "later": 0}).name == "x"
    assert parse(Outer, {"name": "x", "later": None}).name == "x"


def test_environment_variables_are_expanded(monkeypatch):
    monkeypatch.setenv("PLACE", "/data")
    section = parse(Outer, {"name": "$PLACE/x", "free": {"a": ["${PLACE}/y", "$NO"]}})
    assert section.name == "/data/x", section
    assert section.free == {"a": ["/data/y", "$NO"]}, section


def test_not_available_names_what_there_is():
    error = not_available("preblock type", "regrid", ["concat", "era5_normalizer"])
    assert str(error) == (
        "preblock type 'regrid' is not available; there are: concat, era5_normalizer"
    )
    assert str(not_available("loss", "mze", ["mse", "mae"])).endswith(
        "(nearest: 'mse')"
    )
