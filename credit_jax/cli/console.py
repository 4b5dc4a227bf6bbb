"""The console command `credit-jax`: one command, whose subcommands are the modules.

`credit-jax train --config F` is `python -m credit_jax.train --config F`. A command is
imported when it is called: those of the bridge need torch, and nothing in credit_jax
does.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec
from types import MappingProxyType

from credit_jax.cli.commands import CommandEntry, run_group

DESCRIPTION = "CREDIT's weather models as pure JAX functions, exact on every mesh."

MODULES: Mapping[str, CommandEntry] = MappingProxyType(
    {
        name: CommandEntry(f"credit_jax.cli.{command}", summary, platforms=platforms)
        for name, command, summary, platforms in (
            ("init", "init:Init", "a config for your own files", "cpu"),
            ("check", "check:Check", "report on a config, no training", ""),
            (
                "preprocess",
                "preprocess:Preprocess",
                "fit the scalers of a config",
                "cpu",
            ),
            ("train", "train:Train", "train a model", ""),
            (
                "submit",
                "submit:Submit",
                "training as jobs of PBS or SLURM",
                "cpu",
            ),
            ("forecast", "forecast:Forecast", "forecasts of a model, to files", ""),
            (
                "package",
                "package:MakePackage",
                "a trained model as a folder to hand on",
                "cpu",
            ),
            ("plot", "plot:Plot", "maps of forecasts, figures of scores", "cpu"),
            (
                "sensitivity",
                "sensitivity:ComputeSensitivity",
                "what a number of a forecast depends on",
                "",
            ),
            (
                "optimize-ic",
                "optimize_ic:OptimizeState",
                "fit an initial state to later ones",
                "",
            ),
            (
                "assimilate",
                "assimilate:Assimilate",
                "analyses from forecasts and observations",
                "",
            ),
            ("score", "score:Score", "scores of forecasts, to files", ""),
            (
                "certify",
                "certify:Certify",
                "proof that every mesh gives the same",
                "cpu",
            ),
            ("mesh", "mesh:ChooseMesh", "which mesh to train on", "cpu"),
            ("predict", "predict:Predict", "one forward pass of a model", ""),
            ("demo", "demo:Demo", "make the demo data set", ""),
        )
    }
)
# Converting and comparing need no accelerator.
BRIDGE: Mapping[str, CommandEntry] = MappingProxyType(
    {
        name: CommandEntry(
            f"credit_torch_bridge.cli:{name.title()}", summary, "bridge", "cpu"
        )
        for name, summary in {
            "convert": "a checkpoint of CREDIT to credit_jax, or back",
            "inspect": "what is in a checkpoint",
            "compare": "run CREDIT beside credit_jax, block by block",
            "config": "convert a config file of CREDIT's",
        }.items()
    }
)


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code.

    Args:
        argv: arguments without the program; None takes those of the process.
    """
    commands = {**MODULES, **BRIDGE}
    return run_group(commands, argv, prog="credit-jax", description=DESCRIPTION)


def run_module(name: str, spec: ModuleSpec | None) -> None:
    """Runs the command of a module that `python -m` started; else does nothing.

    Args:
        name: `__name__` of the module.
        spec: its `__spec__`, whose name says which command it is.
    """
    if name == "__main__" and spec is not None:
        module = spec.name.removesuffix(".__main__")
        command = MODULES[module.rpartition(".")[2].replace("_", "-")].load()
        sys.exit(command.main(prog=f"python -m {module}"))
