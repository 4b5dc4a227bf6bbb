"""Finds damaged files: `python -m credit_jax.checkpoint verify DIR`."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from credit_jax.checkpoint import CheckpointStore
from credit_jax.checkpoint.manager import DIGESTS, pin
from credit_jax.checkpoint.store import FOLDER
from credit_jax.config.messages import printable
from credit_jax.io.digests import find_damage


def main(argv: Sequence[str] | None = None) -> int:
    """Prints one line for each checkpoint of a run, and for each damaged file.

    Returns:
        0 if none is damaged, 1 otherwise, 2 where there are no checkpoints.
    """
    parser = argparse.ArgumentParser(prog="python -m credit_jax.checkpoint")
    commands = parser.add_subparsers(dest="command", required=True)
    verify = commands.add_parser("verify", help="compare files with their digests")
    verify.add_argument(
        "folder",
        metavar="DIR",
        type=Path,
        help="folder of a run (save_loc), one of its checkpoints, or a folder written "
        "by convert",
    )
    options = parser.parse_args(argv)
    logging.getLogger("absl").setLevel(logging.CRITICAL)
    folders = _folders(options.folder)
    if not folders:
        text = (
            f"error: {options.folder} is no folder of a run with checkpoints in "
            f"{FOLDER}, and holds no {DIGESTS}; give the save_loc of a run, or one of "
            "its checkpoints"
        )
        print(printable(text), file=sys.stderr)
        return 2
    num_damaged = sum(_is_damaged(*item) for item in folders.items())
    return 1 if num_damaged else 0


def _folders(folder: Path) -> dict[str, Path]:
    """The folders to check, by what they are called."""
    if (folder / DIGESTS).is_file():
        return {str(folder): folder}
    run = folder.parent if folder.name == FOLDER else folder
    store = CheckpointStore(str(run))
    folders = {f"checkpoint {step}": store.path(step) for step in store.steps()}
    store.close()
    return folders


def _is_damaged(name: str, folder: Path) -> bool:
    """Prints what is known about a folder; a run that goes on does not remove it."""
    file = pin(folder)
    if file is None:
        print(f"{name}: removed meanwhile")
        return False
    damage = find_damage(folder / DIGESTS)
    known = (folder / DIGESTS).is_file()
    file.close()
    whole = "whole" if known else "no digests were written for it"
    print(printable(f"{name}: {'damaged' if damage else whole}"))
    for line in damage:
        print(printable(f"  {line}"))
    return bool(damage)


if __name__ == "__main__":
    sys.exit(main())
