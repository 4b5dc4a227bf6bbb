"""Problems and notes that are collected while a run is planned."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass
class Findings:
    """Messages for the user, in the order in which they are found.

    Attributes:
        problems: errors that prevent a run from starting, one line each.
        notes: information for the user, one line each.
    """

    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @contextmanager
    def collecting(self, where: str = "") -> Iterator[None]:
        """Ends its block at an error of the user, which becomes a problem.

        What the block assigns keeps its value of before where it ends early.

        Args:
            where: dotted path to prepend to each line.

        >>> findings, rows = Findings(), None
        >>> with findings.collecting("loss"):
        ...     rows = int("many")
        >>> rows, findings.problems
        (None, ["loss: invalid literal for int() with base 10: 'many'"])
        """
        try:
            yield
        except (OSError, ValueError) as error:
            # A `ConfigError` has several.
            lines = getattr(error, "problems", [str(error)])
            self.problems += [f"{where}: {line}" if where else line for line in lines]

    def add(self, other: Findings) -> None:
        """Appends the lines of `other`."""
        self.problems += other.problems
        self.notes += other.notes


def unique(lines: Iterable[str]) -> tuple[str, ...]:
    """The lines without duplicates, in order."""
    return tuple(dict.fromkeys(lines))
