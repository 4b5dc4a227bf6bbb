"""The check of docstrings in `make docs`."""

import importlib.util
from pathlib import Path

import pytest

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


def test_other_sections_are_left_alone():
    text = "Sum.\n\nRaises:\n    TypeError, ValueError: wrong.\n\nReturns:\n    a, b: x"
    assert docstrings.split_arguments(text) == text


def test_examples_are_code():
    text = "Sum.\n\n>>> add(1, 2)\n3\n\nMore."
    fenced = "Sum.\n\n```pycon\n>>> add(1, 2)\n3\n```\n\nMore."
    assert docstrings.fence_examples(text) == fenced
