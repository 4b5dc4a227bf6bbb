"""docs/coming_from.md lists all names and parameters of five interfaces; ours exist."""

import dataclasses
import importlib
import inspect
import json
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/coming_from.md").read_text()
WORDS = ("automatic", "not needed")
OURS = r"`((?:credit_jax|credit_torch_bridge)\.[\w.]+(?:\(\w+\))?)`"
DOTTED = sorted(set(re.findall(OURS, PAGE)))


# Interface -> name -> parameters, as their documentation has them.
INTERFACES = json.loads(Path(__file__).with_name("interfaces.json").read_text())


def names_of(section: str) -> list[str]:
    """Returns the names of an interface, and "name(parameter)" for each parameter."""
    named = INTERFACES[section].items()
    return [*INTERFACES[section], *(f"{n}({p})" for n, own in named for p in own)]


def entries(section: str) -> list[tuple[str, str, str]]:
    """Returns theirs, here and the reason of each entry of the list below a heading."""
    text = PAGE.split(f"## `{section}`")[1].split("\n## ")[0]
    lines = re.sub(r"\n  +", " ", text).splitlines()
    shape = r"- ((?:`[^`]+`(?:, )?)+): (automatic|not needed|`[^`]+`)(?:; (.*))?"
    parsed = [re.fullmatch(shape, line) for line in lines if line.startswith("- ")]
    assert all(parsed), f"{section}: an entry is not `theirs`: here; why"
    return [(match[1], match[2], match[3] or "") for match in parsed if match]


def resolve(dotted: str) -> Any:
    """Returns what a dotted name, perhaps with "(parameter)" behind it, means."""
    dotted, _, parameter = dotted.rstrip(")").partition("(")
    if parameter:
        return inspect.signature(resolve(dotted)).parameters[parameter]
    parts = dotted.split(".")
    for end in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:end]))
        except ModuleNotFoundError:
            continue
        for name in parts[end:]:
            fields = dataclasses.is_dataclass(found) and {
                field.name: field for field in dataclasses.fields(found)
            }
            found = (fields or {}).get(name) or getattr(found, name)
        return found
    raise ModuleNotFoundError(dotted)


@pytest.mark.parametrize("dotted", DOTTED)
def test_our_names_can_be_imported(dotted):
    resolve(dotted)


def test_a_wrong_name_is_noticed():
    with pytest.raises(AttributeError):
        resolve("credit_jax.parallel.rows.exchange.fetsh")
    with pytest.raises(AttributeError):
        resolve("credit_jax.parallel.mesh.dims.ParallelDims.dq")
    with pytest.raises(KeyError):
        resolve("credit_jax.parallel.placement.shard_tensor(manager)")


@pytest.mark.parametrize("section", INTERFACES)
def test_every_name_and_parameter_has_one_entry(section):
    found = [n for names, *_ in entries(section) for n in re.findall("`(.+?)`", names)]
    assert sorted(found) == sorted(names_of(section))


@pytest.mark.parametrize("section", INTERFACES)
def test_every_entry_says_where_or_why(section):
    for theirs, here, why in entries(section):
        named = re.fullmatch(OURS, here)
        assert named or here in WORDS, f"{theirs}: {here!r} is none of {WORDS}"
        if here in ("automatic", "not needed"):
            assert why, f"{theirs} is {here}, but the reason is missing"
        if here == "automatic":
            assert "`tests/" in why, f"{theirs} is automatic; which test proves it?"


def test_no_entry_waits():
    """Each feature is implemented, or rejected with a reason."""
    found = [line for line in PAGE.splitlines() if "without effect" in line]
    found += [line for line in PAGE.splitlines() if "not yet" in line]
    assert not found, found


def test_the_tests_that_are_named_exist():
    named = set(re.findall(r"`(tests/[\w/.]+)`", PAGE))
    missing = sorted(path for path in named if not (ROOT / path).exists())
    assert not missing, missing
