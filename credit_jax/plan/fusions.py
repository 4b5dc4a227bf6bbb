"""The kernels that XLA makes of a traced program, and the bytes that they move.

XLA fuses elementwise operations, slices, gathers, transposes and broadcasts into the
operations that use them, so that they neither write nor read memory. What is left is
counted here by four rules:

- Products, convolutions, sorts, library and Pallas calls, and collectives take arrays
  from memory; so do rematerialized programs, whose inputs pass a barrier, and loops.
- Reductions, scatters and updates of slices compute what they take, and write.
- An array that several kernels use is computed in each of them, or written once and
  read by each, whichever moves fewer bytes.
- Kernels over equally many elements that read a common array, or one what the other
  writes, are one kernel (multi-output fusion), unless another one lies between them.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from jax.extend import core

from credit_jax.models.flops import equation_flops, inner_jaxprs

# Operations that take their operands from memory and write their results.
_OPAQUE = (
    "all_gather",
    "all_gather_invariant",
    "all_to_all",
    "conv_general_dilated",
    "cumsum",
    "cumlogsumexp",
    "cummax",
    "dot_general",
    "fft",
    "pallas_call",
    "pmax",
    "ppermute",
    "psum",
    "psum_invariant",
    "ragged_dot_general",
    "reduce_scatter",
    "sort",
    "top_k",
)
# Operations that compute their operands, as far as these are elementwise, and write.
_ROOTS = (
    "argmax",
    "argmin",
    "dynamic_update_slice",
    "reduce_and",
    "reduce_max",
    "reduce_min",
    "reduce_or",
    "reduce_prod",
    "reduce_sum",
    "reduce_window",
    "scatter",
    "scatter-add",
    "select_and_scatter_add",
)
# Operations that always write their results.
_WRITERS = (*_OPAQUE, *_ROOTS)
# Bytes of the keys that sorted updates have.
_KEY = 4
# Of these, those that change an operand in place.
_IN_PLACE = ("dynamic_update_slice", "scatter", "scatter-add")
# Operations that read a part of their first operand.
_PARTS = ("dynamic_slice", "gather", "slice", "split")
# Other names of the same array.
_VIEWS = (
    "copy",
    "expand_dims",
    "layout_constraint",
    "pcast",
    "pvary",
    "reshape",
    "squeeze",
)
# Of the dimension that XLA reduces in one kernel: columns and rows of a matrix. More
# are reduced in two (its TreeReductionRewriter).
_COLUMNS, _ROWS = 4096, 16384
_REMAT = ("checkpoint", "remat", "remat2")
_LOOPS = ("scan", "while", "cond")


@dataclass
class TracedKernel:
    """A kernel, or a collective, of a traced program.

    Attributes:
        equation: the equation whose results it writes; the first of several.
        scopes: named scopes of that equation.
        times: how often it runs.
        bytes: bytes that one run reads and writes.
        flops: operations of its products and convolutions.
    """

    equation: Any
    scopes: str
    times: int
    bytes: float
    flops: float = 0.0


def traced_kernels(jaxpr: Any, *, ordered: bool = False) -> list[TracedKernel]:
    """Returns the kernels of a program, each with what it moves.

    Args:
        jaxpr: the program, without equations that nothing needs.
        ordered: whether scatters add in one order, as
            `xla_gpu_exclude_nondeterministic_ops` has them.
    """
    program = _Program(ordered)
    variables = {v: program.array(v.aval) for v in (*jaxpr.invars, *jaxpr.constvars)}
    program.in_memory.update(variables.values())
    program.read(jaxpr, variables, "", 1)
    program.in_memory.update(
        variables[v] for v in jaxpr.outvars if not isinstance(v, core.Literal)
    )
    return program.kernels()


@dataclass
class _Operation:
    """An innermost equation.

    Attributes:
        equation: the equation.
        scopes, times: see `TracedKernel`.
        operands, results: numbers of arrays.
    """

    equation: Any
    scopes: str
    times: int
    operands: list[int]
    results: list[int]

    @property
    def name(self) -> str:
        return self.equation.primitive.name


@dataclass
class _Group:
    """Operations that share a kernel.

    Attributes:
        kernel: the kernel; its bytes are those that it writes, until all are placed.
        size: elements that it runs over; -1 for a kernel that takes no others in.
        reads: bytes that it reads of arrays.
        writes: arrays that it writes.
        before: bits of the kernels that run before it.
    """

    kernel: TracedKernel
    size: int
    reads: dict[int, float]
    writes: set[int]
    before: int = 0


@dataclass
class _Program:
    """A program without calls: operations on numbered arrays.

    Attributes:
        ordered: see `traced_kernels`.
        bytes, size: bytes and elements of every array.
        operations: all operations, in the order of the program.
        in_memory: arrays that a kernel writes, or that the program is given.
    """

    ordered: bool
    bytes: list[float] = field(default_factory=list)
    size: list[int] = field(default_factory=list)
    operations: list[_Operation] = field(default_factory=list)
    in_memory: set[int] = field(default_factory=set)

    def array(self, aval: Any) -> int:
        size = math.prod(getattr(aval, "shape", ()))
        self.size.append(size)
        self.bytes.append(float(size * getattr(aval.dtype, "itemsize", 4)))
        return len(self.size) - 1

    def read(
        self, jaxpr: Any, variables: dict[Any, int], scopes: str, times: int
    ) -> None:
        """Appends the operations of a jaxpr, whose inputs are in `variables`."""
        for equation in jaxpr.eqns:
            inside = f"{scopes}/{equation.source_info.name_stack}"
            operands = [
                variables[v] for v in equation.invars if not isinstance(v, core.Literal)
            ]
            self._equation(equation, operands, variables, inside, times)

    def _equation(
        self,
        equation: Any,
        operands: list[int],
        variables: dict[Any, int],
        scopes: str,
        times: int,
    ) -> None:
        name, params = equation.primitive.name, equation.params
        inner = [] if name in _WRITERS else [*inner_jaxprs(params)]
        if (
            inner
            and name not in _LOOPS
            and len(inner[0].invars) == len(equation.invars)
        ):
            self._call(equation, inner[0], variables, scopes, times)
            return
        is_view = name in _VIEWS or (
            name == "transpose" and equation.outvars[0].aval.ndim < 3
        )
        if is_view and operands:
            variables[equation.outvars[0]] = operands[0]
            return
        results = [self.array(v.aval) for v in equation.outvars]
        variables.update(zip(equation.outvars, results, strict=True))
        if not inner:
            done = _Operation(equation, scopes, times, operands, results)
            self.operations.append(done)
            return
        runs = times * (params["length"] if name == "scan" else 1)
        self.in_memory.update(operands)
        self.in_memory.update(results)
        for program in inner:
            within = {
                v: self.array(v.aval) for v in (*program.invars, *program.constvars)
            }
            self.in_memory.update(within.values())
            self.read(program, within, scopes, runs)
            self.in_memory.update(
                within[v] for v in program.outvars if not isinstance(v, core.Literal)
            )

    def _call(
        self,
        equation: Any,
        program: Any,
        variables: dict[Any, int],
        scopes: str,
        times: int,
    ) -> None:
        """Appends a called program, as if it were written where it is called."""
        within = {v: self.array(v.aval) for v in program.constvars}
        for inner, outer in zip(program.invars, equation.invars, strict=True):
            literal = isinstance(outer, core.Literal)
            within[inner] = self.array(inner.aval) if literal else variables[outer]
        params = equation.params
        if equation.primitive.name in _REMAT and params["differentiated"]:
            # Its inputs pass a barrier, so that XLA does not keep what it recomputes.
            self.in_memory.update(within[v] for v in program.invars)
        self.read(program, within, scopes, times)
        for inner, outer in zip(program.outvars, equation.outvars, strict=True):
            literal = isinstance(inner, core.Literal)
            variables[outer] = self.array(outer.aval) if literal else within[inner]

    def kernels(self) -> list[TracedKernel]:
        """The kernels of the operations."""
        self._settle()
        placement = _Placement(self)
        groups = placement.groups
        reads: dict[int, dict[int, float]] = {}
        for operation in self.operations:
            taken = self._taken(operation, reads)
            if not self._runs(operation):
                for result in operation.results:
                    reads[result] = taken
                continue
            before = len(groups)
            placement.add(operation, taken)
            if len(groups) > before and self._reduces_twice(operation):
                groups.append(self._second(operation))
            if self._is_sorted(operation):
                groups.extend(self._in_order(operation))
        for group in groups:
            outside = sum(
                size for one, size in group.reads.items() if one not in group.writes
            )
            group.kernel.bytes += outside
        return [group.kernel for group in groups]

    def _runs(self, operation: _Operation) -> bool:
        return operation.name in _WRITERS or any(
            result in self.in_memory for result in operation.results
        )

    def _reduces_twice(self, operation: _Operation) -> bool:
        """Whether a reduction is over more values than one kernel reduces."""
        if not operation.name.startswith("reduce_") or "axes" not in (
            operation.equation.params
        ):
            return False
        ndim = operation.equation.invars[0].aval.ndim
        is_row = ndim - 1 in operation.equation.params["axes"]
        return self._reduced(operation) > (_ROWS if is_row else _COLUMNS)

    def _reduced(self, operation: _Operation) -> float:
        """Values of which a reduction makes one."""
        return self.size[operation.operands[0]] / max(
            self.size[operation.results[0]], 1
        )

    def _second(self, operation: _Operation) -> _Group:
        """The second of two kernels of a reduction, which have equal shares."""
        partial = math.sqrt(self._reduced(operation))
        moved = 2 * partial * self.bytes[operation.results[0]]
        kernel = TracedKernel(
            operation.equation, operation.scopes, operation.times, moved
        )
        return _Group(kernel, -1, {}, set())

    def _is_sorted(self, operation: _Operation) -> bool:
        """Whether XLA sorts updates, so that a scatter adds them in one order."""
        name = operation.name
        scatters = name.startswith("scatter")
        return (
            self.ordered
            and scatters
            and not operation.equation.params["unique_indices"]
        )

    def _in_order(self, operation: _Operation) -> Iterator[_Group]:
        """The sort of the numbers of a scatter, and the scan that adds equal keys.

        Every number has a key. Each of log2(n) steps of the scan reads numbers and
        keys and writes numbers.
        """
        updates = operation.operands[-1]
        size, number = self.size[updates], self.bytes[updates]
        keys = float(_KEY * size)
        steps = math.ceil(math.log2(max(size, 2)))
        for count, moved in ((1, 2 * (number + keys)), (steps, 2 * number + keys)):
            kernel = TracedKernel(
                operation.equation, operation.scopes, operation.times * count, moved
            )
            yield _Group(kernel, -1, {}, set())

    def _taken(
        self, operation: _Operation, reads: Mapping[int, Mapping[int, float]]
    ) -> dict[int, float]:
        """The arrays in memory that an operation reads, and their bytes."""
        taken: dict[int, float] = {}
        for position, operand in enumerate(operation.operands):
            share = 1.0
            if position == 0 and operation.name in _PARTS:
                size = sum(self.size[result] for result in operation.results)
                share = min(1.0, size / max(self.size[operand], 1))
            if position == 0 and operation.name in _IN_PLACE:
                continue
            parts = reads.get(operand)
            if parts is None:
                parts = {operand: self.bytes[operand]}
            for array, number in parts.items():
                most = max(taken.get(array, 0.0), share * number)
                taken[array] = most
        return taken

    def _settle(self) -> None:
        """Decides which arrays that could be fused are in memory."""
        for operation in self.operations:
            if operation.name in _OPAQUE:
                self.in_memory.update(operation.operands)
            if operation.name in _IN_PLACE:
                self.in_memory.add(operation.operands[0])
            if self._is_sorted(operation):
                self.in_memory.add(operation.operands[-1])
            if operation.name in _WRITERS:
                self.in_memory.update(operation.results)
        least: dict[int, dict[int, float]] = {}
        for operation in self.operations:
            if not self._runs(operation):
                taken = self._taken(operation, least)
                least.update(dict.fromkeys(operation.results, taken))
        kernels: dict[int, set[int]] = defaultdict(set)
        for number in range(len(self.operations) - 1, -1, -1):
            operation = self.operations[number]
            if self._runs(operation):
                within = {number}
            else:
                (result,) = operation.results[:1]
                within = set().union(*(kernels[r] for r in operation.results))
                again = sum(least[result].values())
                written = sum(self.bytes[r] for r in operation.results)
                count = len(within)
                if count > 1 and count * again > again + written * (1 + count):
                    self.in_memory.update(operation.results)
                    within = {number}
            for operand in operation.operands:
                kernels[operand] |= within


@dataclass
class _Placement:
    """The kernels of a program, as its operations are added one after the other.

    Attributes:
        program: the program.
        groups: the kernels.
        writer: number of the kernel that writes an array.
        users: numbers of the kernels over some elements that read an array.
    """

    program: _Program
    groups: list[_Group] = field(default_factory=list)
    writer: dict[int, int] = field(default_factory=dict)
    users: dict[tuple[int, int], list[int]] = field(
        default_factory=lambda: defaultdict(list)
    )

    def add(self, operation: _Operation, taken: Mapping[int, float]) -> None:
        """Adds an operation that writes to a kernel, an earlier one if one fits."""
        name, program = operation.name, self.program
        written = sum(program.bytes[result] for result in operation.results)
        size = max(program.size[array] for array in operation.results)
        if name in _IN_PLACE:
            update = operation.operands[-1 if name != "dynamic_update_slice" else 1]
            written, size = program.bytes[update], program.size[update]
        elif name in _ROOTS:
            size = program.size[operation.operands[0]]
        before = 0
        for array in taken:
            if array in self.writer:
                number = self.writer[array]
                before |= self.groups[number].before | (1 << number)
        merges = name not in _OPAQUE and name not in _IN_PLACE
        fits = None
        if merges:
            fits = self._joined(operation, size, taken)
        if fits is None:
            kernel = TracedKernel(
                operation.equation,
                operation.scopes,
                operation.times,
                0.0,
                equation_flops(operation.equation) if name in _OPAQUE else 0.0,
            )
            self.groups.append(_Group(kernel, size if merges else -1, {}, set()))
            fits = len(self.groups) - 1
        group = self.groups[fits]
        group.before |= before & ~(1 << fits)
        group.kernel.bytes += written
        for array, number in taken.items():
            group.reads[array] = max(group.reads.get(array, 0.0), number)
            self.users[array, size].append(fits)
        for result in operation.results:
            self.writer[result] = fits
            group.writes.add(result)

    def _joined(
        self, operation: _Operation, size: int, taken: Mapping[int, float]
    ) -> int | None:
        """The number of an earlier kernel that an operation can be part of."""
        for array in taken:
            near = [*self.users.get((array, size), ())]
            near += [self.writer[array]] if array in self.writer else []
            for number in near:
                group = self.groups[number]
                alike = group.size == size and group.kernel.times == operation.times
                if alike and not self._between(number, taken):
                    return number
        return None

    def _between(self, number: int, taken: Mapping[int, float]) -> bool:
        """Whether a kernel between a group and what is read would have to run first."""
        bit = 1 << number
        return any(
            self.groups[self.writer[array]].before & bit
            for array in taken
            if array in self.writer and self.writer[array] != number
        )
