"""The order in which PyTorch has the keys of a state dict, from a key table."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator


class TorchOrder:
    """Where PyTorch has a key: modules in the order of the table, layers by number.

    A module's own parameters come before those of the modules in it; its vectors of
    spectral norm come after its parameters, and a parameter under spectral norm, which
    is registered anew, after the others.
    """

    def __init__(self, templates: Iterable[str]) -> None:
        """Takes up the keys of a table, "layers.{s}.0.convs.{i}.1.weight", in order."""
        self.ranks: dict[tuple[str, str], int] = {}
        for template in templates:
            for parent, name in _steps(template):
                self.ranks.setdefault((parent, name), len(self.ranks))

    def place(self, key: str) -> list[tuple[bool, int, int]]:
        """What keys sort by."""
        steps = list(_steps(key))
        return [
            (i < len(steps) - 1, *self._rank(parent, name, part))
            for i, ((parent, name), part) in enumerate(
                zip(steps, key.split("."), strict=True)
            )
        ]

    def _rank(self, parent: str, name: str, part: str) -> tuple[int, int]:
        if part.isdigit():
            return 0, int(part)
        for late, suffix in enumerate(("_orig", "_u", "_v"), start=1):
            plain = name.removesuffix(suffix)
            if plain != name and (parent, plain) in self.ranks:
                return late, self.ranks[parent, plain]
        return 0, self.ranks[parent, name]


def _steps(key: str) -> Iterator[tuple[str, str]]:
    """(parent, name) of each component of a key or template, every index a star."""
    parts = ["*" if re.fullmatch(r"\d+|\{\w+\}", p) else p for p in key.split(".")]
    for i, part in enumerate(parts):
        yield ".".join(parts[:i]), part
