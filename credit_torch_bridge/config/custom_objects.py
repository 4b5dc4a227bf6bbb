"""`custom_objects` in conversions of configs: entries of credit_jax, or CREDIT's."""

from __future__ import annotations

from contextlib import suppress

from credit_jax.config import ConfigError
from credit_jax.config.custom_objects import (
    SECTION,
    is_registered,
    offered_objects,
    register_objects,
)
from credit_torch_bridge.config.editor import ConfigEditor


def register_for_jax(editor: ConfigEditor) -> None:
    """Registers the objects; records those that are no entries of credit_jax."""
    try:
        register_objects(editor.config)
    except ConfigError as error:
        editor.problems += error.problems


def leave_objects(editor: ConfigEditor) -> None:
    """Drops entries of credit_jax from a config for CREDIT, whose classes are kept.

    A model goes: CREDIT has its PyTorch class from `custom_models`. Of other entries
    CREDIT has no counterpart.
    """
    with suppress(ConfigError):
        register_objects(editor.config)
    for name in editor.keys(SECTION):
        kind = editor.get((SECTION, name, "object_type"))
        if not is_registered(str(kind), str(name)):
            continue
        if kind == "model":
            why = "credit_jax's; custom_models names files of PyTorch classes"
            editor.drop((SECTION, name), why)
        else:
            text = f"a {kind} of credit_jax, which CREDIT does not have"
            editor.problem((SECTION, name), text)
    for kind, name in offered_objects(editor.config):
        if kind == "model":
            editor.note("model.type", "custom_models names files of PyTorch classes")
        else:
            text = f"a {kind} of an installed package for credit_jax: CREDIT has none"
            editor.problem(name, text)
    if editor.has(SECTION) and not editor.keys(SECTION):
        editor.drop(SECTION, "nothing is left in it")
