"""Errors that list every problem found, not only the first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

Shape = tuple[int, ...]


def compare_shapes(
    actual: Mapping[str, Shape], expected: Mapping[str, Shape]
) -> list[str]:
    """Lists missing, unexpected and mismatched arrays, one line each.

    Args:
        actual: shape of every given array, by name.
        expected: shape of every expected array, by name.
    """
    missing = [f"missing: {k} {expected[k]}" for k in expected if k not in actual]
    unexpected = [f"unexpected: {k} {actual[k]}" for k in actual if k not in expected]
    mismatched = [
        f"shape: {k} is {actual[k]}, expected {expected[k]}"
        for k in expected
        if k in actual and actual[k] != expected[k]
    ]
    return missing + unexpected + mismatched


def raise_problems(problems: Sequence[str], what: str) -> None:
    """Raises one error that lists all problems; returns if there are none.

    Raises:
        ValueError: there are problems; `what` is its first line.
    """
    if problems:
        count = f"{len(problems)} problem{'s' if len(problems) > 1 else ''}"
        lines = "\n".join(f"  {problem}" for problem in problems)
        raise ValueError(f"{what}, {count}:\n{lines}")
