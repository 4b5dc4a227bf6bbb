"""Configs whose base is made, and the problems of plans."""

import shutil
from pathlib import Path
from typing import Any

from credit_jax.config import Config, ConfigError
from credit_jax.plan import plan_run

CONFIGS = Path(__file__).parents[2] / "configs"


def write_base(run: str, folder: Path) -> str:
    """Writes the config of a run of configs/ to a folder, as the run itself would."""
    shutil.copy(CONFIGS / f"{Path(run).name}.yaml", folder / "model.yml")
    return str(folder)


def plan_problems(config: Config, **options: Any) -> tuple[str, ...]:
    """Returns the problems of the plan of a run; () where it can start."""
    try:
        plan_run(config, **options)
    except ConfigError as error:
        return error.problems
    return ()
