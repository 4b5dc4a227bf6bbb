"""The lint of names and descriptions."""

import pytest

pytest.importorskip("griffe", reason="make test installs mkdocstrings")

from tools.words import main, problems

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


@pytest.mark.parametrize(
    "source", ["known = found", "a.found()", "f(own=1)", "town = 1"]
)
def test_other_names_and_uses_pass(source):
    assert problems(source, "a.py") == []


def test_public_attributes_keep_their_names():
    place = "credit_torch_bridge/config/editor.py"
    assert problems("class A:\n    found: int", place) == []
    assert problems("class A:\n    lost: int", place)


@pytest.mark.parametrize("text", ["of the run.", "on which it is.", "where it runs."])
def test_descriptions_without_a_noun(text):
    (problem,) = problems(DOCSTRING.format(mesh=text), "a.py")
    assert problem == (
        f"a.py:6: {'mesh: ' + text!r} is not a whole phrase; name what is described"
    )


@pytest.mark.parametrize("text", ["mesh of the run.", "as for `f`.", "offset."])
def test_whole_phrases_pass(text):
    assert problems(DOCSTRING.format(mesh=text), "a.py") == []


@pytest.mark.slow
def test_the_code_has_neither(capsys):
    assert main() == 0, capsys.readouterr().out
