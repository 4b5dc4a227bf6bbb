"""Changed configs, checkpoints, runs, packages and data: `python -m benchmarks.fuzz`.

Each is read by the command that a user would call, and must end with code 0, with the
problems that `check` lists, or with one error and code 2: no traceback, no file outside
of the output, no code of the file run, in bounded time and memory. Seeds determine the
changes; `tests` has some of them, and regressions.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.report import Table, add_out_option, publish, write_report

# Allowed results of a trial.
READ, REFUSED = ("ok", "converted", "read"), "refused"
SUBJECTS = ("configs", "checkpoints", "packages", "datasets")


@dataclass
class Tally:
    """The results of the trials of one subject.

    Attributes:
        counts: counts of (kind, result).
        problems: a line for each result that is not allowed.
    """

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)

    def add(self, trials: Iterable[tuple[int, str, str]]) -> Tally:
        """Counts (seed, kind, result)."""
        for seed, kind, result in trials:
            known = "read" if result in READ else result
            if known not in ("read", REFUSED):
                self.problems.append(f"{kind}, seed {seed}: {result}")
                known = "problem"
            self.counts[kind, known] += 1
        return self

    def rows(self, subject: str) -> list[list[str]]:
        """Rows of the report's table."""
        kinds = sorted({kind for kind, _ in self.counts})
        results = ("read", REFUSED, "problem")
        return [
            [f"{subject}: {kind}", *(str(self.counts[kind, r]) for r in results)]
            for kind in kinds
        ]


def main(argv: Sequence[str] | None = None) -> int:
    """Tries all seeds and writes the report; returns 1 if there are problems."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--configs", type=int, default=2000, help="seeds of configs")
    add("--checkpoints", type=int, default=700, help="seeds of checkpoints and runs")
    add("--packages", type=int, default=300, help="seeds of packages")
    add("--datasets", type=int, default=2000, help="seeds of data sets")
    add("--first", type=int, default=0, help="the first seed")
    add("--merge", nargs="*", type=Path, help="folders of reports to make one of")
    add_out_option(parser)
    args = parser.parse_args(argv)
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    if args.merge:
        return _merge(args.merge, args.out)
    with tempfile.TemporaryDirectory() as name:
        tallies = _try_all(Path(name), args)
    rows = [row for subject, tally in tallies.items() for row in tally.rows(subject)]
    problems = [line for tally in tallies.values() for line in tally.problems]
    options = {name: getattr(args, name) for name in tallies} | {"first": args.first}
    results = {"rows": rows, "problems": problems}
    print(publish("fuzz", _sections(results), results, config=options, folder=args.out))
    return 1 if problems else 0


def _sections(results: Mapping[str, Any]) -> list[str | Table]:
    """The sections of the report."""
    counts: Counter[str] = Counter()
    for subject, *cells in results["rows"]:
        counts[subject.split(":")[0]] += sum(map(int, cells))
    head = (
        "# Changed files\n\n"
        f"{counts['configs']} configs through `check`, {counts['checkpoints']} "
        "checkpoints and runs through `convert` and `restore`, "
        f"{counts['packages']} packages through the reader of packages, "
        f"{counts['datasets']} data sets through `check`, the reading of an epoch, "
        "`forecast` of a small model and `score`; one to three changes each, half of "
        "the runs and most of the packages with digests of what they hold now. A trial "
        "must end with code 0, with the problems that `check` lists, or with one error "
        "and code 2, leave no file but the output, run no code, and take at most 20 s "
        "and 4 GiB.\n\n"
        "Of data sets all that is read, the initial state, every step of the forecast "
        "and all scores (RMSE, MAE, bias and ACC of forecast, persistence and "
        "climatology) are compared with what numpy computes from the unchanged fields "
        "at the coordinates that were read. Each of the four parts is tried, whatever "
        "became of the others; a data set whose labels mean something else must be "
        "refused by one of them at least, and read wrongly by none."
    )
    header = ["subject", "read", "refused", "problems"]
    problems = results["problems"]
    listed = "## Problems\n\n" + ("\n".join(f"- {p}" for p in problems) or "None.")
    return [head, Table("Changed files", header, results["rows"]), listed]


def _merge(folders: Sequence[Path], out: Path) -> int:
    """Makes one report of several; returns 1 if there are problems."""
    parts = [json.loads((folder / "fuzz.json").read_text()) for folder in folders]
    sums: dict[str, list[int]] = {}
    for part in parts:
        for subject, *cells in part["rows"]:
            before = sums.get(subject, [0] * len(cells))
            sums[subject] = [a + int(b) for a, b in zip(before, cells, strict=True)]
    order = {name: place for place, name in enumerate(SUBJECTS)}
    subjects = sorted(sums, key=lambda row: (order[row.split(":")[0]], row))
    results = {
        "rows": [[subject, *map(str, sums[subject])] for subject in subjects],
        "problems": [line for part in parts for line in part["problems"]],
    }
    recipes = [part["recipe"] for part in parts]
    names = ("date", "commit", "config")
    config = {name: [recipe[name] for recipe in recipes] for name in names}
    data = {"recipe": {**recipes[-1], "config": config}, **results}
    sections = _sections(results)
    for section in sections:
        if isinstance(section, Table):
            section.print()
    print(write_report("fuzz", sections, data, out))
    return 1 if results["problems"] else 0


def _try_all(folder: Path, args: argparse.Namespace) -> dict[str, Tally]:
    """The results of all trials, by the name of the option."""
    # Imported after JAX's platform is chosen.
    from tests.bridge.checkpoint import fuzz as checkpoints
    from tests.config import test_fuzz as configs
    from tests.forecast import fuzz as datasets
    from tests.packages import fuzz as packages

    first, count = args.first, vars(args)
    seeds = {name: range(first, first + count[name]) for name in SUBJECTS}
    tallies = {
        "configs": Tally().add(
            configs.try_seeds(folder / "config.yml", seeds["configs"])
        ),
        "checkpoints": Tally().add(
            checkpoints.try_seeds(folder / "checkpoints", seeds["checkpoints"])
        ),
    }
    if count["packages"]:
        package, place = packages.write_package(folder / "made"), folder / "packages"
        place.mkdir()
        trials = packages.try_seeds(package, place, seeds["packages"])
        tallies["packages"] = Tally().add(trials)
    if count["datasets"]:
        sets = datasets.try_seeds(folder / "datasets", seeds["datasets"])
        tallies["datasets"] = Tally().add(sets)
    return tallies


if __name__ == "__main__":
    sys.exit(main())
