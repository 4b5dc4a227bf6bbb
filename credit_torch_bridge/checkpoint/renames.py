"""The names of one model under every wrapper and layout that CREDIT has saved.

Parallel wrappers, torch.compile and older versions of CREDIT write the same parameter
under other names. `current_names` finds the name that the key table knows.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass

# Put in front of every name, or into the middle of it, by what wraps a module.
_PREFIX = re.compile(r"^(?:module\.|_orig_mod\.|_fsdp_wrapped_module\.)+")
_INNER = re.compile(
    r"(?<=\.)(?:_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\."
    r"|^_checkpoint_wrapped_module\."
)
# A domain-parallel layer holds the layer that it replaces as `conv`.
_DOMAIN = re.compile(r"^(.*)\.conv\.([^.]+)$")
# A branch of the cross-scale embedding was a bare convolution; it is a Sequential now.
_OLD_BRANCH = re.compile(r"^(.*\bconvs\.\d+)\.(?!\d+\.)([^.]+)$")
_OLD_DECODER = re.compile(r"^up_block4\.weight(_orig)?$")
_NEXTGEN = re.compile(r"(^|\.)(level_embedding|col_attn|spectral_bottleneck|to_q)\.")

WRAPPER, DOMAIN, OLD_BRANCH = "wrapper removed", "domain layer", "older layout"


@dataclass(frozen=True)
class Renamed:
    """One name of a file.

    Attributes:
        given: as it stands there.
        name: as the key table has it.
        steps: what was done, in order.
    """

    given: str
    name: str
    steps: tuple[str, ...] = ()


def current_names(given: Iterable[str], wanted: Collection[str]) -> list[Renamed]:
    """The names that the key table knows, for the names of a file.

    Wrappers are taken off first. A name that is then not wanted is tried without the
    `.conv` of domain-parallel layers, and in the layout of today's cross-scale
    embedding. A name that stays unknown is left as it is, for the report of the table.

    Args:
        given: names of the file.
        wanted: names of the key table; empty where the model is not known.

    Raises:
        ValueError: two names of the file would become one.
    """
    known = set(wanted)
    renamed = [_current(name, known) for name in given]
    first: dict[str, str] = {}
    for entry in renamed:
        if entry.name in first:
            raise ValueError(
                f"{first[entry.name]!r} and {entry.given!r} are both {entry.name!r}; "
                "the file holds two models"
            )
        first[entry.name] = entry.given
    return renamed


def _current(given: str, wanted: set[str]) -> Renamed:
    name = _INNER.sub("", _PREFIX.sub("", given))
    steps = (WRAPPER,) if name != given else ()
    if name in wanted:
        return Renamed(given, name, steps)
    for candidate, more in _candidates(name):
        if candidate in wanted:
            return Renamed(given, candidate, steps + more)
    return Renamed(given, name, steps)


def _candidates(name: str) -> list[tuple[str, tuple[str, ...]]]:
    """Other names that a name may stand for, and why."""
    plain = _DOMAIN.sub(r"\1.\2", name)
    found = [(plain, (DOMAIN,))] if plain != name else []
    for candidate, steps in [*found, (name, ())]:
        branch = _OLD_BRANCH.sub(r"\1.1.\2", candidate)
        if branch != candidate:
            found.append((branch, (*steps, OLD_BRANCH)))
    return found


def is_nextgen(names: Iterable[str]) -> bool:
    """Whether a state dict is that of a `nextgen_wxformer`."""
    return any(_NEXTGEN.search(name) for name in names)


def is_domain(names: Iterable[str]) -> bool:
    """Whether a state dict comes from a domain-parallel run."""
    return any(".conv.conv." in name or _is_branch(name) for name in names)


def _is_branch(name: str) -> bool:
    return re.search(r"\.convs\.\d+\.conv\.", name) is not None


def refuse_other_models(names: Collection[str], model: str, wanted: set[str]) -> None:
    """Raises where a state dict is clearly that of a model that cannot be converted.

    Args:
        names: of the file, wrappers removed.
        model: `model.type` of the config.
        wanted: names of its key table.

    Raises:
        ValueError: nextgen_wxformer, or the transposed-convolution decoder.
    """
    if is_nextgen(names) and not is_nextgen(wanted):
        layout = ""
        if any(".to_qkv." in name for name in names):
            layout = ", in the older layout with convolutions in place of linear layers"
        raise ValueError(
            f"these are the weights of a nextgen_wxformer{layout}; that model is not "
            f"supported, and model.type {model!r} is another one"
        )
    old = [name for name in names if _OLD_DECODER.match(name) and name not in wanted]
    if old and any(name.startswith("up_block4.") for name in wanted):
        raise ValueError(
            f"{old[0]}: the decoder is made of transposed convolutions, which CREDIT "
            f"removed from {model} (and refuses to load, too): none of its up_block1 "
            "to up_block4 has a counterpart in today's decoder. If the model is a "
            "CREDIT crossformer, whose decoder this is, write model.type: crossformer; "
            "else it has to be trained again"
        )
