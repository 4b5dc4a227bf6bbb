"""The checks of style, words, imports and docstrings."""

import importlib.util
from pathlib import Path

import pytest

from tools.house import TITLES, counts_of
from tools.house import problems as problems_of_house
from tools.import_style import exports
from tools.import_style import problems as problems_of_import_style
from tools.imports import distances
from tools.words import problems

pytest.importorskip("griffe", reason="make test installs mkdocstrings")


DOCSTRING = '''
def rows(mesh, size):
    """Rows.

    Args:
        mesh: {mesh}
        size: number of rows.
    """
'''


@pytest.mark.parametrize(
    "source",
    [
        "found = 1",
        "for own in []: pass",
        "{own: 1 for own in []}",
        "def f(given): pass",
        "lambda kept: kept",
        "def _made(): pass",
        "class Wanted: pass",
        "class A:\n    wanted: int",
        "a.own_rows = 1",
        "import os as there",
        "try: pass\nexcept OSError as lost: pass",
        "match 1:\n    case own: pass",
    ],
)
def test_names_that_do_not_say_what_a_value_is(source):
    (problem,) = problems(source, "a/b.py")
    assert problem.startswith("a/b.py:")
    assert problem.endswith("name what the value is")


@pytest.mark.parametrize("text", ["of the run.", "on which it is.", "where it runs."])
def test_descriptions_without_a_noun(text):
    (problem,) = problems(DOCSTRING.format(mesh=text), "a.py")
    assert problem == (
        f"a.py:6: {'mesh: ' + text!r} is not a whole phrase; name what is described"
    )


pytest.importorskip("griffe", reason="make test installs mkdocstrings")


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
    counts = counts_of(SOURCE)
    assert counts["lines"] == len(SOURCE.splitlines()) == 26
    assert counts["imports"] == 4
    assert counts["comments"] == 1
    assert counts["code"] == 26 - 4 - 1 - 6 - 6  # without docstrings and blanks
    assert counts["functions"] == 2
    assert counts["short_functions"] == 1
    assert counts["helpers"] == 1
    assert counts["validation"] == 7 + 1
    assert (counts["names"], counts["words"]) == (5, 1)


NUMBERS = dict.fromkeys(TITLES, 10)
TEXT = "[tool.house]\nlines = {}\n"


@pytest.mark.parametrize(
    ("text", "last", "message"),
    [
        (TEXT.format(10), None, None),
        (TEXT.format(9), None, "lines: 10, with a budget of 9: remove what"),
        (TEXT.format(12), TEXT.format(11), "lines: raised from 11 to 12; say why"),
        (TEXT.format("12  # a new model"), TEXT.format(11), None),
        (TEXT.format(10), TEXT.format(11), None),
    ],
)
def test_budgets(text, last, message):
    lines = list(problems_of_house(NUMBERS, text, last))
    assert len(lines) == (message is not None)
    assert message is None or message in lines[0]


@pytest.mark.parametrize(
    ("file", "test", "length"),
    [
        # Itself, its set-up, what it shares with others.
        ("tests/ops/test_conv.py", "tests/ops/test_conv.py", 0),
        ("tests/conftest.py", "tests/ops/test_conv.py", 0),
        ("tests/models/mesh_parity.py", "tests/models/test_meshes.py", 0),
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
    ],
)
def test_length_of_the_way(file, test, length):
    assert distances(Path(file))[test] == length


def test_a_file_that_nothing_names_reaches_no_test():
    assert distances(Path("CITATION.cff")) == {}


HANDED_ON = {"credit_jax.data": {"Loader": "credit_jax.data.loader"}}


def test_outside_from_the_package() -> None:
    source = "def f():\n    from credit_jax.data.loader import Loader, other\n"
    expected = ["tests/a.py: import Loader from credit_jax.data"]
    assert problems_of_import_style(source, "tests/a.py", HANDED_ON) == expected
    assert (
        problems_of_import_style(
            "from credit_jax.data import Loader", "a.py", HANDED_ON
        )
        == []
    )
    assert (
        problems_of_import_style(
            "from credit_jax.data.loader import x", "a.py", HANDED_ON
        )
        == []
    )


def test_what_a_package_hands_on(tmp_path: Path) -> None:
    package = tmp_path / "credit_jax/data"
    package.mkdir(parents=True)
    text = "from credit_jax.data.loader import Loader as Loader\nfrom os import sep\n"
    (package / "__init__.py").write_text(text)
    assert exports(tmp_path) == HANDED_ON


SCRIPT = Path(__file__).parents[2] / "tools/docstrings.py"
griffe = pytest.importorskip("griffe", reason="make test installs mkdocstrings")
_spec = importlib.util.spec_from_file_location("docstrings", SCRIPT)
assert _spec is not None
docstrings = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(docstrings)

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
    package = griffe.load(
        "pairs",
        search_paths=[tmp_path],
        extensions=griffe.load_extensions(str(SCRIPT)),
        docstring_parser="google",
    )
    assert "Pair has no attribute 'z'" in caplog.text
    assert "'x'" not in caplog.text
    assert "'y'" not in caplog.text
    parameters = package["add"].docstring.parsed[1].value
    assert [entry.name for entry in parameters] == ["a", "b", "c"]
    assert parameters[1].description == "numbers, or\narrays: of one shape."
    assert "Parameter 'c' does not appear" in caplog.text
