"""Mutants: what is drawn, where it is found again, and which tests notice it."""

import ast
import json
import subprocess
import sys

import pytest

from tests.support.git import new_repository
from tools import mutants

SOURCE = '''
class A:
    size: int = 2

    def f(self, x: Array[-1], n) -> Array[-1]:
        """Adds 1 + 2."""
        assert n > 1
        if n < 3 and self.size:
            raise ValueError(f"{n + 1}")
        y = psum(x.sum(axis=0), "dp")
        return -y[n - 1] / 0.5
'''


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A module in a tree of its own."""
    monkeypatch.setattr(mutants, "ROOT", tmp_path / "tree")
    monkeypatch.setattr(mutants, "nearest", lambda file: ["tests/test_a.py"])
    module = mutants.ROOT / "credit_jax/ops/a.py"
    module.parent.mkdir(parents=True)
    for folder in module.parents[:2]:
        (folder / "__init__.py").touch()
    module.write_text(SOURCE)
    return module


def test_faults_of_expressions_and_none_of_texts(package):
    faults = {(m["kind"], m["after"]) for m in mutants.mutants_of(package)}
    assert faults == {
        ("constant", "size: int = 3"),
        ("comparison", "n <= 3"),
        ("constant", "n < 4"),
        ("dropped term", "n < 3"),
        ("removed psum", "x.sum(axis=0)"),
        ("swapped axis", "x.sum(axis=1)"),
        ("sign", "y[n - 1]"),
        ("sign", "n + 1"),
        ("dropped term", "n"),
        ("off by one", "n - 2"),
        ("dropped term", "-y[n - 1]"),
        ("constant", "-y[n - 1] / 1.0"),
    }


def test_a_mutant_is_found_after_edits_and_moves(package):
    each = list(mutants.mutants_of(package))
    moved = package.parents[1] / "new/a.py"
    moved.parent.mkdir()
    package.rename(moved)
    moved.write_text(SOURCE.replace("class", "# Edited.\nclass").replace("/ 0", "/  0"))
    for mutant in each:
        file, text = mutants.mutated(mutant)
        assert file == moved.relative_to(mutants.ROOT)
        assert mutant["after"] in ast.unparse(ast.parse(text))
    moved.write_text("")
    assert mutants.mutated(each[0]) is None


def test_another_is_drawn_of_the_same_kind_and_of_a_function_without_one(package):
    each = list(mutants.mutants_of(package))
    mutants.mutants_in.cache_clear()
    for kind in ("sign", "off by one"):
        drawn = mutants.another("ops-03", kind, [])
        assert drawn in [m | {"id": "ops-03"} for m in each if m["kind"] == kind]
    assert mutants.another("ops-03", "none", each[-1:])["function"] == "A"
    mutants.mutants_in.cache_clear()


TEST = """
from credit_jax.ops.a import f, g

def test_f():
    assert f(1) == -1
    assert g(0) == 0
"""
RUN = """
import sys
from pathlib import Path
from tests.support.git import new_repository
from tools import mutants

mutants.ROOT = Path(sys.argv[1])
mutants.nearest = lambda file: ["tests/test_a.py"]
for mutant in mutants.mutants_of(mutants.ROOT / "credit_jax/ops/a.py"):
    mutant = mutants.run(mutant, 1, mutants.ROOT.parent / "trees")
    print(mutant["after"], mutant["status"], mutant["by"], mutants.stale(mutant, 1))
"""


def test_tests_kill_a_mutant_or_it_lives(package, tmp_path):
    package.write_text("def f(x):\n    return -x\n\n\ndef g(x):\n    return -x * x\n")
    test = mutants.ROOT / "tests/test_a.py"
    test.parent.mkdir()
    test.write_text(TEST)
    new_repository(mutants.ROOT)
    # A process of its own: JAX's threads do not survive a fork.
    command = [sys.executable, "-W", "ignore", "-c", RUN, str(mutants.ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "x killed tests/test_a.py::test_f False",
        *("-x lives  False", "x lives  False"),
    ]


def test_every_mutant_of_the_list_has_an_id_and_a_reason_if_one_is_said():
    each = json.loads(mutants.LIST.read_text())
    assert len({mutant["id"] for mutant in each}) == len(each) == mutants.COUNT
    for mutant in each:
        assert mutant["before"] != mutant["after"]
        assert mutant["by"] or mutant["status"] in ("", "lives"), mutant["id"]
