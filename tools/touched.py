"""Prints the tests of changed files: python -m tools.touched [FILE ...]

The tests of `credit_jax/a/b.py` are `tests/a/test_b.py`; those of `credit_torch_bridge`
are below `tests/bridge`, those of `benchmarks`, `docs` and `tools` below a folder of
the same name. A file without such a mirror has the few tests that are nearest to it in
the graph of imports. Without arguments: the files that differ from the last commit, or
else those of that commit.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Collection, Iterable
from pathlib import Path

from tools.imports import ROOT, distances, is_test

MIRRORS = {
    "credit_jax": Path("tests"),
    "credit_torch_bridge": Path("tests/bridge"),
    "benchmarks": Path("tests/benchmarks"),
    "docs": Path("tests/docs"),
    "tools": Path("tests/tools"),
    "tests": Path("tests"),
}
COMMANDS = ("main", "command")
# Test files of a file without a mirror.
FEW = 4
# Slow test files of each changed file, and of a change.
EACH, ALL = 2, 8
# Of these, whose faults show only in other runs, all slow tests run.
ROOMS = tuple(
    map(Path, ("credit_jax/kernels", "credit_jax/parallel", "credit_torch_bridge"))
)


def quick_tests(path: Path) -> list[str]:
    """Returns the mirror of a file, or else the few tests that are nearest to it."""
    mirror = mirror_of(path)
    if (ROOT / mirror).exists() and is_test(mirror):
        return [str(mirror)]
    return nearest(path)[:FEW]


def mirror_of(path: Path) -> Path:
    """Returns where the tests of a file stand, if it has a file of tests of its own."""
    if is_test(path) or path.parts[0] not in MIRRORS or len(path.parts) < 2:
        return path
    folder = MIRRORS[path.parts[0]].joinpath(*path.parts[1:-1])
    name = path.stem.strip("_")
    # The command line of a package has its name.
    return folder / f"test_{folder.name if name in COMMANDS else name}.py"


def nearest(path: Path, among: Collection[str] | None = None) -> list[str]:
    """Returns the test files that reach a file, nearest first.

    Of equally many imports, the tests in the folder of the file's mirror are nearer.

    Args:
        path: a path in the repository.
        among: test files; by default all.
    """
    lengths = distances(path)
    mirror = mirror_of(path)

    def rank(test: str) -> tuple[int, int, str]:
        shared = os.path.commonpath((test, mirror))
        return lengths[test], -len(Path(shared).parts), test

    return sorted((t for t in lengths if among is None or t in among), key=rank)


def reached(files: Iterable[Path], among: Collection[str]) -> set[str]:
    """Returns the files of slow tests that run after a change of files.

    Those of kernels, `parallel` and the bridge where these change, and the nearest to
    each file, in all at most `ALL`: the first of each file, then the second.

    Args:
        files: paths in the repository.
        among: the test files of which to choose.
    """
    rooms = {room for file in files for room in ROOMS if room in file.parents}
    folders = [mirror_of(room / "_").parent for room in rooms]
    chosen = {t for t in among if any(folder in Path(t).parents for folder in folders)}
    ranks: dict[str, int] = {}
    for file in files:
        for rank, test in enumerate(nearest(file, {*among} - chosen)[:EACH]):
            ranks[test] = min(rank, ranks.get(test, rank))
    return {*chosen, *sorted(ranks, key=lambda test: (ranks[test], test))[:ALL]}


def changed(base: str | None = None) -> list[Path]:
    """Returns the files that differ from a commit, whether committed or not.

    Args:
        base: the commit; by default the last one, or else, if nothing differs from that
            one, the one before it.
    """
    files = _git("diff", "--name-only", "--no-renames", base or "HEAD")
    files += _git("ls-files", "--others", "--exclude-standard")
    if not files and base is None:
        return changed("HEAD~1")
    return [Path(file) for file in files]


def _git(*command: str) -> list[str]:
    done = subprocess.run(
        ("git", *command), cwd=ROOT, check=True, capture_output=True, text=True
    )
    return done.stdout.splitlines()


def main(files: list[str]) -> None:
    """Prints one line of test files."""
    paths = [Path(file) for file in files] or changed()
    print(*dict.fromkeys(test for path in paths for test in quick_tests(path)))


if __name__ == "__main__":
    main(sys.argv[1:])
