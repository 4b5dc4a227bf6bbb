"""Finds damaged files: `python -m credit_jax.checkpoint verify DIR`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from credit_jax.checkpoint.store import DIGESTS, FOLDER, CheckpointStore


def main(argv: Sequence[str] | None = None) -> int:
    """Prints one line for each checkpoint of a run, and for each damaged file.

    Returns:
        0 if none is damaged, 1 otherwise, 2 where there are no checkpoints.
    """
    parser = argparse.ArgumentParser(prog="python -m credit_jax.checkpoint")
    commands = parser.add_subparsers(dest="command", required=True)
    verify = commands.add_parser("verify", help="compare files with their digests")
    verify.add_argument("folder", metavar="DIR", help="folder of the run (save_loc)")
    options = parser.parse_args(argv)
    store = CheckpointStore(options.folder)
    if not store.steps():
        print(f"error: there is no folder {FOLDER} with checkpoints in {store.folder}")
        return 2
    damage = {step: store.damage(step) for step in store.steps()}
    for step, lines in damage.items():
        known = (store.path(step) / DIGESTS).is_file()
        whole = "whole" if known else "no digests were written for it"
        print(f"checkpoint {step}: {'damaged' if lines else whole}")
        for line in lines:
            print(f"  {line}")
    store.close()
    return 1 if any(damage.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
