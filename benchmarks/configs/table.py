"""The tables of configs: that of docs/bridge.md, and that of the report."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.configs.survey import Verdict
from benchmarks.configs.training import Trained
from benchmarks.report import Table
from credit_jax.models.registry import MODELS

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "tests/reference/credit_configs"
DOCS = ROOT / "docs/bridge.md"
BEGIN = "<!-- made by: python -m benchmarks.configs --docs -->"
END = "<!-- the end of what is made -->"
# Characters of a cell; longer texts are below the table.
LONG = 100


def docs_rows(verdicts: Sequence[Verdict], credit: Sequence[str]) -> list[list[str]]:
    """The cells of the table of docs/bridge.md; long ones are numbers of `docs_notes`.

    Args:
        verdicts: verdicts of credit_jax.
        credit: CREDIT's own, in the same order.
    """
    numbers = _numbers(verdicts, credit)

    def cell(text: str) -> str:
        if text in numbers:
            kind, colon, _ = text.partition(": ")
            return f"{kind if colon else ''} ({numbers[text]})".lstrip()
        # "conf['trainer']['mode']" would be a link of Markdown.
        return text.replace("|", "\\|").replace("[", "\\[")

    return [
        [f"`./{v.name}`", v.kind, v.model, cell(outcome(v)), cell(theirs)]
        for v, theirs in zip(verdicts, credit, strict=True)
    ]


def docs_notes(verdicts: Sequence[Verdict], credit: Sequence[str]) -> list[str]:
    """Lines of code with the long texts of the table, those of credit_jax first."""
    lines = []
    for text, number in _numbers(verdicts, credit).items():
        first, rest = f"    {f'({number})':<6}", " " * 10
        lines += textwrap.wrap(
            text,
            120,
            initial_indent=first,
            subsequent_indent=rest,
            break_long_words=False,
            break_on_hyphens=False,
        )
    return lines


def _numbers(verdicts: Sequence[Verdict], credit: Sequence[str]) -> dict[str, int]:
    texts = dict.fromkeys([*map(outcome, verdicts), *credit])
    long = [text for text in texts if len(text) > LONG]
    return {text: number for number, text in enumerate(long, 1)}


def docs_table(verdicts: Sequence[Verdict], credit: Sequence[str]) -> str:
    """The table of docs/bridge.md and its notes, markers included.

    Args:
        verdicts: verdicts of credit_jax.
        credit: CREDIT's own, in the same order.
    """
    header = ["config", "generation", "model", "credit_jax", "CREDIT"]
    table = Table("CREDIT's configs", header, docs_rows(verdicts, credit))
    lines = table.markdown().splitlines()
    lines[1] = "| --- | --- | --- | --- | --- |"
    notes = ["", "The messages of the numbers:", "", *docs_notes(verdicts, credit)]
    return "\n".join([BEGIN, *lines, *notes, "", END])


def write_docs(table: str, path: Path = DOCS) -> None:
    """Replaces the table between the markers of a page."""
    text = path.read_text()
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    if not rest or not tail:
        raise ValueError(f"{path} has no lines {BEGIN} and {END}")
    path.write_text(head + table + tail)


def outcome(verdict: Verdict) -> str:
    """One sentence: it trains, or why not."""
    if verdict.trains:
        return f"trains{verdict.condition and f' ({verdict.condition})'}"
    if verdict.model and verdict.model not in MODELS:
        return f"refused: credit_jax has no model `{verdict.model}`"
    missing = [p.split(":")[0] for p in verdict.problems if "key is required" in p]
    if "model" in missing:
        return "no config to train: it has no model"
    first, *more = verdict.problems
    others = f" (and {len(more)} more)" if more else ""
    return f"refused: {first}{others}"


def report_table(
    verdicts: Sequence[Verdict], trained: Mapping[str, Trained | str]
) -> Table:
    """The table of the report, with the results of two steps."""
    header = ["config", "model", "mesh", "training loss", "validation loss", "seconds"]
    rows = []
    for verdict in verdicts:
        result = trained.get(verdict.name)
        cells = [outcome(verdict).replace("|", "\\|"), "", "", ""]
        if isinstance(result, Trained):
            valid = "" if result.valid_loss is None else f"{result.valid_loss:.3g}"
            loss = f"{result.train_loss:.3g}"
            cells = [result.mesh, loss, valid, f"{result.seconds:.0f}"]
        elif result is not None:
            cells[0] = f"fails: {result.splitlines()[0]}"
        rows.append([verdict.name, verdict.model, *cells])
    return Table("CREDIT's example configs", header, rows)
