"""`convert`: checkpoints of CREDIT to credit_jax, or back."""

from __future__ import annotations

import argparse
from pathlib import Path

from credit_jax.checkpoint.store import CHOICES
from credit_jax.cli.commands import OK, print_line
from credit_jax.cli.options import add_verify_option
from credit_jax.io.atomic import refuse_existing
from credit_jax.packages.package import is_package, open_package
from credit_torch_bridge.cli.options import (
    add_config_option,
    add_drop_option,
    config_file,
)

HELP = "Convert a checkpoint from CREDIT to credit_jax, or back."
EXAMPLE = "--to jax --checkpoint RUN --out NEW_RUN"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `convert`."""
    add = parser.add_argument
    add("--to", choices=("jax", "torch"), required=True, help="format to write")
    add_config_option(parser)
    add("--checkpoint", required=True, help="file or folder to convert")
    add("--base", metavar="PATH", help="what adapters of a package belong to")
    add(
        "--merge",
        action="store_true",
        help="refuse what has no adapters (LoRA); their sums are always the weights",
    )
    add("--out", required=True, help="folder to write; must not exist")
    add(
        "--weights-only",
        action="store_true",
        help="leave out optimizer, schedule and position",
    )
    add(
        "--weights",
        choices=CHOICES,
        help="the moving average, or the last weights, alone (default: all that there "
        "is, for training that goes on)",
    )
    add_verify_option(parser)
    add("--step", type=int, help="with --to torch: the checkpoint; default: the newest")
    add(
        "--batches-per-epoch",
        type=int,
        metavar="N",
        help="of the run in credit_jax, for schedules that count epochs; default: as "
        "in the config",
    )
    add_drop_option(parser)
    add(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="override a value of the config by its dotted path; repeatable",
    )


def run(args: argparse.Namespace) -> int:
    """Converts a checkpoint or a run.

    Raises:
        OSError, ValueError: an error of the input; nothing is written.
    """
    # torch, which --help does not need.
    from credit_torch_bridge.checkpoint.convert_run import RunConversion
    from credit_torch_bridge.checkpoint.run_config import read_run_config

    source, out = Path(args.checkpoint), Path(args.out).absolute()
    refuse_existing(out)
    config = (
        open_package(source, args.base).resolved()
        if args.config is None and is_package(source)
        else config_file(args.config, source)
    )
    run_config = read_run_config(config, tuple(args.set))
    if args.drop and args.to == "jax":
        raise ValueError("--drop belongs to --to torch; use --set KEY=null")
    finetune = run_config.finetune
    if args.merge and not (args.base or (finetune and finetune.lora)):
        raise ValueError(
            f"--merge: {source} has no adapters (trainer.finetune.lora); leave it out"
        )
    conversion = RunConversion(
        run_config,
        source,
        out,
        weights_only=args.weights_only,
        weights=args.weights,
        step=args.step,
        batches_per_epoch=args.batches_per_epoch,
        verify=args.verify,
        drop=tuple(args.drop),
        base=args.base,
    )
    lines = conversion.to_jax() if args.to == "jax" else conversion.to_torch()
    for line in lines:
        print_line(line)
    print_line(f"written: {out}")
    return OK
