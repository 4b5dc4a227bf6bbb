"""Names of parameters under the parallel wrappers and older layouts of CREDIT.

Parallel wrappers, torch.compile and older versions of CREDIT write the same parameter
under other names. `current_names` maps them to the names in the key table.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from credit_jax.state_dict.torch_model import KeyRename

# Prefixes and infixes of modules that wrap another one.
_PREFIX = re.compile(r"^(?:module\.|_orig_mod\.|_fsdp_wrapped_module\.)+")
_INNER = re.compile(
    r"(?<=\.)(?:_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\."
    r"|^_checkpoint_wrapped_module\."
)
# A domain-parallel layer has the layer that it replaces as its attribute `conv`.
_DOMAIN = KeyRename(re.compile(r"(.*)\.conv\.([^.]+)"), r"\1.\2")
_IS_DOMAIN = re.compile(r"\.conv(?:s\.\d+)?\.conv\.")

WRAPPER, DOMAIN, OLD_LAYOUT = "wrapper removed", "domain layer", "older layout"


@dataclass(frozen=True)
class RenamedKey:
    """A key of a file and its name in the key table.

    Attributes:
        file_key: the key in the file.
        name: the key in the table.
        steps: what was changed, in order.
    """

    file_key: str
    name: str
    steps: tuple[str, ...] = ()


def current_names(
    keys: Iterable[str], known: Collection[str], renames: Iterable[KeyRename] = ()
) -> list[RenamedKey]:
    """Maps the keys of a file to names in the key table.

    Wrappers are removed first. If the result is not in the table, it is tried without
    the `.conv` of domain-parallel layers and under the renames of the model. A key that
    remains unknown is kept, and is reported when the table is applied.

    Args:
        keys: keys of the file.
        known: keys of the table.
        renames: renames of older versions of the model.

    Raises:
        ValueError: two keys of the file have the same name.
    """
    known, renames = set(known), tuple(renames)
    renamed = [_renamed(key, known, renames) for key in keys]
    first: dict[str, str] = {}
    for key in renamed:
        if key.name in first:
            raise ValueError(
                f"{first[key.name]!r} and {key.file_key!r} are both {key.name!r}; "
                "the file holds two models"
            )
        first[key.name] = key.file_key
    return renamed


def _renamed(key: str, known: set[str], renames: tuple[KeyRename, ...]) -> RenamedKey:
    plain = _INNER.sub("", _PREFIX.sub("", key))
    unwrapped = (WRAPPER,) if plain != key else ()
    for name, steps in _candidates(plain, renames):
        if name in known:
            return RenamedKey(key, name, unwrapped + steps)
    return RenamedKey(key, plain, unwrapped)


def _candidates(
    plain: str, renames: tuple[KeyRename, ...]
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yields possible current names of a key, and the changes that lead to them."""
    yield plain, ()
    domain = _apply(_DOMAIN, plain)
    starts: list[tuple[str, tuple[str, ...]]] = [(plain, ())]
    if domain is not None:
        yield domain, (DOMAIN,)
        starts.insert(0, (domain, (DOMAIN,)))
    for start, steps in starts:
        for rename in renames:
            name = _apply(rename, start)
            if name is not None:
                yield name, (*steps, OLD_LAYOUT)


def _apply(rename: KeyRename, key: str) -> str | None:
    match = rename.pattern.fullmatch(key)
    return match and match.expand(rename.replacement)


def is_domain_parallel(keys: Iterable[str]) -> bool:
    """Whether a state dict comes from a domain-parallel run."""
    return any(_IS_DOMAIN.search(key) for key in keys)
