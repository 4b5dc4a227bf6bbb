"""Checks and trains CREDIT's example configs, or all configs of a folder.

    python -m benchmarks.configs [FOLDER] [--train] [--only NAME ...] [--docs]

FOLDER is a checkout of NCAR/miles-credit, or any folder of YAMLs; by default the copy
of its configs in tests/reference/credit_configs. `--train` trains each that can run for
two steps, made small, on data made to its layout, and writes the report. `--docs`
writes the table of docs/bridge.md, with what CREDIT itself does with each.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import jax
from rich.console import Console

from benchmarks.configs.survey import Verdict, find_configs, survey
from benchmarks.configs.table import (
    FOLDER,
    docs_table,
    outcome,
    report_table,
    write_docs,
)
from benchmarks.configs.training import NUM_DEVICES, Trained, train_two_steps
from benchmarks.report import add_out_option, publish
from credit_jax.parallel.compiler import compile_quickly

_INTRODUCTION = """# CREDIT's example configs

Each config of CREDIT's repository (tests/reference/credit_configs), one of generation
1 after `credit-jax config --to jax`: two training steps and a validation of one batch,
by `python -m benchmarks.configs --train`. The sources, variables, levels, blocks, loss,
metrics, schedule, parallelism and numbers of forecast steps are those of the config;
the grid is 56 x 56 points, the model narrow and flat, the dates are few, and the data
are made to the layout: their losses mean nothing but that the steps ran. The seconds,
on a machine with other work, are nearly all compilation. A call with `--only` replaces
the results of some configs; the recipe is that of the last call."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Surveys, trains, reports; returns 1 if a config that should train does not."""
    options = _parse(arguments)
    console = Console()
    every = [survey(path, options.folder) for path in find_configs(options.folder)]
    verdicts = [
        verdict
        for verdict in every
        if not options.only or any(text in verdict.name for text in options.only)
    ]
    trained = _earlier(options.out) if options.train and options.only else {}
    for verdict in verdicts if options.train else ():
        if verdict.trains:
            trained[verdict.name] = _train(verdict)
            console.print(f"{verdict.name}: {trained[verdict.name]}", markup=False)
    if options.docs:
        # Here, because nothing else of this command needs torch.
        from benchmarks.configs.credit_verdict import credit_verdict

        credit = [credit_verdict(path) for path in find_configs(options.folder)]
        write_docs(docs_table(every, credit))
    if not options.train:
        for verdict in verdicts:
            console.print(f"{verdict.name}: {outcome(verdict)}", markup=False)
        return 0
    publish(
        "configs",
        [_INTRODUCTION, report_table(every, trained)],
        {"configs": [_as_json(verdict, trained) for verdict in every]},
        config={
            "folder": options.folder.name,
            "XLA_FLAGS": os.environ.get("XLA_FLAGS", ""),
        },
        folder=options.out,
    )
    return int(any(isinstance(result, str) for result in trained.values()))


def _train(verdict: Verdict) -> Trained | str:
    """The result of two steps, or the error."""
    assert verdict.config is not None, "a config that trains is there"
    with tempfile.TemporaryDirectory() as folder:
        try:
            return train_two_steps(verdict.config, Path(folder))
        except (ValueError, OSError) as error:
            return str(error).replace(folder, "")


def _earlier(folder: Path) -> dict[str, Trained | str]:
    """Results of an earlier report, for configs that are not trained."""
    path = folder / "configs.json"
    configs = json.loads(path.read_text())["configs"] if path.exists() else []
    by_name = {entry["name"]: entry["trained"] for entry in configs}
    return {
        name: Trained(**steps) if isinstance(steps, dict) else steps
        for name, steps in by_name.items()
        if steps is not None
    }


def _as_json(verdict: Verdict, trained: dict[str, Trained | str]) -> dict[str, object]:
    outcome = trained.get(verdict.name)
    steps = dataclasses.asdict(outcome) if isinstance(outcome, Trained) else outcome
    return {
        "name": verdict.name,
        "kind": verdict.kind,
        "model": verdict.model,
        "problems": list(verdict.problems),
        "trained": steps,
    }


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.configs",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", nargs="?", type=Path, default=FOLDER)
    parser.add_argument("--train", action="store_true", help="train for two steps")
    parser.add_argument(
        "--only",
        nargs="+",
        default=[],
        help="parts of the names; the report keeps what it says of other configs",
    )
    parser.add_argument(
        "--docs", action="store_true", help="write the table of docs/bridge.md"
    )
    add_out_option(parser)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    compile_quickly()
    jax.config.update("jax_num_cpu_devices", NUM_DEVICES)
    sys.exit(main())
