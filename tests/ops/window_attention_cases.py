"""Cases of attention products and torch's results, for all implementations."""

import torch

from tests.support.gradients import draw, torch_values

PAIRS, SUMS = "...id,...jd->...ij", "...ij,...jd->...id"
# name: windows and heads, tokens i, tokens j, channels
CASES = {
    "a token": ((2, 3), 1, 1, 5),
    "2 x 2": ((2, 5, 3), 4, 4, 16),
    "4 x 4": ((3, 2), 16, 16, 8),
    "5 x 5": ((3, 2), 25, 25, 8),
    "fewer by more": ((3,), 4, 17, 6),
    "more by fewer": ((3,), 17, 4, 6),
}


def pairs_of_case(case):
    """Returns (equation, its two factors) of both products."""
    batch, i, j, channels = CASES[case]
    tokens = draw((*batch, j, channels))
    logits = PAIRS, (draw((*batch, i, channels)), tokens)
    return logits, (SUMS, (draw((*batch, i, j)), tokens))


def of_torch(equation, factors):
    """Returns torch's output and gradients."""
    return torch_values(lambda a, b: torch.einsum(equation, a, b), *factors)
