"""Problems and notes that are collected while a run is planned."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from credit_jax.config import ConfigError


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
    def collecting(self, key: str = "") -> Iterator[None]:
        """Ends its block at an error of the user, which becomes a problem.

        What the block assigns keeps its value of before where it ends early.

        Args:
            key: dotted path to prepend to each line.

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
            self.problems += [f"{key}: {line}" if key else line for line in lines]

    def add(self, other: Findings) -> None:
        """Appends the lines of `other`."""
        self.problems += other.problems
        self.notes += other.notes

    def check(self) -> None:
        """Raises a `ConfigError` with all problems, if there are any."""
        check_problems(self.problems)


def check_problems(lines: Iterable[str]) -> None:
    """Raises a `ConfigError` with all lines, if there are any."""
    if problems := unique(lines):
        raise ConfigError(problems)


def together(*parts: Callable[[], Any]) -> list[Any]:
    """Calls functions that do not depend on each other, and returns their results.

    Raises:
        ConfigError: lists the errors of all of them.
    """
    findings, results = Findings(), []
    for part in parts:
        with findings.collecting():
            results.append(part())
    findings.check()
    return results


@contextmanager
def titled(title: str) -> Iterator[None]:
    """Raises errors of the user in its block as a `ConfigError` of this title."""
    findings = Findings()
    with findings.collecting():
        yield
    if findings.problems:
        raise ConfigError(findings.problems, title)


def unique(lines: Iterable[str]) -> tuple[str, ...]:
    """The lines without duplicates, in order."""
    return tuple(dict.fromkeys(lines))
