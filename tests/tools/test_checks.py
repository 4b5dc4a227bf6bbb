"""The checks of style, words, imports and docstrings, and the graph of imports."""

from pathlib import Path

import pytest

from tools import house, import_style, imports, words

griffe = pytest.importorskip("griffe", reason="make test installs mkdocstrings")

DOCSTRING = '''
def rows(mesh, size):
    """Rows.

    Args:
        mesh: {}
        size: number of rows.
    """
'''
NOUN = "is not a whole phrase; name what is described"


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("found = 1", "name what the value is"),
        ("for own in []: pass", "name what the value is"),
        ("{own: 1 for own in []}", "name what the value is"),
        ("def f(given): pass", "name what the value is"),
        ("lambda kept: kept", "name what the value is"),
        ("def _made(): pass", "name what the value is"),
        ("class Wanted: pass", "name what the value is"),
        ("class A:\n    wanted: int", "name what the value is"),
        ("a.own_rows = 1", "name what the value is"),
        ("import os as there", "name what the value is"),
        ("try: pass\nexcept OSError as lost: pass", "name what the value is"),
        ("match 1:\n    case own: pass", "name what the value is"),
        (DOCSTRING.format("of the run."), f"a.py:6: 'mesh: of the run.' {NOUN}"),
        (
            DOCSTRING.format("on which it is."),
            f"a.py:6: 'mesh: on which it is.' {NOUN}",
        ),
        (DOCSTRING.format("where it runs."), f"a.py:6: 'mesh: where it runs.' {NOUN}"),
    ],
)
def test_names_and_descriptions_that_do_not_say_what_a_value_is(source, problem):
    (line,) = words.problems(source, "a.py")
    assert line.startswith("a.py:")
    assert line.endswith(problem)


SOURCE = '''"""A module."""

import os
from pathlib import (
    Path,
)

# Why.
known = {"place": os}


def _check(path: Path) -> None:
    """One line.

    Raises:
        ValueError: always.
    """
    raise ValueError(path)


def read(x):
    _check(x)
    if x:  # not of its own line
        return known
    assert x is None
    return None
'''


def test_kinds_of_lines():
    counts = house.counts_of(SOURCE)
    assert counts["lines"] == len(SOURCE.splitlines()) == 26
    assert counts["code"] == 26 - 4 - 1 - 6 - 6  # without docstrings and blanks
    expected = {"imports": 4, "comments": 1, "functions": 2, "short_functions": 1}
    expected |= {"helpers": 1, "validation": 7 + 1, "names": 5, "words": 1}
    assert {name: counts[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("budget", "last", "message"),
    [
        ("10", None, None),
        ("9", None, "lines: 10, with a budget of 9: remove what"),
        ("12", "11", "lines: raised from 11 to 12; say why"),
        ("12  # a new model", "11", None),
        ("10", "11", None),
    ],
)
def test_budgets(budget, last, message):
    text = "[tool.house]\nlines = {}\n"
    numbers = dict.fromkeys(house.TITLES, 10)
    before = last and text.format(last)
    lines = list(house.problems(numbers, text.format(budget), before))
    assert len(lines) == (message is not None)
    assert message is None or message in lines[0]


@pytest.mark.parametrize(
    ("file", "test", "length"),
    [
        # Itself, its set-up, what it shares with others.
        ("tests/ops/test_conv.py", "tests/ops/test_conv.py", 0),
        ("tests/conftest.py", "tests/ops/test_conv.py", 0),
        ("tests/models/parity.py", "tests/models/test_meshes.py", 0),
        # An import, one by a shared module of the tests, two in a row.
        ("credit_jax/ops/conv.py", "tests/ops/test_conv.py", 1),
        ("credit_jax/models/registry.py", "tests/models/test_meshes.py", 1),
        ("credit_jax/models/swin/swin.py", "tests/models/test_meshes.py", 2),
        # Names that a package hands on at their first use.
        ("credit_jax/forecast/labeled.py", "tests/packages/test_labeled.py", 1),
        ("credit_jax/models/swin/fuxi.py", "tests/models/test_swin.py", 1),
        # A command and a config, by their names.
        ("credit_torch_bridge/cli.py", "tests/cli/test_console.py", 2),
        ("configs/tp2_domain2.yaml", "tests/cli/test_console.py", 1),
        # What nothing names.
        ("CITATION.cff", "tests/cli/test_console.py", None),
    ],
)
def test_length_of_the_way(file, test, length):
    assert imports.distances(Path(file)).get(test) == length


def test_names_are_imported_from_the_package_that_hands_them_on(tmp_path: Path) -> None:
    package = tmp_path / "credit_jax/data"
    package.mkdir(parents=True)
    text = "from credit_jax.data.loader import Loader as Loader\nfrom os import sep\n"
    (package / "__init__.py").write_text(text)
    handed_on = import_style.exports(tmp_path)
    assert handed_on == {"credit_jax.data": {"Loader": "credit_jax.data.loader"}}
    for source, lines in (
        (
            "def f():\n    from credit_jax.data.loader import Loader, other\n",
            ["a.py: import Loader from credit_jax.data"],
        ),
        ("from credit_jax.data import Loader", []),
        ("from credit_jax.data.loader import x", []),
    ):
        assert import_style.problems(source, "a.py", handed_on) == lines


PACKAGE = '''
"""A package."""
from dataclasses import dataclass

def add(a, b):
    """Sum.

    Args:
        a, b: numbers, or
            arrays: of one shape.
        c: no argument.
    """

@dataclass
class Base:
    x: int

@dataclass
class Pair(Base):
    """Two.

    Attributes:
        x, y: numbers.
        z: no attribute.
    """

    y: int
'''


def test_what_is_described_and_not_there_is_a_warning(tmp_path, caplog):
    (tmp_path / "pairs.py").write_text(PACKAGE)
    script = Path(__file__).parents[2] / "tools/docstrings.py"
    package = griffe.load(
        "pairs",
        search_paths=[tmp_path],
        extensions=griffe.load_extensions(str(script)),
        docstring_parser="google",
    )
    assert "Pair has no attribute 'z'" in caplog.text
    assert not {"'x'", "'y'"} & set(caplog.text.split())
    parameters = package["add"].docstring.parsed[1].value
    assert [entry.name for entry in parameters] == ["a", "b", "c"]
    assert parameters[1].description == "numbers, or\narrays: of one shape."
    assert "Parameter 'c' does not appear" in caplog.text
