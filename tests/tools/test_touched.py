"""Which tests `make quick` runs."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "tools/touched.py"
_spec = importlib.util.spec_from_file_location("touched", SCRIPT)
assert _spec is not None
touched = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(touched)


@pytest.mark.parametrize(
    ("file", "tests"),
    [
        ("credit_jax/ops/conv.py", ["tests/ops/test_conv.py"]),
        ("credit_jax/__init__.py", ["tests/test_init.py"]),
        ("credit_jax/check/__main__.py", ["tests/check/test_check.py"]),
        (
            "credit_torch_bridge/config/convert.py",
            ["tests/bridge/config/test_convert.py"],
        ),
        ("tests/ops/test_gelu.py", ["tests/ops/test_gelu.py"]),
        ("tools/touched.py", ["tests/tools/test_touched.py"]),
        ("docs/coming_from.md", ["tests/docs/test_coming_from.py"]),
        ("README.md", []),
        ("benchmarks/reports/accuracy.png", []),
    ],
)
def test_mirrors(file, tests):
    assert [str(path) for path in touched.mirrors_of(Path(file))] == tests


def test_a_module_without_tests_of_its_own_has_those_of_its_folder():
    found = [str(path) for path in touched.mirrors_of(Path("credit_jax/ops/affine.py"))]
    assert "tests/ops/test_conv.py" in found
    assert all(path.startswith("tests/ops/test_") for path in found)


def test_every_test_file_is_found_by_its_own_name():
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        assert touched.mirrors_of(path.relative_to(ROOT)) == [path.relative_to(ROOT)]


def test_the_script_prints_each_file_once():
    files = ["credit_jax/ops/conv.py", "tests/ops/test_conv.py", "README.md"]
    command = [sys.executable, str(SCRIPT), *files]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "tests/ops/test_conv.py\n"
