"""The plugin that leaves out the tests that need torch or CREDIT."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = {
    "stays": "def test_it(): pass",
    "file": "import torch\ndef test_it(): assert False",
    "helper": "import tests.support.gradients, credit.losses\ndef test_it(): pass",
    "fixture": "def test_it(torch): assert False",
    "reference": "def test_it(credit): assert False",
    "marked": """
import pytest
@pytest.mark.reference
def test_it(): assert False
""",
    "undeclared": "def test_it(): import torch",
    "other": "import no_such_module",
    "library": "from credit_jax import imports_torch",
    "skips": """
import pytest
def test_it(): pytest.importorskip("torch.nn")
""",
}


# A module of the library that imports torch.
CONFTEST = """
import credit_jax
credit_jax.__path__.append({!r})
"""


@pytest.mark.slow
def test_what_needs_torch_is_left_out_and_nothing_else(tmp_path):
    for name, code in FILES.items():
        (tmp_path / f"test_{name}.py").write_text(code)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    reference: CREDIT\n")
    library = tmp_path / "library"
    library.mkdir()
    (library / "imports_torch.py").write_text("import torch")
    (tmp_path / "conftest.py").write_text(CONFTEST.format(str(library)))
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-rA"]
    done = subprocess.run(
        [*command, "--without-torch", "--continue-on-collection-errors", str(tmp_path)],
        cwd=ROOT,
        env=os.environ | {"CI": "true"},
        capture_output=True,
        text=True,
    )
    found = re.findall(r"^([A-Z]+) \S*/test_(\w+)\.py", done.stdout, re.MULTILINE)
    assert set(found) == {
        ("PASSED", "stays"),
        ("FAILED", "undeclared"),
        ("FAILED", "skips"),
        ("ERROR", "other"),
        ("ERROR", "library"),
    }, done.stdout
    assert "3 deselected" in done.stdout
