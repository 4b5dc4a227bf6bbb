"""Applies a key table to the parameter specs of a model.

Every parameter must match exactly one rule of the table, and no PyTorch key may fill
two parameters.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping

from credit_jax.nn.model_state import SPECTRAL_NORM
from credit_jax.parallel.params.spec import ParamSpec
from credit_jax.state_dict.key_map import KeyEntry, KeyMap
from credit_jax.state_dict.key_table import Ignore, KeyTable, Rule
from credit_jax.state_dict.problems import raise_problems


class KeyOrder:
    """Sorts keys like PyTorch: modules in the order of a table, layers by number.

    The parameters of a module come before those of its submodules. Under spectral norm
    PyTorch registers a parameter again, so that `weight_orig` comes after the others,
    followed by the vectors `weight_u` and `weight_v`.

    Args:
        templates: keys of the table, "layers.{s}.0.convs.{i}.1.weight", in order.
    """

    def __init__(self, templates: Iterable[str]) -> None:
        self.ranks: dict[tuple[str, str], int] = {}
        for template in templates:
            for parent, name in _steps(template):
                self.ranks.setdefault((parent, name), len(self.ranks))

    def place(self, key: str) -> list[tuple[bool, int, int]]:
        """The sort key of a PyTorch key."""
        steps = list(_steps(key))
        return [
            (i < len(steps) - 1, *self._rank(parent, name, part))
            for i, ((parent, name), part) in enumerate(
                zip(steps, key.split("."), strict=True)
            )
        ]

    def _rank(self, parent: str, name: str, part: str) -> tuple[int, int]:
        if part.isdigit():
            return 0, int(part)
        for late, suffix in enumerate(("_orig", "_u", "_v"), start=1):
            plain = name.removesuffix(suffix)
            if plain != name and (parent, plain) in self.ranks:
                return late, self.ranks[parent, plain]
        return 0, self.ranks[parent, name]


def _steps(key: str) -> Iterator[tuple[str, str]]:
    """Yields (parent, name) of each part of a key or template, indices as stars."""
    parts = ["*" if re.fullmatch(r"\d+|\{\w+\}", p) else p for p in key.split(".")]
    for i, part in enumerate(parts):
        yield ".".join(parts[:i]), part


def make_key_map(
    table: KeyTable,
    param_specs: Mapping[str, ParamSpec],
    normalized: Collection[str] = (),
) -> KeyMap:
    """Applies a key table to a model.

    Args:
        table: table of the model.
        param_specs: specs of every parameter, by path.
        normalized: paths of the matrices under spectral norm; PyTorch then has
            `weight_orig`, `weight_u` and `weight_v` in place of `weight`.

    Raises:
        ValueError: a parameter matches no rule or several, or one PyTorch key would
            fill two parameters; lists every case.
    """
    rules = [row for row in table if isinstance(row, Rule)]
    by_outline: dict[str, list[Rule]] = {}
    for rule in rules:
        by_outline.setdefault(_outline(rule.ours), []).append(rule)
    entries: list[KeyEntry] = []
    order = KeyOrder(rule.torch for rule in rules)
    problems = []
    for path, param_spec in param_specs.items():
        candidates = by_outline.get(_outline(path), ())
        matches = [(r, at) for r in candidates if (at := r.match(path)) is not None]
        if len(matches) != 1:
            named = ", ".join(rule.ours for rule, _ in matches) or "none"
            problems.append(f"{path}: {len(matches)} rules match ({named}), expected 1")
        elif matches[0][0].is_stacked != param_spec.is_stacked:
            problems.append(
                f"{path}: {matches[0][0].torch} does not match the parameter spec "
                f"whether layers are stacked {param_spec.dims}"
            )
        else:
            entries += _entries(*matches[0], path, param_spec, path in normalized)
    uses = Counter(entry.key for entry in entries)
    problems += [f"{k}: fills {n} arrays, expected 1" for k, n in uses.items() if n > 1]
    raise_problems(problems, "the key table does not fit the architecture")
    ignored = tuple(row for row in table if isinstance(row, Ignore))
    entries.sort(key=lambda entry: order.place(entry.key))
    return KeyMap(tuple(entries), ignored)


def _entries(
    rule: Rule,
    at: dict[str, str],
    path: str,
    param_spec: ParamSpec,
    normalized: bool,
) -> Iterator[KeyEntry]:
    """The PyTorch arrays of one parameter of ours."""
    shape = param_spec.unstack().shape
    arrangement = rule.arrangement
    for layer in range(param_spec.shape[0]) if rule.is_stacked else [None]:
        key = rule.torch.format(**at, d=rule.first + (layer or 0))
        if not normalized:
            yield KeyEntry(key, path, arrangement, shape, layer)
            continue
        yield KeyEntry(f"{key}_orig", path, arrangement, shape, layer)
        sizes = dict(zip(arrangement.letters, shape, strict=True))
        for leaf, vector in zip(("u", "v"), arrangement.vectors(), strict=True):
            dims = tuple(sizes[letter] for letter in vector.letters)
            yield KeyEntry(
                f"{key}_{leaf}", path, vector, dims, layer, SPECTRAL_NORM, leaf
            )


def _outline(template: str) -> str:
    """A template or path with indices replaced; equal if both may match."""
    return re.sub(r"(?:\{\w+\}|\d)+", "#", template)
