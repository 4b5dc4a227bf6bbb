"""The variables that a transform changes: CREDIT's argument `variables`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from credit_jax.config.messages import hint

# The argument `variables` in a config.
Variables: TypeAlias = tuple[str, ...] | str | None
DataType: TypeAlias = Literal["input", "target"]


@dataclass(frozen=True)
class Selection:
    """The variables that the argument `variables` selects.

    A list selects the keys that it names and those below them: "ERA5/prognostic" is
    every prognostic variable of ERA5. An empty list, or null, selects all. A string
    selects none, as in CREDIT, which iterates over its letters.

    Attributes:
        variables: the argument.

    >>> Selection(("A/prognostic",))("A/prognostic/3d/T")
    True
    >>> Selection("A/prognostic/3d/T")("A/prognostic/3d/T")
    False
    """

    variables: Variables

    def __call__(self, key: str) -> bool:
        """Whether the variable of a key is selected."""
        if not self.variables:
            return True
        return any(_covers(variable, key) for variable in self.variables)

    def applying(self, change: Callable[[Any], Any]) -> Callable[[str, Any], Any]:
        """Returns a function of a key and its field that changes selected fields."""
        return lambda key, field: change(field) if self(key) else field

    def unmatched(self, keys: Iterable[str]) -> list[str]:
        """Returns a line for each entry of `variables` that matches none of `keys`."""
        keys = list(keys)
        if not self.variables:
            return []
        if isinstance(self.variables, str):
            return [
                f"got the string {self.variables!r}, expected a list; CREDIT takes its "
                "letters one by one and changes no variable, and so it is here. "
                f"Trained weights may depend on that; if not, write [{self.variables}]"
            ]
        return [
            f"{variable!r} is no variable here and changes "
            f"nothing{hint(variable, keys)}"
            for variable in self.variables
            if not any(_covers(variable, key) for key in keys)
        ]


def _covers(entry: str, key: str) -> bool:
    return key == entry or key.startswith(f"{entry}/")
