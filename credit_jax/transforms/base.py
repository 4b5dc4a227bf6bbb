"""What a block is: a function of a nested batch, and nothing else.

Before `concat`, a batch of samples is
`{"input": {source: {key: (batch, level, time, lat, lon)}}, "target": {...}}` with keys
"{source}/{field_type}/{3d|2d}/{variable}"; `concat` makes it `{"x": ..., "y": ...}`.
After the model it is `{"y_pred": ..., "y": ..., "channel_map": {key: slice}}`, and
`reconstruct` adds nested dicts. Arrays are numpy on the host or JAX in the graph: a
block uses only operations that both have.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, runtime_checkable

from credit_jax.config.base import StrictModel

Batch: TypeAlias = Mapping[str, Any]
Block: TypeAlias = Callable[[Batch], dict[str, Any]]
Build: TypeAlias = Callable[[Any], Block]
Entry: TypeAlias = tuple[type[StrictModel], Build]


@runtime_checkable
class Group(Protocol):
    """One variable of a channel layout, as `credit_jax.data.channels` has it."""

    @property
    def var_key(self) -> str:
        """Like "{source}/{field_type}/{3d|2d}/{variable}"."""
        ...

    @property
    def n_levels(self) -> int:
        """Its channels."""
        ...


def variable_of(var_key: str) -> str:
    """Name of the variable of a key: its last part.

    >>> variable_of("ERA5/prognostic/3d/T")
    'T'
    """
    return var_key.split("/")[-1]


def map_fields(
    batch: Batch, change: Callable[[str, Any], Any], parts: Sequence[str]
) -> dict[str, Any]:
    """A new batch whose fields in some parts are `change(key, array)`.

    Args:
        batch: nested, not changed.
        change: takes a key and its array.
        parts: of "input" and "target"; those that the batch lacks are skipped.
    """
    new = dict(batch)
    for part in parts:
        if part in batch:
            new[part] = {
                source: {key: change(key, array) for key, array in fields.items()}
                for source, fields in batch[part].items()
            }
    return new
