"""A model package of a run: `python -m credit_jax.package --checkpoint RUN --out DIR`.

The folder contains the weights, the config and every file that forecasts need, except
the data, which `credit-jax forecast --package DIR --data FILE` names.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from credit_jax.checkpoint.run import open_run
from credit_jax.checkpoint.store import CHOICES, label_of
from credit_jax.cli import commands
from credit_jax.config import load_config
from credit_jax.extensions.packaging.write import open_contents, write_package
from credit_jax.packages.package import open_package


class MakePackage(commands.Command):
    """Make a folder of a trained model that needs nothing else, to hand on."""

    example = "--checkpoint RUN --license CC-BY-4.0 --out wxformer_6h"

    checkpoint: str = commands.option("folder of the run", metavar="DIR")
    config: str | None = commands.option(
        "the YAML file (default: model.yml of the run)", None, "FILE", short="-c"
    )
    set: tuple[str, ...] = commands.option(commands.OVERRIDES, (), "KEY=VALUE")
    step: int | None = commands.option("which checkpoint (default: the newest)", None)
    weights: str | None = commands.option(commands.WEIGHTS, None, choices=CHOICES)
    out: str = commands.option("folder to write", metavar="DIR")
    name: str | None = commands.option(
        "of the model in its card (default: that of the folder)", None
    )
    license: str = commands.option("for the card, such as CC-BY-4.0", "unknown")
    adapters: bool = commands.option(
        "of a run with LoRA: the adapters alone, for those who have the base", False
    )
    scores: str | None = commands.option(
        "scores.csv of credit-jax score, for the card", None, "FILE"
    )

    def run(self) -> int:
        """Makes a package, and opens it to check it."""
        source = self.config or str(Path(self.checkpoint) / "model.yml")
        with commands.warnings_as_notes():
            config = load_config(source, self.set)
        weights = open_run(self.checkpoint, self.step, self.weights)
        for note in (*weights.compare(config), *weights.notes):
            commands.print_line(f"note: {note}", "yellow")
        with commands.warnings_as_notes():
            contents = open_contents(config, weights.coordinates)
        weights = replace(weights, channels=contents.schema.names)
        manifest = write_package(
            contents,
            weights,
            self.out,
            name=self.name,
            license=self.license,
            scores=self.scores,
            adapters=self.adapters,
        )
        finetune = config.trainer.finetune
        base = finetune.base if self.adapters and finetune else None
        open_package(self.out, base)
        size = sum(record.size for record in manifest.files.values())
        commands.print_line(
            f"{self.out}: {manifest.model_type}, of {weights.path} "
            f"({label_of(average=manifest.average)}), "
            f"{len(manifest.files)} files, {size / 2**20:.1f} MiB"
        )
        needs = f" --base {base}" if base else ""
        command = f"credit-jax forecast --package {self.out}{needs} --data FILE"
        commands.print_line(f"{command} makes forecasts")
        return commands.OK


main = MakePackage.main
