"""Problems and notes that are collected while a run is planned."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

Part = TypeVar("Part")


@dataclass
class Findings:
    """Messages for the user, in the order in which they are found.

    Attributes:
        problems: errors that prevent a run from starting, one line each.
        notes: information for the user, one line each.
    """

    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def attempt(self, build: Callable[[], Part], where: str = "") -> Part | None:
        """Calls `build` and adds its errors to `problems`.

        Args:
            build: raises ValueError or OSError for an error of the user; each problem
                of a `ConfigError` is added as a line.
            where: dotted path to prepend to each line.

        Returns:
            The result of `build`, or None if it raised such an error.
        """
        try:
            return build()
        except (OSError, ValueError) as error:
            lines = getattr(error, "problems", [str(error)])
            self.problems += [f"{where}: {line}" if where else line for line in lines]
            return None

    def add(self, other: Findings) -> None:
        """Appends the lines of `other`."""
        self.problems += other.problems
        self.notes += other.notes


def unique(lines: Iterable[str]) -> tuple[str, ...]:
    """The lines without duplicates, in order."""
    return tuple(dict.fromkeys(lines))
