"""Finds damaged files: `python -m credit_jax.checkpoint verify DIR`."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Literal

from credit_jax.checkpoint import CheckpointStore
from credit_jax.checkpoint.store import DIGESTS, FOLDER, pin
from credit_jax.cli.commands import FAILED, OK, Command, option, print_line
from credit_jax.io.digests import find_damage


class Verify(Command):
    """Compare the files of checkpoints with their digests."""

    example = "verify RUN"

    action: Literal["verify"] = option("what to do", positional=True)
    folder: str = option(
        "folder of a run (save_loc), one of its checkpoints, or a folder written by "
        "convert",
        metavar="DIR",
        positional=True,
    )

    def run(self) -> int:
        """Prints one line for each checkpoint of a run, and for each damaged file."""
        folder = Path(self.folder)
        folders = {str(folder): folder}
        if not (folder / DIGESTS).is_file():
            run = folder.parent if folder.name == FOLDER else folder
            with closing(CheckpointStore(run)) as store:
                steps = store.steps()
            folders = {f"checkpoint {step}": store.path(step) for step in steps}
        if not folders:
            raise ValueError(
                f"{self.folder} is no folder of a run with checkpoints in {FOLDER}, "
                f"and holds no {DIGESTS}; give the save_loc of a run, or one of its "
                "checkpoints"
            )
        is_damaged = False
        for name, path in folders.items():
            # A run that goes on does not remove what is pinned.
            file = pin(path)
            if file is None:
                print_line(f"{name}: removed meanwhile")
                continue
            damage = find_damage(path / DIGESTS)
            has_digests = (path / DIGESTS).is_file()
            file.close()
            sound = "whole" if has_digests else "no digests were written for it"
            print_line(f"{name}: {'damaged' if damage else sound}")
            for line in damage:
                print_line(f"  {line}")
            is_damaged |= bool(damage)
        return FAILED if is_damaged else OK


main = Verify.main
