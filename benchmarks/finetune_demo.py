"""The demo model fine-tuned for another climate, beside one trained from scratch there.

    python -m benchmarks.finetune_demo [--base-epochs 10] [--times 10]

The base is that of configs/demo.yaml, trained for more epochs. Both other runs have the
config, data, batches and validation of configs/finetune_demo.yaml; that from scratch
has ten times the updates, at the learning rate of configs/demo.yaml. Both are scored on
the 60 days after those of the validation.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pandas as pd
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from benchmarks.report import Table, add_out_option, publish
from credit_jax.config import Config, load_config
from credit_jax.evaluation.scores import write_scores
from credit_jax.extensions.plots.held_out import plan_held_out
from credit_jax.extensions.plots.report import best_state
from credit_jax.plan import plan_run
from credit_jax.training.loggers import read_records
from credit_jax.training.setup import prepare

ROOT = Path(__file__).parents[1]
NAME = "finetune_demo"
BASE, TUNED, SCRATCH = "base", "fine-tuned", "from scratch"
DEMO, CONFIG = (ROOT / "configs" / f"{name}.yaml" for name in ("demo", NAME))
# Days after those of the validation, by which nothing was chosen.
TEST = "2000-06-29", "2000-08-27T18:00"
_LOOKS = {TUNED: ("#2f7ed8", "o"), SCRATCH: ("#d9822b", ".")}
_INTRO = f"""# The demo model in another climate

The demo model, fine-tuned for a climate with other heating and with one variable \
more, Z500, beside the same model trained there from scratch for {{times}} times the \
updates. RMSE is that of 24-hour forecasts of {TEST[0]} to {TEST[1][:10]}, the root \
mean square over levels. Settings and the best epoch of each run were chosen by the \
validation loss, that of the moving average, on the 60 days before. Minutes are those \
of the machine below, which may have had other work.

![Validation loss by update]({NAME}.png)"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Trains three times, prints the table and writes the report and its figure.

    Returns:
        1 if the run from scratch is better: in the mean over the variables, the RMSE of
        its best epoch, as a ratio to that of persistence, is smaller.
    """
    options = _parse(arguments)
    folder = (options.folder or Path(tempfile.mkdtemp())).absolute()
    for name, (config, settings) in _plans(options, folder).items():
        if not (folder / name / "scores" / "scores.csv").is_file():
            _train(config, settings, folder / name)
        if name != BASE and not (folder / name / "test" / "scores.csv").is_file():
            _score(folder / name)
    runs = {name: _read(folder / name) for name in (TUNED, SCRATCH)}
    means = {name: _mean_ratio(run) for name, run in runs.items()}
    wins = means[TUNED] < means[SCRATCH]
    losses = {name: run["valid_loss"] for name, run in runs.items()}
    best = "; ".join(f"{k} {min(v):.4f} and {v[-1]:.4f}" for k, v in losses.items())
    verdict = (
        "In the mean over the variables the RMSE of the fine-tuned model is "
        f"{means[TUNED]:.3f} of that of persistence, from scratch "
        f"{means[SCRATCH]:.3f}: fine-tuning is {'' if wins else 'not '}better. "
        f"Validation loss, best and last epoch: {best}."
    )
    options.out.mkdir(parents=True, exist_ok=True)
    _plot(runs, options.out / f"{NAME}.png")
    publish(
        NAME,
        [_INTRO.format(times=options.times), _table(runs), verdict],
        {"runs": runs},
        config={"base_epochs": options.base_epochs, "times": options.times},
        folder=options.out,
    )
    return 0 if wins else 1


def _plans(
    options: argparse.Namespace, folder: Path
) -> dict[str, tuple[Path, dict[str, Any]]]:
    """The config and the changed keys of each run, in their order."""
    demo, config = load_config(DEMO), load_config(CONFIG)
    scratch = {
        "trainer.finetune": "null",
        "trainer.learning_rate": demo.trainer.learning_rate,
        "trainer.scheduler.warmup_steps": _schedule(demo)["warmup_steps"],
    }
    longer = _epochs(config, config.trainer.epochs * options.times)
    return {
        BASE: (DEMO, _epochs(demo, options.base_epochs)),
        TUNED: (CONFIG, {"trainer.finetune.from": folder / BASE}),
        SCRATCH: (CONFIG, scratch | longer),
    }


def _schedule(config: Config) -> dict[str, Any]:
    schedule = config.trainer.scheduler
    assert schedule is not None, "both files have one"
    return schedule.model_dump()


def _epochs(config: Config, epochs: int) -> dict[str, Any]:
    """The keys of a run of a config of other length."""
    steps = _schedule(config)["total_steps"] * epochs // config.trainer.epochs
    return {"trainer.epochs": epochs, "trainer.scheduler.total_steps": steps}


def _train(config: Path, settings: Mapping[str, Any], folder: Path) -> None:
    sets = [f"--set={key}={value}" for key, value in settings.items()]
    command = [sys.executable, "-m", "credit_jax.train", "--config", str(config)]
    subprocess.run(
        [*command, *sets, "--save-loc", str(folder), "--fresh"], cwd=ROOT, check=True
    )


def _score(folder: Path) -> None:
    """Scores one-day forecasts of the days `TEST` with the best weights of a run."""
    days = zip(("start_datetime", "end_datetime"), TEST, strict=True)
    sets = ["demo=null", *(f"validation_data.{key}={day}" for key, day in days)]
    config = load_config(folder / "model.yml", sets)
    setup = prepare(plan_run(config, num_devices=1), jax.devices()[:1])
    state = best_state(setup, folder, setup.fresh_state())
    scores = plan_held_out(setup).score(state, folder / "test_forecast")
    write_scores(scores, folder / "test")


def _read(folder: Path) -> dict[str, Any]:
    """Validation losses, updates, time and RMSE at one day of a run."""
    log = pd.read_csv(folder / "training_log.csv")
    scores = pd.read_csv(folder / "test" / "scores.csv")
    chosen = (scores.metric == "rmse") & (scores.lead_hours == 24)
    squares = scores[chosen & (scores.region == "global")].assign(
        value=lambda table: table["value"] ** 2
    )
    table = squares.pivot_table(index="variable", columns="system", values="value")
    steps = list(read_records(folder / "training_steps.jsonl"))
    timed = [line for line in steps if "step_seconds" in line]
    return {
        "valid_loss": log["valid_loss"].tolist(),
        "updates": int(timed[-1]["step"]),
        "seconds_per_update": float(np.median([s["step_seconds"] for s in timed])),
        "rmse": (table**0.5).to_dict("index"),
    }


def _mean_ratio(run: Mapping[str, Any]) -> float:
    """Mean over the variables of RMSE / that of persistence."""
    rows = run["rmse"].values()
    return float(np.mean([row["forecast"] / row["persistence"] for row in rows]))


def _table(runs: Mapping[str, Any]) -> Table:
    header = ["RMSE at one day", "persistence"]
    header += [f"{name}, {run['updates']} updates" for name, run in runs.items()]
    rows = [
        [variable, f"{row['persistence']:.3g}"]
        + [f"{run['rmse'][variable]['forecast']:.3g}" for run in runs.values()]
        for variable, row in runs[TUNED]["rmse"].items()
    ]
    times = [run["updates"] * run["seconds_per_update"] / 60 for run in runs.values()]
    rows.append(["minutes of updates", "", *(f"{time:.1f}" for time in times)])
    return Table("RMSE at one day", header, rows)


def _plot(runs: Mapping[str, Any], path: Path) -> None:
    """Draws validation losses by update."""
    figure = Figure(figsize=(6, 3.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for name, run in runs.items():
        losses = run["valid_loss"]
        updates = np.arange(1, len(losses) + 1) * run["updates"] / len(losses)
        color, marker = _LOOKS[name]
        axes.plot(updates, losses, color=color, marker=marker, label=name)
    axes.set(xscale="log", xlabel="updates", ylabel="validation loss")
    axes.legend(frameon=False)
    axes.grid(visible=True, alpha=0.3)
    figure.savefig(path, dpi=110, metadata={"Software": None})


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--base-epochs", type=int, default=10, help="epochs of configs/demo.yaml")
    add("--times", type=int, default=10, help="updates from scratch / fine-tuned")
    add(
        "--folder",
        type=Path,
        help="folder of the runs; those in there that have scores are not repeated",
    )
    add_out_option(parser)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
