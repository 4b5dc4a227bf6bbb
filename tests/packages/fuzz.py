"""Seeded mutations of a package, whose digests mostly fit the changed files.

A program: `python -m tests.packages.fuzz PACKAGE FOLDER FIRST STOP`, see
`tests.bridge.checkpoint.fuzz`.
"""

from __future__ import annotations

import json
import random
import shutil
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from credit_jax.cli.commands import OK
from credit_jax.extensions.packaging.command import main
from credit_jax.io.digests import record_of
from credit_jax.models import registry
from credit_jax.packages.manifest import MANIFEST
from credit_jax.packages.package import open_package
from tests.data.world import write_world
from tests.forecast.tiny_run import make_run
from tests.support import mutations
from tests.training.tiny import Tiny, TinyConfig


def write_package(folder: Path) -> Path:
    """Writes a package of a run of the tiny model."""
    registry.MODELS["tiny"] = registry.ModelEntry(TinyConfig, Tiny)
    folder.mkdir()
    write_world(folder)
    config = Path(make_run(folder, folder / "tiny"))
    options = ["--config", config, "--checkpoint", config.parent / "run"]
    out = folder / "package"
    assert main([*map(str, options), "--out", str(out)]) == OK
    return out


def change(package: Path, chosen: random.Random) -> None:
    """Changes a file, and in most cases its digest."""
    path = chosen.choice(sorted(p for p in package.rglob("*") if p.is_file()))
    how = chosen.random()
    if how < 0.1:
        path.unlink()
        path.symlink_to(chosen.choice(["/etc/passwd", "/dev/zero", path, "nowhere"]))
    elif how < 0.15:
        path.rename(path.with_name(f"{path.name}x"))
    elif path.suffix == ".json" and how < 0.7:
        path.write_text(mutations.changed_json(path.read_text(), chosen))
    else:
        path.write_bytes(mutations.changed_bytes(path.read_bytes(), chosen))
    if path.name != MANIFEST and path.is_file() and chosen.random() < 0.8:
        manifest = package / MANIFEST
        content = json.loads(manifest.read_text())
        name = str(path.relative_to(package))
        content["files"][name] = vars(record_of(path))
        manifest.write_text(json.dumps(content))


def try_seed(seed: int, package: Path, folder: Path) -> tuple[str, str]:
    """Returns (kind, outcome): "read", "refused", or the failure."""
    chosen = random.Random(seed)
    copy = folder / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(package, copy)
    change(copy, chosen)

    def read() -> str:
        try:
            opened = open_package(copy)
            opened.resolved()
            _ = opened.weights
        except (ValueError, OSError):
            return "refused"
        return "read"

    return "package", mutations.trial(read, folder)


def try_seeds(
    package: Path, folder: Path, seeds: range
) -> Iterator[tuple[int, str, str]]:
    """Yields (seed, kind, outcome) for each seed; copies are below a folder."""
    registry.MODELS["tiny"] = registry.ModelEntry(TinyConfig, Tiny)
    return mutations.try_all(seeds, partial(try_seed, package=package, folder=folder))


if __name__ == "__main__":
    package, place = map(Path, sys.argv[1:3])
    trials = try_seeds(package, place, range(*map(int, sys.argv[3:])))
    sys.exit(mutations.count_outcomes(trials, "read", "refused"))
