"""The console command `credit-jax`: one command, whose subcommands are the modules.

`credit-jax train --config F` is `python -m credit_jax.train --config F`. A command is
imported when it is called: those of the bridge need torch, and nothing in credit_jax
does.
"""

from __future__ import annotations

import sys
from collections import ChainMap
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec
from types import MappingProxyType

from credit_jax.cli.commands import CommandEntry, run_group
from credit_jax.config.components import extensions

DESCRIPTION = "CREDIT's weather models as pure JAX functions, exact on every mesh."

COMMANDS: Mapping[str, CommandEntry] = MappingProxyType(
    {
        name: CommandEntry(f"credit_jax.cli.{command}", summary, platforms=platforms)
        for name, command, summary, platforms in (
            ("check", "check:Check", "report on a config, no training", ""),
            ("train", "train:Train", "train a model", ""),
            ("forecast", "forecast:Forecast", "forecasts of a model, to files", ""),
            ("score", "score:Score", "scores of forecasts, to files", ""),
            ("predict", "predict:Predict", "one forward pass of a model", ""),
        )
    }
)


def all_commands() -> dict[str, CommandEntry]:
    """The commands by name, those of the extensions and of the bridge included."""
    tables = (point.load() for point in extensions("commands").values())
    return dict(ChainMap(*tables, {**COMMANDS}))


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code."""
    return run_group(all_commands(), argv, prog="credit-jax", description=DESCRIPTION)


def run_module(name: str, spec: ModuleSpec | None) -> None:
    """Runs the command of a module, by its `__name__`, that `python -m` started."""
    if name == "__main__" and spec is not None:
        module = spec.name.removesuffix(".__main__")
        command = all_commands()[module.rpartition(".")[2].replace("_", "-")].load()
        sys.exit(command.main(prog=f"python -m {module}"))
