"""Products and sums of many arrays, all of them by one kernel.

XLA launches kernels for every array by itself. Here the programs of all arrays share
one grid, and each finds the array that it works on by its position in the grid.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental.layout import Layout, with_layout_constraint
from jaxtyping import Array, Float, Shaped

from credit_jax.kernels.gpu.call import (
    call_kernel,
    cdiv,
    load,
    next_power_of_2,
    program_id,
    store,
)
from credit_jax.ops import packed as ops
from credit_jax.ops.custom_vjp import custom_vjp
from credit_jax.ops.packed import Rows, Side, rows_of
from credit_jax.ops.vma import match_vma, varying_axes

# Number of values that a program loads at once, and most times that it does.
_VALUES = 4096
_TURNS = 16
# Number of columns of a tile whose rows are summed: one line of memory of float32.
_COLUMNS = 32
# Arrays with at most this many values are packed first.
_SMALL = 2**16


def products(
    matrices: Sequence[Float[Array, "_ _ _"]],
    vectors: Float[Array, " packed"],
    side: Side,
    *,
    interpret: bool = False,
) -> Float[Array, " packed_products"]:
    """`ops.packed.products`."""
    if not _have_indices(matrices):
        return ops.products(matrices, vectors, side)
    *matched, packed = match_vma(*matrices, vectors)
    return _products(tuple(matched), packed, side, interpret)


def dots(
    left: Float[Array, " packed"],
    right: Float[Array, " packed"],
    rows: Rows,
    *,
    interpret: bool = False,
) -> Float[Array, " rows"]:
    """`ops.packed.dots`."""
    return _dots(*match_vma(left, right), rows, interpret)


def spread(numbers: Float[Array, " rows"], rows: Rows) -> Float[Array, " packed"]:
    """`ops.packed.spread` by one gather, instead of a piece for each array."""
    lengths = [length for count, length in rows for _ in range(count)]
    return numbers[np.repeat(np.arange(len(lengths)), lengths)]


def scale(
    arrays: Sequence[Float[Array, "_ ..."]],
    factors: Float[Array, " rows"],
    *,
    interpret: bool = False,
) -> list[Float[Array, "_ ..."]]:
    """`ops.packed.scale`; the gradients of all factors are one kernel."""
    if not _have_indices(arrays):
        return ops.scale(arrays, factors)
    *matched, numbers = match_vma(*arrays, factors)
    return _scale(tuple(matched), numbers, interpret)


def unstack(
    arrays: Sequence[Shaped[Array, "num ..."]], *, interpret: bool = False
) -> list[list[Array]]:
    """`ops.packed.unstack`; one kernel for all small arrays of a type."""
    each: list[Any] = [None] * len(arrays)
    by_type: dict[Any, list[int]] = {}
    for k, array in enumerate(arrays):
        if 0 < array.size <= _SMALL and jnp.issubdtype(array.dtype, jnp.floating):
            key = array.dtype, varying_axes(array)
            by_type.setdefault(key, []).append(k)
        else:
            each[k] = ops.slices(array)
    for alike in by_type.values():
        small = [arrays[k] for k in alike]
        sizes = [array.size // len(array) for array in small for _ in array]
        flat = iter(_unpack(ops.pack(small), tuple(sizes), interpret))
        for k, array in zip(alike, small, strict=True):
            each[k] = [next(flat).reshape(array.shape[1:]) for _ in array]
    return [list(item) for item in zip(*each, strict=True)]


@partial(custom_vjp, nondiff_argnums=(1, 2))
def _unpack(packed: Array, sizes: tuple[int, ...], interpret: bool) -> list[Array]:
    """Returns flat arrays of these sizes, one after the other in the packed one."""
    starts = _starts(sizes)
    tasks = [_Copy(*span) for span in zip(starts, sizes, strict=True)]

    def kernel(ref: Any, *results: Any) -> None:
        _share(tasks, lambda k, task, program: task.run(ref, results[k], program))

    arrays = call_kernel(
        kernel,
        "unpack",
        packed,
        grid=(sum(task.programs for task in tasks),),
        results=[((size,), packed.dtype) for size in sizes],
        interpret=interpret,
    )
    return list(arrays)


def _unpack_forward(
    packed: Array, sizes: tuple[int, ...], interpret: bool
) -> tuple[list[Array], None]:
    return _unpack(packed, sizes, interpret), None


def _unpack_backward(
    sizes: tuple[int, ...], interpret: bool, saved: None, cotangents: list[Array]
) -> tuple[Array]:
    del sizes, interpret, saved
    return (ops.pack(cotangents),)


_unpack.defvjp(_unpack_forward, _unpack_backward)


@partial(custom_vjp, nondiff_argnums=(2, 3))
def _products(
    matrices: tuple[Array, ...], vectors: Array, side: Side, interpret: bool
) -> Array:
    along = {"u": 2, "v": 1}[side]
    starts = _starts([prod(shape) for shape in rows_of(matrices, side)])
    sums = [
        _Sum(matrix.shape, along, right=start)
        for matrix, start in zip(matrices, starts, strict=True)
    ]
    return _reduce(sums, matrices, (vectors,), f"products_{side}", interpret)


def _products_backward(
    side: Side,
    interpret: bool,
    saved: tuple[tuple[Array, ...], Array],
    cotangent: Array,
) -> tuple[tuple[Array, ...], Array]:
    matrices, vectors = saved
    u, v = (vectors, cotangent) if side == "u" else (cotangent, vectors)
    us = ops.unpack(u, rows_of(matrices, "u"))
    vs = ops.unpack(v, rows_of(matrices, "v"))
    by_matrices = tuple(
        b[:, :, None] * a[:, None, :] for a, b in zip(us, vs, strict=True)
    )
    other: Side = "v" if side == "u" else "u"
    return by_matrices, _products(matrices, cotangent, other, interpret)


_products.defvjp(None, _products_backward)


@partial(custom_vjp, nondiff_argnums=(2, 3))
def _dots(left: Array, right: Array, rows: Rows, interpret: bool) -> Array:
    starts = _starts([prod(shape) for shape in rows])
    sums = [
        _Sum((count, 1, length), 2, left=start, right=start, full=True)
        for start, (count, length) in zip(starts, rows, strict=True)
    ]
    return _reduce(sums, (left,), (right,), "dots", interpret)


def _dots_backward(
    rows: Rows, interpret: bool, saved: tuple[Array, Array], cotangent: Array
) -> tuple[Array, Array]:
    # Products of rows rather than of packed arrays, whose slices XLA would copy.
    del interpret
    numbers = ops.unpack(cotangent, tuple((count, 1) for count, _ in rows))
    by_left, by_right = (
        ops.pack([a * b for a, b in zip(numbers, ops.unpack(x, rows), strict=True)])
        for x in reversed(saved)
    )
    return by_left, by_right


_dots.defvjp(None, _dots_backward)


@partial(custom_vjp, nondiff_argnums=(2,))
def _scale(arrays: tuple[Array, ...], factors: Array, interpret: bool) -> list[Array]:
    del interpret
    return ops.scale(arrays, factors)


def _scale_backward(
    interpret: bool,
    saved: tuple[tuple[Array, ...], Array],
    cotangents: list[Array],
) -> tuple[tuple[Array, ...], Array]:
    arrays, factors = saved
    # The kernel reads this order of dims. Without the constraint XLA transposes for it
    # alone, and updates parameters in another order, which is not in place.
    cotangents = [
        with_layout_constraint(cotangent, Layout(tuple(range(cotangent.ndim))))
        for cotangent in cotangents
    ]
    by_arrays = tuple(_scale(tuple(cotangents), factors, interpret))
    sums = [
        _Sum((len(array), 1, array.size // len(array)), 2, full=True)
        for array in arrays
    ]
    by_factors = _reduce(sums, arrays, tuple(cotangents), "dots", interpret)
    return by_arrays, by_factors.astype(factors.dtype)


def _scale_tangent(
    interpret: bool,
    saved: tuple[tuple[Array, ...], Array],
    *tangents: Any,
) -> list[Array]:
    del interpret
    return jax.jvp(ops.scale, saved, tangents)[1]


_scale.defvjp(None, _scale_backward, _scale_tangent)


@dataclass(frozen=True)
class _Sum:
    """An array times another, summed along a dim.

    Attributes:
        shape: (count, rows, columns) of the left one.
        along: the dim to sum, 1 or 2.
        left, right: positions at which the values begin in packed arrays.
        full: whether the right one has the shape of the left one, instead of a
            vector along the summed dim.
    """

    shape: tuple[int, ...]
    along: int
    left: int = 0
    right: int = 0
    full: bool = False

    @property
    def summed(self) -> int:
        return self.shape[self.along]

    @property
    def num_outputs(self) -> int:
        return self.shape[3 - self.along]

    # Triton takes sides that are powers of two. A sum along the contiguous dim loads it
    # in whole rows; a sum along the other one loads lines of `_COLUMNS` of its columns.
    @property
    def tile(self) -> tuple[int, int]:
        """Sides of a tile, powers of two: of the dim of outputs, of the summed one."""
        if self.along == 2:
            summed = min(next_power_of_2(self.summed), _VALUES)
            return min(next_power_of_2(self.num_outputs), _VALUES // summed), summed
        outputs = min(next_power_of_2(self.num_outputs), _COLUMNS)
        return outputs, min(next_power_of_2(self.summed), _VALUES // outputs)

    @property
    def parts(self) -> int:
        """Number of programs that share the sum of one number."""
        return cdiv(self.summed, self.tile[1] * _TURNS)

    @property
    def partial_sums(self) -> int:
        return self.shape[0] * self.parts * self.num_outputs

    @property
    def programs(self) -> int:
        return self.shape[0] * self.parts * cdiv(self.num_outputs, self.tile[0])

    def run(
        self, left: _Place, right: _Place | None, out: _Place, program: Array
    ) -> None:
        """Computes one tile of the partial sums, (count, parts, num_outputs)."""
        output_tile, summed_tile = self.tile
        tiles = cdiv(self.num_outputs, output_tile)
        block, tile = program // tiles, program % tiles
        count, part = block // self.parts, block % self.parts
        output = tile * output_tile + lax.iota(jnp.int32, output_tile)
        inside = output < self.num_outputs
        turns = cdiv(cdiv(self.summed, summed_tile), self.parts)

        def turn(index: Array, total: Array) -> Array:
            first = (part * turns + index) * summed_tile
            summed = first + lax.iota(jnp.int32, summed_tile)
            mask = inside[:, None] & (summed < self.summed)[None, :]
            row, column = output[:, None], summed[None, :]
            if self.along == 1:
                row, column = column, row
            cell = (count * self.shape[1] + row) * self.shape[2] + column
            values = left.load(self.left + cell, mask).astype(total.dtype)
            if right is not None and self.full:
                values *= right.load(self.right + cell, mask).astype(total.dtype)
            elif right is not None:
                where = self.right + count * self.summed + summed
                vector = right.load(where, summed < self.summed)
                values *= vector.astype(total.dtype)[None, :]
            return total + values

        zeros = jnp.zeros((output_tile, summed_tile), out.ref.dtype)
        total = lax.fori_loop(0, turns, turn, zeros).sum(1)
        where = out.start + (count * self.parts + part) * self.num_outputs + output
        store(out.ref.at[where], total, mask=inside)


@dataclass(frozen=True)
class _Copy:
    """Values of a packed array from `start` on."""

    start: int
    size: int

    @property
    def programs(self) -> int:
        return cdiv(self.size, _VALUES)

    def run(self, packed: Any, out: Any, program: Array) -> None:
        where = program * _VALUES + lax.iota(jnp.int32, _VALUES)
        mask = where < self.size
        values = _Place(packed, self.start).load(where, mask)
        store(out.at[where], values, mask=mask)


def _reduce(
    sums: Sequence[_Sum],
    left: Sequence[Array],
    right: Sequence[Array],
    name: str,
    interpret: bool,
) -> Array:
    """Returns the sums, packed.

    Args:
        sums: what to sum.
        left, right: a factor of each sum, or one array with those of all.
        name: name of the kernel.
        interpret: see `call_kernel`.
    """
    lefts, rights = _Factors.of(left), _Factors.of(right)
    # Sums of bfloat16 values are float32 ones.
    wide = jnp.result_type(jnp.float32, *(array.dtype for array in (*left, *right)))
    starts = _starts([one.partial_sums for one in sums])

    def kernel(*refs: Any) -> None:
        *factors, out = refs

        def run(k: int, one: _Sum, program: Array) -> None:
            a = lefts.at(k, factors)
            b = rights.at(k, factors[len(lefts.arrays) :]) if right else None
            one.run(a, b, _Place(out, starts[k]), program)

        _share(sums, run)

    (partial_sums,) = call_kernel(
        kernel,
        name,
        *lefts.arrays,
        *rights.arrays,
        grid=(sum(one.programs for one in sums),),
        results=[((sum(one.partial_sums for one in sums),), wide)],
        interpret=interpret,
    )
    if all(one.parts == 1 for one in sums):
        return partial_sums
    # Programs share long sums; another kernel adds their parts. Atomic additions would
    # give other last digits whenever another program ends first.
    rest = [
        _Sum((one.shape[0], one.parts, one.num_outputs), 1, left=start)
        for one, start in zip(sums, starts, strict=True)
    ]
    return _reduce(rest, (partial_sums,), (), "sums", interpret)


@dataclass(frozen=True)
class _Place:
    """Values of a flat array from an index on."""

    ref: Any
    start: int

    def load(self, where: Array, mask: Array) -> Array:
        return load(self.ref.at[self.start + where], mask=mask, other=0.0)


@dataclass(frozen=True)
class _Factors:
    """Flat arrays in which the factors of several sums begin at some index.

    Attributes:
        arrays: the flat arrays.
        places: (index of the array, start) of each factor; one entry if all are in one.
    """

    arrays: list[Array]
    places: list[tuple[int, int]]

    @classmethod
    def of(cls, arrays: Sequence[Array]) -> _Factors:
        """Packs small arrays, which are parts of larger ones in most programs.

        XLA gathers all of them by one kernel; as operands of their own each would be
        copied.
        """
        small = [k for k, array in enumerate(arrays) if array.size <= _SMALL]
        if len(small) < 2:
            small = []
        flat = [ops.pack([arrays[k] for k in small])] if small else []
        starts = _starts([arrays[k].size for k in small])
        places = {k: (0, start) for k, start in zip(small, starts, strict=True)}
        for k, array in enumerate(arrays):
            if k not in places:
                places[k] = len(flat), 0
                flat.append(array.reshape(-1))
        return cls(flat, [places[k] for k in range(len(arrays))])

    def at(self, k: int, refs: Sequence[Any]) -> _Place:
        """Returns the place of factor k, given the refs of `arrays`."""
        index, start = self.places[k if len(self.places) > 1 else 0]
        return _Place(refs[index], start)


def _share(tasks: Sequence[Any], run: Callable[[int, Any, Array], None]) -> None:
    """Runs the task that this program of the grid belongs to.

    Args:
        tasks: they have `programs` each, in the order of the grid.
        run: function of the index of a task, the task, and the number of the program
            among those of the task.
    """
    starts = _starts([task.programs for task in tasks])
    program = program_id(0)

    # A binary tree of branches: of n tasks a program compares log2(n) times, and the
    # code of each is in the kernel once.
    def among(low: int, high: int) -> None:
        if high - low == 1:
            run(low, tasks[low], program - starts[low])
            return
        middle = (low + high) // 2
        lax.cond(
            program < starts[middle],
            lambda: among(low, middle),
            lambda: among(middle, high),
        )

    among(0, len(tasks))


def _have_indices(arrays: Sequence[Array]) -> bool:
    """Whether 32 bits hold the indices of the values, as kernels compute them."""
    return all(array.size < 2**31 for array in arrays)


def _starts(sizes: Sequence[int]) -> list[int]:
    """Returns where each of several pieces of these sizes begins."""
    return [0, *accumulate(sizes)][:-1]
