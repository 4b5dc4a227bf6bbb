"""Key tables: which of PyTorch's keys is which of our paths, in which layout."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache

from credit_jax.state_dict.arrangement import SAME, Arrangement

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
    """The names of one kind of parameter in PyTorch and credit_jax.

    Attributes:
        torch: PyTorch's key with named indices, "layers.{s}.0.convs.{i}.1.weight";
            `{d}` is the index along our leading dim.
        ours: our path with the same indices except `{d}`,
            "stages/{s}/embed/convs/{i}/kernel".
        arrangement: arrangement of one PyTorch array.
        first: PyTorch's index of the first layer that is stacked.
    """

    torch: str
    ours: str
    arrangement: Arrangement = SAME
    first: int = 0

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
    """Returns the rules of a table of layers and arrays.

    A row has PyTorch's name, our path, and the kind of layer, one of `LAYERS`; or, of
    one array, its arrangement, nothing if the dims are the same. A name "." is that of
    the table itself.

    Args:
        rows: the table, a row each line, in the order of PyTorch's state dict.
        torch, path: the module of all rows, and its path.

    >>> for rule in key_table("up  dense  linear", "blocks.{d}", "blocks"):
    ...     print(rule.torch, rule.ours, rule.arrangement.pattern)
    blocks.{d}.up.weight blocks/dense/kernel o i -> i o
    blocks.{d}.up.bias blocks/dense/bias c -> c
    """
    return tuple(_rules(rows, torch, path))


def _rules(rows: str, torch: str, jax_path: str) -> Iterator[Rule]:
    for row in filter(str.strip, rows.splitlines()):
        name, path, *kind = row.split(maxsplit=2)
        key = ".".join(part for part in (torch, name) if part.strip("."))
        path = "/".join(part for part in (jax_path, path) if part.strip("."))
        layout = kind[0].strip() if kind else SAME.pattern
        if layout in LAYERS:
            yield from _rules(LAYERS[layout], key, path)
        else:
            # Transposed convolutions have their input channels first; spectral norm
            # still takes the output channels as rows of the matrix.
            yield Rule(key, path, Arrangement(layout, int(layout.startswith("i o "))))


def below(module: str, rules: Iterable[Rule]) -> tuple[Rule, ...]:
    """Returns the rules of a network that is a module of another one in PyTorch."""
    return tuple(replace(rule, torch=f"{module}.{rule.torch}") for rule in rules)
