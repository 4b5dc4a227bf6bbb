"""The rows of the accuracy benchmark, and their tables."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table as RichTable

from benchmarks.accuracy.errors import TOLERANCES, Errors
from benchmarks.report import Table
from benchmarks.small_models import SEVERAL, WIDE

# Prefix of the names of runs of credit_jax.
OURS = "credit_jax"
REFERENCE = "CREDIT on one process, one thread, float32"
# A folder in an error text, which is meaningless on another machine.
_FOLDER = re.compile(r"(?<![\w.])/(?:[\w.+-]+/)+")

HEADER = (
    "run",
    "forward",
    "gradient",
    "worst array of it",
    "loss, worst step",
    "loss, last step",
    "rollout, step 1",
    "rollout, last step",
)


_WIDE = (
    f" {' and '.join(WIDE)} compute in float64 on both sides: ReLU behind batch norms "
    "amplifies rounding until CREDIT on two threads is 5e-3 from CREDIT on one after "
    "15 steps."
)


_SEVERAL = (
    f" CREDIT's trainer runs none of {', '.join(SEVERAL)}: there the reference is a "
    "loop over CREDIT's modules, schedule and spectral norm with torch's AdamW, "
    "clipping and mean squared error, on random batches; of the diffusion models it "
    "is the network that is trained, without a rollout, and a rollout of the others "
    "holds their other inputs."
)


@dataclass(frozen=True)
class Line:
    """One run and its errors against the reference.

    Attributes:
        model: `model.type`.
        name: name of the run.
        dtype: "float32" or "bfloat16".
        errors: against `REFERENCE` (of the same grid), or the error that ended the run.
        ours: whether it is credit_jax.
        seconds: wall time, if measured.
        date: date and commit of the run, as in its recipe.
    """

    model: str
    name: str
    dtype: str
    errors: Errors | str
    ours: bool = False
    seconds: float | None = None
    date: str = ""

    @classmethod
    def from_json(cls, row: Mapping[str, Any], date: str) -> Line:
        """The inverse of `as_json`; `date` is the default of a row without it."""
        errors = row["error"] if "error" in row else Errors.from_json(row)
        known = {key: row[key] for key in ("model", "name", "dtype", "seconds")}
        ours = row["name"].startswith(OURS)
        return cls(**known, errors=errors, ours=ours, date=row.get("made") or date)

    def above(self) -> dict[str, float]:
        """Errors of credit_jax in float32 that are above their tolerance."""
        if not self.ours or self.dtype != "float32" or isinstance(self.errors, str):
            return {}
        return self.errors.above()

    def as_json(self) -> dict[str, Any]:
        """The line as a row of the report's JSON."""
        out: dict[str, Any] = {
            "model": self.model,
            "name": self.name,
            "dtype": self.dtype,
            "seconds": self.seconds,
            "made": self.date,
        }
        if isinstance(self.errors, str):
            return {**out, "error": without_folders(self.errors)}
        return {**out, **self.errors.as_json()}


def without_folders(text: str) -> str:
    """An error text with file names but no folders, on one line."""
    return _FOLDER.sub("", " ".join(text.split())).replace("|", "/")


def cells(line: Line) -> list[str]:
    """A row of the table."""
    errors = line.errors
    if isinstance(errors, str):
        text = f"did not run: {without_folders(errors)}"
        return [line.name, text, *[""] * (len(HEADER) - 2)]
    worst = errors.worst()
    numbers = [worst["forward"], worst["gradient"], worst["array"], worst["loss"]]
    numbers += [errors.loss[-1], *errors.rollout[:1], *errors.rollout[-1:]]
    rows = [line.name, *(f"{number:.1e}" for number in numbers)]
    return rows + ["-"] * (len(HEADER) - len(rows))


def rich_table(lines: Sequence[Line]) -> RichTable:
    """All models, for the terminal."""
    table = RichTable(title=f"Relative L2 error against {REFERENCE}")
    for name in ("model", "run"):
        table.add_column(name, no_wrap=True)
    for name in HEADER[1:]:
        table.add_column(name)
    for line in lines:
        if isinstance(line.errors, Errors):
            table.add_row(line.model, *cells(line))
        else:
            table.add_row(line.model, line.name, "did not run")
    refused = [line for line in lines if isinstance(line.errors, str)]
    table.caption = "\n".join(f"{line.name}: {cells(line)[1]}" for line in refused)
    return table


def sections(lines: Sequence[Line], options: Any, *, picture: str) -> list[str | Table]:
    """Markdown of the report, from the heading to the recipe.

    Args:
        lines: lines in their order.
        options: options of the command line.
        picture: file name of the plot, in the folder of the report.
    """
    models = tuple(dict.fromkeys(line.model for line in lines))
    first = _introduction(options, models)
    parts: list[str | Table] = ["# Accuracy beside CREDIT", first]
    for model in models:
        some = [line for line in lines if line.model == model]
        parts += [f"## {model}", Table(model, HEADER, [cells(line) for line in some])]
        dates = dict.fromkeys(line.date for line in some)
        parts.append(f"Made {', and '.join(dates)}.")
        parts += _bfloat16_verdict(some)
    failed = [line for line in lines if line.above()]
    limits = ", ".join(f"{name} {limit:.0e}" for name, limit in TOLERANCES.items())
    said = "; ".join(f"{line.model}, {line.name}: {line.above()}" for line in failed)
    parts.append(
        f"Tolerances of credit_jax in float32: {limits}. "
        + (f"Above them: {said}." if failed else "Every mesh is within them.")
    )
    parts.append(f"![errors by step of training and of the rollout]({picture})")
    return parts


def _introduction(options: Any, models: Sequence[str]) -> str:
    return (
        f"Relative L2 error of every run against {REFERENCE}: CREDIT's own trainer "
        "(AdamW, clipping, warm-up, spectral norm with one power iteration a step, "
        "latitude-weighted loss), watched and not changed. All runs have its weights, "
        "moved off their initial values, and its global batches of "
        f"{options.batch} samples. `forward` and `gradient` (before clipping, after "
        "CREDIT's gradient sums) are those of the first training step; `worst array` "
        "measures each parameter's gradient against at least 1e-3 of the largest. "
        f"`loss` is that of {options.steps} training steps, each run following its own "
        f"weights. `rollout` is {options.rollout} steps in evaluation mode from the "
        "first batch with the weights that the reference ended with: predicted "
        "prognostic channels are the next input, static and forcing channels are held; "
        "the error is that of the prognostic state. CREDIT's lines say how far it is "
        "from itself; with bfloat16 it runs under `torch.autocast` on the CPU, which "
        "its trainer does on CUDA alone, and credit_jax with `default_mp_policy()`."
        + (_WIDE if set(WIDE) & set(models) else "")
        + (_SEVERAL if set(SEVERAL) & set(models) else "")
    )


def _bfloat16_verdict(lines: Sequence[Line]) -> list[str]:
    """Which bfloat16 is nearer to float32 CREDIT."""
    half = [line for line in lines if line.dtype == "bfloat16"]
    theirs = [line for line in half if not line.ours]
    ours = [line for line in half if line.ours]
    if not theirs or not ours or isinstance(theirs[0].errors, str):
        return []
    credit = theirs[0].errors.worst()
    out = []
    for line in ours:
        assert isinstance(line.errors, Errors), "credit_jax ran or the benchmark ended"
        worst = line.errors.worst()
        parts = ", ".join(f"{kind} {worst[kind] / credit[kind]:.2f}" for kind in worst)
        out.append(
            f"{line.name}: its worst errors as parts of those of CREDIT's autocast "
            f"(below 1 is nearer to float32 CREDIT): {parts}."
        )
    return out


def date_of(recipe: Mapping[str, Any]) -> str:
    """Date and commit of a recipe, in the form of `Line.date`."""
    return f"{recipe['date']} at commit {recipe['commit']}"


def earlier_rows(
    path: Path, models: Collection[str], config: Mapping[str, Any]
) -> tuple[list[Line], dict[str, Any]]:
    """Rows and jobs of a report, except those of models that are run again.

    Args:
        path: JSON of the report.
        models: models that are run again.
        config: options of this run, which the report must have been made with.

    Returns:
        Lines, and the config of each of their models.

    Raises:
        ValueError: no such report, or one with other options.
    """
    if not path.is_file():
        raise ValueError(f"--keep: there is no report {path.name} to keep rows of")
    report = json.loads(path.read_text(encoding="utf-8"))
    earlier = report["recipe"]["config"]
    other = {k: earlier.get(k) for k, v in config.items() if earlier.get(k) != v}
    if other:
        raise ValueError(
            f"--keep: {path.name} was made with {other}, this run has "
            f"{ {key: config[key] for key in other} }; run all models anew, or give "
            "the options of the report"
        )
    before = date_of(report["recipe"])
    rows = [row for row in report["runs"] if row["model"] not in models]
    jobs = {k: job for k, job in earlier["jobs"].items() if k not in models}
    return [Line.from_json(row, before) for row in rows], jobs
