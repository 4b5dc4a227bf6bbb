"""The console command `credit-jax`: one command, whose subcommands are the modules.

`credit-jax train --config F` is `python -m credit_jax.train --config F`. A command is
imported when it is called: those of the bridge need torch, and nothing in credit_jax
does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from credit_jax.cli.commands import CommandEntry, run_group

DESCRIPTION = "CREDIT's weather models as pure JAX functions, exact on every mesh."

MODULES: Mapping[str, CommandEntry] = MappingProxyType(
    {
        "init": CommandEntry(
            "credit_jax.cli.init.command", "a config for your own files", "", "cpu"
        ),
        "check": CommandEntry(
            "credit_jax.cli.check.command", "report on a config, no training"
        ),
        "preprocess": CommandEntry(
            "credit_jax.cli.preprocess", "fit the scalers of a config", "", "cpu"
        ),
        "train": CommandEntry("credit_jax.cli.train", "train a model"),
        "submit": CommandEntry(
            "credit_jax.cli.submit.command",
            "training as jobs of PBS or SLURM",
            "",
            "cpu",
        ),
        "forecast": CommandEntry(
            "credit_jax.cli.forecast.command", "forecasts of a model, to files"
        ),
        "package": CommandEntry(
            "credit_jax.cli.package",
            "a trained model as a folder to hand on",
            "",
            "cpu",
        ),
        "plot": CommandEntry(
            "credit_jax.cli.plot", "maps of forecasts, figures of scores", "", "cpu"
        ),
        "sensitivity": CommandEntry(
            "credit_jax.cli.sensitivity", "what a number of a forecast depends on"
        ),
        "optimize-ic": CommandEntry(
            "credit_jax.cli.optimize_ic", "fit an initial state to later ones"
        ),
        "assimilate": CommandEntry(
            "credit_jax.cli.assimilate", "analyses from forecasts and observations"
        ),
        "score": CommandEntry("credit_jax.cli.score", "scores of forecasts, to files"),
        "certify": CommandEntry(
            "credit_jax.cli.certify", "proof that every mesh gives the same", "", "cpu"
        ),
        "mesh": CommandEntry(
            "credit_jax.cli.mesh", "which mesh to train on", "", "cpu"
        ),
        "predict": CommandEntry(
            "credit_jax.cli.predict", "one forward pass of a model"
        ),
        "demo": CommandEntry("credit_jax.cli.demo", "make the demo data set"),
    }
)
# Converting and comparing need no accelerator.
BRIDGE: Mapping[str, CommandEntry] = MappingProxyType(
    {
        name: CommandEntry(f"credit_torch_bridge.cli.{name}", summary, "bridge", "cpu")
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
