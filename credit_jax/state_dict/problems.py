"""Errors that list every problem found, not only the first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

Shape = tuple[int, ...]


def compare_shapes(
    given: Mapping[str, Shape], wanted: Mapping[str, Shape]
) -> list[str]:
    """Lists missing, unexpected and mismatched arrays, one line each.

    Args:
        given: shape of every given array, by name.
        wanted: shape of every expected array, by name.
    """
    missing = [f"missing: {k} {wanted[k]}" for k in wanted if k not in given]
    unexpected = [f"unexpected: {k} {given[k]}" for k in given if k not in wanted]
    mismatched = [
        f"shape: {k} is {given[k]}, expected {wanted[k]}"
        for k in wanted
        if k in given and given[k] != wanted[k]
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
