"""The entries of a key table: a PyTorch key, our path, and the arrangement of dims."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from credit_jax.state_dict.arrangement import SAME, Arrangement

# Index of a layer that is stacked along our leading dim; only in PyTorch's key.
STACKED = "{d}"


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


@dataclass(frozen=True)
class Ignore:
    """PyTorch keys without a parameter of ours.

    Attributes:
        torch: the key with named indices.
        reason: why nothing is lost; must not be empty.
    """

    torch: str
    reason: str

    def __post_init__(self) -> None:
        if not self.reason.strip():
            raise ValueError(f"ignoring {self.torch!r} needs a reason")

    def match(self, key: str) -> bool:
        """Whether the template matches a PyTorch key."""
        return template_regex(self.torch).fullmatch(key) is not None


KeyTable = tuple[Rule | Ignore, ...]


@cache
def template_regex(template: str) -> re.Pattern[str]:
    """The template with a named group of digits in place of each index."""
    parts = re.split(r"\{(\w+)\}", template)
    parts[::2] = map(re.escape, parts[::2])
    parts[1::2] = [rf"(?P<{name}>\d+)" for name in parts[1::2]]
    return re.compile("".join(parts))
