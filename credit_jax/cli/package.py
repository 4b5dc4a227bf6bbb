"""A model package of a run: `python -m credit_jax.package --checkpoint RUN --out DIR`.

The folder contains the weights, the config and every file that forecasts need, except
the data, which `credit-jax forecast --package DIR --data FILE` names.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from credit_jax.checkpoint.store import label_of
from credit_jax.cli.commands import OK, print_line, run_module
from credit_jax.cli.options import (
    add_weights_option,
    read_config,
    warnings_as_notes,
)
from credit_jax.packages.package import open_package
from credit_jax.packages.write import open_contents, write_package
from credit_jax.training.restore import no_coordinates
from credit_jax.training.run_weights import open_weights

HELP = "Make a folder of a trained model that needs nothing else, to hand on."
EXAMPLE = "--checkpoint RUN --license CC-BY-4.0 --out wxformer_6h"


def main(argv: Sequence[str] | None = None) -> int:
    """The command line `python -m credit_jax.package`; returns the exit code."""
    return run_module(__name__, argv, prog="python -m credit_jax.package")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `package`."""
    add = parser.add_argument
    add("--checkpoint", required=True, metavar="DIR", help="folder of the run")
    add(
        "--config",
        "-c",
        metavar="FILE",
        help="the YAML file (default: model.yml of the run)",
    )
    add(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="override a value by its dotted path, such as where data are; repeatable",
    )
    add("--step", type=int, help="which checkpoint (default: the newest)")
    add_weights_option(parser)
    add("--out", required=True, metavar="DIR", help="folder to write")
    add("--name", help="of the model in its card (default: that of the folder)")
    add("--license", default="unknown", help="for the card, such as CC-BY-4.0")
    add(
        "--adapters",
        action="store_true",
        help="of a run with LoRA: the adapters alone, for those who have the base",
    )
    add("--scores", metavar="FILE", help="scores.csv of credit-jax score, for the card")


def run(args: argparse.Namespace) -> int:
    """Makes a package, and opens it to check it.

    Raises:
        ValueError, OSError: it cannot be made; nothing is written.
    """
    source = args.config or str(Path(args.checkpoint) / "model.yml")
    config = read_config(source, args.set)
    weights = open_weights(args.checkpoint, args.step, args.weights)
    for note in weights.compare(config):
        print_line(f"note: {note}", "yellow")
    if weights.coordinates is None:
        print_line(f"note: {no_coordinates(weights.path)}", "yellow")
    with warnings_as_notes():
        contents = open_contents(config, weights.coordinates)
    weights = replace(weights, channels=contents.schema.names)
    manifest = write_package(
        contents,
        weights,
        args.out,
        name=args.name,
        license=args.license,
        scores=args.scores,
        adapters=args.adapters,
    )
    finetune = config.trainer.finetune
    base = finetune.base if args.adapters and finetune else None
    open_package(args.out, base)
    size = sum(record.size for record in manifest.files.values())
    print_line(
        f"{args.out}: {manifest.model_type}, of {weights.path} "
        f"({label_of(average=manifest.average)}), "
        f"{len(manifest.files)} files, {size / 2**20:.1f} MiB"
    )
    needs = f" --base {base}" if base else ""
    print_line(
        f"credit-jax forecast --package {args.out}{needs} --data FILE makes forecasts"
    )
    return OK


if __name__ == "__main__":
    sys.exit(main())
