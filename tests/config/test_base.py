from typing import Any, ClassVar, Literal

import pytest
from pydantic import Field

from credit_jax.config import ConfigError, StrictModel, not_available, parse
from credit_jax.config.base import Unavailable
from credit_jax.config.trainer import TrainerConfig


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


def problems(mapping: dict[str, Any], path: str = "") -> tuple[str, ...]:
    with pytest.raises(ConfigError) as error:
        parse(Outer, mapping, path)
    return error.value.problems


def test_defaults_and_values():
    section = parse(Outer, {"name": "x", "inner": {"size": 3}, "free": {"a": [1]}})
    assert section.inner.size == 3, section
    assert section.free == {"a": [1]}, section
    assert section.maybe is None, section


def test_is_frozen():
    section = parse(Outer, {"name": "x"})
    with pytest.raises(ValueError, match="frozen"):
        section.name = "y"


def test_all_problems_come_at_once():
    found = problems(
        {
            "nam": "x",
            "rate": "fast",
            "inner": {"size": 0, "knd": "a"},
            "parts": [{"size": 1}, {"size": 2.5}],
            "named": {"one": {"kind": "c"}},
            "later": 3,
        }
    )
    expected = {
        "nam: unknown key; the nearest known key is 'name'",
        "name: missing; this key is required",
        "rate: must be a number, got 'fast'",
        "inner.size: must be at least 1, got 0",
        "inner.knd: unknown key; the nearest known key is 'kind'",
        "parts.1.size: must be an integer, got 2.5",
        "named.one.kind: must be one of 'a' or 'b', got 'c'",
        "later: 3 is not available; use rate",
    }
    assert set(found) == expected, found


def test_the_error_names_its_source_and_counts():
    with pytest.raises(ValueError, match=r"(?s)^my\.yaml: 1 problem\n  name: missing"):
        parse(Outer, {}, source="my.yaml")


def test_a_path_goes_before_every_key():
    assert problems({}, "model") == ("model.name: missing; this key is required",)


def test_a_section_must_be_a_mapping():
    found = problems({"name": "x", "inner": 3})
    assert found == ("inner: must be a section of keys, got 3",)


def test_a_key_like_no_other_lists_the_known_ones():
    (line,) = problems({"name": "x", "inner": {"zzz": 1}})
    assert line == "inner.zzz: unknown key; known keys here: kind, old, size"


def test_a_key_that_is_no_string():
    (line,) = problems({"name": "x", "inner": {None: 1}})
    assert line.startswith("inner.None: unknown key; known keys here"), line


def test_null_is_the_default():
    section = parse(Outer, {"name": "x", "rate": None, "inner": None})
    assert (section.rate, section.inner.size) == (1.0, 1), section


def test_null_for_a_required_key_is_missing():
    assert problems({"name": None}) == ("name: missing; this key is required",)


def test_one_warning_lists_all_that_is_ignored():
    mapping = {"name": "x", "inner": {"old": 1}, "parts": [{"old": 2}]}
    with pytest.warns(UserWarning, match="ignored here") as caught:
        parse(Outer, mapping)
    assert len(caught) == 1, [str(w.message) for w in caught]
    assert str(caught[0].message) == (
        "config: ignored here: inner.old (of no use); parts.0.old (of no use)"
    )


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


def test_the_nearest_value_is_named():
    for given, end in (("cos", "'cosine-annealing'"), ("platau", "'plateau'")):
        scheduler = {"scheduler_type": given}
        with pytest.raises(ConfigError) as raised:
            parse(TrainerConfig, {"scheduler": scheduler}, "trainer")
        (line,) = [own for own in raised.value.problems if "scheduler_type" in own]
        assert line.startswith("trainer.scheduler.scheduler_type: must be one of ")
        assert line.endswith(f", got {given!r} (nearest: {end})")
