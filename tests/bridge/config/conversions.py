"""The engine of the table of conversions, `tests/messages/convert.txt`."""

import copy
from pathlib import Path

from credit_jax.config import apply_overrides
from credit_jax.config.yaml_file import read_yaml
from credit_torch_bridge import convert_config
from credit_torch_bridge.config.editor import dotted, leaves
from tests.support.configs import CONFIGS

FOLDER = Path(__file__).parent / "configs"


def config_of(name, changes=""):
    """A config of this folder or of configs/ with changes: "KEY=VALUE; -KEY"."""
    path = FOLDER / f"{name}.yml"
    config = read_yaml(path if path.exists() else CONFIGS / f"{name}.yaml")
    each = changes.split("; ") if changes else []
    for key in (change[1:] for change in each if change[0] == "-"):
        *parents, last = key.split(".")
        here = config
        for parent in parents:
            here = here[parent]
        del here[last]
    return apply_overrides(config, [change for change in each if change[0] != "-"])


def converted(mapping, to, drop=()):
    """Converts; the result is stable, covers all keys and shares no object."""
    before = copy.deepcopy(mapping)
    out, report = convert_config(mapping, to=to, drop=drop)
    assert repr(mapping) == repr(before)
    again, second = convert_config(out, to=to)
    assert repr(again) == repr(out)
    assert second.unchanged, [str(c) for c in second.changes]
    named = {change.path for change in report.changes if change.kind != "note"}
    after = dict(leaves(out))
    for path, value in leaves(mapping):
        kept, is_empty = path in report.kept, value in (None, {})
        prefixes = {path[:n] for n in range(1, len(path) + 1)}
        assert kept or is_empty or named & prefixes, path
        assert not kept or repr(after[path]) == repr(value)
    return out, report


def lines_of(mapping, to, drop=()):
    """What is said of a conversion, and every value that is another one after it."""
    out, report = converted(mapping, to, drop)
    before, after = (
        {dotted(path): repr(value) for path, value in leaves(each)}
        for each in (mapping, out)
    )
    changed = [key for key in after if before.get(key) != after[key]]
    return [*report.lines(), *(f"{key} = {after[key]}" for key in changed)]


def effect(name, to, changes=None, by=None, drop=None):
    """The lines of a conversion; of a changed config, those that the change makes."""
    configs = [config_of(name, changes or ""), config_of(name)]
    if by:
        configs = [convert_config(config, to="jax")[0] for config in configs]
    lines = lines_of(configs[0], to, (drop,) if drop else ())
    if not changes:
        return lines
    usual = lines_of(configs[1], to)
    return [f"+ {line}" for line in lines if line not in usual] + [
        f"- {line}" for line in usual if line not in lines
    ]
