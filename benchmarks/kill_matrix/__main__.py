"""A run that is killed again and again: `python -m benchmarks.kill_matrix`.

A small demo is trained undisturbed, then repeatedly with SIGKILL of one or all of its
processes at random moments; each time it is restarted with `--resume if-any`, on a
random number of processes and, in every other run, of devices. The losses must
equal those of the undisturbed run, all checkpoints must be undamaged, and no unfinished
file may remain. Other faults follow, each of which must end in a resume or in one
error. Then other commands are killed: preprocess, convert, package, and campaigns of
forecasts in both formats. The command can be stopped at any time and continues in the
same folder; `--merge` adds the results of former reports, such as of other seeds.
"""

from __future__ import annotations

import argparse
import datetime
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import yaml

from benchmarks.kill_matrix.commands import COMMANDS, kill_command
from benchmarks.kill_matrix.faults import FAULTS, try_fault
from benchmarks.kill_matrix.matrix import MOMENTS, Matrix
from benchmarks.kill_matrix.report import report
from benchmarks.kill_matrix.small_demo import small_demo
from benchmarks.recipe import COMMIT
from benchmarks.report import add_out_option


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the matrix and writes its report; returns 1 if there are problems."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--folder", type=Path, default=Path("build/kill_matrix"))
    add("--kills", type=int, default=200, help="of all starts of this folder")
    add("--command-kills", type=int, default=17, help="of each other command")
    add("--commands", nargs="*", default=[*COMMANDS], metavar="NAME", help="of them")
    add("--kills-per-run", type=int, default=20)
    add("--seed", type=int, default=0)
    add("--moments", nargs="*", default=MOMENTS, metavar="NAME", help="of training")
    add("--merge", type=Path, nargs="*", default=(), help="kill_matrix.json of reports")
    add("--faults", action=argparse.BooleanOptionalAction, default=True)
    add_out_option(parser)
    args = parser.parse_args(argv)
    # Child processes end with this one.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(130))
    folder = args.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "config.yml"
    section = small_demo(folder / "data", epochs=14)
    config.write_text(yaml.safe_dump(section, sort_keys=False))
    matrix = Matrix(str(config), folder, args.kills_per_run, args.moments)
    date = f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC"
    matrix.add_start({"seed": args.seed, "date": date, "commit": COMMIT})
    matrix.train_undisturbed()
    done = {fault["name"] for fault in matrix.faults}
    for name in [n for n in FAULTS if n not in done] if args.faults else []:
        try_fault(matrix, name)
    for name in args.commands if args.command_kills else ():
        kill_command(matrix, name, args.command_kills, args.seed)
    matrix.go_on(args.kills, args.seed)
    for path in args.merge:
        matrix.merge(path)
    print(report(matrix, args.out, section))
    print(*matrix.problems, sep="\n")
    return 1 if matrix.problems else 0


if __name__ == "__main__":
    sys.exit(main())
