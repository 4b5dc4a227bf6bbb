"""The commands of the extensions, known without importing them."""

from collections.abc import Mapping
from types import MappingProxyType

from credit_jax.cli.commands import CommandEntry

COMMANDS: Mapping[str, CommandEntry] = MappingProxyType(
    {
        name: CommandEntry(
            f"credit_jax.extensions.{command}", summary, platforms=platforms
        )
        for name, command, summary, platforms in (
            (
                "preprocess",
                "preprocess.command:Preprocess",
                "fit the scalers of a config",
                "cpu",
            ),
            ("init", "setup.command:Init", "a config for your own files", "cpu"),
            (
                "plot",
                "plots.command:Plot",
                "maps of forecasts, figures of scores",
                "cpu",
            ),
            (
                "submit",
                "submit.command:Submit",
                "training as jobs of PBS or SLURM",
                "cpu",
            ),
            (
                "package",
                "packaging.command:MakePackage",
                "a trained model as a folder to hand on",
                "cpu",
            ),
            (
                "sensitivity",
                "adjoint.sensitivity_command:ComputeSensitivity",
                "what a number of a forecast depends on",
                "",
            ),
            (
                "optimize-ic",
                "adjoint.optimize_command:OptimizeState",
                "fit an initial state to later ones",
                "",
            ),
            (
                "assimilate",
                "assimilation.command:Assimilate",
                "analyses from forecasts and observations",
                "",
            ),
            (
                "certify",
                "certification.command:Certify",
                "proof that every mesh gives the same",
                "cpu",
            ),
            (
                "cyclones",
                "cyclones.command:FindCyclones",
                "tropical cyclones of forecasts, beside best tracks",
                "cpu",
            ),
            ("mesh", "mesh_choice.command:ChooseMesh", "which mesh to train on", "cpu"),
            ("demo", "demo.command:Demo", "make the demo data set", ""),
        )
    }
)
