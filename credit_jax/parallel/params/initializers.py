"""Distributions of initial values, from which `parallel.params.init` draws."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Initializer:
    """The distribution of a parameter's initial values.

    Attributes:
        kind: "constant" (scale), "uniform" (-scale to scale) or "normal" (std scale).
        scale: see `kind`.
        repeat: number of consecutive elements along the last dim that share a draw.
    """

    kind: Literal["constant", "uniform", "normal"]
    scale: float
    repeat: int = 1


def constant(value: float) -> Initializer:
    """All elements equal to `value`."""
    return Initializer("constant", value)


def torch_uniform(fan_in: int) -> Initializer:
    """U(-1, 1) / sqrt(fan_in): torch's default for weights and biases."""
    return Initializer("uniform", 1.0 / math.sqrt(fan_in))


def xavier_normal(fan_in: int, fan_out: int) -> Initializer:
    """N(0, 2 / (fan_in + fan_out)), torch.nn.init.xavier_normal_."""
    return Initializer("normal", math.sqrt(2.0 / (fan_in + fan_out)))


def xavier_uniform(fan_in: int, fan_out: int) -> Initializer:
    """U(-1, 1) sqrt(6 / (fan_in + fan_out)), torch.nn.init.xavier_uniform_."""
    return Initializer("uniform", math.sqrt(6.0 / (fan_in + fan_out)))


def kaiming_uniform(fan: int) -> Initializer:
    """U(-1, 1) sqrt(6 / fan), torch.nn.init.kaiming_uniform_ for ReLU."""
    return Initializer("uniform", math.sqrt(6.0 / fan))


def kaiming_normal(fan: int) -> Initializer:
    """N(0, 2 / fan), torch.nn.init.kaiming_normal_ for ReLU."""
    return Initializer("normal", math.sqrt(2.0 / fan))


def icnr(fan_in: int, scale: int) -> Initializer:
    """ICNR initialization of an HWIO kernel before pixel shuffle.

    The scale**2 kernels of one output channel are copies of one drawn from
    N(0, 2 / fan_in), which avoids checkerboard artifacts (Aitken et al. 2017,
    https://arxiv.org/abs/1707.02937).
    """
    return Initializer("normal", math.sqrt(2.0 / fan_in), repeat=scale**2)
