"""Prints the tests that mirror changed files: tools/touched.py [FILE ...]

The tests of `credit_jax/a/b.py` are `tests/a/test_b.py`; those of `credit_torch_bridge`
are below `tests/bridge`, those of `benchmarks`, `docs` and `tools` below a folder of
the same name. A module without its own test file has those of its folder. Without
arguments: the files that differ from the last commit, or else those of that commit.
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


def mirrors_of(path: Path) -> list[Path]:
    """The test files that mirror a file, by their paths in the repository."""
    mirror = MIRRORS.get(path.parts[0]) if len(path.parts) > 1 else None
    if mirror is None or path.suffix not in (".py", ".md"):
        return []
    folder = mirror.joinpath(*path.parts[1:-1])
    is_test = path.parts[0] == "tests" and path.name.startswith("test_")
    own = path if is_test else folder / f"test_{path.stem.strip('_')}.py"
    for candidate in (own, folder / f"test_{folder.name}.py"):
        if (ROOT / candidate).exists():
            return [candidate]
    beside = (ROOT / folder).glob("test_*.py") if path.suffix == ".py" else ()
    return sorted(test.relative_to(ROOT) for test in beside)


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
    found = dict.fromkeys(test for path in paths for test in mirrors_of(path))
    print(*found)


if __name__ == "__main__":
    main(sys.argv[1:])
