"""The plugin by which skipped tests fail in CI."""

import os
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ci", "outcomes"),
    [("true", "1 failed, 1 passed, 2 errors"), ("", "1 passed, 3 skipped")],
)
def test_a_skip_fails_in_ci_alone(ci, outcomes, tmp_path):
    codes = {"passes": PASSES, "skipped": SKIPPED, "skips": SKIPS, "imports": IMPORTS}
    for name, code in codes.items():
        (tmp_path / f"test_{name}.py").write_text(code)
    (tmp_path / "pytest.ini").touch()
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-rs"]
    done = subprocess.run(
        [*command, "--continue-on-collection-errors", str(tmp_path)],
        cwd=ROOT,
        env=os.environ | {"CI": ci},
        capture_output=True,
        text=True,
    )
    assert (done.returncode == 0) == (not ci), done.stdout
    assert outcomes in done.stdout
    assert "for a reason" in done.stdout
