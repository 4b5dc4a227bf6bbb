"""The files of configs/ where other runs should have been before."""

import shutil
from pathlib import Path

CONFIGS = Path(__file__).parents[2] / "configs"


def write_base(run: str, folder: Path) -> str:
    """Writes the config of a run of configs/ to a folder, as the run itself would.

    Args:
        run: `trainer.finetune.from` of a config, whose last part is a name in configs/.
        folder: the folder in place of the run.

    Returns:
        What `trainer.finetune.from` is then.
    """
    shutil.copy(CONFIGS / f"{Path(run).name}.yaml", folder / "model.yml")
    return str(folder)
