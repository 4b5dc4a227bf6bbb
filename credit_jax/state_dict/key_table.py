"""Key tables: which of PyTorch's keys is which of our paths, in which layout."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
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
    """Raises one error that names every array with a NaN or an infinity."""
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
    """The correspondence of the layouts of one array, an invertible einops pattern."""

    # Its left side is PyTorch's layout, its right side ours. In
    # "(n h d) i 1 1 -> i n h d", PyTorch's first dim combines n (q, k and v), heads h
    # and head dims d, and the two trailing dims of a 1 x 1 convolution are dropped.
    # Every letter occurs on both sides, so that the pattern is its own inverse, read
    # from right to left.
    pattern: str
    # Dim of PyTorch's array that indexes the rows of the matrix in spectral norm: 0, or
    # 1 for transposed convolutions.
    torch_out: int = 0

    def __post_init__(self) -> None:
        right, torch = _groups(self.pattern)[1], self._torch_letters
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
        sizes, torch = dict(zip(self.letters, shape, strict=True)), self._torch_letters
        split = array.reshape([sizes[letter] for letter in torch])
        moved = split.transpose([torch.index(k) for k in self.letters])
        return np.asarray(moved, order="C")

    def to_torch(self, array: np.ndarray) -> np.ndarray:
        """Converts an array to PyTorch's layout: the inverse of `to_ours`."""
        path = self.letters
        moved = array.transpose([path.index(k) for k in self._torch_letters])
        return np.asarray(moved.reshape(self.torch_shape(array.shape)), order="C")

    def torch_shape(self, shape: Shape) -> Shape:
        """Shape of PyTorch's array if ours has `shape`."""
        sizes = dict(zip(self.letters, shape, strict=True))
        groups = _groups(self.pattern)[0]
        return tuple(int(np.prod([sizes[k] for k in group])) for group in groups)

    def vectors(self) -> tuple[Arrangement, Arrangement]:
        """Arrangements of u and v, the vectors of spectral norm."""
        # PyTorch's vectors are flat, in the order of its dims: u over the rows of the
        # matrix, v over the rest. Ours keep the dims of their parameter.
        groups = _groups(self.pattern)[0]
        rows = groups[self.torch_out]
        remainder = [g for i, g in enumerate(groups) if i != self.torch_out]
        return self._flat(rows), self._flat([k for g in remainder for k in g])

    def _flat(self, letters: Sequence[str]) -> Arrangement:
        remaining = [letter for letter in self.letters if letter in letters]
        return Arrangement(f"({' '.join(letters)}) -> {' '.join(remaining)}")

    @property
    def _torch_letters(self) -> list[str]:
        """The letters of PyTorch's dims, in order."""
        return [letter for group in _groups(self.pattern)[0] for letter in group]

    @property
    def letters(self) -> list[str]:
        """The letters of our dims, in order."""
        return [letter for group in _groups(self.pattern)[1] for letter in group]


# Cached, as a model has thousands of arrays with few patterns.
@cache
def _groups(pattern: str) -> tuple[Groups, Groups]:
    """The letters of each dim: "(n h d) i 1 -> ..." -> ((n, h, d), (i,), ()), ..."""
    torch, reordered = (
        tuple(
            tuple(letter for letter in (several or single).split() if letter != "1")
            for several, single in re.findall(r"\(([^)]*)\)|(\S+)", side)
        )
        for side in (pattern.partition("->")[0], pattern.partition("->")[2])
    )
    return torch, reordered


SAME = Arrangement("c -> c")
LINEAR = Arrangement("o i -> i o")


# Index of a layer that is stacked along our leading dim; only in PyTorch's key.
STACKED = "{d}"

# The parameters of kinds of layers, as rows of `key_table`.
LAYERS = {
    "linear": "weight kernel o i -> i o \n bias bias",
    "conv": "weight kernel o i h w -> h w i o \n bias bias",
    # A 1 x 1 convolution is a matrix in credit_jax.
    "pointwise": "weight kernel o i 1 1 -> i o \n bias bias",
    "conv_3d": "weight kernel o i t h w -> t h w i o \n bias bias",
    "transposed_conv": "weight kernel i o h w -> h w i o \n bias bias",
    # The projection of the heads of an attention, and the same as a 1 x 1 convolution.
    "from_heads": "weight kernel o (h d) -> h d o \n bias bias",
    "pointwise_from_heads": "weight kernel o (h d) 1 1 -> h d o \n bias bias",
    # Space to depth and a 1 x 1 convolution, as one convolution of stride 2.
    "halving": "weight kernel o (i p q) 1 1 -> p q i o \n bias bias",
    # torch.nn.LayerNorm, GroupNorm or BatchNorm.
    "norm": "weight scale \n bias bias",
    # CREDIT's LayerNorm over channels, and its RMSNorm.
    "channel_norm": "g scale 1 c 1 1 -> c \n b bias 1 c 1 1 -> c",
    "rms_norm": "g scale 1 c 1 1 -> c",
    # CREDIT's CubeEmbedding.
    "patch_embedding": "proj proj conv_3d \n norm norm norm",
    # (conv, GroupNorm, SiLU) twice, of CREDIT's up and down blocks.
    "residual": """
        b.0  residual_conv_0  conv
        b.1  residual_norm_0  norm
        b.3  residual_conv_1  conv
        b.4  residual_norm_1  norm
    """,
}


@dataclass(frozen=True)
class Rule:
    """The names of one kind of parameter in PyTorch and credit_jax."""

    # With named indices, "layers.{s}.0.convs.{i}.1.weight"; `{d}` is the index along
    # our leading dim, and missing in our "stages/{s}/embed/convs/{i}/kernel".
    torch: str
    ours: str
    arrangement: Arrangement = SAME  # of one PyTorch array
    first: int = 0  # PyTorch's index of the first layer that is stacked

    @property
    def is_stacked(self) -> bool:
        """Whether our array stacks the PyTorch arrays of several layers."""
        return STACKED in self.torch

    def match(self, path: str) -> dict[str, str] | None:
        """Returns the indices for which `ours` equals `path`, or None."""
        match = template_regex(self.ours).fullmatch(path)
        return match and match.groupdict()


@cache
def template_regex(template: str) -> re.Pattern[str]:
    """The template with a named group of digits in place of each index."""
    parts = re.split(r"\{(\w+)\}", template)
    parts[::2] = map(re.escape, parts[::2])
    parts[1::2] = [rf"(?P<{name}>\d+)" for name in parts[1::2]]
    return re.compile("".join(parts))


def key_table(rows: str, torch: str = "", path: str = "") -> tuple[Rule, ...]:
    """Returns the rules of a table of layers and arrays below a module and path."""
    # A row has PyTorch's name, our path, and the kind of layer, one of `LAYERS`; or, of
    # one array, its arrangement, nothing if the dims are the same. A name "." is that
    # of the table itself. The rows are in the order of PyTorch's state dict: "up dense
    # linear" below "blocks.{d}" and "blocks" has blocks.{d}.up.weight, which is
    # blocks/dense/kernel.
    rules: list[Rule] = []
    for row in filter(str.strip, rows.splitlines()):
        name, array, *kind = row.split(maxsplit=2)
        key = ".".join(part for part in (torch, name) if part.strip("."))
        array = "/".join(part for part in (path, array) if part.strip("."))
        layout = kind[0].strip() if kind else SAME.pattern
        if layout in LAYERS:
            rules += key_table(LAYERS[layout], key, array)
        else:
            # Transposed convolutions have their input channels first; spectral norm
            # still takes the output channels as rows of the matrix.
            out = int(layout.startswith("i o "))
            rules.append(Rule(key, array, Arrangement(layout, out)))
    return tuple(rules)


def below(module: str, rules: Iterable[Rule]) -> tuple[Rule, ...]:
    """Returns the rules of a network that is a module of another one in PyTorch."""
    return tuple(replace(rule, torch=f"{module}.{rule.torch}") for rule in rules)
