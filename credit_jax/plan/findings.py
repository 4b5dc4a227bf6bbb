"""Problems and notes that are collected while a plan is made."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

Part = TypeVar("Part")


@dataclass
class Findings:
    """Lines for the user, in the order in which they are found.

    Attributes:
        problems: what keeps a run from starting.
        notes: information for the user, one line each.
    """

    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def attempt(self, build: Callable[[], Part], where: str = "") -> Part | None:
        """What `build` returns; None if it raises, and its lines become problems.

        Args:
            build: raises ValueError or OSError for an error of the user; all lines of
                a `ConfigError` are taken.
            where: dotted path that is put in front of each line.
        """
        try:
            return build()
        except (OSError, ValueError) as error:
            lines = getattr(error, "problems", [str(error)])
            self.problems += [f"{where}: {line}" if where else line for line in lines]
            return None

    def add(self, other: Findings) -> None:
        """Takes over the lines of `other`."""
        self.problems += other.problems
        self.notes += other.notes


def unique(lines: Iterable[str]) -> tuple[str, ...]:
    """The lines without repetitions."""
    return tuple(dict.fromkeys(lines))
