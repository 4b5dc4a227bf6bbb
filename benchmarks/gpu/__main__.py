"""Everything that one GPU can say about this project, in minutes.

    python -m benchmarks.gpu --out FOLDER [--minutes 9] [--parts device kernels ...]

Items are run in processes of their own; what is known is written to the folder at once,
as JSON and as tables, and a second call with the same folder goes on where the first
ended. Programs compile side by side; what is timed runs alone.
"""

from __future__ import annotations

import argparse
import importlib
import shutil
import signal
import sys
import tarfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks.gpu import records
from benchmarks.gpu.records import Setting
from benchmarks.gpu.runner import LEAST, Job, Runner, any_left, is_wrong
from benchmarks.recipe import recipe
from benchmarks.report import Table, write_report
from benchmarks.speed.cases import SIZES

# The parts in the order of the summary, with the seconds that an item may take.
PARTS = {
    "device": 60,
    "step": 420,
    "loader": 150,
    "forecast": 200,
    "kernels": 300,
    "models": 180,
    "bounds": 300,
    "training": 240,
    "families": 240,
}
# Parts that mostly compile, with the processes that share their items; the others stand
# still while one of them times something.
BESIDE = {
    "step": 4,
    "kernels": 2,
    "bounds": 3,
    "models": 4,
    "training": 1,
    "families": 3,
}
AGAIN = dict.fromkeys(BESIDE, 1)
# Commands that are timed as a whole, after our step and before all else.
ALONE = ("loader", "forecast")
# Seconds at the end to write the summary in.
_RESERVE = 10.0
_INTRO = (
    "`python -m benchmarks.gpu` ({command}): what one device says, part by part. Items "
    "that failed or were stopped are listed with what they said; another call with the "
    "same folder runs them again."
)


class Hour:
    """A run of the command.

    Args:
        options: options of the command line.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.began = time.monotonic()
        rehearse = options.rehearse
        self.setting = Setting(
            options.out.absolute(), rehearse, options.size, options.dtype
        )
        self.modules: dict[str, ModuleType] = {
            name: importlib.import_module(f"benchmarks.gpu.{name}")
            for name in PARTS
            if name in options.parts
        }
        deadline = self.began + 60 * options.minutes - _RESERVE
        self.runner = Runner(self.setting, deadline, self._ended)
        self.first = True
        if options.anew:
            for name in self.modules:
                shutil.rmtree(self.setting.out / "items" / name, ignore_errors=True)

    def run(self) -> int:
        """Runs the parts; returns 1 if something failed, is wrong, or is left."""
        self._alone("device")
        # XLA chooses algorithms by timing them, which others would disturb.
        self._alone("step", first=True)
        for part in ALONE:
            self._alone(part)
        self._beside(BESIDE, self.runner.left)
        # Once more what was stopped or failed: beside others memory may be short.
        self.runner.forget()
        self.first = False
        self._beside(AGAIN, self.runner.left)
        self._summary()
        lines = self._status_lines()
        print("\n".join(["", *lines]), flush=True)
        return int(not all(self._right(part) for part in self.modules))

    def _left(self, part: str) -> list[str]:
        items = self.modules[part].items(self.setting)
        # What an earlier call found wrong may have been mended.
        return any_left(self.setting, part, items, wrong=self.first)

    def _alone(self, part: str, *, first: bool = False) -> None:
        """Runs items of a part, one after another, with nothing beside them.

        Args:
            part: its name.
            first: only the first of its items.
        """
        if part not in self.modules:
            return
        left = self._left(part)
        if first:
            left = [i for i in self.modules[part].items(self.setting)[:1] if i in left]
        # Sides that hold the memory of the device get a process each.
        groups = [[item] for item in left] if self._isolates(part) else [left]
        for group in groups:
            if self.runner.left >= LEAST:
                self.runner.side_by_side([self._job(part, group)], self.runner.left)

    def _isolates(self, part: str) -> bool:
        """Whether each item of a part has variables of its own, and a process."""
        return hasattr(self.modules[part], "environment")

    def _beside(self, parts: Mapping[str, int], seconds: float) -> None:
        """Runs parts that disturb nobody at the same time.

        Args:
            parts: the processes that share the items of each.
            seconds: seconds of all together.
        """
        jobs = []
        for part, number in parts.items():
            if part not in self.modules:
                continue
            left = self._left(part)
            number = len(left) if self._isolates(part) else number
            jobs += [self._job(part, left[i::number]) for i in range(number)]
        if self.options.rehearse:
            # A rehearsal has few cores.
            for job in jobs:
                self.runner.side_by_side([job], seconds)
        else:
            self.runner.side_by_side(jobs, seconds)

    def _job(self, part: str, items: Sequence[str]) -> Job:
        environment = getattr(self.modules[part], "environment", lambda item: {})
        variables = environment(items[0]) if items else {}
        return Job(part, tuple(items), PARTS[part], variables)

    def _ended(self, part: str, item: str, record: records.Record) -> None:
        """Tells of an item, and writes its part and the summary."""
        status, module = record["status"], self.modules[part]
        try:
            text = module.line(record["result"])
        except (KeyError, IndexError, TypeError):
            text = "no result"
        if status != records.DONE:
            text = f"{status}: {_first(record)}"
        passed = f"{time.monotonic() - self.began:5.0f} s"
        print(f"{passed}  {part}: {item}: {text}", flush=True)
        self._report(part)
        self._summary()

    def _records(self, part: str) -> dict[str, records.Record]:
        by_item = {
            item: records.read(self.setting.out, part, item)
            for item in self.modules[part].items(self.setting)
        }
        return {item: record for item, record in by_item.items() if record is not None}

    def _sections(self, part: str) -> list[str | Table]:
        """The tables of a part, and what did not succeed."""
        module, by_item = self.modules[part], self._records(part)
        results = {item: record["result"] for item, record in by_item.items()}
        sections: list[str | Table] = []
        try:
            sections += module.tables({k: r for k, r in results.items() if r})
        except Exception as error:
            # The numbers are in the JSON, and other parts are still to come.
            sections.append(f"No table: {type(error).__name__}: {error}")
        bad = {k: r for k, r in by_item.items() if r["status"] != records.DONE}
        if bad:
            lines = [f"- {item}: {r['status']}: {_first(r)}" for item, r in bad.items()]
            sections += ["Not done:\n\n" + "\n".join(lines)]
        return sections

    def _report(self, part: str) -> None:
        module = self.modules[part]
        sections = [f"# {module.TITLE}", _INTRO.format(command=self._command())]
        data = {"recipe": self._recipe(), "items": self._records(part)}
        write_report(
            f"gpu_{part}", [*sections, *self._sections(part)], data, self.setting.out
        )

    def _summary(self) -> None:
        """Writes all tables into one report, and everything into the archive."""
        sections: list[str | Table] = [
            "# One GPU",
            _INTRO.format(command=self._command()),
            "\n".join(self._status_lines()),
        ]
        for part, module in self.modules.items():
            sections += [f"# {part}: {module.TITLE}", *self._sections(part)]
        data = {
            "recipe": self._recipe(),
            "parts": {part: self._status(part) for part in self.modules},
        }
        write_report("gpu", sections, data, self.setting.out)
        if self.options.archive:
            self._archive(self.options.archive)

    def _archive(self, path: Path) -> None:
        """Packs all but caches and scratch data."""
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_name(f"{path.name}.new")
        with tarfile.open(new, "w:gz") as archive:
            for child in sorted(self.setting.out.iterdir()):
                inside = child == path or child in path.parents
                if child.name not in ("cache", "scratch") and not inside:
                    archive.add(child, child.name)
        shutil.move(new, path)

    def _status(self, part: str) -> dict[str, int]:
        """Numbers of items by status, those that are wrong and those never begun."""
        by_item, every = self._records(part), self.modules[part].items(self.setting)
        counts = {"items": len(every), "left": len(every) - len(by_item), "wrong": 0}
        for record in by_item.values():
            counts[record["status"]] = counts.get(record["status"], 0) + 1
            counts["wrong"] += is_wrong(record)
        return counts

    def _right(self, part: str) -> bool:
        counts = self._status(part)
        return counts.get(records.DONE) == counts["items"] and not counts["wrong"]

    def _status_lines(self) -> list[str]:
        lines = []
        for part in self.modules:
            counts = self._status(part)
            told = ", ".join(f"{v} {k}" for k, v in counts.items() if v)
            lines.append(f"- {part}: {told}")
        return lines

    def _recipe(self) -> dict[str, Any]:
        """The recipe of the process that had the device, or what is known here."""
        config = {"size": self.options.size, "dtype": self.options.dtype}
        config |= {"rehearsal": True} if self.options.rehearse else {}
        device = records.read(self.setting.out, "device", "ceilings") or {}
        device_recipe = dict((device.get("result") or {}).get("recipe") or {})
        if not device_recipe:
            device_recipe = recipe(config, device="unknown device")
        return device_recipe | {
            "config": config,
            "commit": self.options.commit or device_recipe["commit"],
        }

    def _command(self) -> str:
        return "`--rehearse`" if self.options.rehearse else self.options.size


def _first(record: records.Record) -> str:
    """The first line of what an item said when it failed."""
    return (record.get("error", "").strip().splitlines() or [""])[0]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command."""
    # The processes are ended with the command, not left behind on the device.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    return Hour(_parse(arguments)).run()


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--out", type=Path, required=True, help="folder of everything that is written")
    add("--minutes", type=float, default=9.0, help="after which the command has ended")
    add("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    add("--anew", action="store_true", help="forget what is known of these parts")
    add("--size", choices=tuple(SIZES), default="025deg", help="of the step")
    add("--dtype", choices=("float32", "bfloat16"), default="bfloat16")
    add("--archive", type=Path, metavar="FILE", help="a tar.gz of all results")
    add("--commit", help="of this copy, where it has no repository")
    add("--rehearse", action="store_true", help="the smallest size, on any device")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
