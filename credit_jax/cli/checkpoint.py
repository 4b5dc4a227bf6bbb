"""Finds damaged files: `python -m credit_jax.checkpoint verify DIR`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from credit_jax.checkpoint import CheckpointStore
from credit_jax.checkpoint.manager import DIGESTS, pin
from credit_jax.checkpoint.store import FOLDER
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
        folders = _folders(Path(self.folder))
        if not folders:
            raise ValueError(
                f"{self.folder} is no folder of a run with checkpoints in {FOLDER}, "
                f"and holds no {DIGESTS}; give the save_loc of a run, or one of its "
                "checkpoints"
            )
        num_damaged = sum(_is_damaged(*item) for item in folders.items())
        return FAILED if num_damaged else OK


main = Verify.main


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
        print_line(f"{name}: removed meanwhile")
        return False
    damage = find_damage(folder / DIGESTS)
    has_digests = (folder / DIGESTS).is_file()
    file.close()
    sound = "whole" if has_digests else "no digests were written for it"
    print_line(f"{name}: {'damaged' if damage else sound}")
    for line in damage:
        print_line(f"  {line}")
    return bool(damage)
