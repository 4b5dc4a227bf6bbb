"""The layouts of an array in PyTorch and in credit_jax, as an invertible pattern.

An arrangement is an einops pattern whose left side is PyTorch's layout and whose right
side is that of credit_jax ("ours" in this package). In "(n h d) i 1 1 -> i n h d",
PyTorch's first dim combines n (q, k and v), heads h and head dims d, and the two
trailing dims of a 1 x 1 convolution are dropped. Every letter occurs on both sides, so
that the pattern is its own inverse, read from right to left.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

Shape = tuple[int, ...]
_CHUNK = 1 << 20  # elements that are checked at a time


def compare_shapes(
    actual: Mapping[str, Shape], expected: Mapping[str, Shape]
) -> list[str]:
    """Lists missing, unexpected and mismatched arrays, one line each."""
    missing = [f"missing: {k} {expected[k]}" for k in expected if k not in actual]
    unexpected = [f"unexpected: {k} {actual[k]}" for k in actual if k not in expected]
    mismatched = [
        f"shape: {k} is {actual[k]}, expected {expected[k]}"
        for k in expected
        if k in actual and actual[k] != expected[k]
    ]
    return missing + unexpected + mismatched


def raise_problems(problems: Sequence[str], subject: str) -> None:
    """Raises one error that lists all problems; returns if there are none."""
    if problems:
        count = f"{len(problems)} problem{'s' if len(problems) > 1 else ''}"
        lines = "\n".join(f"  {problem}" for problem in problems)
        raise ValueError(f"{subject}, {count}:\n{lines}")


def raise_non_finite(state: Mapping[str, Any], subject: str) -> None:
    """Raises one error that names every array with a NaN or an infinity.

    Args:
        state: arrays, or objects that numpy converts to arrays, by name.
        subject: what is wrong with them, for the error.
    """
    problems = []
    for key, value in state.items():
        flat = np.asarray(value).reshape(-1)
        parts = (flat[i : i + _CHUNK] for i in range(0, flat.size, _CHUNK))
        if not all(np.isfinite(part).all() for part in parts):
            problems.append(f"not finite: {key} {np.shape(value)}")
    raise_problems(problems, subject)


# The letters of each dim of an array.
Groups = tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Arrangement:
    """The correspondence of the layouts of one array.

    Attributes:
        pattern: "PyTorch's dims -> our dims".
        torch_out: dim of PyTorch's array that indexes the rows of the matrix in
            spectral norm: 0, or 1 for transposed convolutions.
    """

    pattern: str
    torch_out: int = 0

    def __post_init__(self) -> None:
        right, torch = self._groups[1], self._torch_letters
        path = [letter for group in right for letter in group]
        plain = all(len(group) == 1 for group in right)
        if not plain or len(set(path)) != len(path) or sorted(path) != sorted(torch):
            raise ValueError(
                f"arrangement {self.pattern!r}: the right side must name every letter "
                "of the left side once, one letter a dim"
            )

    def to_ours(self, array: np.ndarray, shape: Shape) -> np.ndarray:
        """Converts PyTorch's array to our layout."""
        if array.shape != self.torch_shape(shape):
            raise ValueError(
                f"{self.pattern!r} of {shape}: PyTorch's array has shape "
                f"{array.shape}, expected {self.torch_shape(shape)}"
            )
        sizes, torch = self._sizes(shape), self._torch_letters
        split = array.reshape([sizes[letter] for letter in torch])
        return _contiguous(split.transpose([torch.index(k) for k in self.letters]))

    def to_torch(self, array: np.ndarray) -> np.ndarray:
        """Converts an array to PyTorch's layout: the inverse of `to_ours`."""
        path = self.letters
        moved = array.transpose([path.index(k) for k in self._torch_letters])
        return _contiguous(moved.reshape(self.torch_shape(array.shape)))

    def torch_shape(self, shape: Shape) -> Shape:
        """Shape of PyTorch's array if ours has `shape`."""
        sizes = self._sizes(shape)
        groups = self._groups[0]
        return tuple(int(np.prod([sizes[k] for k in group])) for group in groups)

    def vectors(self) -> tuple[Arrangement, Arrangement]:
        """Arrangements of u and v, the vectors of spectral norm.

        PyTorch's vectors are flat, in the order of its dims: u over the rows of the
        matrix, v over the rest. Ours keep the dims of their parameter.
        """
        groups = self._groups[0]
        rows = groups[self.torch_out]
        remainder = [g for i, g in enumerate(groups) if i != self.torch_out]
        return self._flat(rows), self._flat([k for g in remainder for k in g])

    def _flat(self, letters: Sequence[str]) -> Arrangement:
        remaining = [letter for letter in self.letters if letter in letters]
        return Arrangement(f"({' '.join(letters)}) -> {' '.join(remaining)}")

    def _sizes(self, shape: Shape) -> dict[str, int]:
        return dict(zip(self.letters, shape, strict=True))

    @property
    def _groups(self) -> tuple[Groups, Groups]:
        """The letters of each dim of PyTorch's array, and of ours."""
        return _groups(self.pattern)

    @property
    def _torch_letters(self) -> list[str]:
        """The letters of PyTorch's dims, in order."""
        return [letter for group in self._groups[0] for letter in group]

    @property
    def letters(self) -> list[str]:
        """The letters of our dims, in order."""
        return [letter for group in self._groups[1] for letter in group]


# Cached, as a model has thousands of arrays with few patterns.
@cache
def _groups(pattern: str) -> tuple[Groups, Groups]:
    """The letters of each dim: "(n h d) i 1 -> ..." -> ((n, h, d), (i,), ()), ..."""
    left, _, right = pattern.partition("->")
    return _dims(left), _dims(right)


def _dims(side: str) -> Groups:
    return tuple(
        tuple(letter for letter in (several or single).split() if letter != "1")
        for several, single in re.findall(r"\(([^)]*)\)|(\S+)", side)
    )


def _contiguous(array: np.ndarray) -> np.ndarray:
    # ascontiguousarray would make a 0-d array 1-d.
    return array if array.flags.c_contiguous else np.ascontiguousarray(array)


SAME = Arrangement("c -> c")
LINEAR = Arrangement("o i -> i o")
