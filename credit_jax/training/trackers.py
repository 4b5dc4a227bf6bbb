"""Weights & Biases and MLflow: both optional packages."""

from __future__ import annotations

import importlib
import logging
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from credit_jax.config import Config, ConfigError, dump_config
from credit_jax.io.atomic import new_file
from credit_jax.training.records import Tracker

_LOG = logging.getLogger("credit_jax")
_LONGEST = 200  # characters of an error


class GuardedTracker:
    """A tracker whose failures do not end the run."""

    def __init__(self, name: str, begin: Callable[[], Tracker]) -> None:
        """Makes the tracker.

        Args:
            name: name of the package, as in `trainer.use_NAME`.
            begin: returns a new tracker.

        Raises:
            ConfigError: the tracker cannot be made.
        """
        self._name = name
        try:
            self._tracker: Tracker | None = begin()
        except ConfigError:
            raise
        except Exception as error:
            raise ConfigError(
                [
                    f"trainer.use_{name}: {name} cannot begin the run "
                    f"({_line(error)}); correct its settings, or write false"
                ]
            ) from error

    def write_step(self, step: int, values: Mapping[str, float]) -> None:
        """See `Tracker`."""
        self._call(lambda tracker: tracker.write_step(step, values))

    def write_epoch(self, row: Mapping[str, float]) -> None:
        """See `Tracker`."""
        self._call(lambda tracker: tracker.write_epoch(row))

    def close(self) -> None:
        """See `Tracker`."""
        self._call(lambda tracker: tracker.close())

    def _call(self, call: Callable[[Tracker], None]) -> None:
        """Calls the tracker, unless it has failed before."""
        if self._tracker is None:
            return
        try:
            call(self._tracker)
        except Exception as error:
            self._tracker = None
            _LOG.warning(
                "%s takes no more of this run (%s); the records in the folder of the "
                "run go on",
                self._name,
                _line(error),
            )


class WandbTracker:
    """A run of Weights & Biases, which a resumed run continues."""

    def __init__(self, config: Config, folder: Path, first_start: float) -> None:
        """Begins or resumes the run; wandb reads WANDB_PROJECT and the like itself.

        Args:
            config: config of the run.
            folder: folder of the run; its name is that of the run.
            first_start: time at which it began for the first time, part of the run's
                id.
        """
        self._wandb = importlib.import_module("wandb")
        self._run = self._wandb.init(
            name=folder.name,
            id=f"{folder.name}-{int(first_start)}",
            resume="allow",
            dir=str(folder),
            config=dump_config(config),
        )

    def write_step(self, step: int, values: Mapping[str, float]) -> None:
        """See `Tracker`."""
        self._run.log({f"step/{k}": v for k, v in values.items()}, step=step)

    def write_epoch(self, row: Mapping[str, float]) -> None:
        """See `Tracker`; belongs to the last step that was written."""
        self._run.log(_finite(row))

    def close(self) -> None:
        """See `Tracker`."""
        self._run.finish()


class MlflowTracker:
    """A run of MLflow, whose id in the folder lets a resumed run continue it."""

    def __init__(self, folder: Path, *, resumes: bool) -> None:
        """Begins or resumes the run; MLflow itself reads MLFLOW_TRACKING_URI etc.

        Args:
            folder: folder of the run; its name is that of the run.
            resumes: whether the run resumes from a checkpoint.
        """
        self._mlflow = importlib.import_module("mlflow")
        path = folder / "mlflow_run_id"
        if resumes and path.exists():
            self._mlflow.start_run(run_id=path.read_text().strip())
            return
        run: Any = self._mlflow.start_run(run_name=folder.name)
        with new_file(path) as partial:
            partial.write_text(run.info.run_id)

    def write_step(self, step: int, values: Mapping[str, float]) -> None:
        """See `Tracker`."""
        self._mlflow.log_metrics({f"step/{k}": v for k, v in values.items()}, step=step)

    def write_epoch(self, row: Mapping[str, float]) -> None:
        """See `Tracker`."""
        self._mlflow.log_metrics(_finite(row), step=int(row["epoch"]))

    def close(self) -> None:
        """See `Tracker`."""
        self._mlflow.end_run()


def _line(error: Exception) -> str:
    """An error in one line."""
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ..."


def _finite(row: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in row.items() if math.isfinite(value)}
