"""Which tests `make quick` runs, and which slow tests always run."""

import subprocess
import sys
from pathlib import Path

from tests.support.git import new_repository
from tools import touched
from tools.imports import ROOT
from tools.touched import mirror_of, nearest, quick_tests, reached

MIRRORS = {
    "credit_jax/ops/conv.py": ["tests/ops/test_conv.py"],
    "credit_jax/__init__.py": ["tests/test_init.py"],
    "credit_jax/cli/check.py": ["tests/cli/test_check.py"],
    "credit_torch_bridge/config/convert.py": ["tests/bridge/config/test_convert.py"],
    "tools/touched.py": ["tests/tools/test_touched.py"],
    "benchmarks/reports/accuracy.png": [],
}


def test_mirrors_and_the_nearest_tests_of_a_module_without_one():
    for file, tests in MIRRORS.items():
        assert quick_tests(Path(file)) == tests
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        file = str(path.relative_to(ROOT))
        assert quick_tests(Path(file)) == [file] == nearest(Path(file))[:1]
    path = Path("credit_jax/models/unet/resnet.py")
    assert not (ROOT / mirror_of(path)).exists()
    tests = quick_tests(path)
    assert len(tests) == touched.FEW
    folders = ("tests/models/test_", "tests/models/crossformer/test_")
    assert all(test.startswith(folders) for test in tests)


def test_few_slow_tests_run_after_a_change_and_those_of_some_rooms():
    files = [Path("credit_jax/ops/conv.py"), Path("credit_jax/data/loader.py")]
    ranks = [nearest(file) for file in files]
    chosen = reached(files, {*ranks[0], *ranks[1]})
    assert chosen == {*ranks[0][: touched.EACH], *ranks[1][: touched.EACH]}
    assert reached(files[:1], ranks[0][5:]) == {*ranks[0][5 : 5 + touched.EACH]}
    many = [Path(test) for test in ranks[0]]
    assert len(reached(many, ranks[0])) == touched.ALL < len(many)
    room = {test for test in ranks[0] if test.startswith("tests/parallel/")}
    mesh = reached([Path("credit_jax/parallel/domain/conv.py")], ranks[0])
    assert room < mesh
    assert len(mesh - room) == touched.EACH


def test_the_script_prints_each_file_once():
    files = ["credit_jax/ops/conv.py", "tests/ops/test_conv.py", "CITATION.cff"]
    command = [sys.executable, "-m", "tools.touched", *files]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout == "tests/ops/test_conv.py\n"


def test_changes_of_the_tree_or_else_of_the_last_commit(tmp_path, monkeypatch):
    commit = new_repository(tmp_path)
    monkeypatch.setattr(touched, "ROOT", tmp_path)
    for name in ("first", "second", "third"):
        commit(name)
    assert touched.changed() == [Path("third")]
    assert touched.changed("HEAD~2") == [Path("second"), Path("third")]
    (tmp_path / "first").write_text("other")
    (tmp_path / "new").touch()
    assert touched.changed() == [Path("first"), Path("new")]
