"""Train a model: `python -m credit_jax.train --config FILE`.

Reads CREDIT's gen2 YAML, makes the demo data it may ask for, trains on the mesh of
`trainer.parallelism`, and ends with forecasts from held-out days and their scores.
"""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator

from credit_jax.cli import commands
from credit_jax.io.errors import WriteError
from credit_jax.parallel.compiler import compile_sooner
from credit_jax.parallel.processes.watch import RESUME
from credit_jax.training.loggers import parse_updates
from credit_jax.training.loop import NonFiniteLossError
from credit_jax.training.run import train_model


class Train(commands.ConfigOptions, commands.StopOption, commands.ProcessOptions):
    """Train a model of CREDIT's gen2 YAML on a dp x tp x domain mesh."""

    example = "--config configs/demo.yaml --set trainer.epochs=3"

    devices: int | None = commands.option(
        "devices of all processes; simulated on a CPU-only machine", None
    )
    resume: bool | Literal["if-any"] = commands.option(
        "go on from the newest checkpoint; if-any: begin where there is none",
        False,
        "if-any",
    )
    fresh: bool = commands.option(
        "begin anew; an earlier run in there is moved to a dated folder", False
    )
    save_loc: str | None = commands.option(
        "folder of the run, instead of save_loc", None, "DIR"
    )
    verify: bool = commands.option(commands.VERIFY, True)
    profile: str | None = commands.option(
        "trace these updates of this command, counted from 1, for xprof",
        None,
        "FIRST:LAST",
    )

    @model_validator(mode="after")
    def _one_beginning(self) -> Train:
        if self.fresh and self.resume:
            raise ValueError(
                "--fresh begins anew and --resume goes on; give one of them"
            )
        return self

    def run(self) -> int:
        """Trains the model and scores its forecasts."""
        stop_at = self.stop_time()
        compile_sooner()
        folder = [f"save_loc={self.save_loc}"] if self.save_loc else []
        config = self.read_config(*folder)
        self.join()
        try:
            outcome = train_model(
                config,
                num_devices=self.devices,
                resume=self.resume,
                fresh=self.fresh,
                verify=self.verify,
                stop_at=stop_at,
                profile=parse_updates(self.profile) if self.profile else None,
                source=self.config,
            )
        except NonFiniteLossError as error:
            raise commands.CommandError(str(error), commands.DIVERGED) from error
        except WriteError as error:
            raise commands.CommandError(str(error), commands.FAILED) from error
        return commands.OK if outcome.is_complete else RESUME


main = Train.main
