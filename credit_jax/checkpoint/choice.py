"""Which weights of a checkpoint are taken: one rule for all commands and functions."""

from __future__ import annotations

AVERAGE, LAST = "average", "last"
CHOICES = (AVERAGE, LAST)


def takes_average(choice: str | None, *, has_average: bool, where: object) -> bool:
    """Returns whether the moving average of the weights is taken.

    >>> takes_average(None, has_average=True, where="RUN")
    True
    >>> takes_average("last", has_average=True, where="RUN")
    False

    Args:
        choice: "average", "last", or None for the average if there is one.
        has_average: whether the checkpoint has a moving average.
        where: path of the checkpoint, for the error.

    Raises:
        ValueError: the average is asked for and there is none, or the choice is
            another word.
    """
    if choice not in (None, *CHOICES):
        raise ValueError(
            f"weights is {choice!r}; expected 'average', 'last', or None for the "
            "average if there is one"
        )
    if choice == AVERAGE and not has_average:
        raise ValueError(
            f"weights average: {where} has no moving average of the weights; take "
            "weights last"
        )
    return has_average and choice != LAST


def label_of(*, average: bool) -> str:
    """What messages call the weights that are taken.

    >>> label_of(average=True), label_of(average=False)
    ('moving average', 'last weights')
    """
    return "moving average" if average else "last weights"
