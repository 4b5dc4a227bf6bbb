"""The run-time type checker of the jaxtyping hook, see addopts in pyproject.toml."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args, get_origin

from beartype import BeartypeConf, beartype
from jaxtyping import AbstractArray

# An int is valid where a float is annotated, as in pyright.
_decorate = beartype(conf=BeartypeConf(is_pep484_tower=True))
_checked: dict[Any, Callable[..., Any]] = {}


def check(signature: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that raises for arguments of wrong types.

    The check is created by its first call: the packages have 8,700 annotated functions,
    of which a file of tests calls few.

    Args:
        signature: a function without a body.
    """
    created = None

    def checked(*args: Any, **kwargs: Any) -> Any:
        nonlocal created
        if created is None:
            created = _created(signature)
        return created(*args, **kwargs)

    return checked


def _created(signature: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the check of a signature.

    A nested function is defined anew in each call of the outer one, and creating its
    check takes milliseconds. jaxtyping requests a check of a signature only, whose
    annotations are resolved, so that equal signatures of the same function share a
    check.

    Args:
        signature: a function without a body.
    """
    key = _key(signature)
    if key is None:
        return _decorate(signature)
    if key not in _checked:
        _checked[key] = _decorate(signature)
    return _checked[key]


def _key(signature: Callable[..., Any]) -> Any:
    """Returns the cache key of a check, or None if it is not to be cached."""
    if "<locals>" not in getattr(signature, "__qualname__", ""):
        return None
    if signature.__defaults__ or signature.__kwdefaults__ or signature.__closure__:
        return None
    key = (
        *(signature.__module__, signature.__qualname__, signature.__code__),
        *((name, _form(kind)) for name, kind in signature.__annotations__.items()),
    )
    try:
        hash(key)
    except TypeError:
        return None
    return key


def _form(kind: Any) -> Any:
    """Returns a form equal for equal annotations, unlike jaxtyping's classes."""
    if isinstance(kind, type) and issubclass(kind, AbstractArray):
        return kind.__name__, kind.array_type, tuple(kind.dtypes), kind.dim_str
    if isinstance(kind, list):
        return tuple(map(_form, kind))
    parts = get_args(kind)
    return (get_origin(kind), *map(_form, parts)) if parts else kind
