"""The plugin of `make test` that makes a skip a failure."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

PASSES = "def test_it(): pass"
SKIPPED = """
import pytest
@pytest.mark.skip(reason="for a reason")
def test_it(): pass
"""
SKIPS = """
import pytest
def test_it(): pytest.skip("for a reason")
"""
IMPORTS = """
import pytest
pytest.importorskip("no_such_module", reason="for a reason")
def test_it(): pass
"""


@pytest.mark.parametrize(
    ("code", "passes"),
    [(PASSES, True), (SKIPPED, False), (SKIPS, False), (IMPORTS, False)],
    ids=["passes", "skipped", "skips", "imports"],
)
def test_a_skip_fails(code, passes, tmp_path):
    (tmp_path / "test_it.py").write_text(code)
    (tmp_path / "pytest.ini").touch()
    command = [sys.executable, "-m", "pytest", "-p", "tests.skips_fail", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode == 0) == passes, done.stdout
    assert ("for a reason" in done.stdout) == (not passes)
