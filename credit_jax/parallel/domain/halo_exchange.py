"""Halo exchange for code on local arrays: exchange, apply any stencil, trim.

Operations on fields do not use it, as they reshard to the rows that they need. The
communication itself is in `parallel.rows.exchange`.
"""

from __future__ import annotations

from dataclasses import dataclass

from jax import lax
from jaxtyping import Array, Shaped

from credit_jax.parallel.collectives import axis_size
from credit_jax.parallel.domain.output_layout import consecutive_rows
from credit_jax.parallel.mesh.device_mesh import DOMAIN
from credit_jax.parallel.rows.exchange import HALO, reshard
from credit_jax.parallel.rows.layout import Field, block_layout


def halo_exchange(
    x: Field | Shaped[Array, "*shape"],
    halo_width: int,
    *,
    dim: int = -2,
    axis: str | None = DOMAIN,
    size: int | None = None,
    periodic: bool = False,
) -> Shaped[Array, "*wider"]:
    """Returns the local block with `halo_width` rows of its neighbors on each side."""
    if halo_width < 0:
        raise ValueError(f"halo_width is {halo_width}; expected 0 or more rows")
    if not isinstance(x, Field):
        num_shards, length = axis_size(axis), x.shape[dim]
        rows = num_shards * length if size is None else size
        split = axis if num_shards > 1 else None
        layout = block_layout(rows, num_shards, split, dim % x.ndim)
        if layout.length != length:
            raise ValueError(
                f"{rows} rows over {num_shards} shards are blocks of {layout.length}, "
                f"but dim {dim} of the local array {x.shape} has {length}"
            )
        x = Field(x, layout)
    layout = x.layout
    if not layout.is_block:
        raise ValueError(
            "the rows of the field are not in equal blocks; "
            "reshard(field, field.layout.to_blocks()) puts them there"
        )
    firsts = range(0, layout.num_shards * layout.length, layout.length)
    # Differs from CREDIT: on one device it pads, too, where CREDIT returns `x`, so the
    # same program runs on any number of shards. Rows beyond the poles are zeros or
    # those of the other end; the halo may be wider than a shard, and follows the last
    # row that is not padding.
    starts = [first - halo_width if first < layout.size else None for first in firsts]
    length = layout.length + 2 * halo_width
    need = consecutive_rows(layout, starts, length, periodic=periodic)
    return reshard(x, need, scope=HALO).data


def trim(
    x: Shaped[Array, "*shape"], leading: int, after: int, dim: int = -2
) -> Shaped[Array, "*narrower"]:
    """Removes rows at both ends, such as the halo after a stencil."""
    rows = x.shape[dim]
    if min(leading, after) < 0 or leading + after > rows:
        raise ValueError(
            f"cannot trim {leading} and {after} rows of {rows}; expected 0 or more, "
            f"{rows} at most in all"
        )
    return lax.slice_in_dim(x, leading, rows - after, axis=dim % x.ndim)


@dataclass(frozen=True)
class HaloExchange:
    """`halo_exchange` as a callable object, with the interface of CREDIT's layer."""

    halo_width: int
    dim: int = -2
    axis: str | None = DOMAIN
    periodic: bool = False

    def __call__(
        self, x: Field | Shaped[Array, "*shape"], *, size: int | None = None
    ) -> Shaped[Array, "*wider"]:
        """Returns the local block with its halo."""
        return halo_exchange(
            x,
            self.halo_width,
            dim=self.dim,
            axis=self.axis,
            size=size,
            periodic=self.periodic,
        )

    @staticmethod
    def trim(
        x: Shaped[Array, "*shape"], halo_before: int, halo_after: int, dim: int = -2
    ) -> Shaped[Array, "*narrower"]:
        """See `credit_jax.parallel.domain.halo_exchange.trim`."""
        return trim(x, halo_before, halo_after, dim)
