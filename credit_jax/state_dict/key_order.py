"""The order of the keys in a PyTorch state dict."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator


class KeyOrder:
    """Sorts keys like PyTorch: modules in the order of a table, layers by number.

    The parameters of a module come before those of its submodules. Under spectral norm
    PyTorch registers a parameter again, so that `weight_orig` comes after the others,
    followed by the vectors `weight_u` and `weight_v`.

    Args:
        templates: keys of the table, "layers.{s}.0.convs.{i}.1.weight", in order.
    """

    def __init__(self, templates: Iterable[str]) -> None:
        self.ranks: dict[tuple[str, str], int] = {}
        for template in templates:
            for parent, name in _steps(template):
                self.ranks.setdefault((parent, name), len(self.ranks))

    def place(self, key: str) -> list[tuple[bool, int, int]]:
        """The sort key of a PyTorch key."""
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
    """Yields (parent, name) of each part of a key or template, indices as stars."""
    parts = ["*" if re.fullmatch(r"\d+|\{\w+\}", p) else p for p in key.split(".")]
    for i, part in enumerate(parts):
        yield ".".join(parts[:i]), part
