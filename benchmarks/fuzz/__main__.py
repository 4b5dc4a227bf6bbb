"""Changed configs, checkpoints, runs, packages and data: `python -m benchmarks.fuzz`.

Each is read by the command that a user would call, and must end with code 0, with the
problems that `check` lists, or with one error and code 2: no traceback, no file outside
of the output, no code of the file run, in bounded time and memory. Seeds determine the
changes; `tests` has some of them, and regressions.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.report import Table, add_out_option, publish

# Allowed results of a trial.
READ, REFUSED = ("ok", "converted", "read"), "refused"


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
    add_out_option(parser)
    args = parser.parse_args(argv)
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    with tempfile.TemporaryDirectory() as name:
        tallies = _try_all(Path(name), args)
    rows = [row for subject, tally in tallies.items() for row in tally.rows(subject)]
    problems = [line for tally in tallies.values() for line in tally.problems]
    header = ["subject", "read", "refused", "problems"]
    head = (
        "# Changed files\n\n"
        f"{args.configs} configs through `check`, {args.checkpoints} checkpoints and "
        "runs through `convert` and `restore`, "
        f"{args.packages} packages through the reader of packages, {args.datasets} "
        "data sets through the checks of a loader, the reading of an epoch, of initial "
        "states of forecasts, and of the truth of scores, whose values are compared "
        "with numpy on the same files; one to three "
        "changes each, half of the runs and most of the packages with digests of what "
        "they hold now. A trial must end with code 0, with the problems that `check` "
        "lists, or with one error and code 2, leave no file but the output, run no "
        "code, and take at most 20 s and 4 GiB."
    )
    listed = "## Problems\n\n" + ("\n".join(f"- {p}" for p in problems) or "None.")
    results = {"rows": rows, "problems": problems}
    options = {name: getattr(args, name) for name in tallies} | {"first": args.first}
    table = Table("Changed files", header, rows)
    path = publish(
        "fuzz", [head, table, listed], results, config=options, folder=args.out
    )
    print(path)
    return 1 if problems else 0


def _try_all(folder: Path, args: argparse.Namespace) -> dict[str, Tally]:
    """The results of all trials, by the name of the option."""
    # Imported after JAX's platform is chosen.
    from tests.bridge.checkpoint import fuzz as checkpoints
    from tests.config import test_fuzz as configs
    from tests.data import fuzz as datasets
    from tests.packages import fuzz as packages

    first, count = args.first, vars(args)
    seeds = {
        name: range(first, first + count[name])
        for name in ("configs", "checkpoints", "packages", "datasets")
    }
    tallies = {
        "configs": Tally().add(
            configs.try_seeds(folder / "config.yml", seeds["configs"])
        ),
        "checkpoints": Tally().add(
            checkpoints.try_seeds(folder / "checkpoints", seeds["checkpoints"])
        ),
    }
    package = packages.write_package(folder / "made")
    place = folder / "packages"
    place.mkdir()
    trials = packages.try_seeds(package, place, seeds["packages"])
    tallies["packages"] = Tally().add(trials)
    sets = datasets.try_seeds(folder / "datasets", seeds["datasets"])
    return {**tallies, "datasets": Tally().add(sets)}


if __name__ == "__main__":
    sys.exit(main())
