"""The demo trained in bfloat16 and in float8: losses, and skill at one day.

    python -m benchmarks.float8_demo [--epochs 5] [--min-channels 16]

Two runs of the same config, data, initial weights and batches; the second multiplies
its dense layers in float8. Both end with the forecasts and scores of the demo.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks.report import Table, add_out_option, publish

ROOT = Path(__file__).parents[1]
BFLOAT16, FLOAT8 = "bfloat16", "float8"
# Largest relative difference of the losses of the last epoch.
TOLERANCE = 0.02
LOSSES = ("train_loss", "valid_loss")
_INTRO = """# The demo in float8

The same config, data, initial weights and batches, once in bfloat16 and once with the \
dense layers in float8 as well. Losses are means of an epoch; RMSE is that of the \
24-hour forecasts of held-out days, as a ratio to that of persistence or climatology, \
the better of the two: below 1 the forecast is better."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Trains twice, prints the tables and writes the report.

    Returns:
        1 if a loss differs by more than `TOLERANCE`, or float8 is no better than
        persistence and climatology in a channel after one day.
    """
    options = _parse(arguments)
    folder = options.folder or Path(tempfile.mkdtemp())
    runs = {}
    for name in (BFLOAT16, FLOAT8):
        _train(name, options, folder / name)
        runs[name] = _read(folder / name)
    near = all(abs(_difference(runs, key, -1)) < TOLERANCE for key in LOSSES)
    wins = all(max(run["ratios"].values()) < 1 for run in runs.values())
    verdict = (
        f"In the last epoch losses are {'' if near else 'not '}within "
        f"{TOLERANCE:.0%} of each other. After one day every channel of both runs is "
        f"{'' if wins else 'not '}better than persistence and climatology."
    )
    publish(
        "float8_demo",
        [_INTRO, _losses(runs), verdict, _skill(runs)],
        {"runs": runs},
        config={"config": str(options.config), "epochs": options.epochs}
        | {"min_channels": options.min_channels},
        folder=options.out,
    )
    return 0 if near and wins else 1


def _train(name: str, options: argparse.Namespace, folder: Path) -> None:
    steps = options.updates * options.epochs
    settings = {
        "trainer.epochs": options.epochs,
        "trainer.scheduler.total_steps": steps,
        "trainer.amp": "true",
        "trainer.fsdp2_mp_policy.param_dtype": "bfloat16",
    }
    if name == FLOAT8:
        settings["trainer.fp8"] = "true"
        settings["trainer.float8.min_channels"] = options.min_channels
    sets = [f"--set={key}={value}" for key, value in settings.items()]
    config = ROOT / options.config
    command = [sys.executable, "-m", "credit_jax.train", "--config", config]
    subprocess.run(
        [*map(str, command), *sets, "--save-loc", str(folder), "--fresh"],
        cwd=ROOT,
        check=True,
    )


def _read(folder: Path) -> dict[str, Any]:
    """Losses of each epoch, and RMSE at one day as ratios to the baselines'."""
    log = pd.read_csv(folder / "training_log.csv")
    scores = pd.read_csv(folder / "scores" / "scores.csv")
    chosen = (scores.metric == "rmse") & (scores.lead_hours == 24)
    table = scores[chosen & (scores.region == "global")].pivot_table(
        index="channel", columns="system", values="value"
    )
    baselines = table[["persistence", "climatology"]].min(axis=1)
    return {
        **{key: log[key].tolist() for key in LOSSES},
        "ratios": (table["forecast"] / baselines).to_dict(),
    }


def _difference(runs: Mapping[str, Any], key: str, epoch: int) -> float:
    return runs[FLOAT8][key][epoch] / runs[BFLOAT16][key][epoch] - 1


def _losses(runs: Mapping[str, Any]) -> Table:
    rows = []
    for epoch in range(len(runs[FLOAT8][LOSSES[0]])):
        row = [str(epoch + 1)]
        for key in LOSSES:
            base, value = (runs[name][key][epoch] for name in (BFLOAT16, FLOAT8))
            difference = _difference(runs, key, epoch)
            row += [f"{base:.4f}", f"{value:.4f}", f"{difference:+.2%}"]
        rows.append(row)
    header = ["epoch"]
    for key in LOSSES:
        header += [f"{key}, {BFLOAT16}", f"{key}, {FLOAT8}", "difference"]
    return Table("Losses", header, rows)


def _skill(runs: Mapping[str, Any]) -> Table:
    rows = [
        [channel, *(f"{runs[name]['ratios'][channel]:.3f}" for name in runs)]
        for channel in runs[FLOAT8]["ratios"]
    ]
    return Table(
        "RMSE at one day / that of the better baseline", ["channel", *runs], rows
    )


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--config", type=Path, default=Path("configs/demo.yaml"))
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--updates", type=int, default=62, help="of an epoch")
    parser.add_argument(
        "--min-channels", type=int, default=16, help="of the layers in float8"
    )
    parser.add_argument("--folder", type=Path, help="of the runs")
    add_out_option(parser)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
