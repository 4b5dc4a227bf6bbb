"""Reads a pickle as plain data, without importing the classes that it names.

The index of a torch.distributed checkpoint (`.metadata`) is a pickle, which torch reads
with `pickle.load`. This module interprets its instructions without executing code. An
object of an allowed class becomes a `PickledObject` of its name, arguments and state;
any other name raises an error.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pickletools import genops
from typing import Any


@dataclass
class PickledObject:
    """An object of the pickle, described but not constructed.

    Attributes:
        name: "module.class".
        args: arguments of its constructor.
        state: argument of `__setstate__`.
    """

    name: str
    args: tuple[Any, ...] = ()
    state: Any = None

    def get(self, field: str, default: Any = None) -> Any:
        """A field of the state."""
        return self.state.get(field, default) if isinstance(self.state, dict) else None

    def __hash__(self) -> int:
        return id(self)


@dataclass(frozen=True)
class _Name:
    """A class or function that the file names."""

    path: str


_MARK = object()
_CONSTANTS = {
    "NONE": None,
    "NEWTRUE": True,
    "NEWFALSE": False,
}
_VALUES = {
    "BININT", "BININT1", "BININT2", "INT", "LONG", "LONG1", "LONG4", "BINFLOAT",
    "FLOAT", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "UNICODE", "BINBYTES",
    "SHORT_BINBYTES", "BINBYTES8",
}  # fmt: skip
_EMPTY = {"EMPTY_LIST": list, "EMPTY_DICT": dict, "EMPTY_SET": set}
_TUPLES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


def read_pickle(data: bytes, allowed: Collection[str]) -> Any:
    """Returns the object of a pickle as dicts, lists, sets, strings and numbers.

    Args:
        data: the pickle.
        allowed: names of classes and functions, "module.name", that may occur; they
            become `PickledObject`s.

    Raises:
        ValueError: another name occurs, or the pickle is broken.
    """
    reader = _Reader(allowed)
    try:
        for opcode, argument in _instructions(data):
            reader.step(opcode, argument)
        return reader.stack.pop()
    except (IndexError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"broken pickle: {error!r}") from None


def _instructions(data: bytes) -> list[tuple[str, Any]]:
    """Names and arguments of the instructions, without the final STOP."""
    try:
        instructions = [(opcode.name, argument) for opcode, argument, _ in genops(data)]
    except ValueError as error:
        raise ValueError(f"broken pickle: {error}") from None
    return instructions[:-1]


class _Reader:
    """The stack and the memo of the pickle's instructions."""

    def __init__(self, allowed: Collection[str]) -> None:
        self.allowed = allowed
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def step(self, name: str, argument: Any) -> None:
        """Executes one instruction."""
        stack = self.stack
        if name in ("PROTO", "FRAME"):
            return
        if name in _VALUES:
            stack.append(argument)
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in _EMPTY:
            stack.append(_EMPTY[name]())
        elif name in _TUPLES:
            count = _TUPLES[name]
            items = tuple(stack[len(stack) - count :])
            del stack[len(stack) - count :]
            stack.append(items)
        elif name == "MARK":
            stack.append(_MARK)
        elif name in ("MEMOIZE", "BINPUT", "LONG_BINPUT", "PUT"):
            place = len(self.memo) if name == "MEMOIZE" else int(argument)
            self.memo[place] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET", "GET"):
            stack.append(self.memo[int(argument)])
        else:
            self._build(name, argument)

    def _build(self, name: str, argument: Any) -> None:
        stack = self.stack
        if name == "GLOBAL":
            stack.append(self._name(*argument.split(" ", 1)))
        elif name == "STACK_GLOBAL":
            last, module = stack.pop(), stack.pop()
            stack.append(self._name(module, last))
        elif name in ("REDUCE", "NEWOBJ"):
            args, what = stack.pop(), stack.pop()
            stack.append(PickledObject(what.path, tuple(args)))
        elif name == "BUILD":
            state = stack.pop()
            stack[-1].state = state
        elif name in ("APPEND", "SETITEM"):
            items = [stack.pop() for _ in range(1 if name == "APPEND" else 2)][::-1]
            self._extend(items)
        elif name in ("APPENDS", "SETITEMS", "ADDITEMS"):
            self._extend(self._to_mark())
        elif name in ("TUPLE", "LIST", "DICT", "FROZENSET"):
            items = self._to_mark()
            constructors: dict[str, Any] = {
                "TUPLE": tuple,
                "LIST": list,
                "FROZENSET": frozenset,
            }
            pairs = zip(items[::2], items[1::2], strict=True)
            stack.append(dict(pairs) if name == "DICT" else constructors[name](items))
        elif name == "POP":
            stack.pop()
        else:
            raise ValueError(f"the pickle has an instruction {name}, which is not read")

    def _name(self, module: str, last: str) -> _Name:
        path = f"{module}.{last}"
        if path not in self.allowed:
            raise ValueError(
                f"the file asks for {path}, which is not among what such a file may "
                "name; it was not loaded, and nothing of it was run"
            )
        return _Name(path)

    def _to_mark(self) -> list[Any]:
        place = max(i for i, item in enumerate(self.stack) if item is _MARK)
        items = self.stack[place + 1 :]
        del self.stack[place:]
        return items

    def _extend(self, items: list[Any]) -> None:
        target: Any = self.stack[-1]
        if isinstance(target, PickledObject):
            # An OrderedDict's items; no other record of the index is filled this way.
            target.state = target.state or {}
            target = target.state
        if isinstance(target, dict):
            target.update(zip(items[::2], items[1::2], strict=True))
        elif isinstance(target, set):
            target.update(items)
        else:
            target.extend(items)
