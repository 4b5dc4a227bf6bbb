"""Prints the tests that mirror what changed: tools/touched.py [FILE ...]

The tests of `credit_jax/a/b.py` are `tests/a/test_b.py`, those of
`credit_torch_bridge/a/b.py` are `tests/bridge/a/test_b.py`, those of `benchmarks/a/b.py`
are `tests/benchmarks/a/test_b.py`. A file without tests of its own has those of its
folder. Without arguments: the files that differ from the last commit, or, where none do,
those of the last commit.
"""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
MIRRORS = {
    "credit_jax": Path("tests"),
    "credit_torch_bridge": Path("tests/bridge"),
    "benchmarks": Path("tests/benchmarks"),
    "docs": Path("tests/docs"),
    "tools": Path("tests/tools"),
    "tests": Path("tests"),
}


def tests_of(path: Path, root: Path = ROOT) -> list[Path]:
    """The test files that mirror a file; empty where nothing does."""
    mirror = MIRRORS.get(path.parts[0]) if len(path.parts) > 1 else None
    if mirror is None or path.suffix not in (".py", ".md", ".yml", ".yaml"):
        return []
    folder = mirror.joinpath(*path.parts[1:-1])
    if path.parts[0] == "tests" and path.name.startswith("test_"):
        return [path] if (root / path).exists() else []
    own = folder / f"test_{path.stem.strip('_')}.py"
    if (root / own).exists():
        return [own]
    beside = folder / f"test_{folder.name}.py"
    if (root / beside).exists():
        return [beside]
    return sorted(p.relative_to(root) for p in (root / folder).glob("test_*.py"))


def changed() -> list[Path]:
    """Files that differ from the last commit, or those of the last commit."""
    status = _git("status", "--porcelain", "--untracked-files=all", "--no-renames")
    if status:
        return [Path(line[3:]) for line in status]
    return [Path(line) for line in _git("diff", "--name-only", "HEAD~1", "HEAD")]


def _git(*command: str) -> list[str]:
    done = subprocess.run(
        ("git", *command), cwd=ROOT, check=True, capture_output=True, text=True
    )
    return done.stdout.splitlines()


def main(files: list[str]) -> None:
    """Prints one line of test files."""
    paths = [Path(file) for file in files] or changed()
    found = dict.fromkeys(test for path in paths for test in tests_of(path))
    print(*found)


if __name__ == "__main__":
    main(sys.argv[1:])
